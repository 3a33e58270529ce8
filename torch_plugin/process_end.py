"""The end of another process, noticed at once.

A loader worker must not outlive its trainer: torch's own looks every five seconds, and one that was still starting when
its trainer was killed never learns of it.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
import time

_LOOK_S = 1.0
_watching: set[int] = set()  # process ids that have the thread; a forked child is another process


def wait_for_end(pid: int) -> None:
    """Returns when the process has ended, or is not there."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # an older kernel, or another system
        while _runs(pid):
            time.sleep(_LOOK_S)
    else:
        try:
            ends = select.poll()  # select() takes no descriptor from 1024 on, and a trainer may have as many
            ends.register(descriptor, select.POLLIN)
            ends.poll()
        finally:
            os.close(descriptor)


def end_with_trainer() -> None:
    """Lets this process, a loader worker, end as soon as the process that started it has. Idempotent."""
    trainer = multiprocessing.parent_process()
    if trainer is None or trainer.pid is None or os.getpid() in _watching:
        return
    _watching.add(os.getpid())
    threading.Thread(target=_follow, args=(trainer.pid,), name="parquetry-trainer", daemon=True).start()


def _follow(trainer: int) -> None:
    wait_for_end(trainer)
    os._exit(1)  # nobody is left to tell


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
