"""Random access: reads rows or batches by index; each read loads the row groups that contain them.

Given a plan and numbers, it returns the elements that an iteration yields at these positions. The order always agrees
with iteration, because the same plan chooses the rows and the same engine makes the element. Memory for kept row groups
is bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, overload

import numpy as np

from ..base.errors import PipelineError
from ..base.memory.arena import Heap
from ..base.memory.lru_cache import LRUCache
from ..base.metrics.counters import Count, Counters, add, add_time, counters_here
from ..base.metrics.tally import Gauge
from ..base.platform.processes import usable_processors
from ..base.process.dataclass import dataclass
from ..base.process.forks import load_compute
from ..base.progress import thread_pool
from ..base.tracebacks import public_methods_shorten
from ..engine.columns.batch import Column, column_bytes
from ..engine.read.column_reader import ReadContext
from ..engine.read.fetch import fetch_threads, fetchers_of
from ..engine.read.file_cells import RowGroupColumns
from ..engine.run.assemble import assemble
from ..engine.run.block import BlockParts, LoadedBlock, block_by_row
from ..engine.run.vocabularies import ready_program
from ..engine.steps.source import BlockSlice
from ..plan.block_reads import BlockKey, BlockRead, BlockRows
from ..plan.items import distinct
from ..plan.plan import BasePlan
from ..plan.selection.rows import RowNumbers, rows_inside
from ..schema.element import Element
from .element_numbers import drawn_numbers, numbers_of
from .pipeline_iterator import ElementT
from .step_iterator import Iterated

_KEPT_BYTES = 256 << 20
_COPIES_SHIFT = 16


@public_methods_shorten
class NumberedElements(Generic[ElementT]):
    """The elements of one epoch by number: ``elements[3]`` is one, ``elements[[3, 1]]`` and ``elements[:9]`` are lists.

    For a list, each row group is read only once, whatever the order of the numbers. The most recently read row groups
    are kept in memory.

    Args:
        reader: makes the elements.
        epoch: their epoch.
        copies: if elements that are read once again shall draw other random numbers, how often each of those that are
            asked for came before, int64; ``None`` = never.
    """

    def __init__(self, reader: ElementReader[ElementT], epoch: int, copies: np.ndarray | None = None) -> None:
        self._reader = reader
        self._epoch = epoch
        self._copies = copies

    def __len__(self) -> int:
        """The number of elements; raises `TypeError` if they never end."""
        if self._reader.length is None:
            raise TypeError("len(): the pipeline repeats forever. Give repeat() a count, or use take().")
        return self._reader.length

    @overload
    def __getitem__(self, index: int) -> ElementT: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> list[ElementT]: ...

    def __getitem__(self, index: object) -> Any:
        """Returns an element, or a list of elements.

        Raises:
            IndexError: there is no such element, or a number counts from the end of an endless pipeline.
            TypeError: ``index`` is neither an integer, a slice, nor a list of integers or bools.
        """
        numbers = numbers_of(index, self._reader.length)
        elements = self._reader.read(self._epoch, np.atleast_1d(numbers), self._copies)
        return elements if numbers.ndim else elements[0]

    def sample(self, count: int, seed: int) -> list[ElementT]:
        """Returns ``count`` different elements, drawn uniformly.

        Raises:
            PipelineError: there are fewer elements, or they never end.
        """
        length = self._reader.length
        if length is None or count > length:
            there = "a pipeline that repeats forever" if length is None else f"{length}"
            raise PipelineError(f"sample: expected at least {count} elements to draw from, got {there}.")
        return self._reader.read(self._epoch, drawn_numbers(length, count, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementConverters(Generic[ElementT]):
    """Converts columns to one batch, or to one element per row; ``strict_nulls`` says whether nulls are errors."""

    batch: Callable[[Element, Sequence[Column]], ElementT]
    rows: Callable[[Element, list[Column]], Iterator[ElementT]]
    strict_nulls: bool


class ElementReader(Generic[ElementT]):
    """Makes the elements of a plan by number. Thread-safe, but a forked child needs its own reader.

    Args:
        threads: number of row groups read at once.
        memory_limit: bytes of row groups to keep; an element that needs more is still read.

    Raises:
        PipelineError: the elements of the plan have no numbers.
    """

    def __init__(
        self, plan: BasePlan, converters: ElementConverters[ElementT], *, threads: int, memory_limit: int
    ) -> None:
        if plan.program.drops:
            raise PipelineError(
                "rows by number: expected a pipeline whose rows can be counted, got transform(drops=True), which may "
                "leave out any row. Use where(function, fields=[...]), or iterate."
            )
        self._plan = plan
        self._program = ready_program(plan, replace(plan.program, strict_nulls=converters.strict_nulls))
        self._converters = converters
        load_compute()
        self._row_groups = KeptRowGroups(plan, fetch_threads(plan.remote, threads), memory_limit)
        self._lock = threading.Lock()
        self._held: tuple[Counters, Gauge] | None = None  # the gauge for the counters of the latest read
        self._block_rows: LRUCache[BlockKey, BlockRows] = LRUCache(memory_limit // 4, _block_rows_bytes)

    @property
    def length(self) -> int | None:
        """The number of elements; ``None`` = endless."""
        return self._plan.length

    def read(self, epoch: int, numbers: np.ndarray, copies: np.ndarray | None = None) -> list[ElementT]:
        """Reads the elements of an epoch with these numbers (int64, from 0), in this order.

        ``copies`` are as for `NumberedElements`.

        Raises:
            EmptySelectionError: the pipeline selects no rows at all.
            DecodeError, NullValueError, TransformError: an element fails.
        """
        self._plan.check_not_empty()
        elements = self._read(epoch, numbers, np.zeros_like(numbers) if copies is None else copies)
        add(Count.ELEMENTS, len(numbers))
        self._note_memory()
        return elements

    def _read(self, epoch: int, numbers: np.ndarray, copies: np.ndarray) -> list[ElementT]:
        batches = self._plan.batch_view
        if batches is not None:
            several = zip(numbers.tolist(), copies.tolist(), strict=True)
            return [self._batch(epoch, *batches.rows(number), each) for number, each in several]
        passes, index = self._plan.row_view.resolve(numbers)
        reads = self._plan.reads(epoch, passes, index)
        if any(read.spans is not None for read in reads):  # an item may need several row groups
            some = self._plan.chunk_rows
            parts = [slice(first, first + some) for first in range(0, len(index), some)]
            return [row for part in parts for row in self._chunk(epoch, passes[part], index[part], copies[part])]
        return self._rows(reads, copies)

    def _batch(self, epoch: int, passes: np.ndarray, index: np.ndarray, copies: int) -> ElementT:
        columns = self._together(epoch, passes, index, copies)
        begin = time.perf_counter()
        batch = self._converters.batch(self._plan.element, columns)
        add_time(Count.HAND_OVER_S, begin)
        return batch

    def _chunk(self, epoch: int, passes: np.ndarray, index: np.ndarray, copies: np.ndarray) -> list[ElementT]:
        return self._handed_over(self._together(epoch, passes, index, copies))

    def _handed_over(self, columns: list[Column]) -> list[ElementT]:
        begin = time.perf_counter()
        rows = list(self._converters.rows(self._plan.element, columns))
        add_time(Count.HAND_OVER_S, begin)
        return rows

    def _together(self, epoch: int, passes: np.ndarray, index: np.ndarray, copies: np.ndarray | int) -> list[Column]:
        """Assembles the columns of some items from any number of row groups."""
        reads = self._plan.reads(epoch, passes, index)
        taken = [each for read in reads for each in self._taken(read, copies)]
        loaded = self._row_groups.load([each.run for each in taken])
        sources = [each.source(rows) for each, rows in zip(taken, loaded, strict=True)]
        return self._made(sources, self._plan.rows_of_reads(reads, len(index)))

    def _rows(self, reads: Sequence[BlockRead], copies: np.ndarray) -> list[ElementT]:
        result: list[Any] = [None] * len(copies)
        taken = sorted((each for read in reads for each in self._taken(read, copies)), key=lambda each: each.run)
        at_once, chunk_rows = self._row_groups.threads, self._plan.chunk_rows
        for few in (taken[first : first + at_once] for first in range(0, len(taken), at_once)):
            for each, rows in zip(few, self._row_groups.load([each.run for each in few]), strict=True):
                source = each.source(rows)
                for first in range(0, len(each), chunk_rows):
                    part = slice(first, first + chunk_rows)
                    item_rows, places = source.item_rows[part], each.places[part]
                    repeats = None if source.repeats is None else source.repeats[part]
                    padding = None if source.padding is None else source.padding[part]
                    lengths = None if source.lengths is None else source.lengths[part]
                    some = replace(source, item_rows=item_rows, places=None, repeats=repeats)
                    some = replace(some, padding=padding, lengths=lengths)
                    columns = self._made([some], len(item_rows))
                    for place, row in zip(places.tolist(), self._handed_over(columns), strict=True):
                        result[place] = row
        return result

    def _made(self, sources: Sequence[BlockSlice], count: int) -> list[Column]:
        columns = assemble(self._program, sources, count, Heap())
        add(Count.ROWS, count)
        add(Count.DELIVERED_BYTES, sum(map(column_bytes, columns)))
        return columns

    def _note_memory(self) -> None:
        """Reports the memory in use to the counters, which may differ between epochs."""
        counters = counters_here()
        if counters is not None:
            with self._lock:
                if self._held is None or counters is not self._held[0]:
                    self._held = counters, Gauge(counters)
                self._held[1].set(self._row_groups.nbytes)

    def _taken(self, read: BlockRead, copies: np.ndarray | int) -> Iterator[_Taken]:
        """Splits the items of a read by the row groups that they lie in; ``copies`` are by place, or of all places."""
        block = self._block_rows.made(read.key, partial(self._plan.block_rows, read.key))
        starts = np.cumsum([0, *map(len, block.rows)])
        item_rows, repeats = block.rows_of_items(read.items), block.repeats_of(read.items)
        padding = block.padding_of(read.items)
        lengths = block.lengths_of(read.items)
        parts = np.searchsorted(starts, item_rows, side="right") - 1
        several = len(starts)
        for span, chosen in distinct(parts.min(axis=1) * several + parts.max(axis=1)):
            first, last = divmod(span, several)
            items = np.arange(len(item_rows)) if chosen is None else chosen
            places = items if read.places is None else read.places[items]
            yield _Taken(
                run=RunKey(read.key.source, block.row_groups[first : last + 1]),
                parts=parts[items] - first,
                rows=rows_inside(block.rows[first : last + 1], item_rows[items] - starts[first]),
                places=places,
                pass_number=read.pass_number,
                spans=None if read.spans is None else read.spans[items],
                repeats=_repeats(None if repeats is None else repeats[items], copies, places),
                padding=None if padding is None else padding[items],
                lengths=None if lengths is None else lengths[items],
            )


def reader_of(
    pipeline: Iterated, converters: ElementConverters[ElementT], *, threads: int | None = None
) -> ElementReader[ElementT]:
    """Creates a reader with the pipeline's options; ``threads`` applies if the pipeline sets no ``workers``.

    Raises:
        PipelineError: the pipeline's elements have no numbers.
    """
    if pipeline.source.served:
        raise PipelineError(
            "rows by number: expected a pipeline over files, got a served one, which delivers rows only in order. "
            "Iterate it, or open the files here."
        )
    if pipeline.options.skips:
        raise PipelineError(
            "rows by number: expected on_error='raise', got 'skip': a number names one row, and no other row can "
            "replace it. Catch the error of a row that fails, or iterate."
        )
    threads = pipeline.options.workers or threads or usable_processors()
    return ElementReader(
        pipeline.plan(), converters, threads=threads, memory_limit=pipeline.options.memory_limit or _KEPT_BYTES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """Items that lie in the same row groups.

    Attributes:
        parts, rows: int64 ``[items, T]``: for each row of each item, its row group within the run, and its number in
            that row group.
        places: the positions of the items in the element.
        pass_number, spans: as in `BlockRead`.
        repeats, padding, lengths: as in `BlockSlice`.
    """

    run: RunKey
    parts: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    pass_number: int
    spans: np.ndarray | None
    repeats: np.ndarray | None
    padding: np.ndarray | None
    lengths: np.ndarray | None

    def __len__(self) -> int:
        return len(self.places)

    def source(self, loaded: LoadedRun) -> BlockSlice:
        """Locates the items in the loaded row groups."""
        item_rows = np.empty_like(self.rows)
        before = 0
        for number, rows in enumerate(loaded.rows):
            in_part = self.parts == number
            inside = self.rows[in_part]
            item_rows[in_part] = before + (
                inside - rows.start if isinstance(rows, range) else np.searchsorted(rows, inside)
            )
            before += len(rows)
        return BlockSlice(
            block=loaded.block,
            item_rows=item_rows,
            places=self.places,
            source=self.run.source,
            pass_number=self.pass_number,
            spans=self.spans,
            repeats=self.repeats,
            padding=self.padding,
            lengths=self.lengths,
        )


def _repeats(repeats: np.ndarray | None, copies: np.ndarray | int, places: np.ndarray) -> np.ndarray | None:
    """Returns what distinguishes the copies of each row: how often it came before in the epoch, and was asked for."""
    asked = np.broadcast_to(copies, places.shape) if isinstance(copies, int) else copies[places]
    if not asked.any():
        return repeats
    return asked if repeats is None else repeats + (asked << _COPIES_SHIFT)


def _block_rows_bytes(rows: BlockRows) -> int:
    of_items = sum(array.nbytes for array in (rows.item_rows, rows.padding) if array is not None)
    return of_items + sum(part.nbytes for part in rows.rows if isinstance(part, np.ndarray))


class RunKey(NamedTuple):
    """Consecutive row groups of one source of a mix."""

    source: int
    row_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """The wanted rows of some row groups."""

    block: LoadedBlock
    rows: list[RowNumbers]
    num_bytes: int


class KeptRowGroups:
    """Loads the wanted rows of row groups, several at once, and keeps the most recent ones."""

    def __init__(self, plan: BasePlan, threads: int, memory_limit: int) -> None:
        self.threads = threads
        self._parts = plan.parts
        self._fetchers = fetchers_of(plan, ReadContext(room_bytes=memory_limit, shared_by_workers=True))
        self._columns: LRUCache[tuple[int, int], RowGroupColumns] = LRUCache(
            memory_limit // 2, lambda columns: columns.nbytes
        )
        self._loaded: LRUCache[RunKey, LoadedRun] = LRUCache(memory_limit // 2, lambda loaded: loaded.num_bytes)

    def load(self, runs: Sequence[RunKey]) -> list[LoadedRun]:
        if self.threads == 1 or sum(run not in self._loaded for run in runs) < 2:
            return [self._loaded.made(run, partial(self._load, run)) for run in runs]
        counters = counters_here()
        begin = time.perf_counter()

        def load(run: RunKey) -> LoadedRun:
            if counters is not None:
                counters.bind()
            return self._loaded.made(run, partial(self._load, run))

        with thread_pool(min(self.threads, len(runs)), "parquetry-fetch") as pool:
            loaded = list(pool.map(load, runs))
        add_time(Count.BLOCKED_S, begin)
        return loaded

    @property
    def nbytes(self) -> int:
        """Bytes in use; loaded rows share memory with the columns."""
        return max(self._columns.size, self._loaded.size)

    def _load(self, run: RunKey) -> LoadedRun:
        keys = [(run.source, row_group) for row_group in run.row_groups]
        columns = [self._columns.made(key, partial(self._fetch, key)) for key in keys]
        rows = [self._selected_rows(run.source, row_group) for row_group in run.row_groups]
        parts = BlockParts(
            columns,
            self._fetchers[run.source].places(run.row_groups),
            rows,
            self._parts[run.source].program.fields,
            row_groups=run.row_groups,
            max_value_bytes=self._parts[run.source].program.max_value_bytes,
        )
        return LoadedRun(block=block_by_row(parts), rows=rows, num_bytes=sum(part.nbytes for part in columns))

    def _fetch(self, key: tuple[int, int]) -> RowGroupColumns:
        source, row_group = key
        return self._fetchers[source].fetch_within(row_group, self._selected_rows(*key))

    def _selected_rows(self, source: int, row_group: int) -> RowNumbers:
        rows = self._parts[source].selection.rows
        return rows.numbers(row_group) if rows.whole[row_group] else rows.of(row_group)
