"""`IdlePool`: sidecars that wait for the next iteration."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque

from .client import SidecarClient

IDLE_S = 30.0
"""How long a sidecar waits for the next iteration, unless ``PARQUETRY_SIDECAR_IDLE_S`` says otherwise."""
FEWEST_KEPT = 4
"""The number of idle sidecars that are always kept, because training and validation alternate."""


def idle_seconds() -> float:
    """Returns how long a sidecar may wait for the next iteration."""
    try:
        seconds = float(os.environ.get("PARQUETRY_SIDECAR_IDLE_S", IDLE_S))
    except ValueError:
        return IDLE_S
    return seconds if 0 <= seconds < threading.TIMEOUT_MAX else IDLE_S


class RecentMost:
    """The largest number noted recently."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque()  # times ascend, numbers descend

    def note(self, number: int, now: float) -> None:
        while self._noted and self._noted[-1][1] <= number:
            self._noted.pop()
        self._noted.append((now, number))

    def within(self, seconds: float, now: float) -> int:
        """Returns the largest number of the last ``seconds``, or 0 if there is none."""
        while self._noted and self._noted[0][0] < now - seconds:
            self._noted.popleft()
        return self._noted[0][1] if self._noted else 0


class IdlePool:
    """Idle sidecars, kept for the next iteration of the same request, and ended after `idle_seconds`.

    The pool holds as many as were recently in use at once. When it is full, the oldest one opens the next different
    request, or is ended when another one is returned.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[float, SidecarClient]] = []  # oldest first
        self._used: weakref.WeakSet[SidecarClient] = weakref.WeakSet()
        self._most_used = RecentMost()
        self._lock = threading.RLock()  # reentrant: the finalizer of an iterator may call `give` in any method here
        self._timer: threading.Timer | None = None

    def take(self, request: bytes, stall_timeout: float | None) -> SidecarClient:
        """Returns an idle sidecar for this request, or a new one."""
        while True:
            with self._lock:
                entry = next((item for item in self._idle if item[1].request == request), None) or self._spare(request)
                if entry is not None and not self._removed(entry):
                    continue
            if entry is None:
                return self._lend(SidecarClient(request, stall_timeout))
            client = entry[1]
            if client.alive and (client.request == request or client.open(request, stall_timeout)):
                return self._lend(client)
            client.close()

    def give(self, client: SidecarClient) -> None:
        idle_s = idle_seconds()
        with self._lock:
            self._most_used.note(len(self._used), time.monotonic())
            self._used.discard(client)
        if not client.reusable or not idle_s:
            client.close()
            return
        with self._lock:
            now, dropped = time.monotonic(), []
            self._idle.append((now + idle_s, client))
            while len(self._idle) > self._most_kept(idle_s, now):
                dropped.append(self._idle.pop(0))
            self._arm()
        for _, oldest in dropped:
            oldest.close()

    def close(self) -> None:
        """Ends all idle sidecars. Idempotent."""
        with self._lock:
            left, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for _, client in left:
            client.close()

    def forget(self) -> None:
        """Drops all sidecars in a forked child, because they belong to the parent."""
        self._idle = []
        self._used = weakref.WeakSet()
        self._timer = None
        self._lock = threading.RLock()

    def _removed(self, item: tuple[float, SidecarClient]) -> bool:
        """Removes an idle sidecar; returns ``False`` if a finalizer has dropped it meanwhile."""
        with contextlib.suppress(ValueError):
            self._idle.remove(item)
            return True
        return False

    def _spare(self, request: bytes) -> tuple[float, SidecarClient] | None:
        """Returns the oldest sidecar that may open a request, if the pool is full."""
        if len(self._idle) < self._most_kept(idle_seconds(), time.monotonic()):
            return None
        return next((item for item in self._idle if item[1].may_open(request)), None)

    def _most_kept(self, idle_s: float, now: float) -> int:
        return max(FEWEST_KEPT, self._most_used.within(idle_s, now))

    def _lend(self, client: SidecarClient) -> SidecarClient:
        with self._lock:
            self._used.add(client)
            self._most_used.note(len(self._used), time.monotonic())
        return client

    def _arm(self) -> None:
        if self._timer is None and self._idle:
            delay = max(0.1, min(due for due, _ in self._idle) - time.monotonic())
            self._timer = threading.Timer(delay, self._sweep)
            self._timer.daemon = True
            self._timer.start()

    def _sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._timer = None
            due = [item for item in list(self._idle) if item[0] <= now and self._removed(item)]
            self._arm()
        for _, client in due:
            client.close()


IDLE = IdlePool()
atexit.register(IDLE.close)
os.register_at_fork(after_in_child=IDLE.forget)
