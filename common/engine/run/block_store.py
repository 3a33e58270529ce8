"""`BlockStore`: loads the blocks that jobs draw from, and reads ahead as far as the memory budget allows.

It fetches blocks in parallel and keeps those in use. One thread drives it, and a thread pool loads the blocks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import field
from functools import lru_cache, partial
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

from ...base.errors import ELEMENT_ERRORS, PipelineError
from ...base.metrics.counters import Count, Counters, add, add_time, counter_value
from ...base.metrics.tally import Gauge
from ...base.process.dataclass import dataclass
from ...base.progress import CancelToken
from ...base.threads import ThreadPool
from ...dataset.arrow_read import TooLargeError
from ...dataset.store_reads import RowGroupRun
from ...plan.draws import BlockKey, BlockRows
from ...plan.plan import BasePlan
from ..read.block_layout import ItemOrder
from ..read.fetch import Fetcher
from ..read.file_cells import RowGroupColumns
from ..read.large_blocks import BlockColumns, LargeColumns
from ..steps.source import BlockSlice
from .jobs import Job

_STORE_DEPTH = 2  # runs ahead for each thread: those that arrived wait for the slowest one before them
_FIRST_RUN_BLOCKS, _MOST_RUN_BLOCKS = 2, 1 << 10
_RUNS_IN_MEMORY = 8  # a run takes no larger part of the budget, so that several are read at once


@dataclass(slots=True, kw_only=True)
class BlockHandle:
    """A block that is loaded or being loaded.

    Attributes:
        rows: its rows; ``None`` until it begins to load.
        users: the number of jobs that hold it.
        missing: the number of its row groups that are not read yet.
        too_large: the row groups, by place, that are read into temporary files because they do not fit into memory.
        ends_run: whether no further block was started along with this one.
    """

    key: BlockKey
    num_bytes: int
    future: Future[Any]
    rows: BlockRows | None = None
    users: int = 0
    parts: list[RowGroupColumns | None] = field(default_factory=list)
    missing: int = 0
    large: LargeColumns | None = None
    too_large: list[int] = field(default_factory=list)
    ends_run: bool = True


class _Part(NamedTuple):
    """A row group of a block, by its place in the block."""

    handle: BlockHandle
    rows: BlockRows
    number: int

    @property
    def row_group(self) -> int:
        return self.rows.row_groups[self.number]


class BlockStore:
    """Loads blocks and keeps them while they are needed.

    A block is needed while a job holds it, and while it is the latest one of its stream. The next block of each stream
    is read ahead. Each time a job has to wait for its block, twice as many are read ahead from then on, if threads are
    idle. Reading ahead stops before the loaded blocks exceed ``memory_limit``. Blocks that a job needs are always
    loaded. A block with a row group larger than the limit is read into temporary files.

    From a store, blocks whose row groups are neighbors in a file are started together, in a run, and their row groups
    are fetched in the same requests (`Fetcher.run_lengths`). The first run of a stream has at most two blocks, the next
    one four, and so on: little is read in vain if the consumer stops early. A run counts as one block read ahead.

    Args:
        plan: the plan.
        fetchers: one for each source of the plan, with this limit for a row group.
        threads: the number of threads that fetch.
        memory_limit: the budget for loaded blocks, in bytes.
        finish: makes the result of `BlockHandle.future` from a block's source, rows and fetched columns.
        order_of: returns the order that numbers of a source's block can be put in while they are read.
        discard: called with that result when the block is dropped.
        counters: the counters of the iteration.
        workers: the number of loader workers that each load all blocks.

    Attributes:
        cancel_token: cancelled when the store is closed.
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
        self._fetchers = self.fetchers = fetchers
        self._finish = finish
        self._order_of = order_of
        self._discard = discard
        self._memory_limit = memory_limit
        self._size_of = lru_cache(maxsize=1024)(partial(_size_of, plan, memory_limit))
        self._counters = counters or Counters()
        self._held = Gauge(self._counters)
        self._workers = workers
        self._pool = ThreadPool(threads, "parquetry-fetch")
        self._handles: OrderedDict[BlockKey, BlockHandle] = OrderedDict()
        self._latest: dict[tuple[int, int], BlockKey] = {}
        self._ahead: dict[tuple[int, int], list[BlockKey]] = {}
        self._run_blocks: dict[tuple[int, int], int] = {}  # the most of the next run of each stream
        self._threads = threads
        self._most_depth = threads * (_STORE_DEPTH if any(each.joins_requests for each in fetchers) else 1)
        self._depth = 1  # the number of runs to read ahead in each stream
        self._lock = Lock()
        self.cancel_token = CancelToken()
        self._closed = False

    @property
    def loaded_bytes(self) -> int:
        """The approximate memory of the blocks."""
        return sum(handle.num_bytes for handle in self._handles.values())

    def admits(self, job: Job) -> bool:
        """Returns whether the blocks that a job needs and that are not loaded yet fit into the budget."""
        new = [draw.key for draw in job.draws if draw.key not in self._handles]
        return self.loaded_bytes + sum(self._size_of(key)[0] for key in new) <= self._memory_limit

    def acquire(self, job: Job) -> list[BlockHandle]:
        """Returns the blocks of a job, and holds them until `release`."""
        handles = []
        missing = dict.fromkeys(draw.key for draw in job.draws if draw.key not in self._handles)
        for run in self._runs_among(list(missing)):
            self._start(run)
        for draw in job.draws:
            stream = draw.key.source, draw.key.stream
            handle = self._handles[draw.key]
            if draw.key not in missing and self._latest.get(stream) != draw.key and not handle.future.done():
                self._depth = min(2 * self._depth, self._most_depth)  # it was not started early enough
            handle.users += 1
            handles.append(handle)
            self._latest[stream] = draw.key
            here = draw.key.epoch, draw.key.block
            if stream in self._ahead:  # earlier blocks are no longer ahead
                self._ahead[stream] = [key for key in self._ahead[stream] if (key.epoch, key.block) > here]
        self._drop_unused()
        self._held.set(self.loaded_bytes)
        return handles

    def hold(self, handles: Sequence[BlockHandle]) -> None:
        """Holds blocks once more that are already held."""
        for handle in handles:
            handle.users += 1

    def release(self, handles: Sequence[BlockHandle]) -> None:
        """Releases blocks that `acquire` returned."""
        for handle in handles:
            handle.users -= 1
            if handle.large is not None:
                handle.large.forget()
        self._drop_unused()

    def read_ahead(self) -> None:
        """Starts loading the next blocks of each stream, as far as the budget allows."""
        for stream, key in list(self._latest.items()):
            ahead: list[BlockKey] = []
            runs = 0
            following = self._plan.next_block(key)
            while following is not None and (runs < self._depth or following in self._handles):
                if following not in self._handles:
                    run = self._run_from(stream, following)
                    busy = ahead and self._reads >= self._threads
                    if busy or self.loaded_bytes + sum(self._size_of(each)[0] for each in run) > self._memory_limit:
                        break
                    self._start(run)
                    self._run_blocks[stream] = min(2 * self._most_blocks(stream), _MOST_RUN_BLOCKS)
                ahead.append(following)
                runs += self._handles[following].ends_run
                following = self._plan.next_block(following)
            self._ahead[stream] = ahead

    def _run_from(self, stream: tuple[int, int], key: BlockKey) -> list[BlockKey]:
        """Returns a block, and those after it that are started together with it."""
        run, fetcher = [key], self._fetchers[key.source]
        if not fetcher.joins_requests:
            return run
        most_blocks, most_bytes = self._most_blocks(stream), self._memory_limit // _RUNS_IN_MEMORY
        row_groups, num_bytes = self._plan.block_row_groups(key), self._size_of(key)[0]
        while len(run) < most_blocks and (following := self._plan.next_block(run[-1])) is not None:
            num_bytes += self._size_of(following)[0]
            row_groups = row_groups + self._plan.block_row_groups(following)
            if num_bytes > most_bytes or len(fetcher.run_lengths(row_groups)) > 1:
                break
            run.append(following)
        return run

    def _runs_among(self, keys: Sequence[BlockKey]) -> list[list[BlockKey]]:
        """Divides blocks that a job needs into those that are started together."""
        runs: list[list[BlockKey]] = []
        row_groups: list[int] = []  # of the latest run
        for key in keys:
            fetcher = self._fetchers[key.source]
            if not fetcher.joins_requests:
                runs.append([key])
                continue
            own = self._plan.block_row_groups(key)
            is_next = bool(runs) and key == runs[-1][-1]._replace(block=runs[-1][-1].block + 1)
            if is_next and len(fetcher.run_lengths(row_groups + own)) == 1:
                runs[-1].append(key)
                row_groups += own
            else:
                runs.append([key])
                row_groups = list(own)
        return runs

    def _most_blocks(self, stream: tuple[int, int]) -> int:
        """Returns the most blocks that are started together next in a stream."""
        return self._run_blocks.get(stream, _FIRST_RUN_BLOCKS)

    @property
    def _reads(self) -> int:
        """The approximate number of row groups that are being read or wait to be read; those of a run count as one."""
        loading = (handle for handle in self._handles.values() if handle.ends_run and not handle.future.done())
        return sum(max(handle.missing, 1) for handle in loading)

    def close(self) -> None:
        """Stops loading. Anyone who waits for a block gets an error. Idempotent."""
        self._closed = True
        self.cancel_token.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while self._handles:
            _, handle = self._handles.popitem()
            _fail(handle.future, PipelineError("iteration was closed."))
            self._drop(handle)
        self._held.set(0)

    def _drop_unused(self) -> None:
        needed = {*self._latest.values(), *(key for keys in self._ahead.values() for key in keys)}
        for key in [key for key, handle in self._handles.items() if not handle.users and key not in needed]:
            self._drop(self._handles.pop(key))

    def _drop(self, handle: BlockHandle) -> None:
        if self._discard is None:
            return
        discard = self._discard
        handle.future.add_done_callback(lambda done: None if done.exception() else discard(done.result()))

    def _start(self, keys: Sequence[BlockKey]) -> None:
        """Starts loading consecutive blocks of a stream."""
        handles = [
            BlockHandle(key=key, num_bytes=self._size_of(key)[0], future=Future(), ends_run=key == keys[-1])
            for key in keys
        ]
        self._handles.update((handle.key, handle) for handle in handles)
        self._pool.submit(self._prepare, handles)

    def _prepare(self, handles: Sequence[BlockHandle]) -> None:
        parts: list[_Part] = []
        for handle in handles:
            try:
                rows = handle.rows = self._plan.block_rows(handle.key)
                if self._size_of(handle.key)[1] and self._load_large(handle, rows):
                    continue
                handle.parts = [None] * len(rows.row_groups)
                handle.missing = len(rows.row_groups)
                parts += [_Part(handle, rows, number) for number in range(len(rows.row_groups))]
            except BaseException as error:
                _fail(handle.future, error)
        if not parts:
            return
        lengths = self._fetchers[handles[0].key.source].run_lengths([part.row_group for part in parts])
        ends = list(accumulate(lengths))
        first, *runs = [parts[end - length : end] for length, end in zip(lengths, ends, strict=True)]
        for run in runs:
            self._submit(run, self._load_run, run)
        self._load_run(first)

    def _submit(self, parts: Sequence[_Part], call: Callable[..., None], *arguments: Any) -> None:
        """Starts a call that loads some parts."""
        try:
            self._pool.submit(call, *arguments)
        except BaseException as error:  # the pool was shut down, and nobody waits for the blocks
            for part in parts:
                _fail(part.handle.future, error)

    def _load_run(self, parts: Sequence[_Part]) -> None:
        """Loads row groups that are fetched in the same requests: the first one, which fetches all, then the others."""
        first, *others = parts
        run = RowGroupRun([part.row_group for part in parts]) if others else None
        self._load_part(*first, run)
        for part in others:
            self._submit([part], self._load_part, *part, run)

    def _load_part(self, handle: BlockHandle, rows: BlockRows, number: int, run: RowGroupRun | None = None) -> None:
        if self._closed or handle.future.done():
            return
        try:
            handle.parts[number] = self._fetch(handle.key.source, rows, number, run)
            with self._lock:
                handle.missing -= 1
                last = handle.missing == 0
            if last:
                parts = [part for part in handle.parts if part is not None]
                handle.num_bytes = sum(part.nbytes for part in parts)
                handle.parts = []
                self._end(handle, rows, parts)
        except TooLargeError:
            self._load_too_large(handle, rows, number)
        except BaseException as error:
            _fail(handle.future, error)

    def _load_too_large(self, handle: BlockHandle, rows: BlockRows, number: int) -> None:
        """Loads a block into temporary files, once a row group turns out to be larger than its footer says."""
        with self._lock:
            handle.too_large.append(number)
            if len(handle.too_large) > 1:  # another thread is doing it
                return
        try:
            if self._load_large(handle, rows):
                handle.num_bytes = self._memory_limit // 2
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
            handle.large = self._fetchers[handle.key.source].fetch_large(rows.row_groups, rows.rows)
        if handle.large is None:
            return False
        self._end(handle, rows, handle.large)
        return True

    def _end(self, handle: BlockHandle, rows: BlockRows, parts: BlockColumns) -> None:
        result = self._finish(handle.key.source, rows, parts)
        if not _finish(handle.future, result) and self._discard is not None:
            self._discard(result)

    def _fetch(self, source: int, rows: BlockRows, number: int, run: RowGroupRun | None) -> RowGroupColumns:
        row_group, row_numbers, order = rows.row_groups[number], rows.rows[number], self._order_of(source, rows)
        with self._fetching():
            return self._fetchers[source].fetch(row_group, row_numbers, order, run)

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


def _size_of(plan: BasePlan, memory_limit: int, key: BlockKey) -> tuple[int, bool]:
    """Returns how much of the budget a block takes, and whether it is read into temporary files."""
    if plan.largest_row_group_bytes(key) > memory_limit:
        return memory_limit // 2, True  # so that one more is read ahead: what they take on disk is limited, too
    return plan.block_bytes(key), False


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
    result = []
    for draw, (rows, block) in zip(job.draws, all_loaded(handles), strict=True):
        result.append(
            BlockSlice(
                block=block,
                item_rows=rows.rows_of_items(draw.items, are_consecutive=draw.is_consecutive),
                places=draw.places,
                source=draw.key.source,
                pass_number=draw.pass_number,
                items=draw.items,
                spans=draw.spans,
                repeats=rows.repeats_of(draw.items),
                is_consecutive=draw.is_consecutive,
            )
        )
    return result


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
