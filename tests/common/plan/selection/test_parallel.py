"""Ctrl-C stops a threaded selection after the running calls."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base import progress


@pytest.fixture
def keyboard_interrupt() -> Iterator[None]:
    """Installs Python's own handler, which background test runs lack."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_running_calls_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyboard_interrupt: None
) -> None:
    pq.write_table(pa.table({"a": range(80)}), tmp_path / "x.parquet", row_group_size=10)
    ended, calls = threading.Event(), []

    class Pool(progress.ThreadPool):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            ended.set()
            super().shutdown(wait)

    def interrupted(row: dict[str, Any]) -> bool:
        calls.append(row["a"])
        while not ended.is_set():  # Python may miss a signal that comes just before it waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            ended.wait(5)
        return True

    monkeypatch.setattr(progress, "ThreadPool", Pool)
    with pytest.raises(KeyboardInterrupt):
        next(iter(Pipeline(tmp_path, "a", workers=4).where(interrupted, fields=["a"])))
    assert len(calls) == 1  # the others wait for the function, which one thread at a time calls
