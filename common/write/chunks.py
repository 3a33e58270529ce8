"""Makes pieces of the caller's rows, columns or pipeline: large enough to encode quickly, and small enough to hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from sys import getsizeof
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import PipelineError
from ..pipeline.pipeline import Pipeline
from ..schema.field import Unischema, UnischemaField

CHUNK_BYTES = 8 << 20
WAITING_ROWS = 4096  # copies of rows, which take several times the memory of columns
WHOLE_CHUNK_ROWS = 16_384  # of rows and columns that are given whole, which need no buffer
_BATCH_BYTES, _MOST_BATCH_ROWS = 8 << 20, 4096
_NUMBERS = frozenset({int, float, bool, type(None), *(np.dtype(code).type for code in "?bhilqBHILQefd")})
_IMMUTABLE = _NUMBERS | {str, bytes, np.str_, np.bytes_}


class RowBuffer:
    """Copies of rows that wait to be encoded together.

    Attributes:
        rows: the copies. Whatever is no mapping is among them as it is, for the encoder to refuse.
        size_bytes: the approximate size of their values.
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.size_bytes = 0

    def fill(self, rows: Iterable[Any]) -> bool:
        """Copies rows until it is full, and returns whether it is.

        Mutable values are copied, too, because the caller may reuse its arrays.
        """
        for row in rows:
            if type(row) is not dict and not isinstance(row, Mapping):
                self.rows.append(row)
                return True
            values = row.values()
            if _NUMBERS.issuperset(map(type, values)):
                self.rows.append(dict(row))
                self.size_bytes += 8 * len(row)
            elif _IMMUTABLE.issuperset(map(type, values)):
                self.rows.append(dict(row))
                self.size_bytes += sum(map(getsizeof, values))
            else:
                self.rows.append({name: _owned(value) for name, value in row.items()})
                self.size_bytes += sum(map(_raw_bytes, values))
            if len(self.rows) >= WAITING_ROWS or self.size_bytes >= CHUNK_BYTES:
                return True
        return False

    def take(self) -> list[Any]:
        """Removes all rows and returns them."""
        rows, self.rows, self.size_bytes = self.rows, [], 0
        return rows


def _owned(value: object) -> Any:
    if type(value) in _IMMUTABLE or isinstance(value, np.generic | str | bytes | int | float):
        return value
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, list | tuple):
        return list(value) if _IMMUTABLE.issuperset(map(type, value)) else [_owned(item) for item in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not hasattr(value, "__array__"):
        return value
    try:
        return np.array(value)
    except (RuntimeError, TypeError):  # a tensor with gradients, or of a dtype that numpy lacks
        return value  # the encoder's error names its row and field


def _raw_bytes(value: object) -> int:
    """The approximate size of a value in bytes, good enough to limit the buffer."""
    if type(value) in _NUMBERS:
        return 8
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, list | tuple):
        return 8 * len(value) if _NUMBERS.issuperset(map(type, value)) else sum(map(_raw_bytes, value))
    return int(getattr(value, "nbytes", 8))


def column_chunks(schema: Unischema, columns: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yields the columns in pieces of at most `WHOLE_CHUNK_ROWS` rows and about `CHUNK_BYTES` bytes."""
    sliceable = {name: _sliceable(column) for name, column in columns.items()}
    for start in range(0, count, WHOLE_CHUNK_ROWS):
        chunk = {name: _part(column, start, start + WHOLE_CHUNK_ROWS) for name, column in sliceable.items()}
        ends = np.cumsum(sum(_row_bytes(schema[name], column) for name, column in chunk.items()))
        first = done = 0
        while first < len(ends):
            stop = max(first + 1, int(np.searchsorted(ends, done + CHUNK_BYTES, side="right")))
            yield {name: _part(column, first, stop) for name, column in chunk.items()}
            first, done = stop, int(ends[stop - 1])


def _part(column: Any, first: int, stop: int) -> Any:
    """Returns a slice; the column itself if that is all of it, because a slice of a list is a copy."""
    return column if first == 0 and stop >= len(column) else column[first:stop]


def _sliceable(column: Any) -> Any:
    if isinstance(column, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray):
        return column
    dtype = getattr(column, "dtype", None)
    is_series = isinstance(dtype, np.dtype) and dtype.kind in "biuf" and hasattr(column, "to_numpy")  # of pandas
    return column.to_numpy() if is_series else list(column)


def _row_bytes(field: UnischemaField, column: Any) -> np.ndarray:
    if field.shape == () and isinstance(field.dtype, np.dtype) and field.dtype.kind in "biufmM":
        return np.full(len(column), 8, dtype=np.int64)
    if isinstance(column, list | tuple) or (isinstance(column, np.ndarray) and column.dtype.hasobject):
        types = set(map(type, column))
        size = len if types <= {str, bytes} else attrgetter("nbytes") if types == {np.ndarray} else _raw_bytes
        return np.fromiter(map(size, column), dtype=np.int64, count=len(column))
    return np.full(len(column), column.nbytes // max(1, len(column)), dtype=np.int64)


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
