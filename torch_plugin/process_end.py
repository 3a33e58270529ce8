"""Detects the end of another process at once.

A loader worker must not outlive its trainer: torch's own check runs every five seconds, and a worker that was still
starting when its trainer was killed never notices.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
import time

_LOOK_S = 1.0
_watching: set[int] = set()  # ids of processes with the thread; a forked child has another id


def wait_for_end(pid: int) -> None:
    """Returns when the process has ended or does not exist."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # an older kernel or another operating system
        while _runs(pid):
            time.sleep(_LOOK_S)
    else:
        try:
            ends = select.poll()  # select() takes no descriptor >= 1024, and a trainer may have that many
            ends.register(descriptor, select.POLLIN)
            ends.poll()
        finally:
            os.close(descriptor)


def end_with_trainer() -> None:
    """Ends this process, a loader worker, as soon as the process that started it ends. Idempotent."""
    trainer = multiprocessing.parent_process()
    if trainer is None or trainer.pid is None or os.getpid() in _watching:
        return
    _watching.add(os.getpid())
    threading.Thread(target=_follow, args=(trainer.pid,), name="parquetry-trainer", daemon=True).start()


def _follow(trainer: int) -> None:
    wait_for_end(trainer)
    os._exit(1)  # there is no process left to report to


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
