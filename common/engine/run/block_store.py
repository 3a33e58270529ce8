"""`BlockStore`: loads the blocks that jobs draw from, and reads ahead as far as the memory budget allows.

It fetches blocks in parallel and keeps those in use. One thread drives it, and a thread pool loads the blocks.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import field
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import ELEMENT_ERRORS, DatasetError, PipelineError
from ...base.metrics.counters import Count, Counters, add, add_time, counter_value
from ...base.metrics.tally import Gauge
from ...base.process.dataclass import dataclass
from ...base.progress import CancelToken
from ...base.threads import ThreadPool
from ...dataset.arrow_read import TooLargeError
from ...dataset.store_reads import RowGroupRun
from ...parquet.group_footers import keep_footers_within, kept_footer_bytes
from ...plan.block_reads import BlockKey, BlockRead, BlockRows
from ...plan.options import DEFAULT_MEMORY_BYTES
from ...plan.plan import BasePlan
from ..read.block_layout import ItemOrder
from ..read.fetch import Fetcher
from ..read.file_cells import RowGroupColumns
from ..read.large_blocks import BlockColumns, LargeColumns
from ..steps.source import BlockSlice
from .jobs import Job

_STORE_DEPTH = 2  # runs ahead for each thread: those that arrived wait for the slowest one before them
_FIRST_RUN = 2
_SIZES = 1 << 12
_FOOTERS_PART = 4  # of the budget that footers may take at most
_RUNS_IN_MEMORY = 8  # a run takes no larger part of the budget, so that several are read at once


@dataclass(slots=True, kw_only=True)
class BlockHandle:
    """A block that is loaded or being loaded.

    Attributes:
        num_bytes: what it takes of the budget; an estimate until it is loaded.
        is_large: whether it does not fit into memory, as far as footers say, so it is read into temporary files.
        rows: its rows; ``None`` until it begins to load.
        users: the number of jobs that hold it, and one more each while it is the latest of its stream, and read ahead.
        missing: the number of its row groups that are not read yet.
        read_bytes: the memory of those that are.
        refused: whether temporary files cannot hold it.
        too_large: the row groups, by place, that wait for the block to be read into temporary files, because it turned
            out not to fit into memory.
        ends_run: whether no further block was started along with this one.
    """

    key: BlockKey
    num_bytes: int
    is_large: bool
    future: Future[Any]
    rows: BlockRows | None = None
    users: int = 0
    parts: list[RowGroupColumns | None] = field(default_factory=list)
    missing: int = 0
    read_bytes: int = 0
    refused: bool = False
    large: LargeColumns | None = None
    too_large: list[int] = field(default_factory=list)
    ends_run: bool = False


class _Part(NamedTuple):
    """A row group of a block, by its place in the block."""

    handle: BlockHandle
    rows: BlockRows
    number: int

    @property
    def row_group(self) -> int:
        return self.rows.row_groups[self.number]


@dataclass(slots=True, kw_only=True)
class _Stream:
    """A stream of a source.

    Attributes:
        blocks: the latest block that a job draws from, and those that are read ahead after it.
        run_row_groups: the most row groups of the run to read ahead next, unless its first block has more.
        run_bytes: what that run takes of the budget; 0 until it turns out not to fit.
    """

    blocks: list[BlockHandle] = field(default_factory=list)
    run_row_groups: int = _FIRST_RUN
    run_bytes: int = 0


class Store:
    """The store of jobs without blocks, and the interface of all stores: limits the memory of what jobs make.

    One thread drives it, except for `close`.

    Args:
        size_of: estimates the bytes of what a job makes.

    Attributes:
        cancel_token: cancelled when the store is closed.
        fetchers: what reads the blocks; one for each source.
    """

    fetchers: Sequence[Fetcher] = ()

    def __init__(self, size_of: Callable[[Any], int]) -> None:
        self.cancel_token = CancelToken()
        self._result_bytes = size_of
        self._sizes: deque[int] = deque()

    def admits(self, job: Job) -> bool:
        """Returns whether there is memory for what a job needs in addition."""
        return sum(self._sizes) < DEFAULT_MEMORY_BYTES

    def acquire(self, job: Job) -> list[BlockHandle]:
        """Returns the blocks of a job, and holds them until `release`."""
        self._sizes.append(self._result_bytes(job))
        return []

    def hold(self, handles: Sequence[BlockHandle]) -> None:
        """Holds blocks once more that are already held."""

    def release(self, handles: Sequence[BlockHandle]) -> None:
        """Releases blocks that `acquire` returned."""
        self._sizes.popleft()  # jobs are delivered in order

    def read_ahead(self) -> None:
        """Starts loading the blocks of later jobs, as far as the budget allows."""

    def close(self) -> None:
        """Stops loading. Anyone who waits for a block gets an error. Idempotent."""
        self.cancel_token.cancel()


class BlockStore(Store):
    """Loads blocks and keeps them while they are needed.

    A block is needed while a job holds it, and while it is the latest one of its stream. The next block of each stream
    is read ahead. Each time a job has to wait for its block, twice as many are read ahead from then on, if threads are
    idle. Reading ahead stops before the loaded blocks and the kept footers exceed ``memory_limit``. Blocks that a job
    needs are always loaded. A block larger than the limit is read into temporary files. Footers do not say how large
    values in dictionaries are, so blocks of a source are expected to grow as those before them did.

    From a store, blocks whose row groups are neighbors in a file are started together, in a run, and their row groups
    are fetched in the same requests (`Fetcher.run_lengths`). The first run of a stream has at most two row groups, the
    next one four, and so on: little is read in vain if the consumer stops early. A run counts as one block read ahead.

    A job costs time for the streams that it draws from, however many others there are, as in a mix of many sources.

    Args:
        fetchers: one for each source of the plan, with this limit for a row group.
        threads: the number of threads that fetch.
        memory_limit: the budget for loaded blocks, in bytes.
        finish: makes the result of `BlockHandle.future` from a block's source, rows and fetched columns.
        order_of: returns the order that numbers of a source's block can be put in while they are read.
        discard: called with that result when the block is dropped.
        workers: the number of loader workers that each load all blocks.
    """

    def __init__(
        self,
        plan: BasePlan,
        fetchers: Sequence[Fetcher],
        *,
        threads: int,
        memory_limit: int,
        finish: Callable[[int, BlockRows, BlockColumns], Any],
        order_of: Callable[[int, BlockRows], ItemOrder | None] = lambda source, rows: None,
        discard: Callable[[Any], None] | None = None,
        counters: Counters | None = None,
        workers: int = 1,
    ) -> None:
        self._plan = plan
        self._block_size = lru_cache(maxsize=_SIZES)(plan.block_size)  # asked before a block is started, and after
        self.fetchers = fetchers
        self._finish = finish
        self._order_of = order_of
        self._discard = discard
        self._memory_limit = memory_limit
        keep_footers_within(memory_limit // _FOOTERS_PART, self)
        self._counters = counters or Counters()
        self._held = Gauge(self._counters)
        self._workers = workers
        self._pool = ThreadPool(threads, "parquetry-fetch")
        self._handles: OrderedDict[BlockKey, BlockHandle] = OrderedDict()
        self._streams: dict[tuple[int, int], _Stream] = {}  # by source and stream
        self._behind: dict[tuple[int, int], _Stream] = {}  # those that moved on, or wait for memory
        self._further: OrderedDict[tuple[int, int], _Stream] = OrderedDict()  # those that wait for a thread
        self._loading: dict[BlockKey, BlockHandle] = {}  # the last blocks of runs, until `_reads` sees them loaded
        self._growth: dict[int, float] = {}  # of the blocks of each source, from their estimated size
        self._loaded_bytes = 0
        self._threads = threads
        self._most_depth = threads * (_STORE_DEPTH if any(each.joins_requests for each in fetchers) else 1)
        self._depth = 1  # the number of runs to read ahead in each stream
        self._lock = Lock()
        self.cancel_token = CancelToken()
        self._closed = False

    @property
    def loaded_bytes(self) -> int:
        """The approximate memory of the blocks."""
        return self._loaded_bytes

    @property
    def _block_limit(self) -> int:
        """The bytes that loaded blocks may take beside the footers that are kept."""
        return self._memory_limit - min(kept_footer_bytes(), self._memory_limit // _FOOTERS_PART)

    def admits(self, job: Job) -> bool:
        new = [read.key for read in job.reads if read.key not in self._handles]
        return not new or self.loaded_bytes + sum(self._size_of(key)[0] for key in new) <= self._block_limit

    def acquire(self, job: Job) -> list[BlockHandle]:
        missing = dict.fromkeys(read.key for read in job.reads if read.key not in self._handles)
        for run in self._runs(map(self._new_handle, missing)):
            self._start(run)
        handles = [self._handles[read.key] for read in job.reads]
        self.hold(handles)
        for handle in handles:
            is_next = self._move_to(handle)
            if is_next and handle.key not in missing and not handle.future.done():
                self._read_further_ahead()  # it was not started early enough
        self._held.set(self.loaded_bytes)
        return handles

    def hold(self, handles: Sequence[BlockHandle]) -> None:
        for handle in handles:
            handle.users += 1

    def release(self, handles: Sequence[BlockHandle]) -> None:
        for handle in handles:
            if handle.large is not None:
                handle.large.forget()
            self._let_go(handle)

    def read_ahead(self) -> None:
        for key, stream in list(self._behind.items()):
            if self._loaded_bytes + stream.run_bytes <= self._block_limit:
                del self._behind[key]
                if len(stream.blocks) > 1:
                    self._further[key] = stream
                else:
                    self._read_run_ahead(key, stream)
        while self._further and self._reads < self._threads:
            self._read_run_ahead(*self._further.popitem(last=False))

    def _read_run_ahead(self, key: tuple[int, int], stream: _Stream) -> None:
        """Starts loading the next run of a stream, if it may be read ahead and fits into the budget."""
        ends = (handle for handle in reversed(stream.blocks[1:]) if handle.ends_run)
        if len(list(islice(ends, self._depth))) == self._depth:
            return
        following = self._plan.next_block(stream.blocks[-1].key)
        if following is None:
            return
        if following in self._handles:
            run = [self._handles[following]]
        else:
            run = next(self._runs(self._run_from(following, stream.run_row_groups)))
            stream.run_bytes = sum(handle.num_bytes for handle in run)
            if self._loaded_bytes + stream.run_bytes > self._block_limit:
                self._behind[key] = stream
                return
            self._start(run)
            longest = self.fetchers[key[0]].longest_run
            stream.run_row_groups, stream.run_bytes = min(2 * stream.run_row_groups, longest), 0
        self.hold(run)
        stream.blocks += run
        self._further[key] = stream

    def _read_further_ahead(self) -> None:
        if self._depth < self._most_depth:
            self._depth = min(2 * self._depth, self._most_depth)
            self._further.update(self._streams)

    def _move_to(self, handle: BlockHandle) -> bool:
        """Makes a block the latest of its stream, and lets go of those before it. Returns ``False`` if it was that."""
        key = handle.key.source, handle.key.stream
        stream = self._streams.setdefault(key, _Stream())
        if stream.blocks and stream.blocks[0] is handle:
            return False
        handle.users += 1
        here = handle.key[:3:2]  # epoch and block
        count = 1
        while count < len(stream.blocks) and stream.blocks[count].key[:3:2] <= here:
            count += 1
        passed = stream.blocks[:count]
        stream.blocks[:count], stream.run_bytes = [handle], 0
        self._behind[key] = stream
        for each in passed:
            self._let_go(each)
        return True

    def _run_from(self, key: BlockKey, most: int) -> Iterator[BlockHandle]:
        """Yields a block, and those after it that may be started together with it, with at most as many row groups."""
        handle = self._new_handle(key)
        yield handle
        if not self.fetchers[key.source].joins_reads:
            return
        run_bytes = handle.num_bytes
        left = min(most, self.fetchers[key.source].longest_run) - len(self._plan.block_row_groups(key))
        while left > 0:
            following = self._plan.next_block(handle.key)
            if following is None or following in self._handles:
                return
            handle = self._new_handle(following)
            run_bytes += handle.num_bytes
            left -= len(self._plan.block_row_groups(following))
            if left < 0 or run_bytes > self._memory_limit // _RUNS_IN_MEMORY:
                return
            yield handle

    def _runs(self, handles: Iterable[BlockHandle]) -> Iterator[list[BlockHandle]]:
        """Divides blocks into those that are started together."""
        run: list[BlockHandle] = []
        last: int | None = None  # the last row group of the run; none if it is not joined with other blocks
        run_bytes = 0
        for handle in handles:
            key, fetcher = handle.key, self.fetchers[handle.key.source]
            own = self._plan.block_row_groups(key) if fetcher.joins_reads and not handle.is_large else []
            if run and last is not None and own and key == run[-1].key._replace(block=run[-1].key.block + 1):
                longer: int | None = run_bytes
                for before, row_group in pairwise([last, *own]):
                    longer = None if longer is None else fetcher.longer_run(longer, before, row_group)
                if longer is not None:
                    run.append(handle)
                    last, run_bytes = own[-1], longer
                    continue
            if run:
                yield run
            run, last = [handle], None
            if own and len(fetcher.run_lengths(own)) == 1:
                last, run_bytes = own[-1], sum(map(fetcher.context.stored_bytes, own))
        if run:
            yield run

    @property
    def _reads(self) -> int:
        """The approximate number of row groups that are being read or wait to be read; those of a run count as one."""
        self._loading = {key: handle for key, handle in self._loading.items() if not handle.future.done()}
        return sum(max(handle.missing, 1) for handle in self._loading.values())

    def close(self) -> None:
        self._closed = True
        self.cancel_token.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while self._handles:
            _, handle = self._handles.popitem()
            _fail(handle.future, PipelineError("iteration was closed."))
            self._drop(handle)
        self._held.set(0)

    def _let_go(self, handle: BlockHandle) -> None:
        """Drops a block once nobody holds it."""
        handle.users -= 1
        if not handle.users and self._handles.get(handle.key) is handle:
            with self._lock:
                del self._handles[handle.key]
                self._loaded_bytes -= handle.num_bytes
            self._loading.pop(handle.key, None)
            self._drop(handle)

    def _resize(self, handle: BlockHandle, num_bytes: int) -> None:
        """Notes what a block really takes of the budget."""
        with self._lock:
            if self._handles.get(handle.key) is handle:
                self._loaded_bytes += num_bytes - handle.num_bytes
            handle.num_bytes = num_bytes

    def _drop(self, handle: BlockHandle) -> None:
        if self._discard is None:
            return
        discard = self._discard
        handle.future.add_done_callback(lambda done: None if done.exception() else discard(done.result()))

    def _size_of(self, key: BlockKey) -> tuple[int, bool]:
        """Returns how much of the budget a block takes, and whether it is read into temporary files."""
        block_bytes, largest_bytes = self._block_size(key)
        size = math.ceil(block_bytes * self._growth.get(key.source, 1.0))
        if max(size, largest_bytes) > self._memory_limit:
            return self._large_bytes, True
        return size, False

    @property
    def _large_bytes(self) -> int:
        """What a block in temporary files takes of the budget: one more is read ahead, so its room is limited, too."""
        return self._memory_limit // 2

    def _new_handle(self, key: BlockKey) -> BlockHandle:
        num_bytes, is_large = self._size_of(key)
        return BlockHandle(key=key, num_bytes=num_bytes, is_large=is_large, future=Future())

    def _start(self, run: Sequence[BlockHandle]) -> None:
        """Starts loading consecutive blocks of a stream."""
        run[-1].ends_run = True
        self._loading[run[-1].key] = run[-1]
        with self._lock:
            self._handles.update((handle.key, handle) for handle in run)
            self._loaded_bytes += sum(handle.num_bytes for handle in run)
        self._pool.submit(self._prepare, run)

    def _prepare(self, handles: Sequence[BlockHandle]) -> None:
        parts: list[_Part] = []
        for handle in handles:
            try:
                rows = handle.rows = self._plan.block_rows(handle.key)
                if handle.is_large and self._load_large(handle, rows):
                    continue
                handle.parts = [None] * len(rows.row_groups)
                handle.missing = len(rows.row_groups)
                parts += [_Part(handle, rows, number) for number in range(len(rows.row_groups))]
            except BaseException as error:
                _fail(handle.future, error)
        if not parts:
            return
        lengths = self.fetchers[handles[0].key.source].run_lengths([part.row_group for part in parts])
        ends = list(accumulate(lengths))
        first, *runs = [parts[end - length : end] for length, end in zip(lengths, ends, strict=True)]
        for run in runs:
            self._submit(run, self._load_run, run)
        self._load_run(first)

    def _submit(self, parts: Sequence[_Part], call: Callable[..., None], *arguments: object) -> None:
        """Starts a call that loads some parts."""
        try:
            self._pool.submit(call, *arguments)
        except BaseException as error:  # the pool was shut down, and nobody waits for the blocks
            for part in parts:
                _fail(part.handle.future, error)

    def _load_run(self, parts: Sequence[_Part]) -> None:
        """Loads row groups that are read together.

        From a store, the first one is loaded first, which fetches all, and then the others beside each other.
        """
        first, *others = parts
        if others and not self.fetchers[first.handle.key.source].joins_requests:
            self._load_together(parts)
            return
        run = RowGroupRun([part.row_group for part in parts]) if others else None
        self._load_part(*first, run)
        for part in others:
            self._submit([part], self._load_part, *part, run)

    def _load_together(self, parts: Sequence[_Part]) -> None:
        """Loads small row groups of a local file, whose numbers one call reads."""
        parts = [part for part in parts if not part.handle.future.done()]
        if self._closed or not parts:
            return
        numbers: list[dict[str, np.ndarray]] = [{} for _ in parts]
        try:
            with self._fetching():
                with suppress(DatasetError):  # which each row group that has it raises by itself
                    fetcher = self.fetchers[parts[0].handle.key.source]
                    numbers = fetcher.read_together([part.row_group for part in parts])
                for part, together in zip(parts, numbers, strict=True):
                    self._load_part(*part, together=together)
        except BaseException as error:
            for part in parts:
                _fail(part.handle.future, error)

    def _load_part(
        self,
        handle: BlockHandle,
        rows: BlockRows,
        number: int,
        run: RowGroupRun | None = None,
        together: dict[str, np.ndarray] | None = None,
    ) -> None:
        if self._closed or handle.future.done():
            return
        try:
            if handle.too_large:
                raise TooLargeError
            part = self._fetch(handle.key.source, rows, number, run, together)
            with self._lock:
                read_bytes = handle.read_bytes + part.nbytes
                if read_bytes > self._memory_limit and len(rows.row_groups) > 1 and not handle.refused:
                    raise TooLargeError
                handle.read_bytes = read_bytes
                handle.parts[number] = part
                handle.missing -= 1
                last = handle.missing == 0
            if last:
                self._note_size(handle, handle.read_bytes)
                self._resize(handle, handle.read_bytes)
                parts = [part for part in handle.parts if part is not None]
                handle.parts = []
                self._end(handle, rows, parts)
        except TooLargeError:
            self._load_too_large(handle, rows, number)
        except BaseException as error:
            _fail(handle.future, error)

    def _note_size(self, handle: BlockHandle, num_bytes: int) -> None:
        """Notes how large a block is, and with it how large those of its source are to be expected."""
        self._growth[handle.key.source] = max(num_bytes / max(self._block_size(handle.key).num_bytes, 1), 1.0)

    def _load_too_large(self, handle: BlockHandle, rows: BlockRows, number: int) -> None:
        """Loads a block into temporary files, once it turns out to be larger than its footers say."""
        with self._lock:
            handle.too_large.append(number)
            if len(handle.too_large) > 1:  # another thread is doing it
                return
        self._note_size(handle, self._memory_limit + 1)
        try:
            if self._load_large(handle, rows):
                self._resize(handle, self._large_bytes)
                handle.parts = [None] * len(rows.row_groups)
                return
        except BaseException as error:
            _fail(handle.future, error)
            return
        with self._lock:
            numbers, handle.too_large = handle.too_large, []
        for each in numbers:
            self._load_part(handle, rows, each)

    def _load_large(self, handle: BlockHandle, rows: BlockRows) -> bool:
        """Loads a block into temporary files. Returns ``False`` if that is not possible."""
        with self._fetching():
            handle.large = self.fetchers[handle.key.source].fetch_large(rows.row_groups, rows.rows)
        if handle.large is None:
            handle.refused = True
            return False
        self._end(handle, rows, handle.large)
        return True

    def _end(self, handle: BlockHandle, rows: BlockRows, parts: BlockColumns) -> None:
        result = self._finish(handle.key.source, rows, parts)
        if not _finish(handle.future, result) and self._discard is not None:
            self._discard(result)

    def _fetch(
        self,
        source: int,
        rows: BlockRows,
        number: int,
        run: RowGroupRun | None,
        together: dict[str, np.ndarray] | None,
    ) -> RowGroupColumns:
        row_group, row_numbers, order = rows.row_groups[number], rows.rows[number], self._order_of(source, rows)
        if together is not None:  # inside `_fetching`
            return self.fetchers[source].fetch(row_group, row_numbers, order, None, together)
        with self._fetching():
            return self.fetchers[source].fetch(row_group, row_numbers, order, run)

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        self._counters.bind()
        self.cancel_token.bind()
        self.cancel_token.check()
        before = counter_value(Count.FILTERED_ROWS)
        yield
        if self._workers > 1:  # all loader workers filter the same rows, so each counts its share
            left_out = counter_value(Count.FILTERED_ROWS) - before
            add(Count.FILTERED_ROWS, left_out / self._workers - left_out)


def loaded(handle: BlockHandle) -> Any:
    """Waits for a block and returns its loaded form; see `all_loaded`.

    Raises:
        ParquetryError: the block could not be loaded. Each element gets a copy of the error, because raising a
            stored error would keep the frames that it passes alive, and with them the iterator.
    """
    error = handle.future.exception()
    if isinstance(error, ELEMENT_ERRORS):
        raise copy(error) from error.__cause__
    return handle.future.result()


def all_loaded(handles: Sequence[BlockHandle]) -> list[Any]:
    """Waits for blocks and returns their loaded forms.

    Raises:
        ParquetryError: a block could not be loaded.
    """
    if all(handle.future.done() for handle in handles):
        return [loaded(handle) for handle in handles]
    begin = time.perf_counter()
    try:
        return [loaded(handle) for handle in handles]
    finally:
        add_time(Count.BLOCKED_S, begin)


def sources_of(job: Job, handles: Sequence[BlockHandle]) -> list[BlockSlice]:
    """Waits for the blocks of a job and returns the rows that it takes from them."""
    loaded_blocks = all_loaded(handles)
    return [block_slice(read, rows, block) for read, (rows, block) in zip(job.reads, loaded_blocks, strict=True)]


def block_slice(read: BlockRead, rows: BlockRows, block: Any) -> BlockSlice:
    """Returns the rows that a job takes from a block, which may be its number for another process."""
    return BlockSlice(
        block=block,
        item_rows=rows.rows_of_items(read.items, are_consecutive=read.is_consecutive),
        places=read.places,
        source=read.key.source,
        pass_number=read.pass_number,
        items=read.items,
        spans=read.spans,
        repeats=rows.repeats_of(read.items),
        padding=rows.padding_of(read.items),
        lengths=rows.lengths_of(read.items),
        is_consecutive=read.is_consecutive,
    )


def _finish(future: Future[Any], value: object) -> bool:
    """Sets a result. Returns ``False`` if the future has failed in the meantime."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def _fail(future: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):  # it is already done
        future.set_exception(error)
