"""Children that end while nobody waits for them."""

from __future__ import annotations

import sys

import psutil

from parquetry.common.transport.children import start_child

PATIENCE_S = 60


def test_a_child_that_nobody_waits_for_leaves_no_zombie() -> None:
    process, thread = start_child([sys.executable, "-c", "raise SystemExit(3)"])
    thread.join(PATIENCE_S)
    assert not psutil.pid_exists(process.pid)
    assert process.wait() == 3
