"""Child processes: `start_child` starts one that ends with its parent, `how_it_ended` describes its exit status.

A stopped child cannot notice that its parent has ended. So each child asks the kernel, when it starts, to kill it then
(`end_with_parent`). To the kernel, the parent is the thread that started the child, and threads of a trainer may end at
any time. So each child is started by a thread of its own, which lives as long as the child does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.process.exit_watch import waiter_for
from ..base.threads import start_thread
from .processes import report

_SHARED_MEMORY = "/dev/shm"
_NEARLY_FULL = 0.02
_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")


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
    if number == signal.SIGBUS and (left := _shared_memory_left()) is not None:
        return f" ({_SHARED_MEMORY} is full, {left >> 20} MiB are left: give the container more, as --shm-size does)"
    return ""


def killed_for_memory() -> int:
    """Returns how many processes of this container (or of the system) the kernel has killed so far for lack of memory.

    Source: the kernel's "Control Group v2", ``memory.events``; version 1 has ``memory.oom_control``.
    """
    for path in (f"{_own_group()}/memory.events", *_EVENTS):
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in Path(path).read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


def _own_group() -> str:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return f"/sys/fs/cgroup/{line[3:].strip('/')}"
    return "/sys/fs/cgroup"


def _shared_memory_left() -> int | None:
    """Returns the free bytes of shared memory if it is nearly full, else ``None``."""
    try:
        space = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    left = space.f_bavail * space.f_frsize
    return left if left < _NEARLY_FULL * space.f_blocks * space.f_frsize else None


_KILLED_BEFORE = killed_for_memory()
