"""`KeptRowGroups`: row groups that random access has read, kept within a limit of memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..base.memory.lru_cache import LRUCache
from ..base.metrics.counters import Count, add_time, counters_here
from ..base.process.dataclass import dataclass
from ..base.progress import thread_pool
from ..engine.read.column_reader import ReadContext
from ..engine.read.fetch import fetchers_of
from ..engine.read.file_cells import RowGroupColumns
from ..engine.run.block import BlockParts, LoadedBlock, block_by_row
from ..plan.plan import BasePlan
from ..plan.selection.rows import RowNumbers


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
