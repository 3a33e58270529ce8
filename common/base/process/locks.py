"""`locked_within` and `lock_file`: locks with a limit on how long to wait.

A stopped process keeps its locks, and whoever can open a file can lock it. So every wait for a lock has a limit.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable

from ..platform.files import lock_holder
from ..progress import pause, warning_seconds

PATIENCE_S = 30.0
"""How long to wait for a lock that others should hold only for moments."""
_POLL_S, _LONGEST_POLL_S = 0.001, 0.05
_given_up: set[str] = set()
"""The locks that did not become free in time, by path. This process does not wait for them a second time."""


def locked_within(
    attempt: Callable[[], object], patience_s: float, *, sleep: Callable[[float], object] = pause
) -> bool:
    """Repeats an attempt that raises ``BlockingIOError`` while others hold the lock. Returns whether it succeeded.

    Raises:
        Whatever ``sleep`` raises: by default, `PipelineError` once this thread's work is cancelled.
    """
    poll_s, until = _POLL_S, time.monotonic() + patience_s
    while True:
        try:
            attempt()
            return True
        except BlockingIOError:
            left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        sleep(min(poll_s, left_s))
        poll_s = min(2 * poll_s, _LONGEST_POLL_S)


def lock_file(descriptor: int, path: str) -> None:
    """Locks an open file (flock(2)). Where locks do not work, it returns without one.

    Raises:
        TimeoutError: another process has held the lock for `PATIENCE_S`, or until a warning was due if that is sooner.
            From then on, calls for this path try once, until one succeeds.
    """
    patience_s = 0.0 if path in _given_up else min(PATIENCE_S, warning_seconds())
    try:
        is_locked = locked_within(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), patience_s)
    except OSError:
        return
    if is_locked:
        _given_up.discard(path)
        return
    waited = f"for {patience_s:.0f} s" if patience_s else "and was not free before"
    _given_up.add(path)
    raise TimeoutError(f"'{path}' is locked by {holder_of(descriptor)} {waited}")


def holder_of(descriptor: int) -> str:
    """Names the process that locks an open file, as far as the system tells."""
    pid = lock_holder(descriptor)
    return "another process" if pid is None else f"process {pid}"
