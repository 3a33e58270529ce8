"""Measures what a process and all its descendants have used so far: CPU time, bytes read, memory.

Takes a process id and returns a `Usage`. Processes that have ended count through the parents that waited for them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Totals over a process tree.

    Attributes:
        cpu_s: user and system time.
        read_bytes: bytes from read calls, cached or not; pages of mapped files do not count.
        memory_bytes: proportional set size, so shared pages count once.
    """

    cpu_s: float
    read_bytes: int
    memory_bytes: int


def usage(pid: int, *, with_memory: bool) -> Usage:
    """Returns the current totals; sums memory, which takes milliseconds, only on request."""
    cpu_s, read_bytes, memory_bytes = 0.0, 0, 0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has ended in the meantime
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            read_bytes += process.io_counters().read_chars
            if with_memory:
                memory_bytes += process.memory_full_info().pss
    return Usage(cpu_s=cpu_s, read_bytes=read_bytes, memory_bytes=memory_bytes)
