"""`LargeReader`: reads blocks that do not fit into memory, in slices, into temporary files that it maps.

It takes row groups and their wanted rows, and returns the fields of all of them. Their memory belongs to files, so the
system can drop it and read it again.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from ...base.metrics.counters import Reading
from ...base.platform.files import forget
from ...base.process.dataclass import dataclass
from ...base.process.forks import reading
from ...base.progress import check_cancelled
from ...dataset.dataset import StoredDataset
from ...parquet.nested import variable
from ...plan.selection.rows import RowNumbers, rows_between
from ...plan.selection.statistics import decoded_bytes
from ...schema.field import UnischemaField
from .arrow_reader import ArrowReader
from .cell_reader import CellReader
from .column_reader import some_rows
from .file_cells import FileCells, Part, RowGroupColumns, check_length
from .growing import GrowingArray

_FIELD_BYTES = 12 << 20  # what an open column takes: a page, its values, a dictionary, and what Arrow's pool adds
_FEW_AT_ONCE = 8  # fields that are read together, with one to four open files each
_FILES_PER_FIELD = 16  # of the limit on open files; more than it takes, as others open files too
_BYTES_AT_ONCE = 4 << 20
_MOST_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class LargeColumns:
    """The fields of a large block.

    Attributes:
        parts: for each field, the values of all rows: one array in temporary files, or the values of each row group in
            the dataset's files.
        maps: the temporary files, mapped.
    """

    parts: tuple[tuple[Part, ...], ...]
    maps: tuple[pa.Buffer, ...]

    def check(self, rows: int, place: str) -> None:
        """Raises `DatasetError` unless each field has ``rows`` values."""
        for number, parts in enumerate(self.parts):
            check_length(number, sum(map(len, parts)), rows, place)

    def forget(self) -> None:
        """Drops the used pages from this process's memory. The next use maps them again."""
        for each in self.maps:
            forget(each)

    @property
    def of_row_group(self) -> RowGroupColumns:
        """The columns of a block that is one row group."""
        return RowGroupColumns(tuple(part for (part,) in self.parts))


BlockColumns: TypeAlias = Sequence[RowGroupColumns] | LargeColumns
"""The fields of a block: those of each row group, or those of a large block."""


class LargeReader:
    """Reads large blocks of one dataset. Thread-safe.

    Args:
        cells: locates values that can stay in the dataset's files.
        arrow: reads the others in slices.
        room_bytes: the memory for reading. A very small limit may be exceeded.
    """

    def __init__(
        self,
        dataset: StoredDataset,
        fields: Sequence[UnischemaField],
        cells: CellReader,
        arrow: ArrowReader,
        room_bytes: int,
    ) -> None:
        self._dataset = dataset
        self._fields = fields
        self._cells = cells
        self._arrow = arrow
        self._room_bytes = room_bytes

    def read(self, row_groups: Sequence[int], rows: Sequence[RowNumbers]) -> LargeColumns:
        """Reads the fields of the given rows (ascending) of the given row groups.

        Raises:
            DatasetError, DecodeError, SchemaError: as `Fetcher.fetch`.
            NoRoomError: the disk is full.
            NotImplementedError: values of a field cannot be kept in temporary files.
        """
        columns: dict[str, tuple[Part, ...]] = dict(self._in_files(row_groups, rows))
        maps: list[pa.Buffer] = []
        others = [field for field in self._fields if field.name not in columns]
        at_once = self._at_once(row_groups, [field.name for field in others])
        for first in range(0, len(others), at_once):
            fields = others[first : first + at_once]
            grown = self._grown(partial(self._slices, row_groups, rows, fields), len(fields))
            for field, (array, mapped) in zip(fields, grown, strict=True):
                columns[field.name] = (array,)
                maps += mapped
        return LargeColumns(tuple(columns[field.name] for field in self._fields), tuple(maps))

    def _at_once(self, row_groups: Sequence[int], names: Sequence[str]) -> int:
        """Returns how many fields to read together. Arrow's reader takes longer to open the more columns a file has."""
        fewest = min(max(self._room_bytes // _FIELD_BYTES, 1), _FEW_AT_ONCE)
        if len(names) <= fewest:
            return fewest
        each = max(decoded_bytes(self._dataset, group, names) for group in row_groups) // len(names)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _MOST_AT_ONCE if files == resource.RLIM_INFINITY else min(files // _FILES_PER_FIELD, _MOST_AT_ONCE)
        return max(min(_BYTES_AT_ONCE // max(each, 1), most), fewest)

    def _in_files(self, row_groups: Sequence[int], rows: Sequence[RowNumbers]) -> dict[str, tuple[FileCells, ...]]:
        """Returns the values of the fields that can stay in the dataset's files."""
        with Reading(), reading():
            groups = [
                self._cells.in_files(group, row_numbers) for group, row_numbers in zip(row_groups, rows, strict=True)
            ]
        return {
            name: tuple(each[name] for each in groups) for name in groups[0] if all(name in each for each in groups)
        }

    @staticmethod
    def _grown(slices: Callable[[], Iterator[list[pa.Array]]], fields: int) -> list[tuple[pa.Array, list[pa.Buffer]]]:
        """Returns the arrays of some fields, grown from slices, and the mappings that hold each."""
        growing: list[GrowingArray | None] = [None] * fields
        plain = True
        try:
            while True:
                try:
                    for arrays in slices():
                        for number, array in enumerate(arrays):
                            growing[number] = _appended(growing[number], array, plain=plain)
                    break
                except _OtherTypeError:  # a slice without nulls may have lists of fixed size, and another one not
                    plain = False
                    _close(growing)
                    growing = [None] * fields
            return [each.finished() for each in growing if each is not None]
        finally:
            _close(growing)

    def _slices(
        self, row_groups: Sequence[int], rows: Sequence[RowNumbers], fields: Sequence[UnischemaField]
    ) -> Iterator[list[pa.Array]]:
        """Yields the wanted rows in slices, at least one, in canonical form."""
        for group, row_numbers in zip(row_groups, rows, strict=True):
            first = 0
            with closing(self._arrow.slices(group, fields, self._room_bytes)) as slices:
                while True:
                    check_cancelled()
                    with Reading(), reading():
                        count, table = next(slices, (0, None))
                        if table is None:
                            break
                        chosen = rows_between(row_numbers, first, first + count)
                        table, places = some_rows(table, chosen), chosen + first
                        arrays = [
                            self._arrow.settled(group, field, table.column(field.name), places) for field in fields
                        ]
                    yield arrays
                    first += count


class _OtherTypeError(Exception):
    """Slices of a field have different types."""


def _appended(growing: GrowingArray | None, array: pa.Array, *, plain: bool) -> GrowingArray:
    if not plain:
        array = array.cast(variable(array.type))
    if growing is None:
        growing = GrowingArray(array.type)
    if growing.kind != array.type:
        raise _OtherTypeError
    growing.append(array)
    return growing


def _close(growing: Sequence[GrowingArray | None]) -> None:
    for each in growing:
        if each is not None:
            each.close()
