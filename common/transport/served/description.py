"""An `Element` as JSON and back: what a stream's schema says about its fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...schema.element import Element, OutputField


def element_to_json(element: Element) -> dict[str, Any]:
    """The element as a JSON object."""
    return {
        "batch_size": element.batch_size,
        "static_batch": element.static_batch,
        "fields": [
            {
                "path": list(output.path),
                "kind": output.kind,
                "dtype": output.dtype.str if output.kind == "dense" else "object",
                "shape": list(output.shape),
                "window": output.window,
                "nullable": output.nullable,
                "dims": None if output.dims is None else list(output.dims),
                "padded": output.padded,
            }
            for output in element.outputs
        ],
    }


def element_from_json(value: dict[str, Any]) -> Element:
    """The inverse of `element_to_json`."""
    outputs = tuple(
        OutputField(
            path=tuple(field["path"]),
            kind=field["kind"],
            dtype=np.dtype(field["dtype"]),
            shape=tuple(field["shape"]),
            window=field["window"],
            nullable=field["nullable"],
            dims=None if field["dims"] is None else tuple(field["dims"]),
            padded=field["padded"],
        )
        for field in value["fields"]
    )
    return Element(outputs=outputs, batch_size=value["batch_size"], static_batch=value["static_batch"])
