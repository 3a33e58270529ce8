"""Claims: readers of one cache fetch each entry once, and none waits for a reader that is gone."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import build
from processes import PATIENCE_S

from parquetry.common.engine.read import claims, kept_tables
from parquetry.common.engine.read.claims import Claims

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere everyone fetches")
DIGEST = "0123456789abcdef" * 2
HOLDER = """
import sys, time
from parquetry.common.engine.read.claims import Claims
with Claims(sys.argv[1]).claim(sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a claim."""
    command = [sys.executable, "-c", HOLDER, str(directory), DIGEST]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def waits(directory: Path, digest: str = DIGEST, size_bytes: int = 0, patience_s: float = PATIENCE_S) -> bool:
    with Claims(str(directory)).claim(digest, size_bytes, patience_s=patience_s) as has_waited:
        return has_waited


def test_each_row_group_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: Counter[int] = Counter()
    read, lock = kept_tables.read_row_group, threading.Lock()

    def slow(dataset: Any, row_group: int, *fields: Any) -> Any:
        with lock:
            fetched[row_group] += 1
        time.sleep(0.05)
        return read(dataset, row_group, *fields)

    monkeypatch.setattr(kept_tables, "read_row_group", slow)
    built = build(tmp_path / "data", [[20, 13], [7, 30]])
    pipeline = built.pipeline("id").cache(str(tmp_path / "kept")).batch(10)

    def epoch(_: int) -> tuple[list[int], int]:
        iterator = iter(pipeline)
        ids = [int(number) for batch in iterator for number in batch["id"]]
        return ids, iterator.stats().cache_misses

    with ThreadPoolExecutor(4) as readers:
        epochs = list(readers.map(epoch, range(4)))
    assert all(ids == epochs[0][0] for ids, _ in epochs)
    assert dict(fetched) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert sum(misses for _, misses in epochs) == 4


def test_another_entry_can_be_claimed_at_once(tmp_path: Path) -> None:
    with Claims(str(tmp_path)).claim(DIGEST) as has_waited:
        assert not has_waited
        assert not waits(tmp_path, DIGEST[::-1])
    assert not waits(tmp_path)


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    with holder(tmp_path) as process, ThreadPoolExecutor(1) as other:
        waiting = other.submit(waits, tmp_path)
        time.sleep(0.1)
        assert not waiting.done()
        process.kill()
        assert waiting.result(timeout=PATIENCE_S)
        assert not waits(tmp_path)


def test_a_reader_that_stalls_is_waited_for_a_few_times_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = Claims(str(tmp_path))
    with holder(tmp_path) as process, caplog.at_level(logging.WARNING):
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(claims._MOST_EXPIRED + 2):
            with ours.claim(DIGEST, patience_s=0.1):
                pass
            with ours.claim(DIGEST[::-1]) as has_waited:  # others are still claimed
                assert not has_waited
        assert len(caplog.records) == claims._MOST_EXPIRED
        assert "fetching it here, too" in caplog.text


def test_a_large_row_group_is_waited_for_longer(tmp_path: Path) -> None:
    with holder(tmp_path) as process, ThreadPoolExecutor(1) as other:
        waiting = other.submit(waits, tmp_path, size_bytes=1 << 40, patience_s=0.0)
        time.sleep(0.2)
        assert not waiting.done()
        process.kill()
        assert waiting.result(timeout=PATIENCE_S)


def test_a_thread_that_gave_up_leaves_the_claim_of_another_to_be_released(tmp_path: Path) -> None:
    ours = Claims(str(tmp_path))
    with ours.claim(DIGEST):
        child = os.fork()
        if not child:
            time.sleep(PATIENCE_S)
            os._exit(0)
        ours._setlk = None  # another thread waited in vain
    assert not waits(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_forked_process_does_not_keep_a_claim(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    goes_on = forking.Event()
    with Claims(str(tmp_path)).claim(DIGEST):
        child = forking.Process(target=goes_on.wait)
        child.start()
    assert not waits(tmp_path)
    goes_on.set()
    child.join()


def test_a_failed_reader_leaves_the_work_to_the_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="store"), Claims(str(tmp_path)).claim(DIGEST):
        raise ValueError("store")
    assert not waits(tmp_path)


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EINVAL])
def test_without_locks_everyone_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    with holder(tmp_path):
        monkeypatch.setattr(claims, "set_byte_lock", Mock(side_effect=OSError(error, os.strerror(error))))
        assert not waits(tmp_path)


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_has_no_claims(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not waits(tmp_path / "file" / "kept")
