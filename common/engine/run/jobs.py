"""Jobs: the steps of an iteration in order, each with the blocks it draws from; and the blocks, loaded ahead.

`JobPlanner` says what comes next; `BlockStore` fetches blocks in parallel, keeps those that are in use, and reads
ahead as far as the memory budget allows. Both are driven by one thread; loading runs in a pool.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np

from ...counting.counters import Count, Counters, Gauge, add, counted, took
from ...errors import ELEMENT_ERRORS, PipelineError
from ...order.positions import BatchView
from ...plan.draws import BlockKey, BlockRows, Draw
from ...plan.plan import BasePlan
from ..read.fetch import Fetcher
from ..read.file_cells import RowGroupColumns
from ..steps.source import Source
from .bad_rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where rows that fail are left out: elements given so far, and rows of the order consumed for them."""

    elements: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job stands among the rows of its part, of which some were left out.

    Attributes:
        begin: before it.
        end: rows consumed after it.
        skips: the rows that are left out in front of its last row.
        passes: how many passes over the data have begun.
    """

    begin: Begin
    end: int
    skips: tuple[Row, ...]
    passes: int

    def part(self, first: int, last: int, elements: int, rows: int) -> Place:
        """That of some of its elements, of which each has so many rows; those of several follow each other."""
        ends = [self.end - (elements - element) * rows for element in (first, last)]
        begin = Begin(elements=self.begin.elements + first, rows=ends[0]) if first else self.begin
        return replace(self, begin=begin, end=ends[1], skips=() if first else self.skips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One or more steps made at once: batches of equal size, or a chunk of rows.

    Attributes:
        number: counted from the first job of the iteration.
        steps: how many.
        count: rows, of all steps together.
        elements: how many are made of them: the batches, or the rows of a chunk.
        draws: what to take from which block.
        place: where rows that fail are left out, where it stands.
    """

    number: int
    steps: int
    count: int
    elements: int
    draws: tuple[Draw, ...]
    place: Place | None = None

    def halves(self) -> list[tuple[Job, list[int]]]:
        """Two jobs of half the elements, in order, and which of the draws each keeps a part of."""
        middle = self.elements // 2
        return [self._part(0, middle), self._part(middle, self.elements)]

    def _part(self, first: int, last: int) -> tuple[Job, list[int]]:
        rows = self.count // self.elements
        kept = []
        for number, draw in enumerate(self.draws):
            places = np.arange(len(draw.items)) if draw.places is None else draw.places
            mine = (places >= first * rows) & (places < last * rows)
            if mine.any():
                kept.append((number, draw.some(mine, places[mine] - first * rows)))
        elements = last - first
        part = replace(
            self,
            steps=min(self.steps, elements),
            count=elements * rows,
            elements=elements,
            draws=tuple(draw for _, draw in kept),
            place=None if self.place is None else self.place.part(first, last, self.elements, rows),
        )
        return part, [number for number, _ in kept]


class JobPlanner:
    """The jobs of one iteration, in order.

    Args:
        merge: most steps in a job; only full batches are merged.
    """

    def __init__(self, plan: BasePlan, steps: BatchView, iteration: int, *, merge: int = 1) -> None:
        self._plan = plan
        self._steps = steps
        self._length = steps.length
        self._iteration = iteration
        self._merge = merge
        self._next_step = 0
        self._number = 0

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        if self._length is not None and self._next_step >= self._length:
            raise StopIteration
        steps = min(self._merge, self._steps.run(self._next_step))
        passes, index = self._steps.rows(self._next_step, steps)
        draws = tuple(self._plan.draws(self._iteration, passes, index))
        elements = len(index) if self._plan.batch_view is None else steps
        count = self._plan.rows_drawn(draws, len(index))
        job = Job(number=self._number, steps=steps, count=count, elements=elements, draws=draws)
        self._next_step += steps
        self._number += 1
        return job


@dataclass(slots=True, kw_only=True)
class Handle:
    """A block that is loaded, or being loaded; ``users`` counts the jobs that hold it."""

    key: BlockKey
    num_bytes: int
    future: Future[Any]
    users: int = 0
    parts: list[RowGroupColumns | None] = field(default_factory=list)
    missing: int = 0


