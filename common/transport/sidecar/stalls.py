"""Detects stalled processes: stopped, frozen, or waiting for storage that does not answer.

The waiting side checks from time to time. After half a minute, it logs who waits for what. With a limit
(`Options.stall_timeout`), a process that used no processor time for that long is killed and replaced. A process that
computes is never stalled, however long it takes. The C++ client does the same in ``tf_plugin/kernels/stall_watch.cc``.
"""

from __future__ import annotations

import logging
import os
import time

from ...progress import warning_seconds

_LOGGER = logging.getLogger(__name__)
_IDLE_SHARE = 0.01
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or network file system",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
}


class StallWatch:
    """Watches one wait for a process.

    Args:
        waiting: who waits for what, as the beginning of the warning.
        pid: the process ID.
        timeout_s: the process is stalled if it uses no processor time for this long; ``None``: never.
        group: whether other processes in its group work for it.
    """

    def __init__(self, waiting: str, pid: int, *, timeout_s: float | None, group: bool = False) -> None:
        self._waiting = waiting
        self._pid = pid
        self._timeout_s = timeout_s
        self._group = group
        self._begin = self._since = time.monotonic()
        self._used_s = -1.0  # up to that time; not checked yet
        self._told = False

    def stalled(self) -> str | None:
        """Returns the state of the process if it is stalled, else ``None``. Call it about once per second."""
        now = time.monotonic()
        if not self._told and now - self._begin >= warning_seconds():
            self._told = True
            _LOGGER.warning(
                "%s has waited %.0f s for process %d, which is %s.",
                self._waiting,
                now - self._begin,
                self._pid,
                state_of(self._pid),
            )
        if self._timeout_s is None or (self._used_s >= 0 and now - self._since < self._timeout_s):
            return None
        used_s = processor_seconds(self._pid, group=self._group)
        if self._used_s >= 0 and used_s - self._used_s <= _IDLE_SHARE * (now - self._since):
            return f"stalled for {now - self._since:.0f} s ({state_of(self._pid)})"
        self._since, self._used_s = now, used_s
        return None


def state_of(pid: int) -> str:
    """Describes the state of a process."""
    found = _stat(str(pid))
    return _STATES.get(found[0], "alive") if found else "in an unknown state"


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped, by a signal or a debugger."""
    return _stat(str(pid))[:1] in (["T"], ["t"])


def processor_seconds(pid: int, *, group: bool) -> float:
    """Returns the processor time of a process or of the group that it leads; infinite if not reported."""
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()] if group else [str(pid)]
    except OSError:
        return float("inf")
    found = [stat for name in names if (stat := _stat(name)) and (not group or int(stat[2]) == pid)]
    ticks = sum(int(stat[11]) + int(stat[12]) for stat in found)
    return ticks / os.sysconf("SC_CLK_TCK") if found else float("inf")


def _stat(name: str) -> list[str]:
    """Returns the fields after the name in a process's ``stat`` file: state, parent, group, ..."""
    try:
        with open(f"/proc/{name}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
