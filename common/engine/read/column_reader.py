"""`ColumnReader`: the one interface of everything that reads columns of a row group.

A `ReadRequest` goes in, and the columns that a reader can read come out. `ReaderChain` tries several readers in order:
each reads what those before it have left. A `ReadContext` says what holds for all requests of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow
from ...base.process.dataclass import dataclass
from ...dataset.store_reads import RowGroupRun
from ...parquet.nested import take_rows
from .block_layout import ItemOrder, StackedColumns
from .file_cells import Part


class TableCache(Protocol):
    """A store of fetched row groups; see `disk_cache` and `shared_tables`."""

    def get(self, key: str) -> pa.Table | None:
        """Returns the table stored under the key, or ``None`` if there is none or it is damaged."""

    def claim(self, key: str, size_bytes: int = 0) -> AbstractContextManager[bool]:
        """Claims a missing table while the block runs. Yields whether another reader had claimed it until now."""

    def put(self, key: str, table: pa.Table) -> None:
        """Stores a table under the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Columns of one row group to read.

    Attributes:
        rows: the wanted rows, ascending; ``None`` = all.
        done: the fields that have been read, with their values.
        order: the order that numbers are put in, if that costs nothing; ``None`` = as stored.
        room_bytes: the memory for the columns; ``None`` = no limit.
        run: the row groups that are fetched from a store in the same requests; ``None`` = each by itself.
    """

    row_group: int
    rows: np.ndarray | None = None
    done: Mapping[str, Part] = field(default_factory=dict)
    order: ItemOrder | None = None
    room_bytes: int | None = None
    run: RowGroupRun | None = None


class ReadResult(NamedTuple):
    """What a reader read.

    Attributes:
        values: by field name.
        num_bytes: about how much of the room they take.
        stacked: the memory of the numbers that are in the order of items.
        unread_bytes: what did not have to be read from storage, because somebody kept it, or has no wanted rows.
    """

    values: Mapping[str, Part]
    num_bytes: int = 0
    stacked: Sequence[StackedColumns] = ()
    unread_bytes: float = 0


NOTHING = ReadResult({})
RowsT = TypeVar("RowsT", np.ndarray, pa.Array, pa.ChunkedArray, pa.Table)


def some_rows(values: RowsT, rows: np.ndarray | None) -> RowsT:
    """Returns the given rows (ascending; ``None`` = all) of an array or a table, without a copy if they are a slice."""
    if rows is None:
        return values
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return values[int(rows[0]) : int(rows[-1]) + 1]
    if isinstance(values, np.ndarray):
        return np.asarray(values[rows])
    return take_rows(values, as_arrow(rows)) if isinstance(values, pa.Table) else values.take(as_arrow(rows))


class ColumnReader(Protocol):
    """Reads columns of a dataset. Thread-safe."""

    def read(self, request: ReadRequest) -> ReadResult:
        """Returns the columns that it can read. Those that are missing from the result are left to other readers."""


class ReaderChain:
    """Readers that are tried in order, until all fields are read.

    Args:
        count: the number of fields.
    """

    def __init__(self, readers: Sequence[ColumnReader], count: int) -> None:
        self._readers = readers
        self._count = count

    def read(self, request: ReadRequest) -> ReadResult:
        """As `ColumnReader`. The result has what was done before, too."""
        values = dict(request.done)
        total = ReadResult(values)
        for reader in self._readers:
            columns = reader.read(request)
            if not columns.values:
                continue
            values.update(columns.values)
            total = ReadResult(
                values,
                total.num_bytes + columns.num_bytes,
                columns.stacked or total.stacked,
                total.unread_bytes + columns.unread_bytes,
            )
            if len(values) == self._count:
                break
            room_bytes = None if request.room_bytes is None else request.room_bytes - columns.num_bytes
            request = replace(request, done=values, room_bytes=room_bytes)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """How a process reads the columns of a dataset.

    The dataset itself says how pages are verified, and how large a value may be.

    Attributes:
        room_bytes: the memory for the columns of a row group; ``None`` = no limit.
        cache: stores fetched row groups; ``None`` for no cache.
        shared: row groups shared with processes that read the same ones at the same time; ``None`` without any.
        share: the approximate share of a block that this process uses.
        shared_by_workers: whether other processes use most rows of a block.
        shares_rows: whether several items need the same row.
        casts: fields that are cast from the type of each file; see `Plan.casts`.
        stored_bytes: returns the stored size of a row group's columns, for the counters.
    """

    room_bytes: int | None = None
    cache: TableCache | None = None
    shared: TableCache | None = None
    share: float = 1.0
    shared_by_workers: bool = False
    shares_rows: bool = False
    casts: Container[str] = ()
    stored_bytes: Callable[[int], int] = lambda row_group: 0


ALONE = ReadContext()
"""Of a process that reads for itself, whatever memory that takes."""
