"""A pool of threads serves the program for as long as any of its threads goes on."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S, end_idle_threads, run_python

from parquetry.common.base import threads
from parquetry.common.base.errors import ResourceError
from parquetry.common.base.threads import ThreadPool


def test_calls_run_in_at_most_so_many_threads_and_begin_alike() -> None:
    begun: list[str] = []
    together = threading.Barrier(3)

    def work(number: int) -> tuple[int, int, str]:
        together.wait(PATIENCE_S)
        return number, threading.get_ident(), threading.current_thread().name

    with ThreadPool(3, "work", lambda: begun.append(threading.current_thread().name)) as pool:
        results = list(pool.map(work, range(9)))
    assert [number for number, _, _ in results] == list(range(9))
    assert len({thread for _, thread, _ in results}) == 3
    assert {name for _, _, name in results} == {"work"}
    assert begun == ["work"] * 9


def test_an_idle_thread_serves_every_pool_before_another_is_started() -> None:
    first = _made_by("first")
    assert [_made_by("second"), _made_by("first")] == [first, first]


def _made_by(name: str) -> int:
    """Returns the thread that made a call of a new pool, once the thread is idle again."""
    with ThreadPool(4, name) as pool:
        thread = pool.submit(threading.current_thread).result(PATIENCE_S)
    while thread not in threads._idle:
        pass
    assert thread.name == threads.IDLE_NAME
    assert thread.ident is not None
    return thread.ident


def test_a_pool_that_waits_has_no_threads() -> None:
    def submitted(pool: ThreadPool) -> Future[int]:
        thread = pool.submit(threading.get_ident)
        pool.submit(int).result(PATIENCE_S)
        return thread

    pools = [ThreadPool(1, "work") for _ in range(50)]
    before = threading.active_count()
    for pool in pools:
        assert submitted(pool).result(PATIENCE_S)
        while pool._working:
            pass
        while not threads._idle:
            pass
    assert threading.active_count() <= before + 1


def test_pools_that_wait_for_each_other_all_go_on() -> None:
    """More than any fixed number of shared threads: each call waits for a call of the next pool."""
    pools = [ThreadPool(1, "work") for _ in range(100)]

    def wait_for(number: int) -> int:
        if number == len(pools):
            return number
        return pools[number].submit(wait_for, number + 1).result(PATIENCE_S)

    assert wait_for(0) == 100


def test_a_call_sees_nothing_that_those_before_it_have_set() -> None:
    seen = ContextVar("seen", default=0)
    with ThreadPool(1, "first") as first, ThreadPool(1, "second") as second:
        for pool in (first, first, second):
            assert pool.submit(lambda: (seen.get(), seen.set(1))[0]).result(PATIENCE_S) == 0


def test_a_thread_ends_when_it_has_been_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_S", 0.0)
    with ThreadPool(1, "work") as pool:
        thread = pool.submit(threading.current_thread).result(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert thread not in threads._idle


def test_the_collector_may_close_a_pool_in_one_of_its_threads() -> None:
    class Closing(list[object]):
        """A queue of calls in which a thread finds that its pool is closed."""

        def popleft(self) -> object:
            pool.shutdown(wait=False, cancel_futures=True)
            raise IndexError

    pool = ThreadPool(1, "work")
    pool._calls = Closing()  # type: ignore[assignment]  # stands for the collector
    assert pool.submit(int).result(PATIENCE_S) == 0
    pool.shutdown()


def test_a_forked_child_starts_threads_of_its_own() -> None:
    def call() -> None:
        assert ThreadPool(1, "work").submit(int).result(PATIENCE_S) == 0

    _made_by("work")
    child = multiprocessing.get_context("fork").Process(target=call)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0


def test_a_pool_uses_as_many_threads_as_it_may() -> None:
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
    end_idle_threads()
    allowed = 1
    with ThreadPool(3, "work") as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
    assert "Working with 1." in caplog.text
    allowed = 0
    end_idle_threads()
    started.clear()
    with ThreadPool(3, "work") as pool, pytest.raises(ResourceError, match=r"thread work: can't start.*RLIMIT_NPROC"):
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
