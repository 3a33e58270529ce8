"""Notices the end of another process at once, and ends this process with the one that started it.

A loader worker must not outlive its trainer: torch's own check runs every five seconds, and a worker that was still
starting when its trainer was killed never notices. A process that is stopped notices nothing, so where it can, a child
asks the kernel to kill it (prctl(2), ``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable

from ..errors import ResourceError, limit_reached
from ..platform.processes import end_of, end_with_parents_thread, started_by_main_thread, wait_readable

_LOOK_S = 1.0
_serves = False  # whether this process called `end_with_parent`
_watching: set[int] = set()  # ids of processes with the thread; a forked child has another id


def wait_for_end(pid: int) -> None:
    """Returns when the process has ended or does not exist."""
    waiter_for(pid, runs=lambda: is_running(pid))()


def is_running(pid: int) -> bool:
    """Whether a process with this number exists."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        pass
    return True


def waiter_for(pid: int, *, runs: Callable[[], bool]) -> Callable[[], None]:
    """Returns a function that returns when the process has ended.

    It keeps to this process, even if another one gets the same number before the function is called.

    Args:
        runs: whether the process still runs, for systems where the kernel does not tell.
    """
    try:
        descriptor = end_of(pid)
    except ProcessLookupError:
        return lambda: None
    except OSError:
        return lambda: _look(runs)
    return lambda: _wait(descriptor)


def serves_a_trainer() -> bool:
    """Returns whether this is a sidecar or one of its decode workers, where none of your code runs except functions."""
    return _serves


def end_with_parent() -> None:
    """Lets the kernel kill this process when the thread that started it ends, for example one of `start_child`.

    Linux only. Elsewhere, the process ends by itself, unless it is stopped.
    """
    global _serves
    _serves = True
    end_with_parents_thread()


def end_with_trainer() -> None:
    """Ends this process, a loader worker, as soon as the process that started it ends. Idempotent.

    A stopped worker notices nothing, so the kernel kills it, but only if the parent's main thread started it. Any other
    thread may end before the parent, and the kernel would then kill the worker too early.

    From then on, the garbage collector leaves alone what the worker inherited. A fork copies no threads, so deleting an
    object that waits for its threads would hang, for example an iterator of TensorFlow.

    Raises:
        ResourceError: there are too many threads.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None or trainer.pid is None or os.getpid() in _watching:
        return
    gc.freeze()
    if started_by_main_thread():
        end_with_parent()
    try:
        threading.Thread(target=_follow, args=(trainer.pid,), name="parquetry-trainer", daemon=True).start()
    except RuntimeError as error:
        raise ResourceError(f"loader worker {os.getpid()}: {error}. {limit_reached(error)}") from error
    _watching.add(os.getpid())


def _follow(trainer: int) -> None:
    wait_for_end(trainer)
    os._exit(1)  # there is no process left to report to


def _wait(descriptor: int) -> None:
    try:
        wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _look(runs: Callable[[], bool]) -> None:
    while runs():
        time.sleep(_LOOK_S)
