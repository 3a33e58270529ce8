"""`preview` reads a few elements of a pipeline, to show them to people.

The result is a `Preview`: the fields with dtype and shape, and the values, which `to_json` shortens.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from ...base.errors import PipelineError
from ...base.process.dataclass import dataclass
from ...pipeline.display.text import leaves
from ...pipeline.notebook import showing_nulls, with_lists_as_stored
from ...pipeline.pipeline import Pipeline
from ...schema.field import Shape
from ...schema.ragged import RaggedArray
from .values import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewField:
    """One leaf of the element: its name (``"1.speed"`` in windows), dtype, and shape (``None`` = variable size).

    ``unit`` is the numpy dtype of times that are delivered as numbers, such as ``"datetime64[us]"``.
    """

    name: str
    dtype: str
    shape: Shape
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A few elements of a pipeline.

    Attributes:
        length: the number of elements in the pipeline; ``None`` if it is endless or cannot be known.
        elements: the values of each element, by field name.
    """

    fields: tuple[PreviewField, ...]
    length: int | None
    elements: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Converts the preview to JSON. Long arrays become their dtype, shape and bounds."""
        rows = [{name: shortened(value) for name, value in row.items()} for row in self.elements]
        return {"fields": to_json(self.fields), "length": self.length, "rows": rows}


def preview(
    pipeline: Pipeline, count: int = 5, *, first: int = 0, sample: bool = False, seed: int | None = None
) -> Preview:
    """Reads a few elements of epoch 0: those from index ``first`` on, or a random ``sample``.

    >>> preview(Pipeline("data/train"), 3).elements[0]["speed"]  # doctest: +SKIP
    0.5

    Raises:
        PipelineError: a number is below 0, or the pipeline cannot be sampled because its elements have no numbers.
    """
    if count < 0 or first < 0:
        raise PipelineError(f"preview: expected numbers >= 0, got {count} elements from {first} on.")
    pipeline = with_lists_as_stored(pipeline)
    plan = pipeline.plan()
    element = plan.element

    def read(shown: Pipeline) -> list[Any]:
        if plan.length == 0:
            return []
        if sample:
            return shown.sample(count if plan.length is None else min(count, plan.length), seed)
        if not plan.numbered:
            return list(islice(shown, first, first + count))
        return shown.at_epoch(0)[first : first + count]

    elements = showing_nulls(pipeline, read)
    fields = tuple(
        PreviewField(
            name=output.name,
            dtype=str(output.numpy_dtype) if output.kind == "dense" else output.kind,
            shape=output.element_shape,
            unit=output.time,
        )
        for output in element.outputs
    )
    return Preview(
        fields=fields,
        length=None if plan.program.drops or plan.skips else plan.length,
        elements=tuple(leaves(element, each) for each in elements),
    )


def shortened(value: object) -> Any:
    """Converts a value to JSON. Arrays over 64 values become dtype, shape and bounds; long bytes become their size."""
    if isinstance(value, bytes) and len(value) > 256:
        return {"bytes": len(value)}
    if isinstance(value, RaggedArray) and value.values.size > 64:
        return {"dtype": str(value.dtype), "ragged": len(value)}
    if isinstance(value, np.ndarray) and value.size > 64:
        described: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
        if value.dtype.kind in "biuf":
            described |= {"min": to_json(value.min()), "max": to_json(value.max())}
        return described
    return to_json(value)
