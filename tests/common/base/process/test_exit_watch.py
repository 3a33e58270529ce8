"""Waiting for the end of another process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

import pytest
from processes import PATIENCE_S

from parquetry.common.base.process import exit_watch
from parquetry.common.base.process.exit_watch import wait_for_end


@pytest.mark.parametrize("pidfd", [True, False])
def test_the_wait_is_as_long_as_the_process_lives(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.setattr(exit_watch, "_LOOK_S", 0.01)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        waiting = threading.Thread(target=wait_for_end, args=(process.pid,))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        process.communicate(b"\n")
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    wait_for_end(process.pid)  # it does not exist


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
def test_a_process_with_many_descriptors_can_wait_too() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1_200:
        pytest.skip("needs room for 1,200 descriptors")
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        with subprocess.Popen([sys.executable, "-c", ""]) as process:
            wait_for_end(process.pid)
            assert process.wait(PATIENCE_S) == 0
    finally:
        for descriptor in held:
            os.close(descriptor)
