"""`ParquetrySource`: reads a pipeline as a Ray dataset, to preprocess on more than one machine.

Each read task produces a run of consecutive rows. Together, the tasks produce each row of the
pipeline once, and Ray's ``preserve_order`` keeps the pipeline's order. A task skips to its first
row in the plan and does not read the rows before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...base.errors import PipelineError
from ...engine.columns.arrow_columns import to_arrow
from ...engine.columns.batch import Column, Dense, Ragged, by_output, to_numpy
from ...pipeline import Pipeline
from ...pipeline.constructors import Constructors
from ...pipeline.step_iterator import StepIterator
from ...schema.element import OutputField

if TYPE_CHECKING:
    from ray.data import ReadTask
    from ray.data.block import BlockMetadata

try:
    from ray.data import Datasource
except ModuleNotFoundError:  # `parquetry.common.compat.ray_data` reports what to install
    Datasource = object

_BLOCK_BYTES = 16 << 20
_MOST_ROWS = 4096


class ParquetrySource(Datasource):
    """Makes a pipeline's rows available to ``ray.data.read_datasource``.

        >>> images = Pipeline("s3://bucket/frames", ["image", "label"]).where(field("speed") > 3)
        >>> rows = ray.data.read_datasource(ParquetrySource(images))
        >>> rows.map_batches(Embedder, concurrency=4, num_gpus=1).write_parquet("s3://bucket/embedded")

    You get every row of the pipeline once. If you need the rows in order, set
    ``ray.data.DataContext.get_current().execution_options.preserve_order = True``. If the pipeline
    makes batches, they are split into rows again, because Ray makes its own batches.

    Scalars and text become plain Arrow columns, with nulls where values are null. Arrays of one
    shape become Ray tensors. Arrays whose shapes vary become lists (one axis) or Ray's
    variable-shaped tensors. Arrays that may be null become lists. In windows, the fields of a step
    are named by its offset: ``"0/image"``.

    Args:
        pipeline: a `Pipeline`, or a dataset, pipe or node that has one. It must be finite.
        epoch: which epoch of the shuffle to read, from 0. Each time you run the Ray dataset, it
            reads this epoch again, in the same order.

    Raises:
        PipelineError: the pipeline repeats forever, or a server produces its elements.
    """

    def __init__(self, pipeline: Pipeline[Any] | Constructors, *, epoch: int = 0) -> None:
        super().__init__()
        made: Any = getattr(pipeline, "pipeline", pipeline)
        if made.source.served:
            raise PipelineError(
                "ParquetrySource: expected a pipeline that reads a dataset directly, "
                "got one that reads its elements from a server."
            )
        if made.options.workers is None:  # Ray gives each task one CPU
            made = made.with_options(workers=1)
        plan = made.plan()
        if plan.length is None:
            raise PipelineError("ParquetrySource: the pipeline repeats forever. Give repeat() a count, or use take().")
        self._pipeline = made
        self._versions = made.versions
        self._epoch = epoch
        self._row_bytes = plan.row_bytes
        self._most_tasks = sum(len(part.dataset.row_groups.rows) for part in plan.parts)
        try:
            self._elements: int | None = len(made)
        except TypeError:  # some rows may fail or be dropped by a function, known only on reading
            self._elements = None

    def get_name(self) -> str:
        """Returns the name that Ray shows in its plans."""
        return "Parquetry"

    def estimate_inmemory_data_size(self) -> int | None:
        """Returns the approximate size of all rows in bytes.

        Returns ``None`` if the number of rows is unknown.
        """
        return None if self._elements is None else self._elements * self._rows_each * self._row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Returns the read tasks, at most one for each row group of the pipeline.

        There is one task if the pipeline's length is unknown.
        """
        from ray.data import ReadTask

        if self._elements is None:
            tasks: list[tuple[int, int | None]] = [(0, None)]
        else:
            count = max(1, min(parallelism, self._elements, self._most_tasks))
            ends = [self._elements * number // count for number in range(count + 1)]
            tasks = [(first, end - first) for first, end in pairwise(ends)]
        rows = max(1, min(_BLOCK_BYTES // self._row_bytes, _MOST_ROWS))
        return [
            ReadTask(
                partial(_blocks, self._pipeline, self._versions, self._epoch, first, elements, rows),
                self._metadata(elements),
                per_task_row_limit=per_task_row_limit,
            )
            for first, elements in tasks
        ]

    @property
    def _rows_each(self) -> int:
        """The number of rows in an element."""
        return self._pipeline.element.batch_size or 1

    def _metadata(self, elements: int | None) -> BlockMetadata:
        from ray.data.block import BlockMetadata

        rows = None if elements is None or self._pipeline.element.batched else elements
        size = None if elements is None else elements * self._rows_each * self._row_bytes
        return BlockMetadata(num_rows=rows, size_bytes=size, input_files=None, exec_stats=None)


def _blocks(
    pipeline: Pipeline[Any], versions: Sequence[str], epoch: int, first: int, elements: int | None, rows: int
) -> Iterator[pa.Table]:
    """Reads the elements of one task, in blocks."""
    pipeline.require_versions(versions)  # the rows of a task were counted in the dataset as the driver saw it
    part = pipeline if elements is None else pipeline.skip(first).take(elements)
    if not part.element.batched:
        part = part.batch(rows)
    steps = StepIterator(part, epoch, strict_nulls=False)
    for _, columns in steps:
        yield _block(part, columns)


def _block(pipeline: Pipeline[Any], columns: Sequence[Column]) -> pa.Table:
    pairs = by_output(pipeline.element, columns)
    return pa.table({"/".join(map(str, output.path)): _array(output, column) for output, column in pairs})


def _array(output: OutputField, column: Column) -> pa.Array:
    """Converts a column to Arrow.

    The Arrow type depends only on the field, never on the values, because Ray concatenates blocks.
    """
    from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

    if output.kind == "dense" and not output.nullable and not output.levels:
        if isinstance(column, Dense) and column.values.ndim > 1:
            return ArrowTensorArray.from_numpy(column.values)
        if isinstance(column, Ragged) and output.window is None and len(output.shape) > 1:
            return ArrowVariableShapedTensorArray.from_numpy(list(to_numpy(column, text=False)))
    return to_arrow(output, column)
