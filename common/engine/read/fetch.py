"""`Fetcher`: reads selected columns and rows of row groups in canonical form.

It chooses the readers that are tried for each column, and counts what they read. Unwanted rows are dropped before
anything is decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa

from ...base.metrics.counters import Count, Reading, add
from ...base.process.forks import reading
from ...base.progress import check_cancelled
from ...base.urls import url_without_secrets
from ...dataset.arrow_read import ReadSize, TooLargeError
from ...dataset.dataset import StoredDataset
from ...dataset.row_groups import describe_row_group
from ...dataset.store_reads import RUN_BYTES, RowGroupRun
from ...plan.plan import BasePlan, Plan
from ...plan.selection.rows import RowNumbers
from ...plan.selection.statistics import column_bytes, decoded_bytes
from ...schema.field import UnischemaField
from ...storage.temporary import NoRoomError
from .arrow_reader import MOST_ROOM_BYTES, ArrowReader
from .block_layout import ItemOrder
from .cell_reader import CellReader
from .column_reader import ALONE, ColumnReader, ReadContext, ReaderChain, ReadRequest, some_rows
from .disk_cache import DiskCache
from .external_images import ListedPlace, ListedReader
from .file_cells import FileCells, RowGroupColumns, WholeFiles
from .kept_tables import KeptTables, StoredTables, microsecond_fields, table_key
from .large_blocks import LargeColumns, LargeReader
from .native_reader import NativeColumnReader
from .video_reader import VideoReader

_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, ...]] = set()
"""Datasets that this process has warned about. It outlives the fetchers, which are created for every epoch."""
_REMOTE_READS = 16
_SHARED_BYTES = 256 << 10  # a smaller row group of a local file is read faster than it is shared
_MOST_GROWTH = 16  # of the numbers of a run of small row groups, when they are decoded


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
        "A block larger than memory_limit is read into memory whole, because temporary files cannot hold it: %s",
        why,
    )


class Fetcher:
    """Reads blocks of one dataset. Thread-safe.

    Attributes:
        fields: the fields that it reads, in the order of the tables' columns.
        joins_requests: whether neighboring row groups may be fetched in the same requests: from a store, unless others
            read them too, or keep them.
        joins_reads: whether row groups may be read together, in the same requests or by one call.
        longest_run: how many row groups may be read together.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField], context: ReadContext = ALONE) -> None:
        self.context = context
        self.dataset = dataset
        self.fields = tuple(fields)
        columns = dataset.read_fields(self.fields)
        self._stored = [field for field in columns if field.name not in dataset.partitions]
        self._names = [field.name for field in self._stored]
        cache = context.cache if dataset.is_cacheable else None
        if context.cache is not None and cache is None:
            _warn_of_undated(dataset)
        self._is_cached = cache is not None
        whole = [] if self._is_cached else self._stored  # the cache stores tables read by Arrow
        workers = context.shared_by_workers
        self._listed = ListedReader(dataset, whole, later=workers and not dataset.remote)
        self._cells = CellReader(dataset, whole, shared_by_workers=workers and not context.shares_rows)
        self._place = partial(_place_of, dataset, bool(self._listed.fields))
        kept = partial(KeptTables, dataset, self._stored, stored_bytes=context.stored_bytes)
        arrow = partial(ArrowReader, dataset, columns, casts=context.casts, place=self._place)
        self._arrow = arrow(StoredTables(dataset) if cache is None else kept(cache=cache, peers=False))
        self._videos = VideoReader(dataset, self.fields)
        self._refused = False  # a block did not fit into temporary files, so the next ones are not tried
        shared = context.shared if cache is None and dataset.is_cacheable else None
        readers: list[ColumnReader] = [self._listed, self._cells]
        chain = partial(ReaderChain, count=len(columns))
        self._native = NativeColumnReader(dataset, whole)
        self._count = len(columns)
        self._alone = chain([self._arrow] if self._is_cached else [*readers, self._native, self._arrow])
        self.joins_requests = dataset.remote and shared is None and not self._is_cached
        self.joins_reads = self.joins_requests or (self._native.reads_numbers and not self._is_cached)
        self._run_bytes, self.longest_run = (RUN_BYTES, 1 << 10) if self.joins_requests else (_SHARED_BYTES, 64)
        self._with_peers = None if shared is None else chain([*readers, arrow(kept(cache=shared, peers=True))])

    def lasting_key(self, row_group: int, number: int) -> str | None:
        """Returns a name for the ``number``-th field of a row group, or ``None`` if it may change unnoticed."""
        field = self.fields[number]
        if field in self._listed.fields or not field.storage.in_column:  # other files, which may change meanwhile
            return None
        return table_key(self.dataset, row_group, [field], microsecond_fields(self.dataset, [field]))

    def begin_pass(self) -> None:
        """Notices files beside the dataset's that were replaced. Call it between passes."""
        self._videos.forget_versions()

    def end_pass(self) -> None:
        """Checks the files beside the dataset's that were read. Raises `DatasetError` if one of them has changed."""
        self._videos.check_unchanged()

    def places(self, row_groups: Sequence[int]) -> list[str]:
        """Describes the file and number of each row group, for error texts."""
        return [self._place(row_group) for row_group in row_groups]

    def stored(self, row_group: int) -> pa.Table:
        """Returns the fields' columns of one row group, still encoded, including partition columns.

        Filters, blocks and everything else that uses stored values read these columns. Each column has the type of the
        dataset (`StoredDataset.types`), whatever type the file stores. That of a field of frames only says which rows
        have one.

        Raises:
            DatasetError: a file cannot be read. The error names the file and row group.
            DecodeError, SchemaError: columns do not fit the dataset.
        """
        return self._videos.marked(self._arrow.stored(row_group))

    def stored_slices(self, row_group: int) -> Iterator[pa.Table]:
        """Yields what `stored` returns, in slices of a few MiB if the columns take more than their room."""
        room = self.context.room_bytes
        is_large = room is not None and column_bytes(self.dataset, row_group, self._names) > room
        if not is_large or self._listed.fields:
            try:
                yield self._videos.marked(self._arrow.stored(row_group, ReadSize(room_bytes=self._room_bytes)))
                return
            except TooLargeError:
                pass
        room = MOST_ROOM_BYTES if room is None else room
        began = False
        try:
            with closing(self._arrow.slices(row_group, self._stored, room)) as slices:
                first = 0
                for count, table in slices:
                    check_cancelled()
                    began = True
                    yield self._videos.marked(self._arrow.typed(row_group, table, range(first, first + count)))
                    first += count
                return
        except NoRoomError as error:  # for what a store sends
            if began:
                raise
            _warn_of_room(str(error))
        yield self.stored(row_group)

    def run_lengths(self, row_groups: Sequence[int]) -> list[int]:
        """Divides row groups into runs that are read together, and returns the length of each.

        From a store, these are neighbors in one file, which are fetched in the same requests. Of a local file, they are
        small, so that one call reads them all.
        """
        if not self.joins_reads:
            return [1] * len(row_groups)
        lengths, run_bytes = list[int](), 0
        for place, row_group in enumerate(row_groups):
            longer = self.longer_run(run_bytes, row_groups[place - 1], row_group) if place else None
            if longer is None:
                lengths.append(1)
                run_bytes = self.context.stored_bytes(row_group)
            else:
                lengths[-1] += 1
                run_bytes = longer
        return lengths

    def longer_run(self, run_bytes: int, last: int, row_group: int) -> int | None:
        """Returns the stored bytes of a run with one more row group; ``None`` if that is read by itself.

        Args:
            run_bytes: the stored bytes of the run.
            last: its last row group.
        """
        groups = self.dataset.row_groups
        run_bytes += self.context.stored_bytes(row_group)
        if groups.file[last] != groups.file[row_group] or run_bytes > self._run_bytes:
            return None
        return None if self.joins_requests and groups.group[last] + 1 != groups.group[row_group] else run_bytes

    def read_together(self, row_groups: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Returns numbers of the row groups of a run of a local file, by field, to be given to `fetch`."""
        room = self._run_bytes * _MOST_GROWTH
        with Reading(), reading():
            together = self._native.read_together(row_groups, min(room, self.context.room_bytes or room))
        whole = (row_group for row_group, values in zip(row_groups, together, strict=True) if self._are_all(values))
        add(Count.READ_BYTES, sum(map(self.context.stored_bytes, whole)))
        return together

    def _are_all(self, values: dict[str, np.ndarray]) -> bool:
        return len(values) == self._count and not self._videos.fields

    def fetch(
        self,
        row_group: int,
        rows: RowNumbers | None,
        order: ItemOrder | None = None,
        run: RowGroupRun | None = None,
        together: dict[str, np.ndarray] | None = None,
    ) -> RowGroupColumns:
        """Returns the fields' columns for rows (ascending; ``None`` = all) of one row group, in canonical form.

        Args:
            order: the order that numbers are put in, if that costs nothing; ``None`` = as stored.
            run: the row groups that are fetched in the same requests; see `run_lengths`.
            together: what `read_together` returned for the row group.

        Raises:
            DatasetError: a file cannot be read. The error names the file and row group.
            DecodeError, SchemaError: columns do not fit the schema.
            TooLargeError: the columns take more than their room. `fetch_large` can read them.
        """
        total = int(self.dataset.row_groups.rows[row_group])
        some = None if rows is None or len(rows) == total else np.ascontiguousarray(rows, np.int64)
        if together and self._are_all(together):
            if some is not None:
                add(Count.FILTERED_ROWS, total - len(some))
            return RowGroupColumns(tuple([some_rows(together[field.name], some) for field in self.fields]))
        stored_bytes, share = self.context.stored_bytes(row_group), self.context.share
        with Reading(), reading():
            small = stored_bytes < _SHARED_BYTES and not self.dataset.remote
            chain = self._alone if small or self._with_peers is None else self._with_peers
            done = {name: some_rows(whole, some) for name, whole in (together or {}).items()}
            request = ReadRequest(
                row_group=row_group, rows=some, done=done, order=order, room_bytes=self._room_bytes, run=run
            )
            columns = chain.read(request)
            read_bytes = stored_bytes - columns.unread_bytes
            if share < 1:
                later = [name for name, part in columns.values.items() if isinstance(part, FileCells | WholeFiles)]
                left = 1 if some is None else len(some) / total
                read_bytes -= (1 - share) * left * column_bytes(self.dataset, row_group, later)
            add(Count.READ_BYTES, read_bytes)
            values = {**columns.values, **self._videos.read(row_group, columns.values)}
        if rows is not None:
            add(Count.FILTERED_ROWS, total - len(rows))
        return RowGroupColumns(tuple([values[field.name] for field in self.fields]), columns.stacked)

    def fetch_within(self, row_group: int, rows: RowNumbers, order: ItemOrder | None = None) -> RowGroupColumns:
        """Returns what `fetch` does, in temporary files if it takes more than its room."""
        room = self.context.room_bytes
        if room is None or decoded_bytes(self.dataset, row_group, self._names) <= room:
            with suppress(TooLargeError):  # which its footer does not say
                return self.fetch(row_group, rows, order)
        large = self.fetch_large([row_group], [rows])
        return self.fetch(row_group, rows) if large is None else large.of_row_group

    def fetch_large(self, row_groups: Sequence[int], rows: Sequence[RowNumbers]) -> LargeColumns | None:
        """Returns the fields' columns for the rows of a block that takes more memory than its room.

        The rows are read in slices, into temporary files. Returns ``None``, and says why, if that is not possible.
        """
        if self._is_cached or self._room_bytes is None:
            return None
        reader = LargeReader(self.dataset, self.fields, self._cells, self._arrow, self._room_bytes)
        try:
            columns = reader.read(row_groups, rows)
        except (NoRoomError, NotImplementedError) as error:
            self._refused = True
            _warn_of_room(str(error))
            return None
        for row_group, row_numbers in zip(row_groups, rows, strict=True):
            add(Count.READ_BYTES, self.context.stored_bytes(row_group))
            add(Count.FILTERED_ROWS, int(self.dataset.row_groups.rows[row_group]) - len(row_numbers))
        return columns

    @property
    def _room_bytes(self) -> int | None:
        """The memory for the columns of a row group; ``None`` = no limit, as it cannot be read in slices anyway."""
        cannot = self._listed.fields or self._videos.fields or self._refused
        return None if cannot else self.context.room_bytes


def _place_of(dataset: StoredDataset, listed: bool, row_group: int) -> str:
    """Describes a row group, and its files if they are listed in it."""
    if not listed:
        return describe_row_group(dataset, row_group)
    group = int(dataset.row_groups.group[row_group])
    return ListedPlace(f"image folder {dataset.folder[1]}, row group {group}", dataset.files[0].path, group)


def fetchers_of(plan: BasePlan, context: ReadContext = ALONE) -> list[Fetcher]:
    """Creates fetchers, one per source."""
    return [_fetcher_of(part, context) for part in plan.parts]


def _fetcher_of(plan: Plan, context: ReadContext) -> Fetcher:
    cache, program = plan.order.cache, plan.program
    context = replace(
        context,
        cache=None if cache is None else DiskCache(cache.directory, cache.max_bytes),
        shares_rows=program.shares_rows,
        casts=plan.casts,
        stored_bytes=plan.read_bytes,
    )
    return Fetcher(plan.dataset, program.fields, context)


def fetch_threads(remote: bool, workers: int) -> int:
    """Returns how many row groups to read at once. Many parallel reads hide the latency of remote storage."""
    return max(workers, _REMOTE_READS if remote else 2)
