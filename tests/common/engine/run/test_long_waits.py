"""Threads that make the consumer wait for long: one warning says for what."""

from __future__ import annotations

import logging
import re
import threading
from typing import Any

import pytest
from builders import Built, built_once
from processes import PATIENCE_S

from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.engine.run import loop
from parquetry.common.engine.run.loop import JobLoop
from parquetry.common.transport import open as opening

built = built_once([[20, 13]], names=("id",))


class Hang:
    """A wait for the second row group, which ends with the first warning.

    Only the wait that meets it is called long. A busy machine may take any time for the others.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._told = threading.Event(), threading.Event()
        warn, wait = loop._LOGGER.warning, JobLoop._wait

        def told(*args: Any) -> None:
            warn(*args)
            self._told.set()

        def watched(jobs: JobLoop[Any], started: Any) -> None:
            meets_it = any(read.key.block == 1 for read in started.job.reads) and not self._told.is_set()
            if meets_it:
                assert self._begun.wait(PATIENCE_S)
            monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "0.05" if meets_it else str(PATIENCE_S))
            wait(jobs, started)

        monkeypatch.setattr(loop._LOGGER, "warning", told)
        monkeypatch.setattr(JobLoop, "_wait", watched)

    def __call__(self) -> None:
        self._begun.set()
        assert self._told.wait(PATIENCE_S)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Hang:
    return Hang(monkeypatch)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_function_that_hangs_in_a_thread_is_reported_once_with_its_rows(
    built: Built, caplog: pytest.LogCaptureFixture, hang: Hang
) -> None:
    def hangs(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 21:
            hang()
        return row

    pipeline = built.pipeline(executor="threads", workers=1).transform(hangs).batch(11)
    assert [row for batch in pipeline for row in batch["id"].tolist()] == list(range(33))
    (warning,) = _warnings(caplog)
    assert "rows: a decoder or a function is working on them: file " in warning
    assert re.search(r"row group 0, rows 11 to 19; file .*row group 1, rows 0 to \d+\.$", warning)


def test_storage_that_does_not_answer_a_thread_is_reported_with_its_row_group(
    built: Built, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    fetch = Fetcher.fetch

    def slow(self: Fetcher, row_group: int, *arguments: Any) -> Any:
        if row_group == 1:
            hang()
        return fetch(self, row_group, *arguments)

    monkeypatch.setattr(Fetcher, "fetch", slow)
    assert len(list(built.pipeline(executor="threads", workers=1))) == 33
    (warning,) = _warnings(caplog)
    assert "1 block has not been read yet, by the storage or by Parquet's decoder: file " in warning
    assert warning.endswith("row group 1.")


def test_threads_that_are_quick_enough_are_not_reported(
    built: Built, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", str(PATIENCE_S))
    assert len(list(built.pipeline(executor="threads"))) == 33
    assert _warnings(caplog) == []


def test_stall_timeout_without_processes_is_reported_once(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    opening._warn_of_stall_timeout.cache_clear()
    pipeline = built.pipeline(executor="threads", stall_timeout=7)
    for _ in range(2):
        assert len(list(pipeline)) == 33
    (warning,) = _warnings(caplog)
    assert warning.startswith("stall_timeout=7 has no effect: this pipeline runs in threads")
