"""A pool of threads serves the program for as long as any of its threads goes on."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S, run_python

from parquetry.common.base.errors import ResourceError
from parquetry.common.base.threads import ThreadPool


def test_calls_run_in_at_most_so_many_threads_which_begin_alike() -> None:
    begun: list[str] = []
    together = threading.Barrier(3)

    def work(number: int) -> tuple[int, str]:
        together.wait(PATIENCE_S)
        return number, threading.current_thread().name

    with ThreadPool(3, "work", lambda: begun.append(threading.current_thread().name)) as pool:
        results = list(pool.map(work, range(9)))
    assert [number for number, _ in results] == list(range(9))
    assert {name for _, name in results} == {"work_0", "work_1", "work_2"} == set(begun)
    assert len(begun) == 3


def test_an_idle_thread_is_used_before_another_is_started() -> None:
    with ThreadPool(4, "work") as pool:
        names = []
        for _ in range(3):
            names.append(pool.submit(lambda: threading.current_thread().name).result(PATIENCE_S))
            while not pool._idle._value:  # it becomes idle after it has returned its result
                pass
    assert set(names) == {"work_0"}


def test_a_thread_that_has_just_started_for_a_call_is_not_idle() -> None:
    leave = threading.Event()
    with ThreadPool(2, "work") as pool:
        first = pool.submit(leave.wait, PATIENCE_S)
        pool.submit(leave.set)
    assert first.result()


def test_an_error_is_raised_by_the_future_and_kept_by_nothing_else() -> None:
    class OddError(Exception):
        pass

    def fail() -> None:
        raise OddError

    gc.disable()
    try:
        with ThreadPool(1, "work") as pool:
            future = pool.submit(fail)
            assert isinstance(future.exception(PATIENCE_S), OddError)
            error = weakref.ref(future.exception())
            del future
            assert pool.submit(int).result(PATIENCE_S) == 0  # by now, the thread has forgotten the call before
            assert error() is None
    finally:
        gc.enable()


def test_a_closed_pool_cancels_what_has_not_begun_and_refuses_more() -> None:
    begun, leave = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        leave.wait(PATIENCE_S)

    pool = ThreadPool(1, "work")
    first, second = pool.submit(wait), pool.submit(wait)
    assert begun.wait(PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    pool.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled()
    with pytest.raises(RuntimeError, match="closed pool"):
        pool.submit(int)
    leave.set()
    pool.shutdown()
    assert first.result(PATIENCE_S) is None


def test_the_threads_of_a_pool_that_nobody_holds_end() -> None:
    pool = ThreadPool(2, "forgotten")
    pool.submit(int).result(PATIENCE_S)
    (thread,) = pool._threads
    del pool
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_with_few_threads_a_pool_works_with_those_and_without_any_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    allowed = 1
    with ThreadPool(3, "work") as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
    assert "Working with 1." in caplog.text
    allowed = 0
    started.clear()
    with ThreadPool(3, "work") as pool, pytest.raises(ResourceError, match=r"thread work_0: can't start.*RLIMIT_NPROC"):
        pool.submit(int)


_TRAINING = """
import sys, threading
from parquetry import Pipeline
from parquetry.common.base import progress

def train():
    rows = iter(Pipeline(sys.argv[1], executor="threads", workers=2).where(("id", ">=", 0)).shuffle(10).batch(10))
    count = len(next(rows)["id"])
    threading.main_thread().join()
    with progress.thread_pool(2, "other") as pool:
        assert list(pool.map(abs, [-1])) == [1]
    print(count + sum(len(batch["id"]) for batch in rows), flush=True)

threading.Thread(target=train).start()
"""


def test_a_thread_that_trains_may_outlive_the_main_thread(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(500)}), tmp_path / "rows.parquet", row_group_size=50)
    done = run_python("-c", _TRAINING, tmp_path)
    assert (done.stdout, done.stderr) == ("500\n", "")


_LEFT = """
import sys
from concurrent.futures import Future
from parquetry.common.base.threads import ThreadPool

first, second = ThreadPool(1, "first"), ThreadPool(1, "second")
begun, needed = Future(), Future()

def wait():
    begun.set_result(None)
    sys.stdout.write(needed.result())

first.submit(wait)
begun.result()
second.submit(begun.result)
second.submit(needed.set_result, "made")
sys.stdout.write("leaves ")
"""


def test_calls_that_were_started_are_made_before_the_interpreter_exits() -> None:
    done = run_python("-c", _LEFT)
    assert (done.stdout, done.stderr, done.returncode) == ("leaves made", "", 0)


def test_a_call_goes_on_when_a_loader_worker_exits(tmp_path: Path) -> None:
    def begin() -> None:
        ThreadPool(1, "test").submit(make)
        assert has_begun.wait(PATIENCE_S)

    def make() -> None:
        has_begun.set()
        time.sleep(0.2)
        (tmp_path / "made").touch()

    has_begun = threading.Event()
    worker = multiprocessing.get_context("fork").Process(target=begin)
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0
    assert (tmp_path / "made").exists()
