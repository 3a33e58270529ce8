"""`write_pipeline` writes the rows of a pipeline: whole batches of columns, without a copy of each row."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..base.errors import PipelineError
from ..pipeline.pipeline import Pipeline
from ..schema.element import Element
from ..schema.field import Unischema

if TYPE_CHECKING:
    from .writer import DatasetWriter

_BATCH_BYTES, _MOST_BATCH_ROWS = 8 << 20, 4096


def pipeline_of(rows: object) -> Pipeline[Any] | None:
    """Returns the pipeline that rows are, or that a framework's dataset wraps; ``None`` if they are something else."""
    pipeline = rows if isinstance(rows, Pipeline) else getattr(rows, "pipeline", None)
    return pipeline if isinstance(pipeline, Pipeline) else None


def write_pipeline(writer: DatasetWriter, pipeline: Pipeline[Any]) -> None:
    """Writes all rows of a pipeline, or of its batches.

    Raises:
        PipelineError: its rows are no dicts, or never end.
        EncodeError: a value does not fit its field.
    """
    element = pipeline.element
    if element.form is not None or any(len(output.path) > 1 for output in element.outputs):
        what = "windows with fields at offsets" if element.form is None else "the tuples of as_tuple()"
        raise PipelineError(f"write_dataset: expected a pipeline of rows with one value for each field, got {what}.")
    if pipeline.plan().length is None:
        raise PipelineError(
            "write_dataset: expected a pipeline that ends, got one that repeats forever. Leave repeat() out."
        )
    pipeline = _with_times(pipeline, element, writer.schema)
    if not element.batched:
        with suppress(TypeError):  # a function drops rows
            writer.expect_rows(len(pipeline))
        if pipeline.accepts("batch"):
            row_bytes = pipeline.plan().row_bytes
            pipeline = pipeline.batch(min(max(_BATCH_BYTES // row_bytes, 1), _MOST_BATCH_ROWS))
    if not pipeline.element.batched:
        writer.write_rows(pipeline)
        return
    for batch in pipeline:
        writer.write_columns(batch)


def _with_times(pipeline: Pipeline[Any], element: Element, schema: Unischema) -> Pipeline[Any]:
    """Returns the pipeline with its times as numpy times, where the schema has times."""
    for output in element.outputs:
        field = schema.fields.get(output.name)
        kind = getattr(None if field is None else field.dtype, "kind", "")
        if output.time is not None and not output.as_time and kind in ("m", "M"):
            pipeline = pipeline.cast(output.time, output.name)
    return pipeline
