"""Threads help with the first job of an iteration, and with no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import PATIENCE_S

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.progress import CancelToken
from parquetry.common.engine.columns.first_job import FirstJob, in_parts

pytestmark = pytest.mark.versions


def _values(part: slice) -> range:
    return range(part.start, part.stop)


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 5))
def test_each_value_is_in_one_part(count: int, most: int, threads: int) -> None:
    first_job = FirstJob(threads)
    seen: dict[int, list[int]] = {job: [] for job in range(threads)}
    lengths: list[int] = []

    def run(job: int) -> None:
        def work(part: slice) -> None:
            seen[job].extend(_values(part))
            lengths.append(len(_values(part)))

        with first_job.first_batch_boost(job):
            in_parts(count, most, work)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(threads)))
    assert {job: sorted(values) for job, values in seen.items()} == {job: [*range(count)] for job in seen}
    assert max(lengths, default=0) <= most


def test_the_thread_of_a_later_job_helps_first() -> None:
    first_job = FirstJob(2)
    both_here, begun = threading.Barrier(2), threading.Event()
    done: list[tuple[str, str]] = []

    def first(part: slice) -> None:
        begun.set()
        if part.start < 2:
            both_here.wait(PATIENCE_S)  # passes only if two threads work on the first job
        done.append(("first", threading.current_thread().name))

    def run_first() -> None:
        with first_job.first_batch_boost(0):
            in_parts(2, 1, first)

    def run_second() -> None:
        begun.wait(PATIENCE_S)
        with first_job.first_batch_boost(1):
            in_parts(1, 1, lambda part: done.append(("second", threading.current_thread().name)))

    threads = [threading.Thread(target=run_first, name="one"), threading.Thread(target=run_second, name="two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(done) == [("first", "one"), ("first", "two"), ("second", "two")]


def test_an_error_in_a_helping_thread_is_raised_in_the_first_job() -> None:
    first_job = FirstJob(2)
    both_here, begun = threading.Barrier(2), threading.Event()

    def first(part: slice) -> None:
        begun.set()
        both_here.wait(PATIENCE_S)
        if threading.current_thread().name == "two":
            raise ValueError("damaged")

    def run_second() -> None:
        begun.wait(PATIENCE_S)
        with first_job.first_batch_boost(1):
            in_parts(1, 1, lambda part: None)

    second = threading.Thread(target=run_second, name="two")
    second.start()
    with pytest.raises(ValueError, match="damaged"), first_job.first_batch_boost(0):
        in_parts(2, 1, first)
    second.join(PATIENCE_S)


def test_later_jobs_are_made_alone_once_the_first_is_over() -> None:
    first_job = FirstJob(4)
    parts: list[slice] = []
    with first_job.first_batch_boost(0):
        in_parts(8, 16, parts.append)
    assert [len(_values(part)) for part in parts] == [1] * 8  # two parts for each thread
    parts.clear()
    with first_job.first_batch_boost(1):
        in_parts(40, 16, parts.append)
    assert [len(_values(part)) for part in parts] == [16, 16, 8]
    parts.clear()
    in_parts(20, 16, parts.append)  # a thread without a job
    assert [len(_values(part)) for part in parts] == [16, 4]


def test_jobs_of_a_closed_iteration_end_between_parts() -> None:
    token, parts = CancelToken(), []

    def work(part: slice) -> None:
        parts.append(part)
        token.cancel()

    def run() -> None:
        token.bind()
        in_parts(64, 16, work)

    with ThreadPoolExecutor(1) as pool, pytest.raises(PipelineError, match="closed"):
        pool.submit(run).result()
    assert parts == [slice(0, 16)]
