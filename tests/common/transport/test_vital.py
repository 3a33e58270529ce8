"""Threads that must not die silently."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from processes import run_python

from parquetry.common.transport.processes import FAILED, start_vital

COMMON = Path(__file__).parents[3] / "common"


def test_a_thread_that_fails_is_reported_and_ends_its_process() -> None:
    program = """
import threading
from parquetry.common.transport.processes import start_vital

def fail():
    raise {error}

start_vital(fail, name="a")
threading.Event().wait()
"""
    for error in ("KeyError('the cause')", "SystemExit('the cause')"):
        done = run_python("-c", program.format(error=error))
        assert done.returncode == FAILED
        assert "the cause" in done.stderr
        assert "in fail" in done.stderr


def test_a_failing_thread_calls_back_in_the_users_process() -> None:
    told = threading.Event()
    start_vital(lambda: 1 // 0, name="a", failed=told.set).join()
    assert told.is_set()


def test_a_thread_that_ends_well_ends_nothing() -> None:
    start_vital(lambda: None, name="a").join()


@pytest.mark.parametrize("folder", ["sidecar", "server"])
def test_no_thread_is_started_in_another_way(folder: str) -> None:
    sources = [path for path in (COMMON / folder).glob("*.py") if path.name != "vital.py"]
    assert sources
    assert [path.name for path in sources if "threading.Thread(target" in path.read_text()] == []
