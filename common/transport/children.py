"""`start_child`: child processes that end with their parent, even if they are stopped.

A stopped child cannot notice that its parent has ended. So each child asks the kernel, when it starts, to kill it then
(`end_with_parent`). To the kernel, the parent is the thread that started the child, and threads of a trainer may end at
any time. So each child is started by a thread of its own, which lives as long as the child does.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ..process.exit_watch import waiter_for
from .processes import report


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


def _keep(
    started: Future[subprocess.Popen[bytes]],
    command: Sequence[str],
    meanwhile: Callable[[subprocess.Popen[bytes]], object] | None,
    options: dict[str, Any],
) -> None:
    try:
        process = subprocess.Popen(command, **options)
        wait = waiter_for(process.pid, runs=lambda: process.poll() is None)
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
    wait()  # waiting for the process itself would take the lock that `Popen.poll` needs
