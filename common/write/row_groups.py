"""Cuts a stream of encoded rows into row groups.

It takes batches and returns tables of one row group each. The cuts depend only on the rows, never on how they were
batched.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.errors import PipelineError
from ..base.memory.arrow_views import as_numpy, is_list, is_text
from ..base.process.dataclass import dataclass
from ..schema.plain import integer, plain
from ..schema.ragged import ends_of

DEFAULT_ROW_GROUP_ROWS = 65_536
DEFAULT_ROW_GROUP_BYTES = 32 << 20
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupLimit:
    """When a row group is full: at ``rows`` rows, or with the row that brings its encoded size to ``size_bytes``.

    ``None`` means no limit. The encoded size is that of the Arrow values, before Parquet's encoding and compression.
    """

    rows: int | None
    size_bytes: int | None

    @classmethod
    def of(cls, *, rows: int | None, size_bytes: int | None) -> RowGroupLimit:
        """Creates the user's limits. The default is 32 MiB or 65,536 rows, whichever comes first.

        Raises:
            PipelineError: a limit is less than 1, or not an integer.
        """
        for name, value in (("row_group_rows", rows), ("row_group_bytes", size_bytes)):
            if value is not None and integer(value, least=1) is None:
                raise PipelineError(f"{name}: expected an integer >= 1 or None, got {value!r}.")
        if rows is None and size_bytes is None:
            return cls(rows=DEFAULT_ROW_GROUP_ROWS, size_bytes=DEFAULT_ROW_GROUP_BYTES)
        return cls(rows=plain(rows), size_bytes=plain(size_bytes))


class RowGroupBuffer:
    """Collects rows until they fill a row group. Not thread-safe.

    Attributes:
        rows: the number of buffered rows.
        size_bytes: the encoded size of the buffered rows.
    """

    def __init__(self, limit: RowGroupLimit) -> None:
        self._limit = limit
        self._pieces: list[tuple[pa.Table, int]] = []
        self.rows = 0
        self.size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> list[pa.Table]:
        """Buffers rows, and returns the row groups that became full, in order."""
        full = []
        sizes = value_bytes(batch)
        ends = np.cumsum(sizes)
        start = 0
        while start < batch.num_rows:
            done = int(ends[start - 1]) if start else 0
            count, is_full = self._room(ends[start:] - done)
            self._append(batch.slice(start, count), int(ends[start + count - 1]) - done)
            start += count
            if is_full:
                full.append(self.take())
        return full

    def take(self) -> pa.Table:
        """Removes all buffered rows and returns them as one row group. There must be at least one."""
        table = pa.concat_tables([piece for piece, _ in self._pieces])
        self._pieces = []
        self.rows = self.size_bytes = 0
        return table

    def _room(self, ends: np.ndarray) -> tuple[int, bool]:
        """How many of the next rows belong to this row group, and whether they fill it.

        ``ends`` is the cumulative encoded size of the rows.
        """
        count = len(ends)
        is_full = False
        if self._limit.rows is not None and self._limit.rows - self.rows <= count:
            count, is_full = self._limit.rows - self.rows, True
        if self._limit.size_bytes is not None:
            reaching = int(np.searchsorted(ends, self._limit.size_bytes - self.size_bytes)) + 1
            if reaching <= count:
                count, is_full = reaching, True
        return count, is_full

    def _append(self, batch: pa.RecordBatch, size_bytes: int) -> None:
        piece = pa.Table.from_batches([batch])
        self.rows += batch.num_rows
        self.size_bytes += size_bytes
        # Many partitions produce slivers of a few rows each, and every Arrow array costs some hundred bytes. Slivers
        # are joined pairwise, like the digits of a binary counter, so that each row is copied only a few times.
        while self._pieces and self._pieces[-1][1] <= size_bytes and self._pieces[-1][1] + size_bytes <= _SMALL_BYTES:
            previous, previous_bytes = self._pieces.pop()
            piece = pa.concat_tables([previous, piece]).combine_chunks()
            size_bytes += previous_bytes
        self._pieces.append((piece, size_bytes))


def value_bytes(values: pa.RecordBatch | pa.Array) -> np.ndarray:
    """The encoded size of each row (or value) in bytes, int64 ``(rows,)``."""
    if isinstance(values, pa.RecordBatch):
        fixed_bytes = [_fixed_bytes(column.type) for column in values.columns]
        sizes = np.full(values.num_rows, sum(fixed_bytes), dtype=np.int64)
        return sum(
            (value_bytes(each) for each, size in zip(values.columns, fixed_bytes, strict=True) if not size), sizes
        )
    arrow = values.type
    if pa.types.is_dictionary(arrow):
        return value_bytes(values.dictionary_decode())
    if is_list(arrow):
        inner = ends_of(value_bytes(values.flatten()))  # flatten() leaves nulls out
        ends = np.cumsum(_lengths(pc.list_value_length(values)))
        return np.diff(inner[ends], prepend=0)
    if arrow == pa.string_view() or arrow == pa.binary_view():
        return value_bytes(values.cast(pa.large_binary() if arrow == pa.binary_view() else pa.large_string()))
    if is_text(arrow) or pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
        return _lengths(pc.binary_length(values))
    return np.full(len(values), _fixed_bytes(arrow), dtype=np.int64)


def _fixed_bytes(arrow: pa.DataType) -> int:
    """The encoded size of every value of a type whose values have one size, otherwise 0."""
    fixed = pa.types.is_primitive(arrow) or pa.types.is_decimal(arrow) or pa.types.is_fixed_size_binary(arrow)
    return max(1, arrow.bit_width // 8) if fixed else 0


def _lengths(lengths: pa.Array) -> np.ndarray:
    result: np.ndarray = as_numpy(lengths.fill_null(0)).astype(np.int64)
    return result
