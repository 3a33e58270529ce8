"""`batches_of`: the rows of a pipeline as columns, in whole batches, without a copy of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..base.errors import PipelineError
from ..pipeline.pipeline import Pipeline
from ..schema.field import Unischema

_BATCH_BYTES, _MOST_BATCH_ROWS = 8 << 20, 4096


def pipeline_of(rows: object) -> Pipeline[Any] | None:
    """Returns the pipeline that rows are, or that a framework's dataset wraps; ``None`` if they are something else."""
    pipeline = rows if isinstance(rows, Pipeline) else getattr(rows, "pipeline", None)
    return pipeline if isinstance(pipeline, Pipeline) else None


def batches_of(pipeline: Pipeline[Any], schema: Unischema) -> tuple[Iterator[Mapping[str, Any]], int | None]:
    """Returns the columns of all rows in batches, and the number of rows if it is known.

    Times are delivered as numpy times, where the schema has times.

    Raises:
        PipelineError: the rows are no dicts, or never end.
    """
    element = pipeline.element
    if element.form is not None or any(len(output.path) > 1 for output in element.outputs):
        what = "windows with fields at offsets" if element.form is None else "the tuples of as_tuple()"
        raise PipelineError(f"write_dataset: expected a pipeline of rows with one value for each field, got {what}.")
    if pipeline.plan().length is None:
        raise PipelineError(
            "write_dataset: expected a pipeline that ends, got one that repeats forever. Leave repeat() out."
        )
    for output in element.outputs:
        field = schema.fields.get(output.name)
        kind = getattr(None if field is None else field.dtype, "kind", "")
        if output.time is not None and not output.as_time and kind in ("m", "M"):
            pipeline = pipeline.cast(output.time, output.name)
    if element.batched:
        return iter(pipeline), None
    rows: int | None = None
    with suppress(TypeError):  # a function drops rows
        rows = len(pipeline)
    if not pipeline.accepts("batch"):
        return ({name: [value] for name, value in row.items()} for row in pipeline), rows
    size = _BATCH_BYTES // pipeline.plan().row_bytes
    return iter(pipeline.batch(min(max(size, 1), _MOST_BATCH_ROWS))), rows