class BlockStore:
    """Loads blocks and keeps them while they are needed.

    A block is needed while a job holds it, and while it is the latest one of its stream. Of each stream the next
    block is read ahead, and one more each time that a job came before its block was there, while threads have nothing
    else to read. Reading ahead stops where the sum of loaded blocks would pass ``memory_limit``; what a job needs is
    loaded in any case.

    Args:
        fetchers: one for each source of the plan.
        finish: makes what `Handle.future` gives out of a block's source, rows and fetched columns.
        discard: called with that when the block is dropped.
        counters: of the iteration.
        workers: loader workers that each load all blocks.
    """

    def __init__(
        self,
        plan: BasePlan,
        fetchers: Sequence[Fetcher],
        *,
        threads: int,
        memory_limit: int,
        finish: Callable[[int, BlockRows, Sequence[RowGroupColumns]], Any] | None = None,
        discard: Callable[[Any], None] | None = None,
        counters: Counters | None = None,
        workers: int = 1,
    ) -> None:
        self._plan = plan
        self._fetchers = fetchers
        self._finish = finish or (lambda source, rows, parts: (rows, fetchers[source].assemble(rows, parts)))
        self._discard = discard
        self._memory_limit = memory_limit
        self._counters = counters or Counters()
        self._held = Gauge(self._counters)
        self._workers = workers
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="parquetry-fetch")
        self._handles: OrderedDict[BlockKey, Handle] = OrderedDict()
        self._latest: dict[tuple[int, int], BlockKey] = {}
        self._ahead: dict[tuple[int, int], list[BlockKey]] = {}
        self._threads = threads
        self._depth = 1  # blocks of a stream to read ahead
        self._lock = Lock()
        self._closed = False

    @property
    def loaded_bytes(self) -> int:
        """About how much memory the blocks take."""
        return sum(handle.num_bytes for handle in self._handles.values())

    def admits(self, job: Job) -> bool:
        """Whether the blocks that a job needs and that are not loaded yet fit into the budget."""
        new = [draw.key for draw in job.draws if draw.key not in self._handles]
        return self.loaded_bytes + sum(self._plan.block_bytes(key) for key in new) <= self._memory_limit

    def acquire(self, job: Job) -> list[Handle]:
        """The blocks of a job, held until `release`."""
        handles = []
        for draw in job.draws:
            stream = draw.key.source, draw.key.stream
            handle = self._handles.get(draw.key)
            if handle is None:
                handle = self._start(draw.key)
            elif self._latest.get(stream) != draw.key and not handle.future.done():
                self._depth = min(self._depth + 1, self._threads)  # it was not begun early enough
            handle.users += 1
            handles.append(handle)
            self._latest[stream] = draw.key
            here = draw.key.epoch, draw.key.block
            if stream in self._ahead:  # what lies behind is not ahead any more
                self._ahead[stream] = [key for key in self._ahead[stream] if (key.epoch, key.block) > here]
        self._drop_unused()
        self._held.set(self.loaded_bytes)
        return handles

    def hold(self, handles: Sequence[Handle]) -> None:
        """Holds blocks once more that are held already."""
        for handle in handles:
            handle.users += 1

    def release(self, handles: Sequence[Handle]) -> None:
        """Gives back what `acquire` returned."""
        for handle in handles:
            handle.users -= 1
        self._drop_unused()

    def read_ahead(self) -> None:
        """Starts to load the next blocks of each stream, as far as the budget allows."""
        for stream, key in list(self._latest.items()):
            ahead: list[BlockKey] = []
            following = self._plan.next_block(key)
            while following is not None and len(ahead) < self._depth:
                if following not in self._handles:
                    busy = ahead and self._reads >= self._threads
                    if busy or self.loaded_bytes + self._plan.block_bytes(following) > self._memory_limit:
                        break
                    self._start(following)
                ahead.append(following)
                following = self._plan.next_block(following)
            self._ahead[stream] = ahead

    @property
    def _reads(self) -> int:
        """About how many row groups are being read, or wait for it."""
        return sum(max(handle.missing, 1) for handle in self._handles.values() if not handle.future.done())

    def close(self) -> None:
        """Stops loading; whoever waits for a block gets an error. Idempotent."""
        self._closed = True
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

    def _drop(self, handle: Handle) -> None:
        if self._discard is None:
            return
        discard = self._discard
        handle.future.add_done_callback(lambda done: None if done.exception() else discard(done.result()))

    def _start(self, key: BlockKey) -> Handle:
        handle = Handle(key=key, num_bytes=self._plan.block_bytes(key), future=Future())
        self._handles[key] = handle
        self._pool.submit(self._prepare, handle)
        return handle

    def _prepare(self, handle: Handle) -> None:
        try:
            rows = self._plan.block_rows(handle.key)
            handle.parts = [None] * len(rows.row_groups)
            handle.missing = len(rows.row_groups)
            for number in range(1, len(rows.row_groups)):
                self._pool.submit(self._load_part, handle, rows, number)
        except BaseException as error:  # also that the pool was shut down, which nobody waits for any more
            _fail(handle.future, error)
            return
        self._load_part(handle, rows, 0)

    def _load_part(self, handle: Handle, rows: BlockRows, number: int) -> None:
        if self._closed or handle.future.done():
            return
        try:
            row_group, wanted = rows.row_groups[number], rows.rows[number]
            handle.parts[number] = self._fetched(handle.key.source, row_group, wanted)
            with self._lock:
                handle.missing -= 1
                last = handle.missing == 0
            if last:
                parts = [part for part in handle.parts if part is not None]
                handle.num_bytes = sum(part.nbytes for part in parts)
                handle.parts = []
                result = self._finish(handle.key.source, rows, parts)
                if not _finish(handle.future, result) and self._discard is not None:
                    self._discard(result)
        except BaseException as error:
            _fail(handle.future, error)

    def _fetched(self, source: int, row_group: int, wanted: np.ndarray) -> RowGroupColumns:
        self._counters.bind()
        before = counted(Count.FILTERED_ROWS)
        part = self._fetchers[source].fetch(row_group, wanted)
        if self._workers > 1:  # each of them counts its share of what they all leave out
            left_out = counted(Count.FILTERED_ROWS) - before
            add(Count.FILTERED_ROWS, left_out / self._workers - left_out)
        return part


