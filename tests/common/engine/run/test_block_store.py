"""Readahead: how many blocks are started before a job asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from processes import PATIENCE_S

from parquetry.common.engine.read.file_cells import RowGroupColumns
from parquetry.common.engine.run.block_store import BlockStore
from parquetry.common.engine.run.jobs import Job
from parquetry.common.plan.draws import BlockKey, BlockRows, Draw

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

    def block_bytes(self, key: BlockKey) -> int:
        return BLOCK_BYTES

    def largest_row_group_bytes(self, key: BlockKey) -> int:
        return BLOCK_BYTES

    def next_block(self, key: BlockKey) -> BlockKey | None:
        return key._replace(block=key.block + 1) if key.block + 1 < BLOCKS else None


class Fetcher:
    """Row groups that arrive once the gate is open."""

    joins_requests = False

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
    draw = Draw(key=key, items=np.arange(1), places=None, pass_number=0)
    return Job(number=block, steps=1, count=1, elements=1, draws=(draw,))


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
