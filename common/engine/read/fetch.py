"""`Fetcher`: reads selected columns and rows of row groups in canonical form.

The columns come from storage or from the local cache. Unwanted rows are dropped before anything is decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa

from ...counting.counters import Count, Reading, add
from ...errors import DecodeError, ParquetryError
from ...layout.arrow_read import TooLargeError
from ...layout.checksums import VERIFY
from ...layout.conforming import conform, misfit, narrower_floats
from ...layout.core_read import core_compressions
from ...layout.dataset import StoredDataset
from ...layout.nested import take_rows
from ...layout.row_groups import describe_row_group
from ...layout.temporary import NoRoomError
from ...memory.arrow_views import as_arrow
from ...plan.plan import BasePlan, Plan
from ...process.forks import cached_property, reading
from ...progress import check_cancelled
from ...schema.field import UnischemaField
from ...selection.rows import RowNumbers
from ...selection.statistics import column_bytes, decoded_bytes
from ...urls import url_without_secrets
from .canonical import number_type, to_canonical
from .cell_reader import CellReader
from .context import ALONE, ReadContext, TableCache
from .core_reader import NOTHING, CoreReader
from .disk_cache import DiskCache
from .file_casts import cast_in_file
from .file_cells import FileCells, Part, RowGroupColumns
from .item_order import ItemOrder
from .large_blocks import LargeColumns, LargeReader
from .list_reader import ListReader
from .listed_files import ListedPlace, is_listed, read_listed, whole_files
from .stored_columns import read_row_group, row_group_slices

_SLICES = 16  # that fit into the memory: Arrow takes several times the memory of a slice while it decodes it
_SLICE_BYTES = (1 << 19, 1 << 22)  # the fewest, the most
_KEPT = 0.25  # the share of the memory in slices after which Arrow's pool returns what they took
_MOST_ROOM_BYTES = _SLICES * _SLICE_BYTES[1]
_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, ...]] = set()
"""Datasets that this process has warned about. It outlives the fetchers, which are created for every epoch."""
_REMOTE_READS = 16
_NO_COLUMNS = pa.table({})
_SHARED_BYTES = 256 << 10  # a smaller row group of a local file is read faster than it is shared


def _warn_of_undated(dataset: StoredDataset) -> None:
    roots = (dataset.folder[1],) if dataset.table is not None and dataset.table.is_manifest else dataset.roots
    if roots not in _warned:
        _warned.add(roots)
        _LOGGER.warning(
            "cache() of %s keeps nothing: the store reports neither modification times nor ETags, so a cached copy "
            "could not be told apart from that of another version.",
            ", ".join(map(url_without_secrets, roots)),
        )


@lru_cache(maxsize=8)
def _warn_of_room(why: str) -> None:
    _LOGGER.warning(
        "A row group larger than memory_limit is read into memory whole, because temporary files cannot hold it: %s",
        why,
    )


class Fetcher:
    """Reads blocks of one dataset. Thread-safe.

    Args:
        fields: the fields to read, in the order of the tables' columns.

    Attributes:
        context: how they are read.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField], context: ReadContext = ALONE) -> None:
        self.context = context
        self._dataset = dataset
        self._fields = tuple(fields)
        self._cache = context.cache if dataset.is_cacheable else None
        if context.cache is not None and self._cache is None:
            _warn_of_undated(dataset)
        self._shared = context.shared if self._cache is None and dataset.is_cacheable else None
        self._stored = [field for field in self._fields if field.name not in dataset.partitions]
        types = {field.name: number_type(field) for field in self._stored}
        self._numbers = {name: kind for name, kind in types.items() if kind and kind == dataset.types.get(name)}
        whole = [] if self._cache is not None else self._stored  # the cache stores tables read by Arrow
        self._cells = CellReader(
            dataset, whole, shared_by_workers=context.shared_by_workers and not context.shares_rows
        )
        downloads = self._shared is not None and dataset.remote  # reading once matters more than reading without Arrow
        self._lists = context.lists if self._cache is None and not downloads else None
        self._core = CoreReader(dataset, whole)
        self._listed = [field for field in whole if is_listed(dataset, field)]
        self._later = context.shared_by_workers and not dataset.remote
        self._read_later = {field.name for field in self._listed} if self._later else set()
        self._bytes = context.stored_bytes
        self._refused = False  # a block did not fit into temporary files, so the next ones are not tried

    @property
    def dataset(self) -> StoredDataset:
        """The dataset that it reads."""
        return self._dataset

    @property
    def fields(self) -> Sequence[UnischemaField]:
        """The fields that it reads."""
        return self._fields

    def lasting_key(self, row_group: int, number: int) -> str | None:
        """Returns a name for the ``number``-th field of a row group, or ``None`` if it may change unnoticed."""
        field = self._fields[number]
        if field in self._listed:  # files of an image folder may change while their list stays
            return None
        return self._key(row_group, [field])

    def places(self, row_groups: Sequence[int]) -> list[str]:
        """Describes the file and number of each row group, for error texts."""
        groups = self._dataset.row_groups
        if self._listed:
            manifest, text = self._dataset.files[0].path, f"image folder {self._dataset.folder[1]}, row group"
            return [ListedPlace(f"{text} {groups.group[u]}", manifest, int(groups.group[u])) for u in row_groups]
        return [describe_row_group(self._dataset, u) for u in row_groups]

    def stored(self, row_group: int) -> pa.Table:
        """Returns the fields' columns of one row group, still encoded, including partition columns.

        Filters, blocks and everything else that uses stored values read these columns. Each column has the type of the
        dataset (`StoredDataset.types`), whatever type the file stores.

        Raises:
            DatasetError: a file cannot be read. The error names the file and row group.
            DecodeError, SchemaError: columns do not fit the dataset.
        """
        return self._whole(row_group, None)

    def stored_slices(self, row_group: int) -> Iterator[pa.Table]:
        """Yields what `stored` returns, in slices of a few MiB if the columns take more than their room."""
        room_bytes, names = self.context.room_bytes, [field.name for field in self._stored]
        is_large = room_bytes is not None and column_bytes(self._dataset, row_group, names) > room_bytes
        if not is_large or self._listed:
            try:
                yield self._whole(row_group, self._room_bytes)
                return
            except TooLargeError:
                pass
        room_bytes = _MOST_ROOM_BYTES if room_bytes is None else room_bytes
        began = False
        try:
            with closing(self._slices(row_group, self._stored, room_bytes)) as slices:
                first = 0
                for count, table in slices:
                    check_cancelled()
                    began = True
                    yield self._typed(row_group, table, range(first, first + count))
                    first += count
                return
        except NoRoomError as error:  # for what a store sends
            if began:
                raise
            _warn_of_room(str(error))
        yield self._whole(row_group, None)

    def _whole(self, row_group: int, room_bytes: int | None) -> pa.Table:
        table, _ = self._stored_columns(row_group, room_bytes=room_bytes)
        return self._typed(row_group, table, range(int(self._dataset.row_groups.rows[row_group])))

    def _typed(self, row_group: int, table: pa.Table, rows: range) -> pa.Table:
        """Returns the stored columns of the given rows with the types of the dataset, and the partition columns."""
        columns = [
            self._partition_value(field.name, row_group, len(rows))
            if field.name in self._dataset.partitions
            else self._conformed(row_group, field, table.column(field.name), rows)
            for field in self._fields
        ]
        return pa.table(columns, names=[field.name for field in self._fields])

    def _conformed(
        self,
        row_group: int,
        field: UnischemaField,
        column: pa.ChunkedArray,
        rows: RowNumbers,
        wanted: pa.DataType | None = None,
    ) -> pa.ChunkedArray:
        wanted = wanted or self._dataset.types[field.name]
        try:
            return conform(column, wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            what = misfit(field.name, column.type, wanted, error, rows)
            raise DecodeError(f"{self.places([row_group])[0]}: {what}") from error

    def _partition_value(self, name: str, row_group: int, count: int) -> pa.Array:
        return pa.repeat(self._dataset.partitions[name][int(self._dataset.row_groups.file[row_group])], count)

    def fetch(self, row_group: int, rows: RowNumbers | None, order: ItemOrder | None = None) -> RowGroupColumns:
        """Returns the fields' columns for rows (ascending; ``None`` = all) of one row group, in canonical form.

        Args:
            order: the order that numbers are put in, if that costs nothing; ``None`` = as stored.

        Raises:
            DatasetError: a file cannot be read. The error names the file and row group.
            DecodeError, SchemaError: columns do not fit the schema.
            TooLargeError: the columns take more than their room. `fetch_large` can read them.
        """
        with Reading(), reading():
            columns = self._fetch_columns(row_group, rows, order)
        if rows is not None:
            add(Count.FILTERED_ROWS, int(self._dataset.row_groups.rows[row_group]) - len(rows))
        return columns

    def fetch_within(self, row_group: int, rows: RowNumbers, order: ItemOrder | None = None) -> RowGroupColumns:
        """Returns what `fetch` does, in temporary files if it takes more than its room."""
        room_bytes, names = self.context.room_bytes, [field.name for field in self._stored]
        if room_bytes is None or decoded_bytes(self._dataset, row_group, names) <= room_bytes:
            with suppress(TooLargeError):  # which its footer does not say
                return self.fetch(row_group, rows, order)
        large = self.fetch_large([row_group], [rows])
        return self.fetch(row_group, rows) if large is None else large.of_row_group

    def _fetch_columns(self, row_group: int, wanted: RowNumbers | None, order: ItemOrder | None) -> RowGroupColumns:
        total = int(self._dataset.row_groups.rows[row_group])
        rows = None if wanted is None or len(wanted) == total else np.asarray(wanted, np.int64)
        cells: dict[str, Part] = {**self._cells.read(row_group, rows)}
        listed = whole_files if self._later else read_listed
        cells.update({field.name: listed(self._dataset, row_group, rows) for field in self._listed})
        if self._lists is not None:
            cells.update(self._lists.read(row_group, rows))
        room_bytes = self._room_bytes
        decoded = NOTHING
        if self._reads_itself(row_group):
            decoded = self._core.read(row_group, rows, but=cells, room_bytes=room_bytes, order=order)
            cells.update(decoded.values)
            room_bytes = None if room_bytes is None else room_bytes - decoded.num_bytes
        table, read_bytes = self._stored_columns(row_group, but=cells, room_bytes=room_bytes)
        share = self.context.share
        if share < 1:
            later = [name for name in cells if isinstance(cells[name], FileCells) or name in self._read_later]
            read_bytes -= (1 - share) * column_bytes(self._dataset, row_group, later)
        add(Count.READ_BYTES, read_bytes)
        stored = _take(table, rows)
        cells.update(self._canonical_numbers(stored))
        columns: list[Part] = []
        for field in self._fields:
            if field.name in cells:
                columns.append(cells[field.name])
                continue
            if field.name in self._dataset.partitions:
                column = self._partition_value(field.name, row_group, total if rows is None else len(rows))
            else:
                column = stored.column(field.name)
            columns.append(self._settled(row_group, field, column, range(total) if rows is None else rows))
        return RowGroupColumns(tuple(columns), decoded.stacked)

    def _canonical_numbers(self, stored: pa.Table) -> dict[str, pa.Array]:
        """Returns the columns of numbers that are stored in canonical form, most columns of a wide table."""
        if not self._numbers or not stored.num_columns:
            return {}
        batches = stored.to_batches()
        if len(batches) != 1:
            return {}
        named = zip(stored.column_names, batches[0].columns, strict=True)
        return {name: array for name, array in named if array.type == self._numbers.get(name)}

    def _settled(
        self,
        row_group: int,
        field: UnischemaField,
        column: pa.ChunkedArray | pa.Array,
        rows: RowNumbers,
    ) -> pa.Array:
        """Returns a stored column of a row group, or its partition value, in canonical form."""
        is_cast = field.name in self.context.casts
        if field.name not in self._dataset.partitions and not is_cast:
            narrow = narrower_floats(column.type, self._dataset.types[field.name], field.dtype)
            column = column if narrow is None else self._conformed(row_group, field, column, rows, narrow)
            column = self._conformed(row_group, field, column, rows)
        try:
            return to_canonical(field, cast_in_file(field, column, rows) if is_cast else column, rows)
        except ParquetryError as error:
            raise type(error)(f"{self.places([row_group])[0]}: {error}") from error

    def fetch_large(self, row_groups: Sequence[int], rows: Sequence[RowNumbers]) -> LargeColumns | None:
        """Returns the fields' columns for the rows of a block that takes more memory than its room.

        The rows are read in slices, into temporary files. Returns ``None``, and says why, if that is not possible.
        """
        if self._cache is not None or self._listed or self._refused:
            return None
        assert self.context.room_bytes is not None
        try:
            columns = LargeReader(
                self._fields, self._cells, self._slices, self._settled, partial(decoded_bytes, self._dataset)
            ).read(row_groups, rows, self.context.room_bytes)
        except (NoRoomError, NotImplementedError) as error:
            self._refused = True
            _warn_of_room(str(error))
            return None
        for row_group, wanted in zip(row_groups, rows, strict=True):
            add(Count.READ_BYTES, self._bytes(row_group))
            add(Count.FILTERED_ROWS, int(self._dataset.row_groups.rows[row_group]) - len(wanted))
        return columns

    def _slices(
        self, row_group: int, fields: Sequence[UnischemaField], room_bytes: int
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """Yields slices of a row group and their numbers of rows. Reading takes about ``room_bytes`` at most."""
        stored = [field for field in fields if field.name not in self._dataset.partitions]
        slice_bytes = int(np.clip(room_bytes // _SLICES, *_SLICE_BYTES))
        keeps = max(1, int(_KEPT * room_bytes) // slice_bytes)
        slices = row_group_slices(self._dataset, row_group, stored, slice_bytes=slice_bytes)
        try:
            for number, (rows, table) in enumerate(slices, 1):
                yield rows, self._with_partitions(row_group, fields, table, rows)
                del table
                if number % keeps == 0:
                    pa.default_memory_pool().release_unused()
        finally:
            pa.default_memory_pool().release_unused()

    def _with_partitions(
        self, row_group: int, fields: Sequence[UnischemaField], table: pa.Table, rows: int
    ) -> pa.Table:
        """Returns a slice of ``rows`` rows with the partition columns among the fields."""
        for field in fields:
            if field.name in self._dataset.partitions:
                value = pa.chunked_array([self._partition_value(field.name, row_group, rows)])
                table = table.append_column(field.name, value) if table.num_columns else pa.table({field.name: value})
        return table

    @property
    def _room_bytes(self) -> int | None:
        """The memory for the columns of a row group; ``None`` = no limit, as it cannot be read in slices anyway."""
        return None if self._listed or self._refused else self.context.room_bytes

    def _reads_itself(self, row_group: int) -> bool:
        """Returns whether a row group is read for this process alone."""
        if self._cache is not None:
            return False
        return self._shared is None or (self._bytes(row_group) < _SHARED_BYTES and not self._dataset.remote)

    def _stored_columns(
        self, row_group: int, *, but: Container[str] = (), room_bytes: int | None = None
    ) -> tuple[pa.Table, float]:
        """Returns the columns of a row group without those that were read otherwise, and the bytes read for all."""
        wanted = [field for field in self._stored if field.name not in but]
        size = self._bytes(row_group)
        if not wanted:
            return _NO_COLUMNS, size
        if self._cache is not None:
            table, is_new = self._read_once(self._cache, row_group, self._stored, wanted)
            return table, size if is_new else 0
        if self._shared is None or self._reads_itself(row_group):
            return read_row_group(self._dataset, row_group, wanted, room_bytes), size
        table, is_new = self._read_once(self._shared, row_group, wanted, wanted)
        return table, size if is_new else size - column_bytes(self._dataset, row_group, [f.name for f in wanted])

    def _read_once(
        self,
        tables: TableCache,
        row_group: int,
        named: Sequence[UnischemaField],
        wanted: Sequence[UnischemaField],
    ) -> tuple[pa.Table, bool]:
        """Returns columns of a row group, and whether this reader had to read them.

        Args:
            named: the fields that identify the table.
        """
        key = self._key(row_group, named)
        kept = self._kept(tables, key, row_group, wanted)
        if kept is not None:
            return kept, False
        with tables.claim(key, self._bytes(row_group)):
            kept = self._kept(tables, key, row_group, wanted)  # another reader may have stored it meanwhile
            if kept is not None:
                return kept, False
            if tables is self._cache:
                add(Count.CACHE_MISSES, 1)
            table = read_row_group(self._dataset, row_group, wanted)
            tables.put(key, table)
            return table, True

    def _kept(self, tables: TableCache, key: str, row_group: int, wanted: Sequence[UnischemaField]) -> pa.Table | None:
        table = tables.get(key)
        rows = self._dataset.row_groups.rows[row_group]
        if table is None or table.num_rows != rows or not {field.name for field in wanted} <= {*table.column_names}:
            return None
        if tables is self._cache:
            add(Count.CACHE_HITS, 1)
        return table

    def _key(self, row_group: int, fields: Sequence[UnischemaField]) -> str:
        groups = self._dataset.row_groups
        file = self._dataset.files[groups.file[row_group]]
        names = "\0".join(field.name for field in fields)
        if self._dataset.table is not None:  # in another table version these names may mean other columns
            names += "\0" + self._dataset.table.digest
        if self._dataset.verify != VERIFY[0]:  # entries were checked as `verify` required
            names += f"\0{self._dataset.verify}"
        if not self._microseconds.isdisjoint(field.name for field in fields):
            names += "\0exact"  # entries without this word may hold INT96 that wrapped around as nanoseconds
        return f"{file.version.key}\0{groups.group[row_group]}\0{names}"

    @cached_property
    def _microseconds(self) -> frozenset[str]:
        """The fields of timestamps in microseconds, as INT96 is read."""
        types = self._dataset.types
        return frozenset(field.name for field in self._stored if "timestamp[us" in str(types.get(field.name)))


def _take(table: pa.Table, rows: np.ndarray | None) -> pa.Table:
    if rows is None or table.num_columns == 0:
        return table
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return take_rows(table, as_arrow(rows))


def fetchers_of(plan: BasePlan, context: ReadContext = ALONE) -> list[Fetcher]:
    """Creates fetchers, one per source."""
    return [_fetcher_of(part, context) for part in plan.parts]


def _fetcher_of(plan: Plan, context: ReadContext) -> Fetcher:
    cache, program = plan.order.cache, plan.program
    lists = [field for field in program.fields if field.name in plan.measured_lists]
    context = replace(
        context,
        cache=None if cache is None else DiskCache(cache.directory, cache.max_bytes),
        shares_rows=program.shares_rows,
        lists=ListReader(plan.dataset, lists, plan.list_lengths, leaves_out=core_compressions()) if lists else None,
        casts=plan.casts,
        stored_bytes=plan.read_bytes,
    )
    return Fetcher(plan.dataset, program.fields, context)


def fetch_threads(remote: bool, workers: int) -> int:
    """Returns how many row groups to read at once. Many parallel reads hide the latency of remote storage."""
    return max(workers, _REMOTE_READS if remote else 2)
