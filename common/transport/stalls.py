"""Detects stalled processes and servers: stopped, frozen, or waiting for storage or a network that does not answer.

The waiting side checks from time to time. After half a minute, it logs who waits for what. With a limit
(`Options.stall_timeout`), a process that made no progress for that long is killed and replaced. Progress is:

- processor time, apart from the little that idle threads take,
- another wait of the main thread, which runs a worker's functions: many short waits are work, one long wait is not,
- in a reader, frequent waits of its other threads, which receive data.

The C++ client does the same in ``tf_plugin/kernels/stall_watch.cc``. A server may compute for long before it sends a
batch, so silence alone says nothing: the waiting client asks it something else, on another connection. A server that
answers is alive.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from ..base.errors import SidecarError
from ..base.platform.processes import stat_of, tasks, waits_of
from ..base.process.dataclass import dataclass
from ..base.progress import warning_seconds

_LOGGER = logging.getLogger(__name__)
CHECK_S = 0.25
"""How often a client checks the server that it waits for."""
_LONGEST_ANSWER_S = 10.0
_IDLE_SHARE = 0.01
_IDLE_WAITS_PER_S = 10
"""A thread of a reader that receives data waits more often than this; one that only looks after others does not."""
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
        timeout_s: the process is stalled if it makes no progress for this long; ``None``: never.
        group: whether it is a reader: other processes in its group work for it.
    """

    def __init__(self, waiting: str, pid: int, *, timeout_s: float | None, group: bool = False) -> None:
        self._waiting = waiting
        self._pid = pid
        self._timeout_s = timeout_s
        self._group = group
        self._begin = self._since = time.monotonic()
        self._before: Activity | None = None  # up to that time; not checked yet
        self._has_warned = False

    def stalled(self) -> str | None:
        """Returns the state of the process if it is stalled, else ``None``. Call it about once per second."""
        now = time.monotonic()
        if not self._has_warned and now - self._begin >= warning_seconds():
            self._has_warned = True
            _LOGGER.warning(
                "%s has waited %.0f s for process %d, which is %s.",
                self._waiting,
                now - self._begin,
                self._pid,
                state_of(self._pid),
            )
        if self._timeout_s is None or (self._before is not None and now - self._since < self._timeout_s):
            return None
        activity = activity_of(self._pid, group=self._group)
        if activity is None:
            return None
        if self._before is not None and not activity.is_progress_since(self._before, now - self._since):
            return f"stalled for {now - self._since:.0f} s ({state_of(self._pid)})"
        self._since, self._before = now, activity
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a process, or a reader with its workers, has done so far.

    Attributes:
        processor_s: the processor time.
        waits: how often the main thread began to wait; with workers, theirs instead of the reader's.
        other_waits: how often each other thread of a reader began to wait, by its ID.
    """

    processor_s: float
    waits: int
    other_waits: Mapping[str, int]

    def is_progress_since(self, before: Activity, seconds: float) -> bool:
        """Returns whether this is progress over what was done some seconds before."""
        return (
            self.processor_s - before.processor_s > _IDLE_SHARE * seconds
            or self.waits != before.waits
            or any(
                waits - before.other_waits.get(thread, 0) > _IDLE_WAITS_PER_S * seconds
                for thread, waits in self.other_waits.items()
            )
        )


def activity_of(pid: int, *, group: bool) -> Activity | None:
    """Returns what a process, or the group that it leads, has done so far; ``None`` if the system does not tell."""
    names = tasks() if group else [str(pid)]
    processes = {name: stat for name in names if (stat := stat_of(name)) and (not group or int(stat[2]) == pid)}
    if not processes:
        return None
    ticks = sum(int(stat[11]) + int(stat[12]) for stat in processes.values())
    threads = [name for name in tasks(pid) if name != str(pid)] if group else []
    return Activity(
        processor_s=ticks / os.sysconf("SC_CLK_TCK"),
        waits=sum(waits_of(name) for name in processes if not group or name != str(pid)),
        other_waits={name: waits_of(f"{pid}/task/{name}") for name in threads},
    )


def state_of(pid: int) -> str:
    """Describes the state of a process."""
    stat = stat_of(pid)
    return _STATES.get(stat[0], "alive") if stat else "in an unknown state"


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped, by a signal or a debugger."""
    return stat_of(pid)[:1] in (["T"], ["t"])


class ServerWatch:
    """Watches one wait for a server. Call it every `CHECK_S` seconds.

    Args:
        url: the server's address.
        timeout_s: the server has stalled if it sends nothing for this long, and then does not answer; ``None``: never.
        answers: asks the server something, and returns whether it answered within the given seconds.
    """

    def __init__(self, url: str, timeout_s: float | None, answers: Callable[[float], bool]) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._answers = answers
        self._begin = self._since = time.monotonic()
        self._has_warned = False

    def __call__(self) -> None:
        """Logs a warning after half a minute.

        Raises:
            SidecarError: the server has stalled.
        """
        waited_s = time.monotonic() - self._begin
        if not self._has_warned and waited_s >= warning_seconds():
            self._has_warned = True
            state = "still answers" if self._answers(_LONGEST_ANSWER_S) else "does not answer"
            _LOGGER.warning("the trainer has waited %.0f s for the server at %s, which %s.", waited_s, self._url, state)
        if self._timeout_s is None or time.monotonic() - self._since < self._timeout_s:
            return
        within_s = min(self._timeout_s, _LONGEST_ANSWER_S)
        if not self._answers(within_s):
            raise SidecarError(
                f"server at {self._url}: expected data within stall_timeout={self._timeout_s:g} s, or another answer "
                f"within {within_s:g} s more, got nothing. It may be stopped, or its machine or the network gone. "
                "Restart the server, and resume from a saved state if you have one."
            )
        self._since = time.monotonic()
