"""Waits end when the iteration is closed or the interpreter exits."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S, run_python

from parquetry.common import Pipeline
from parquetry.common.base import progress
from parquetry.common.base.errors import PipelineError
from parquetry.common.engine.read.claims import Claims
from parquetry.common.engine.run import loop
from parquetry.common.engine.run.threads import ThreadedEngine
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.storage import hedged_reads, retries

STORE = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory")))


def ended_while(wait: Callable[[], object], reached: threading.Event | None = None) -> str:
    """Returns the error that a wait in another thread ends with, once nobody wants it any more.

    It is the first wait, or the first one after ``reached`` is set.
    """
    token, waits, errors = progress.CancelToken(), threading.Event(), []
    first_done = progress.wait

    def noted(*args: Any, **options: Any) -> Any:
        if reached is None or reached.is_set():
            waits.set()
        return first_done(*args, **options)

    def run() -> None:
        token.bind()
        try:
            wait()
        except PipelineError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "wait", noted)
        thread.start()
        assert waits.wait(PATIENCE_S)
    assert thread.is_alive()
    token.cancel()
    token.cancel()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return errors[0]


def test_a_pause_ends() -> None:
    assert "was closed" in ended_while(lambda: progress.pause(3600))


def test_a_wait_for_an_answer_ends() -> None:
    answer = threading.Event()
    try:
        assert "was closed" in ended_while(lambda: hedged_reads.hedged_read(answer.wait, "a store"))
    finally:
        answer.set()


def test_no_further_attempt_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(retries, "_LONGEST_WAIT_S", 3600.0)
    attempts, tried = [], threading.Event()

    def fail() -> None:
        attempts.append(1)
        tried.set()
        raise ConnectionError("reset")

    assert "was closed" in ended_while(lambda: retries.with_retries(STORE, fail, "a store"), tried)
    assert len(attempts) == 1


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no such locks here")
def test_a_wait_for_another_reader_ends(tmp_path: Path) -> None:
    claims = Claims(str(tmp_path))
    with claims.claim("a" * 16) as has_waited:
        assert not has_waited

        def wait() -> None:
            with Claims(str(tmp_path)).claim("a" * 16):
                pass

        assert "was closed" in ended_while(wait)


def test_a_thread_without_a_token_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", waits.append)
        progress.pause(0.05)
    assert waits == [0.05]
    token = progress.CancelToken()
    token.cancel()
    token.bind()
    with pytest.raises(PipelineError, match="was closed"):
        progress.pause(0.01)
    progress._token.set(None)


def test_a_pool_whose_block_is_interrupted_does_not_wait() -> None:
    began = threading.Event()

    def work() -> None:
        began.set()
        progress.pause(3600)

    with pytest.raises(KeyboardInterrupt), progress.thread_pool(2, "waiting") as pool:  # noqa: PT012
        futures = [pool.submit(work) for _ in range(3)]
        assert began.wait(PATIENCE_S)
        raise KeyboardInterrupt
    assert futures[2].cancelled() or futures[2].exception() is not None
    assert "was closed" in str(futures[0].exception())


def test_a_thread_that_starts_after_the_interrupt_leaves_the_others_their_end() -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        ended.wait(PATIENCE_S)

    with pytest.raises(KeyboardInterrupt), progress.thread_pool(3, "late") as pool:  # noqa: PT012
        tokens = progress._tokens
        first = pool.submit(work)
        assert started.wait(PATIENCE_S)
        for each in list(tokens):
            each.cancel()
        second = pool.submit(ended.set)  # its thread begins when nobody wants its work any more
        second.result(PATIENCE_S)
        raise KeyboardInterrupt
    assert first.done()


def test_pools_inside_a_thread_end_with_its_token() -> None:
    def wait() -> None:
        with progress.thread_pool(2, "inner") as pool:
            list(pool.map(progress.pause, [3600, 3600]))

    assert "was closed" in ended_while(wait)


def test_an_error_inside_leaves_the_token_of_the_thread() -> None:
    token, errors = progress.CancelToken(), []

    def run() -> None:
        token.bind()
        with pytest.raises(ValueError, match="inner"), progress.thread_pool(1, "inner"):
            raise ValueError("inner")
        try:
            progress.check_cancelled()
        except PipelineError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    assert not errors


EXITING = """
import sys, threading
from parquetry.common import Pipeline
from parquetry.common.engine.read import claims

patience_s = float(sys.argv[3])
claims.PATIENCE_S = 10 * patience_s
began = threading.Event()

def held_by_another(descriptor, kind, start):
    if threading.current_thread().name.startswith("parquetry"):
        began.set()
    raise BlockingIOError

claims.set_byte_lock = held_by_another
rows = iter(Pipeline(sys.argv[1], executor="threads", workers=2).cache(sys.argv[2]))
threading.Thread(target=lambda: next(rows), daemon=True).start()
assert began.wait(patience_s)
print("leaves", flush=True)
"""


def test_a_script_that_ends_does_not_wait_for_another_reader(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(100)}), tmp_path / "a.parquet", row_group_size=10)
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    told = run_python("-c", EXITING, tmp_path / "a.parquet", tmp_path / "cache", PATIENCE_S, env=environment)
    assert told.stdout == "leaves\n", told.stderr


def test_a_thread_that_waits_for_a_step_that_no_thread_has_begun_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "rows.parquet")
    pipeline = Pipeline(tmp_path / "rows.parquet", workers=1).batch(3)
    source = ThreadedEngine(StepIterator(pipeline, 0, strict_nulls=False)._request())
    leave, waits, errors = threading.Event(), threading.Event(), []
    source._loop._maker._pool.submit(leave.wait, PATIENCE_S)
    monkeypatch.setattr(loop, "describe_wait", lambda *_: waits.set())
    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "0")

    def consume() -> None:
        try:
            next(source)
        except PipelineError as error:
            errors.append(str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    assert waits.wait(PATIENCE_S)
    source.close()
    thread.join(PATIENCE_S)
    leave.set()
    assert errors == ["iteration was closed."]
    with pytest.raises(PipelineError, match="closed"):
        next(source)
