"""Row groups are loaded ahead in order; errors come at their place; nothing runs after the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build

from parquetry.common.base.errors import DatasetError, DecodeError, PipelineError
from parquetry.common.base.progress import check_cancelled
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.engine.run.row_group_loop import (
    RowGroupJob,
    RowGroupMaker,
    row_group_loop,
    tables_ahead,
    value_of,
)
from parquetry.common.plan.selection.rows import all_rows


def jobs(count: int) -> Iterator[RowGroupJob]:
    return (RowGroupJob(number=n, first=n, count=1, row_group=n) for n in range(count))


def maker_of(load: Any, threads: int = 2) -> RowGroupMaker:
    return RowGroupMaker(load, threads=threads, name="test")


@pytest.mark.parametrize("threads", [0, 2])
def test_jobs_are_delivered_in_order_and_an_element_error_at_its_place(threads: int) -> None:
    def load(job: RowGroupJob) -> int:
        if job.row_group == 2:
            raise DecodeError("a value")
        return 10 * job.row_group

    deliveries = list(row_group_loop(jobs(5), maker_of(load, threads), ahead=3))
    assert [None if each.made is None else each.made.value for each in deliveries] == [0, 10, None, 30, 40]
    assert [each.position - (each.error is not None) for each in deliveries] == [0, 1, 2, 3, 4]
    with pytest.raises(DecodeError, match="a value"):
        value_of(deliveries[2])


def test_a_caller_that_loads_by_itself_is_not_cancelled_with_the_loop() -> None:
    loop = row_group_loop(jobs(2), maker_of(lambda job: job.row_group, threads=0), ahead=1)
    assert value_of(next(loop)) == 0
    loop.close()
    check_cancelled()
    with pytest.raises(PipelineError, match="closed"):
        next(loop)


def test_another_error_ends_the_loop_and_the_maker_serves_the_next_one() -> None:
    def load(job: RowGroupJob) -> int:
        if job.row_group == 1:
            raise DatasetError("a file")
        return job.row_group

    maker = maker_of(load)
    loop = row_group_loop(jobs(4), maker, ahead=3)
    assert value_of(next(loop)) == 0
    with pytest.raises(DatasetError, match="a file"):
        next(loop)
    assert loop.futures == []
    rest = (job for job in jobs(4) if job.row_group > 1)
    assert [value_of(each) for each in row_group_loop(rest, maker, ahead=3)] == [2, 3]


def test_a_function_that_raises_the_end_of_an_iterator_does_not_end_the_loop() -> None:
    def load(job: RowGroupJob) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        next(row_group_loop(jobs(1), maker_of(load), ahead=1))


@pytest.mark.parametrize(("size", "most"), [(0, 3), (1 << 30, 1)])
def test_no_more_is_loaded_than_the_number_and_the_memory_allow(size: int, most: int) -> None:
    begun = threading.Semaphore(0)

    def load(job: RowGroupJob) -> int:
        begun.release()
        return job.row_group

    loop = row_group_loop(jobs(9), maker_of(load, threads=8), ahead=3, size_of=lambda job: size)
    for number in range(9):
        assert value_of(next(loop)) == number
        assert len(loop.futures) <= most - 1
    assert all(begun.acquire(timeout=60) for _ in range(9))
    assert not begun.acquire(blocking=False)


def test_shutdown_wakes_the_consumer_and_drops_what_waits() -> None:
    began, go_on, loaded = threading.Event(), threading.Event(), []

    def load(job: RowGroupJob) -> None:
        loaded.append(job.row_group)
        began.set()
        go_on.wait(60)

    maker = maker_of(load, threads=1)
    loop = row_group_loop(jobs(9), maker, ahead=3)
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            next(loop)
        except PipelineError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert began.wait(60)
    maker.shutdown(wait=False)
    consumer.join(60)
    go_on.set()
    maker.shutdown(wait=True)
    assert [str(error) for error in errors] == ["iteration was closed."]
    assert loaded == [0]


def test_tables_hold_the_selected_rows_of_each_row_group(tmp_path: Path) -> None:
    dataset = build(tmp_path / "rows", [[4, 3], [5]]).pipeline().dataset
    fetcher = Fetcher(dataset, [dataset.schema["id"]])
    rows = all_rows(dataset.row_groups.rows).replace({1: np.array([0, 2])})
    assert [table["id"].to_pylist() for table in tables_ahead(fetcher, rows, [0, 1, 2])] == [
        [0, 1, 2, 3],
        [4, 6],
        [7, 8, 9, 10, 11],
    ]
    tables = tables_ahead(fetcher, rows, [2, 0])
    assert next(tables)["id"].to_pylist() == [7, 8, 9, 10, 11]
    tables.close()
    assert list(tables) == []