def loaded(handle: Handle) -> Any:
    """What a block was loaded as (waits for it); see `all_loaded`.

    Raises:
        ParquetryError: it could not be loaded. Each element gets a copy, because a kept error that is raised keeps
            the frames it passes through, and with them the iterator.
    """
    error = handle.future.exception()
    if isinstance(error, ELEMENT_ERRORS):
        raise copy(error) from error.__cause__
    return handle.future.result()


def all_loaded(handles: Sequence[Handle]) -> list[Any]:
    """What blocks were loaded as (waits for them).

    Raises:
        ParquetryError: one could not be loaded.
    """
    if all(handle.future.done() for handle in handles):
        return [loaded(handle) for handle in handles]
    begin = time.perf_counter()
    try:
        return [loaded(handle) for handle in handles]
    finally:
        took(Count.BLOCKED_S, begin)


def sources_of(job: Job, handles: Sequence[Handle]) -> list[Source]:
    """The rows of a job, once its blocks are loaded (waits for them)."""
    result = []
    for draw, (rows, block) in zip(job.draws, all_loaded(handles), strict=True):
        result.append(
            Source(
                block=block,
                cells=rows.cells[draw.items],
                places=draw.places,
                source=draw.key.source,
                turn=draw.turn,
                items=draw.items,
                spans=draw.spans,
                repeats=rows.repeats_of(draw.items),
            )
        )
    return result


def _finish(future: Future[Any], value: object) -> bool:
    """Sets a result; False if the future was failed meanwhile."""
    try:
        future.set_result(value)
    except InvalidStateError:
        return False
    return True


def _fail(future: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):  # done already
        future.set_exception(error)
