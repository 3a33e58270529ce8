"""`how_it_ended`: the exit status of a child process in words, with the cause where the system tells one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = "/dev/shm"
_NEARLY_FULL = 0.02
_V1_EVENTS = "/sys/fs/cgroup/memory/memory.oom_control"


def how_it_ended(code: int) -> str:
    """How a child process ended.

    Args:
        code: its exit status, or minus the number of the signal that ended it.

    Example:
        >>> how_it_ended(3)
        'exit status 3'
        >>> how_it_ended(-signal.SIGSEGV)
        'killed by SIGSEGV'
    """
    if code >= 0:
        return f"exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{_cause(-code)}"


def _cause(number: int) -> str:
    if number == signal.SIGKILL and (killed := _killed_for_memory() - _KILLED_BEFORE) > 0:
        return f" (out of memory: the kernel has killed {killed} of this container's processes since the start)"
    if number == signal.SIGBUS and (left := _shared_memory_left()) is not None:
        return f" ({_SHARED_MEMORY} is full, {left >> 20} MiB are left: give the container more, as --shm-size does)"
    return ""


def _killed_for_memory() -> int:
    """How many processes of this control group the kernel has killed because memory ran out; 0 if it does not say."""
    for events in _events_files():
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in events.read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def _events_files() -> list[Path]:
    """Where the kernel counts them, see "Control Group v2", ``memory.events``; version 1 has ``memory.oom_control``."""
    own = ""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = line[3:].strip("/")
    return [Path("/sys/fs/cgroup", own, "memory.events"), Path("/sys/fs/cgroup/memory.events"), Path(_V1_EVENTS)]


def _shared_memory_left() -> int | None:
    """Free bytes of shared memory where it is nearly full, else ``None``."""
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    left = found.f_bavail * found.f_frsize
    return left if left < _NEARLY_FULL * found.f_blocks * found.f_frsize else None


_KILLED_BEFORE = _killed_for_memory()
