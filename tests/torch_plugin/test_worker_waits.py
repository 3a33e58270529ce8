"""Loader workers that make the training loop wait."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import pytest
from builders import Built, built_once
from processes import PATIENCE_S
from torch.utils.data import DataLoader

from parquetry.common.transport.stalls import is_stopped
from parquetry.torch_plugin import ParquetIterable
from parquetry.torch_plugin.loader_workers import worker_failures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what a process does"),
]
built = built_once([[20, 13], [30]], names=("id",))


def test_a_loader_worker_that_is_stopped_is_reported_once_and_not_blamed_for_its_cost(
    built: Built, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stops(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 40:
            time.sleep(1)  # the loop has received everything before
            os.kill(os.getpid(), signal.SIGSTOP)
        return row

    class Waker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(worker.pid, signal.SIGCONT)

    def warning_seconds() -> float:
        """A busy machine may take any time until the worker stops."""
        return 0.0 if is_stopped(worker.pid) else PATIENCE_S

    monkeypatch.setattr(worker_failures, "warning_seconds", warning_seconds)
    rows = ParquetIterable(built.url, ["id"], executor="threads").transform(stops).batch(9)
    iterator = iter(DataLoader(rows, batch_size=None, num_workers=1))
    (worker,) = iterator._workers
    waker, logger = Waker(level=logging.WARNING), logging.getLogger(worker_failures.__name__)
    logger.addHandler(waker)
    try:
        found = [batch["id"] for batch in iterator]
    finally:
        logger.removeHandler(waker)
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGCONT)
    assert sum(map(len, found)) == 63
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.fullmatch(
        r"the training loop has waited \d+ s for loader worker 0 \(process \d+\), which is stopped\.", warning
    )
