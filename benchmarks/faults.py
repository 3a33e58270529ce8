"""Injects faults into a running pipeline: kills or stops processes at seeded times."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

_SIDECAR = "parquetry.common.sidecar"
_WORKER = "parquetry.common.transport.sidecar.worker"
_TEMPLATE = "parquetry.common.transport.sidecar.forked_worker"
_LITTLE_S = 0.03  # of processor time; a worker has done a few jobs by then


def readers() -> list[psutil.Process]:
    """Returns the sidecar readers started by this process."""
    return [child for child in psutil.Process().children() if _runs(child, _SIDECAR)]


def workers() -> list[psutil.Process]:
    """Returns the decode workers of those readers."""
    return [worker for reader in readers() for worker in workers_of(reader)]


def workers_of(reader: psutil.Process) -> list[psutil.Process]:
    """Returns the decode workers of a sidecar's reader, forked from its template or started directly."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in reader.children():
            # A template starts out with the reader's command line; it sets its own name a little later.
            found += [child] if _runs(child, _WORKER) else [each for each in child.children() if _runs_as_copy(each)]
    return found


def _runs_as_copy(process: psutil.Process) -> bool:
    return _runs(process, _SIDECAR) or _runs(process, _TEMPLATE)


def _runs(process: psutil.Process, module: str) -> bool:
    with suppress(psutil.NoSuchProcess):
        return module in " ".join(process.cmdline())  # a zombie has none left
    return False


def has_not_begun(process: psutil.Process) -> bool:
    """Returns whether a process wants to run but has had little processor time, as on a machine that is very busy."""
    try:
        wants_time: bool = process.status() == psutil.STATUS_RUNNING
        return wants_time and float(sum(process.cpu_times()[:2])) < _LITTLE_S
    except psutil.Error:  # it has just ended
        return True


class Killer:
    """Context manager that signals one process at a time from a thread, a given number of times.

    Args:
        victims: returns the processes that may be hit now.
        times: number of signals to send.
        pause_s: shortest and longest time between two signals.
        seed: determines which processes it hits, and when.
        spares: returns whether not to hit a process now.
    """

    def __init__(
        self,
        victims: Callable[[], Sequence[psutil.Process]],
        *,
        times: int,
        pause_s: tuple[float, float],
        seed: int,
        signal_number: int = signal.SIGKILL,
        spares: Callable[[psutil.Process], bool] = lambda _: False,
    ) -> None:
        self._victims = victims
        self._spares = spares
        self._times = times
        self._pause_s = pause_s
        self._random = random.Random(seed)
        self._signal = signal_number
        self._over = threading.Event()
        self.hit: list[int] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def done(self) -> bool:
        """Whether all signals have been sent."""
        return len(self.hit) >= self._times

    def wait_for(self, hits: int) -> None:
        """Waits until so many were hit or no victim is left: workers exit once everything has been read ahead."""
        while len(self.hit) < hits and self._victims():
            time.sleep(0.005)

    def _run(self) -> None:
        while not self.done and not self._over.wait(self._random.uniform(*self._pause_s)):
            victims = [process for process in self._victims() if not self._spares(process)]
            if victims:
                victim = self._random.choice(victims).pid
                with suppress(ProcessLookupError):
                    os.kill(victim, self._signal)
                    self.hit.append(victim)
