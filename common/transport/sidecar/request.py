"""The OPEN request, which every front end sends to a sidecar in the same form."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.errors import PipelineError, SchemaError
from ...plan.program import ElementProgram, MixedProgram
from ...schema.element import Element
from .runners import needs_workers


def open_request(
    pipeline: Mapping[str, Any],
    versions: Sequence[str],
    program: ElementProgram | MixedProgram,
    threads: int,
    element: Element | None = None,
) -> str:
    """Returns the request as JSON.

    With ``element``, the sidecar checks that the pipeline still returns these fields, because its URLs may change.

    ``start_workers`` lets the sidecar start its workers before planning, because the pipeline's description already
    says whether they are needed. ``versions`` bind the sidecar to the files that were found here. A sidecar that has
    opened other versions is not reused for this request.

    Args:
        pipeline: the pipeline as JSON.
        versions: the versions of the datasets that it reads.
        program: the program of that pipeline, which says whether nulls are errors.
        threads: the number of steps that are decoded at once.

    Raises:
        PipelineError: as `request_text`.
    """
    return request_text(
        {
            "pipeline": pipeline,
            "versions": list(versions),
            "sys_path": sys.path,
            "strict_nulls": program.strict_nulls,
            "start_workers": threads if needs_workers(program, threads) else 0,
            **({} if element is None else {"outputs": _described(element)}),
        }
    )


def request_text(request: Mapping[str, Any]) -> str:
    """Returns a request to another process as JSON.

    Raises:
        PipelineError: ``storage_options``, which are passed on as they are, hold something that JSON cannot hold.
    """
    try:
        return json.dumps(request)
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"storage_options: expected what JSON can hold, because it travels to another process, got: {error}. Pass "
            "filesystem= with a file system that has these options, or use executor='threads'."
        ) from error


def may_share_process(request: str) -> bool:
    """Returns whether a sidecar may open this request and others, one after the other.

    That needs a request without user functions, which may change what is imported, and without workers, which are
    forked from a process that has not read anything yet.
    """
    return '"start_workers": 0' in request and '"pickle"' not in request


def requested_versions(request: Mapping[str, Any]) -> list[str] | None:
    """Returns the versions of the files that the client found, or ``None`` if it did not list them."""
    return None if "urls" in request else request.get("versions")


def check_outputs(request: Mapping[str, Any], element: Element) -> None:
    """Checks that a pipeline returns the fields that its client expects.

    Raises:
        SchemaError: a field is missing, new, or has another dtype or shape.
    """
    promised, outputs = request.get("outputs"), _described(element)
    if promised is None or list(promised.items()) == list(outputs.items()):
        return
    for name in [*promised, *outputs]:
        if promised.get(name) != outputs.get(name):
            raise SchemaError(
                f"field '{name}': expected {_shown(promised.get(name))}, as in the dataset given as like=, got "
                f"{_shown(outputs.get(name))}. Select the fields that all datasets share, or cast them."
            )
    raise SchemaError(
        f"fields: expected the order {list(promised)}, as in the dataset given as like=, got {list(outputs)}."
    )


def _described(element: Element) -> dict[str, Any]:
    return {
        output.name: [
            output.dtype.name if output.kind == "dense" else output.kind,
            list(output.element_shape),
            output.padded,
            *([output.levels] if output.levels else []),
        ]
        for output in element.outputs
    }


def _shown(described: Sequence[Any] | None) -> str:
    return "no such field" if described is None else f"{described[0]} of shape {tuple(described[1])}"
