"""Loader workers that make the training loop wait."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from typing import Any

import pytest
from builders import Built, built_once
from torch.utils.data import DataLoader

from parquetry.torch_plugin import ParquetIterable

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

    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "2")
    rows = ParquetIterable(built.url, ["id"], executor="threads").transform(stops).batch(9)
    iterator = iter(DataLoader(rows, batch_size=None, num_workers=1))
    found = [next(iterator)["id"]]
    waking = threading.Timer(11, os.kill, (iterator._workers[0].pid, signal.SIGCONT))  # torch looks every 5 s
    waking.start()
    found += [batch["id"] for batch in iterator]
    waking.join()
    assert sum(map(len, found)) == 63
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.fullmatch(
        r"the training loop has waited \d+ s for loader worker 0 \(process \d+\), which is stopped\.", warning
    )
