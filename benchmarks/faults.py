"""Faults that are injected into a running pipeline: processes that are killed or stopped, at seeded times."""

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


def readers() -> list[psutil.Process]:
    """The sidecars' readers that this process has started."""
    return [child for child in psutil.Process().children() if _runs(child, _SIDECAR)]


def workers() -> list[psutil.Process]:
    """The decode workers of those readers."""
    return [worker for reader in readers() for worker in workers_of(reader)]


def workers_of(reader: psutil.Process) -> list[psutil.Process]:
    """The decode workers of a sidecar's reader, forked from its template or started by themselves."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in reader.children():
            # A template has the reader's command line from its first moment on; its own name it gets a little later.
            found += [child] if _runs(child, _WORKER) else [each for each in child.children() if _runs_as_copy(each)]
    return found


def _runs_as_copy(process: psutil.Process) -> bool:
    return _runs(process, _SIDECAR) or _runs(process, _TEMPLATE)


def _runs(process: psutil.Process, module: str) -> bool:
    with suppress(psutil.NoSuchProcess):
        return module in " ".join(process.cmdline())  # nothing is left of a zombie's
    return False


class Killer:
    """Sends a signal to one process at a time, from a thread, until so many got it. A context manager.

    Args:
        victims: those that may be hit now.
        times: after which it ends.
        pause_s: the shortest and the longest time between two.
        seed: of whom it hits, and when.
    """

    def __init__(
        self,
        victims: Callable[[], Sequence[psutil.Process]],
        *,
        times: int,
        pause_s: tuple[float, float],
        seed: int,
        signal_number: int = signal.SIGKILL,
    ) -> None:
        self._victims = victims
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
        """Whether it has hit as many as it was to."""
        return len(self.hit) >= self._times

    def wait_for(self, hits: int) -> None:
        """Returns once so many were hit, or nobody is left: workers end when all there is has been read ahead."""
        while len(self.hit) < hits and self._victims():
            time.sleep(0.005)

    def _run(self) -> None:
        while not self.done and not self._over.wait(self._random.uniform(*self._pause_s)):
            victims = self._victims()
            if victims:
                victim = self._random.choice(victims).pid
                with suppress(ProcessLookupError):
                    os.kill(victim, self._signal)
                    self.hit.append(victim)
