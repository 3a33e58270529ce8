"""`how_it_ended`: describes the exit status of a child process, with the cause if the system reports one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = "/dev/shm"
_NEARLY_FULL = 0.02
_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")


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
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    left = found.f_bavail * found.f_frsize
    return left if left < _NEARLY_FULL * found.f_blocks * found.f_frsize else None


_KILLED_BEFORE = killed_for_memory()
