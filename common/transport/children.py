"""`start_child` and `end_with_parent`: child processes that end with their parent, even if they are stopped.

A stopped child cannot notice that its parent has ended. So each child asks the kernel, when it starts, to kill it then.
To the kernel, the parent is the thread that started the child (prctl(2), ``PR_SET_PDEATHSIG``), and threads of a
trainer may end at any time. So each child is started by a thread of its own, which lives as long as the child does.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from .processes import report

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0


def start_child(
    command: Sequence[str], *, meanwhile: Callable[[subprocess.Popen[bytes]], object] | None = None, **options: Any
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts a process, and returns it and the thread that started it. The thread ends after the process has ended.

    Args:
        meanwhile: called in that thread.
        options: those of `subprocess.Popen`.

    Raises:
        OSError: the process could not be started.
        RuntimeError: the thread could not be started.
    """
    started: Future[subprocess.Popen[bytes]] = Future()
    arguments = (started, command, meanwhile, options)
    thread = threading.Thread(target=_keep, args=arguments, name="parquetry-child", daemon=True)
    thread.start()
    return started.result(), thread


def end_with_parent() -> None:
    """Lets the kernel kill this process when the thread that started it ends; `start_child` keeps that thread alive.

    Linux only. Elsewhere, the process ends by itself, unless it is stopped.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _keep(
    started: Future[subprocess.Popen[bytes]],
    command: Sequence[str],
    meanwhile: Callable[[subprocess.Popen[bytes]], object] | None,
    options: dict[str, Any],
) -> None:
    try:
        process = subprocess.Popen(command, **options)
        ended = _ended(process.pid)
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(process)
    del started, options
    try:
        if meanwhile is not None:
            meanwhile(process)
    except BaseException:
        report()
    if ended is None:
        while process.poll() is None:
            time.sleep(_LOOK_S)
        return
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.poll()
    os.close(ended)


def _ended(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when a process ends, or ``None`` on systems without them.

    Waiting for the process itself would take the lock that `subprocess.Popen.poll` needs.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
