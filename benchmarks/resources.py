"""What a process and all its descendants have used so far: processor time, bytes read, memory.

In: the id of a process. Out: a `Usage`. Processes that end meanwhile count by what their parents have waited for.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Totals over a tree of processes.

    Attributes:
        cpu_s: user and system time.
        read_bytes: through read calls, from the page cache or not; pages of mapped files do not count.
        memory_bytes: proportional set size, so that shared pages count once.
    """

    cpu_s: float
    read_bytes: int
    memory_bytes: int


def usage(pid: int, *, with_memory: bool) -> Usage:
    """The totals now; memory (which takes milliseconds to sum) only if asked for."""
    cpu_s, read_bytes, memory_bytes = 0.0, 0, 0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            read_bytes += process.io_counters().read_chars
            if with_memory:
                memory_bytes += process.memory_full_info().pss
    return Usage(cpu_s=cpu_s, read_bytes=read_bytes, memory_bytes=memory_bytes)
