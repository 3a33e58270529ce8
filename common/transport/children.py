"""Child processes: `start_child` starts one that ends with its parent, `how_it_ended` describes its exit status.

A stopped child cannot notice that its parent has ended. So each child asks the kernel, when it starts, to kill it then
(`end_with_parent`). To the kernel, the parent is the thread that started the child, and threads of a trainer may end at
any time. So each child is started by a thread of its own, which lives as long as the child does.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ..base.platform.memory_file import shared_memory_room
from ..base.platform.processes import killed_for_memory
from ..base.process.exit_watch import waiter_for
from ..base.threads import start_thread
from .processes import report

_NEARLY_FULL = 0.02


def start_child(
    command: Sequence[str],
    *,
    meanwhile: Callable[[subprocess.Popen[bytes]], object] | None = None,
    hands_over: socket.socket | None = None,
    **options: Any,
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts a process, and returns it and the thread that started it. The thread ends after the process has ended.

    You need not wait for the process: the thread takes its exit status, so that no zombie is left.

    Args:
        meanwhile: called in that thread.
        hands_over: a socket that the process gets. That thread closes it, because you may be interrupted before the
            process starts. Its number could belong to another file by then.
        options: those of `subprocess.Popen`.

    Raises:
        OSError: the process could not be started.
        ResourceError: the thread could not be started.
    """
    started: Future[subprocess.Popen[bytes]] = Future()
    if hands_over is not None:
        options["pass_fds"] = [hands_over.fileno()]
    arguments = (started, command, meanwhile, hands_over, options)
    thread = threading.Thread(target=_keep, args=arguments, name="parquetry-child", daemon=True)
    start_thread(thread)
    return started.result(), thread


def _keep(
    started: Future[subprocess.Popen[bytes]],
    command: Sequence[str],
    meanwhile: Callable[[subprocess.Popen[bytes]], object] | None,
    hands_over: socket.socket | None,
    options: dict[str, Any],
) -> None:
    try:
        try:
            process = subprocess.Popen(command, **options)
        finally:
            if hands_over is not None:
                hands_over.close()
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
    process.poll()


def how_it_ended(code: int | None) -> str:
    """Describes how a child process ended.

    Args:
        code: its exit status, or minus the number of the signal that ended it; ``None`` if unknown.

    Example:
        >>> how_it_ended(3)
        'exit status 3'
        >>> how_it_ended(-signal.SIGSEGV)
        'killed by SIGSEGV'
    """
    if code is None:
        return "exit status unknown"
    if code >= 0:
        return f"exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{_cause(-code)}"


def _cause(number: int) -> str:
    if number == signal.SIGKILL and (killed := killed_for_memory() - _KILLED_BEFORE) > 0:
        return f" (out of memory: the kernel killed {killed} process{'es' * (killed > 1)} since this program started)"
    room = shared_memory_room() if number == signal.SIGBUS else None
    if room is not None and room[0] < _NEARLY_FULL * room[1]:
        return f" (/dev/shm is full, {room[0] >> 20} MiB are left: give the container more, as --shm-size does)"
    return ""


_KILLED_BEFORE = killed_for_memory()
