"""Plans the jobs of an iteration and loads the blocks that they draw from.

`JobPlanner` returns the jobs in order, and `Merging` decides how many small steps each of them makes at once.
`BlockStore` fetches blocks in parallel, keeps those in use, and reads ahead as far as the memory budget allows. One
thread drives them, and a thread pool loads the blocks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from ...counting.counters import Count, Counters, Gauge, add, add_time, counter_value
from ...errors import ELEMENT_ERRORS, PipelineError
from ...layout.arrow_read import TooLargeError
from ...order.cursor import NOTHING, SkipState
from ...order.positions import BatchView
from ...plan.draws import BlockKey, BlockRows, Draw
from ...plan.plan import BasePlan
from ...progress import CancelToken
from ...selection.rows import RowNumbers
from ..read.fetch import Fetcher
from ..read.file_cells import RowGroupColumns
from ..read.large_blocks import BlockColumns, LargeColumns
from ..steps.source import BatchSource
from .bad_rows import SkippedItem

_MOST_BLOCKS = 8
_GROWTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPosition:
    """A position in an iteration that skips failing rows: the elements so far, and the rows consumed for them.

    With ``bucket``, ``rows`` counts batches, and ``left_out`` says what is left out of them.
    """

    elements: int
    rows: int
    left_out: SkipState = NOTHING


Skip: TypeAlias = tuple[int, SkippedItem]
"""A row that is left out, and its position among the rows of its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPosition:
    """The position of a job among the rows of its part, of which some were left out.

    Attributes:
        begin: the position before the job.
        end: the number of rows consumed after the job.
        skips: the rows that are left out before the job's last row.
        left_out: with ``bucket``, what is left out up to the end of the job.
        ends: the number of rows consumed after each element. Empty if the rows of the job are consecutive.
    """

    begin: SkipPosition
    end: int
    skips: tuple[Skip, ...]
    left_out: SkipState = NOTHING
    ends: tuple[int, ...] = ()

    def end_of(self, element: int, elements: int, rows: int) -> int:
        """Returns the number of rows consumed after the ``element``-th of ``elements``, of which each has ``rows``."""
        return self.ends[element - 1] if self.ends else self.end - (elements - element) * rows

    def part(self, first: int, last: int, elements: int, rows: int) -> JobPosition:
        """Returns the place of the elements from ``first`` to ``last``, of which each has ``rows`` rows."""
        end = self.end_of(last, elements, rows)
        begin = self.begin
        if first:
            begin = SkipPosition(elements=begin.elements + first, rows=self.end_of(first, elements, rows))
        skips = tuple(skip for skip in self.skips if begin.rows <= skip[0] < end)
        return replace(self, begin=begin, end=end, skips=skips, ends=self.ends[first:last])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One or more steps that are made at once: batches of equal size, or a chunk of rows.

    Attributes:
        number: the number of the job, counted from the beginning of the iteration.
        steps: the number of steps.
        count: the number of rows of all steps.
        elements: the number of elements: batches, or the rows of a chunk.
        draws: which items to take from which block.
        place: the position of the job, if rows that fail are left out.
        bounds: if the steps are made one by one, the row at which each begins, and ``count``.
    """

    number: int
    steps: int
    count: int
    elements: int
    draws: tuple[Draw, ...]
    place: JobPosition | None = None
    bounds: tuple[int, ...] = ()

    def halves(self) -> list[tuple[Job, list[int]]]:
        """Returns the `part` with each half of the elements, in order."""
        middle = self.elements // 2
        return [self.part(0, middle), self.part(middle, self.elements)]

    def part(self, first: int, last: int) -> tuple[Job, list[int]]:
        """Returns a job with the elements from ``first`` to ``last``, and the numbers of the draws that it uses."""
        rows = self.count // self.elements
        begin, end = (self.bounds[first], self.bounds[last]) if self.bounds else (first * rows, last * rows)
        kept = []
        for number, draw in enumerate(self.draws):
            places = np.arange(len(draw.items)) if draw.places is None else draw.places
            mine = (places >= begin) & (places < end)
            if mine.any():
                kept.append((number, draw.some(mine, places[mine] - begin)))
        elements = last - first
        part = replace(
            self,
            steps=min(self.steps, elements),
            count=end - begin,
            elements=elements,
            draws=tuple(draw for _, draw in kept),
            place=None if self.place is None else self.place.part(first, last, self.elements, rows),
            bounds=tuple(bound - begin for bound in self.bounds[first : last + 1]),
        )
        return part, [number for number, _ in kept]


class Merging:
    """How many small steps to make at once, which grows from one as steps arrive. It affects only the speed.

    The first step comes alone, as soon as possible. Later jobs hold more steps while they stay small and take their
    rows from few blocks, because a job waits for all of its blocks. Only one thread plans jobs, but `made` may be
    called in any thread.

    Args:
        most: the maximum number of steps.
        most_bytes: what the steps of a job may take in memory.
    """

    def __init__(self, most: int = 1, most_bytes: int = 0) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._by_size = 1
        self._by_blocks = most

    @property
    def steps(self) -> int:
        """How many steps the next job may hold."""
        return max(min(self._most, self._by_size, self._by_blocks), 1)

    def planned(self, steps: int, blocks: int) -> None:
        """Notes from how many blocks a job takes its rows."""
        self._by_blocks = self._most if blocks <= 1 else max(_MOST_BLOCKS * steps // blocks, 1)

    def made(self, steps: int, num_bytes: int) -> None:
        """Notes how many bytes the steps of a job take."""
        if steps >= self._by_size or num_bytes > self._most_bytes:
            self._by_size = min(_GROWTH * steps, self._most_bytes * steps // max(num_bytes, 1))


class JobPlanner:
    """The jobs of one iteration, in order.

    Args:
        merging: how many steps a job may hold; ``None`` = one. Only full batches are merged.
    """

    def __init__(self, plan: BasePlan, steps: BatchView, iteration: int, *, merging: Merging | None = None) -> None:
        self._plan = plan
        self._steps = steps
        self._length = steps.length
        self._iteration = iteration
        self._merging = merging or Merging()
        self._next_step = 0
        self._number = 0

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        if self._length is not None and self._next_step >= self._length:
            raise StopIteration
        steps = min(self._merging.steps, self._steps.run(self._next_step))
        passes, index = self._steps.rows(self._next_step, steps)
        draws = tuple(self._plan.draws(self._iteration, passes, index))
        self._merging.planned(steps, len(draws))
        elements = len(index) if self._plan.batch_view is None else steps
        count = self._plan.rows_drawn(draws, len(index))
        bounds: tuple[int, ...] = ()
        if steps > 1 and self._plan.splits_jobs:
            sizes = self._plan.item_rows(self._iteration, passes, index).reshape(steps, -1).sum(axis=1)
            bounds = (0, *np.cumsum(sizes).tolist())
        job = Job(number=self._number, steps=steps, count=count, elements=elements, draws=draws, bounds=bounds)
        self._next_step += steps
        self._number += 1
        return job


@dataclass(slots=True, kw_only=True)
class BlockHandle:
    """A block that is loaded or being loaded.

    Attributes:
        users: the number of jobs that hold it.
        missing: the number of its row groups that are not read yet.
        too_large: the row groups, by place, that are read into temporary files because they do not fit into memory.
    """

    key: BlockKey
    num_bytes: int
    future: Future[Any]
    users: int = 0
    parts: list[RowGroupColumns | None] = field(default_factory=list)
    missing: int = 0
    large: LargeColumns | None = None
    too_large: list[int] = field(default_factory=list)


class BlockStore:
    """Loads blocks and keeps them while they are needed.

    A block is needed while a job holds it, and while it is the latest one of its stream. The next block of each stream
    is read ahead. Each time a job has to wait for its block, one more is read ahead from then on, if threads are idle.
    Reading ahead stops before the loaded blocks exceed ``memory_limit``. Blocks that a job needs are always loaded. A
    block with a row group larger than the limit is read into temporary files.

    Args:
        plan: the plan.
        fetchers: one for each source of the plan.
        threads: the number of threads that fetch.
        memory_limit: the budget for loaded blocks, in bytes.
        finish: makes the result of `BlockHandle.future` from a block's source, rows and fetched columns.
        discard: called with that result when the block is dropped.
        counters: the counters of the iteration.
        workers: the number of loader workers that each load all blocks.
    """

    def __init__(
        self,
        plan: BasePlan,
        fetchers: Sequence[Fetcher],
        *,
        threads: int,
        memory_limit: int,
        finish: Callable[[int, BlockRows, BlockColumns], Any] | None = None,
        discard: Callable[[Any], None] | None = None,
        counters: Counters | None = None,
        workers: int = 1,
    ) -> None:
        self._plan = plan
        self._fetchers = fetchers
        self._finish = finish or (lambda source, rows, parts: (rows, fetchers[source].assemble(rows, parts)))
        self._discard = discard
        self._memory_limit = memory_limit
        self._size_of = lru_cache(maxsize=1024)(partial(_size_of, plan, memory_limit))
        self._counters = counters or Counters()
        self._held = Gauge(self._counters)
        self._workers = workers
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="parquetry-fetch")
        self._handles: OrderedDict[BlockKey, BlockHandle] = OrderedDict()
        self._latest: dict[tuple[int, int], BlockKey] = {}
        self._ahead: dict[tuple[int, int], list[BlockKey]] = {}
        self._threads = threads
        self._depth = 1  # the number of blocks to read ahead in each stream
        self._lock = Lock()
        self._cancel_token = CancelToken()
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
        for draw in job.draws:
            stream = draw.key.source, draw.key.stream
            handle = self._handles.get(draw.key)
            if handle is None:
                handle = self._start(draw.key)
            elif self._latest.get(stream) != draw.key and not handle.future.done():
                self._depth = min(self._depth + 1, self._threads)  # it was not started early enough
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
            following = self._plan.next_block(key)
            while following is not None and len(ahead) < self._depth:
                if following not in self._handles:
                    busy = ahead and self._reads >= self._threads
                    if busy or self.loaded_bytes + self._size_of(following)[0] > self._memory_limit:
                        break
                    self._start(following)
                ahead.append(following)
                following = self._plan.next_block(following)
            self._ahead[stream] = ahead

    @property
    def _reads(self) -> int:
        """The approximate number of row groups that are being read or wait to be read."""
        return sum(max(handle.missing, 1) for handle in self._handles.values() if not handle.future.done())

    def close(self) -> None:
        """Stops loading. Anyone who waits for a block gets an error. Idempotent."""
        self._closed = True
        self._cancel_token.cancel()
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

    def _start(self, key: BlockKey) -> BlockHandle:
        handle = BlockHandle(key=key, num_bytes=self._size_of(key)[0], future=Future())
        self._handles[key] = handle
        self._pool.submit(self._prepare, handle)
        return handle

    def _prepare(self, handle: BlockHandle) -> None:
        try:
            rows = self._plan.block_rows(handle.key)
            if self._size_of(handle.key)[1] and self._load_large(handle, rows):
                return
            handle.parts = [None] * len(rows.row_groups)
            handle.missing = len(rows.row_groups)
            for number in range(1, len(rows.row_groups)):
                self._pool.submit(self._load_part, handle, rows, number, self._memory_limit)
        except BaseException as error:  # including a pool that was shut down, when nobody waits for the block
            _fail(handle.future, error)
            return
        self._load_part(handle, rows, 0, self._memory_limit)

    def _load_part(self, handle: BlockHandle, rows: BlockRows, number: int, room_bytes: int | None) -> None:
        if self._closed or handle.future.done():
            return
        try:
            row_group, wanted = rows.row_groups[number], rows.rows[number]
            handle.parts[number] = self._fetched(handle.key.source, row_group, wanted, room_bytes)
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
            self._load_part(handle, rows, each, None)

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

    def _fetched(self, source: int, row_group: int, wanted: RowNumbers, room_bytes: int | None) -> RowGroupColumns:
        with self._fetching():
            return self._fetchers[source].fetch(row_group, wanted, room_bytes)

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        self._counters.bind()
        self._cancel_token.bind()
        self._cancel_token.check()
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
        ParquetryError: the block could not be loaded. Each element gets a copy of the error, because a stored error
            that is raised would keep the frames on its way alive, and with them the iterator.
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


def sources_of(job: Job, handles: Sequence[BlockHandle]) -> list[BatchSource]:
    """Waits for the blocks of a job and returns the rows that it takes from them."""
    result = []
    for draw, (rows, block) in zip(job.draws, all_loaded(handles), strict=True):
        result.append(
            BatchSource(
                block=block,
                cells=rows.cells_of(draw.items),
                places=draw.places,
                source=draw.key.source,
                pass_number=draw.pass_number,
                items=draw.items,
                spans=draw.spans,
                repeats=rows.repeats_of(draw.items),
            )
        )
    return result


def sources_by_step(job: Job, sources: Sequence[BatchSource]) -> list[tuple[Sequence[BatchSource], int]]:
    """Returns the rows that are made together, and their number: those of each step, or of the whole job."""
    if not job.bounds:
        return [(sources, job.count)]
    return [(_between(sources, first, last), last - first) for first, last in pairwise(job.bounds)]


def _between(sources: Sequence[BatchSource], first: int, last: int) -> list[BatchSource]:
    """Returns the rows from ``first`` to ``last`` of a job."""
    result = []
    for source in sources:
        if source.places is None:
            result.append(source.some(slice(first, last), None))
            continue
        chosen = np.flatnonzero((source.places >= first) & (source.places < last))
        if len(chosen):
            result.append(source.some(chosen, source.places[chosen] - first))
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
