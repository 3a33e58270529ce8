"""Threads that make the consumer wait for long: one warning says for what."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest
from builders import Built, built_once

from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.transport import open as opening

built = built_once([[20, 13]], names=("id",))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "0.3")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_function_that_hangs_in_a_thread_is_reported_once_with_its_rows(
    built: Built, caplog: pytest.LogCaptureFixture
) -> None:
    def hangs(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(1.0 if row["id"] == 21 else 0)
        return row

    pipeline = built.pipeline(executor="threads", workers=1).transform(hangs).batch(11)
    assert [row for batch in pipeline for row in batch["id"].tolist()] == list(range(33))
    (warning,) = _warnings(caplog)
    assert "rows: a decoder or a function is working on them: file " in warning
    assert re.search(r"row group 0, rows 11 to 19; file .*row group 1, rows 0 to \d+\.$", warning)


def test_storage_that_does_not_answer_a_thread_is_reported_with_its_row_group(
    built: Built, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Fetcher.fetch

    def slow(self: Fetcher, row_group: int, *arguments: Any) -> Any:
        time.sleep(1.0 if row_group == 1 else 0)
        return fetch(self, row_group, *arguments)

    monkeypatch.setattr(Fetcher, "fetch", slow)
    assert len(list(built.pipeline(executor="threads", workers=1))) == 33
    (warning,) = _warnings(caplog)
    assert "1 block has not been read yet, by the storage or by Parquet's decoder: file " in warning
    assert warning.endswith("row group 1.")


def test_quick_threads_are_not_reported(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    assert len(list(built.pipeline(executor="threads"))) == 33
    assert _warnings(caplog) == []


def test_stall_timeout_without_processes_is_reported_once(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    opening._warn_of_stall_timeout.cache_clear()
    pipeline = built.pipeline(executor="threads", stall_timeout=7)
    for _ in range(2):
        assert len(list(pipeline)) == 33
    (warning,) = _warnings(caplog)
    assert warning.startswith("stall_timeout=7 has no effect: this pipeline runs in threads")
