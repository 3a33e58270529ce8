"""Readahead: how many blocks are started before a job asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from processes import PATIENCE_S

from parquetry.common.engine.read.column_reader import ReadContext
from parquetry.common.engine.read.file_cells import RowGroupColumns
from parquetry.common.engine.read.large_blocks import LargeColumns
from parquetry.common.engine.run.block_store import BlockHandle, BlockStore
from parquetry.common.engine.run.jobs import Job
from parquetry.common.plan.block_reads import BlockKey, BlockRead, BlockRows, BlockSize

BLOCKS, BLOCK_BYTES = 8, 100


class Began(NamedTuple):
    """The fetches that a store has started, and the gate where they wait."""

    row_groups: list[int]
    gate: threading.Event
    arrived: threading.Semaphore


class Plan:
    """One stream of blocks with one row group each."""

    def block_rows(self, key: BlockKey) -> BlockRows:
        rows = np.arange(1)
        return BlockRows(row_groups=(key.block,), rows=(rows,), item_rows=rows[:, None])

    def block_size(self, key: BlockKey) -> BlockSize:
        return BlockSize(BLOCK_BYTES, BLOCK_BYTES)

    def next_block(self, key: BlockKey) -> BlockKey | None:
        return key._replace(block=key.block + 1) if key.block + 1 < BLOCKS else None


class Fetcher:
    """Row groups that arrive once the gate is open."""

    joins_requests = joins_reads = False
    longest_run = 1 << 10

    def __init__(self, began: Began) -> None:
        self._began = began

    def run_lengths(self, row_groups: list[int]) -> list[int]:
        return [1] * len(row_groups)

    def fetch(self, row_group: int, rows: Any, order: object, run: object) -> RowGroupColumns:
        self._began.row_groups.append(row_group)
        self._began.arrived.release()
        assert self._began.gate.wait(PATIENCE_S)
        return RowGroupColumns(())


@pytest.fixture
def began() -> Iterator[Began]:
    made = Began([], threading.Event(), threading.Semaphore(0))
    yield made
    made.gate.set()


def store_of(began: Began, *, threads: int, memory_limit: int = BLOCKS * BLOCK_BYTES) -> BlockStore:
    plan: Any = Plan()
    fetcher: Any = Fetcher(began)
    return BlockStore(plan, [fetcher], threads=threads, memory_limit=memory_limit, finish=lambda *_: None)


def job(block: int) -> Job:
    key = BlockKey(source=0, epoch=0, stream=0, block=block)
    read = BlockRead(key=key, items=np.arange(1), places=None, pass_number=0)
    return Job(number=block, steps=1, count=1, elements=1, reads=(read,))


def arrive(began: Began, count: int) -> list[int]:
    """Waits for exactly this many fetches."""
    for _ in range(count):
        assert began.arrived.acquire(timeout=PATIENCE_S)
    assert not began.arrived.acquire(timeout=0.05)
    return sorted(began.row_groups)


def test_one_block_is_read_ahead_while_that_is_enough(began: Began) -> None:
    began.gate.set()
    store = store_of(began, threads=4)
    for block in range(3):
        handles = store.acquire(job(block))
        handles[0].future.result(PATIENCE_S)
        store.read_ahead()
        assert arrive(began, 2 if block == 0 else 1) == list(range(block + 2))
        store.release(handles)
    store.close()


def test_more_blocks_are_read_ahead_of_jobs_that_would_wait(began: Began) -> None:
    store = store_of(began, threads=4)
    store.acquire(job(0))
    store.read_ahead()
    assert arrive(began, 2) == [0, 1]
    store.acquire(job(1))  # it is still on its way
    store.read_ahead()
    assert arrive(began, 2) == [0, 1, 2, 3]
    store.acquire(job(1))  # the same block again changes nothing
    store.read_ahead()
    assert arrive(began, 0) == [0, 1, 2, 3]
    store.close()


def test_no_more_is_begun_than_threads_can_read_but_the_next_block(began: Began) -> None:
    store = store_of(began, threads=2)
    for block in range(3):
        store.acquire(job(block))
        store.read_ahead()
    assert arrive(began, 2) == [0, 1]
    began.gate.set()
    assert arrive(began, 2) == [0, 1, 2, 3]
    store.close()


def test_reading_ahead_keeps_to_the_budget(began: Began) -> None:
    store = store_of(began, threads=8, memory_limit=3 * BLOCK_BYTES)
    for block in range(3):
        store.acquire(job(block))
        store.read_ahead()
    assert arrive(began, 3) == [0, 1, 2]
    assert store.loaded_bytes == 3 * BLOCK_BYTES
    store.close()


def test_rows_read_ahead_are_dropped_once_they_are_behind(began: Began) -> None:
    """Also when no more readahead is allowed."""
    began.gate.set()
    store = store_of(began, threads=2, memory_limit=2 * BLOCK_BYTES)
    first = store.acquire(job(0))
    store.read_ahead()
    second, third = store.acquire(job(1)), store.acquire(job(2))
    for handles in (first, second, third):
        handles[0].future.result(PATIENCE_S)
    store.release(first)
    store.release(second)
    assert [key.block for key in store._handles] == [2]
    store.close()


class GroupsPlan(Plan):
    """Blocks of `PARTS` row groups, whose footers say that they take `BLOCK_BYTES` together."""

    def block_rows(self, key: BlockKey) -> BlockRows:
        rows = np.arange(1)
        groups = tuple(range(key.block * PARTS, (key.block + 1) * PARTS))
        return BlockRows(row_groups=groups, rows=(rows,) * PARTS, item_rows=np.arange(PARTS)[:, None])


class GroupsFetcher:
    """Row groups of ``part_bytes`` each. Large blocks are `LARGE`, unless there is no room for them."""

    joins_requests = joins_reads = False
    longest_run = 1 << 10

    def __init__(self, part_bytes: int, *, has_room: bool = True) -> None:
        self.row_groups: list[int] = []
        self.large: list[tuple[int, ...]] = []
        self._part_bytes, self._has_room = part_bytes, has_room

    def run_lengths(self, row_groups: list[int]) -> list[int]:
        return [1] * len(row_groups)

    def fetch(self, row_group: int, rows: Any, order: object, run: object) -> RowGroupColumns:
        self.row_groups.append(row_group)
        return RowGroupColumns((np.zeros(self._part_bytes, np.uint8),))

    def fetch_large(self, row_groups: tuple[int, ...], rows: Any) -> LargeColumns | None:
        self.large.append(row_groups)
        return LARGE if self._has_room else None


PARTS = 4
LARGE = LargeColumns((), ())


def load(fetcher: GroupsFetcher, memory_limit: int, blocks: int = 1) -> tuple[BlockStore, list[Any]]:
    """Loads blocks one after the other, and returns their columns."""
    plan: Any = GroupsPlan()
    fetchers: Any = [fetcher]
    store = BlockStore(plan, fetchers, threads=1, memory_limit=memory_limit, finish=lambda _source, _rows, parts: parts)
    columns = []
    for block in range(blocks):
        handles = store.acquire(job(block))
        columns.append(handles[0].future.result(PATIENCE_S))
        store.release(handles)
    return store, columns


def test_a_block_whose_row_groups_are_too_large_together_goes_to_temporary_files() -> None:
    fetcher = GroupsFetcher(BLOCK_BYTES // PARTS)
    store, columns = load(fetcher, BLOCK_BYTES - 1)
    assert columns == [LARGE]
    assert fetcher.large == [(0, 1, 2, 3)]
    assert fetcher.row_groups == []
    store.close()


def test_blocks_that_grow_beyond_the_limit_go_to_temporary_files_and_later_ones_at_once() -> None:
    fetcher = GroupsFetcher(BLOCK_BYTES)
    store, columns = load(fetcher, 2 * BLOCK_BYTES, blocks=2)
    assert columns == [LARGE, LARGE]
    assert fetcher.large == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert fetcher.row_groups == [0, 1, 2]
    store.close()


@pytest.mark.parametrize("growth", [1, 4])
def test_a_block_that_temporary_files_cannot_hold_is_read_into_memory(growth: int) -> None:
    fetcher = GroupsFetcher(growth * BLOCK_BYTES // PARTS, has_room=False)
    store, ((parts),) = load(fetcher, growth * BLOCK_BYTES - 1)
    assert [part.nbytes for part in parts] == [growth * BLOCK_BYTES // PARTS] * PARTS
    assert fetcher.large == [(0, 1, 2, 3)]
    assert store.loaded_bytes == growth * BLOCK_BYTES
    store.close()


def test_blocks_are_expected_to_grow_as_those_before_them_did() -> None:
    fetcher = GroupsFetcher(BLOCK_BYTES)
    store, _ = load(fetcher, 5 * PARTS * BLOCK_BYTES)
    assert store.loaded_bytes == PARTS * BLOCK_BYTES
    assert store.admits(job(1))
    store.close()
    store, _ = load(fetcher, 2 * PARTS * BLOCK_BYTES - 1)
    assert not store.admits(job(1))
    store.close()


class Counting(Plan):
    """Notes for which blocks the next one is asked for."""

    def __init__(self) -> None:
        self.asked: list[BlockKey] = []

    def next_block(self, key: BlockKey) -> BlockKey | None:
        self.asked.append(key)
        return super().next_block(key)


def job_of(source: int, block: int) -> Job:
    key = BlockKey(source=source, epoch=0, stream=0, block=block)
    read = BlockRead(key=key, items=np.arange(1), places=None, pass_number=0)
    return Job(number=0, steps=1, count=1, elements=1, reads=(read,))


def test_a_job_looks_only_at_the_streams_that_it_draws_from() -> None:
    """Otherwise, each job of a mix of thousands of sources would cost time for all of them."""
    plan: Any = Counting()
    fetchers: Any = [GroupsFetcher(1)] * 100
    store = BlockStore(plan, fetchers, threads=1, memory_limit=1 << 30, finish=lambda *_: None)
    for source in range(100):
        plan.asked.clear()
        store.release(store.acquire(job_of(source, 0)))
        store.read_ahead()
        assert plan.asked == [BlockKey(source=source, epoch=0, stream=0, block=0)]
    store.close()


def test_a_job_does_not_look_at_streams_that_wait_for_a_thread(began: Began) -> None:
    plan: Any = Counting()
    fetchers: Any = [Fetcher(began)] * 100
    store = BlockStore(plan, fetchers, threads=2, memory_limit=1 << 30, finish=lambda *_: None)
    for source in range(100):
        store.acquire(job_of(source, 0))
        store.read_ahead()
    plan.asked.clear()
    store.acquire(job_of(0, 1))  # it is still on its way, so more is read ahead in all streams
    store.read_ahead()
    assert {key.source for key in plan.asked} == {0}
    store.close()


class JoiningFetcher(GroupsFetcher):
    """All row groups are neighbors in one file of a store."""

    joins_requests = joins_reads = True
    context = ReadContext()

    def run_lengths(self, row_groups: list[int]) -> list[int]:
        return [len(row_groups)]

    def longer_run(self, run_bytes: int, last: int, row_group: int) -> int:
        return run_bytes


class StorePlan(Plan):
    """Blocks of ``row_groups`` each. The ``large`` one does not fit into memory."""

    def __init__(self, large: int | None = None, row_groups: int = 1) -> None:
        self._large = large
        self._row_groups = row_groups

    def block_row_groups(self, key: BlockKey) -> list[int]:
        return list(range(key.block * self._row_groups, (key.block + 1) * self._row_groups))

    def block_size(self, key: BlockKey) -> BlockSize:
        return BlockSize(BLOCK_BYTES, 1 << 40 if key.block == self._large else BLOCK_BYTES)


def joined(memory_limit: int, large: int | None = None, row_groups: int = 1) -> list[list[int]]:
    """Returns the blocks that are loaded for the first one and ahead of each, by run."""
    runs: list[list[int]] = []

    class Store(BlockStore):
        def _start(self, run: Sequence[BlockHandle]) -> None:
            runs.append([handle.key.block for handle in run])
            super()._start(run)

    plan: Any = StorePlan(large, row_groups)
    fetchers: Any = [JoiningFetcher(1)]
    store = Store(plan, fetchers, threads=1, memory_limit=memory_limit, finish=lambda *_: None)
    for block in range(BLOCKS):
        handles = store.acquire(job(block))
        handles[0].future.result(PATIENCE_S)
        store.read_ahead()
        store.release(handles)
    store.close()
    return runs


@pytest.mark.parametrize(
    ("memory_blocks", "large", "runs"),
    [
        (1000, None, [[0], [1, 2], [3, 4, 5, 6], [7]]),
        (24, None, [[0], [1, 2], [3, 4, 5], [6, 7]]),
        (1000, 4, [[0], [1, 2], [3], [4], [5, 6, 7]]),
    ],
)
def test_runs_ahead_double_within_an_eighth_of_the_budget(
    memory_blocks: int, large: int | None, runs: list[list[int]]
) -> None:
    assert joined(memory_blocks * BLOCK_BYTES, large) == runs


@pytest.mark.parametrize(
    ("row_groups", "runs"),
    [(2, [[0], [1], [2, 3], [4, 5, 6, 7]]), (3, [[0], [1], [2], [3, 4], [5, 6, 7]])],
)
def test_runs_ahead_double_in_row_groups(row_groups: int, runs: list[list[int]]) -> None:
    assert joined(1000 * BLOCK_BYTES, row_groups=row_groups) == runs


def test_neighboring_blocks_of_a_job_are_one_run() -> None:
    plan: Any = StorePlan()
    fetchers: Any = [JoiningFetcher(1)]
    store = BlockStore(plan, fetchers, threads=1, memory_limit=1 << 30, finish=lambda *_: None)
    blocks = [*job(2).reads, *job(0).reads, *job(1).reads, *job(4).reads]
    handles = store.acquire(Job(number=0, steps=1, count=4, elements=4, reads=tuple(blocks)))
    assert [(each.key.block, each.ends_run) for each in handles] == [(2, True), (0, False), (1, True), (4, True)]
    store.release(handles)
    assert [key.block for key in store._handles] == [4]
    store.close()
