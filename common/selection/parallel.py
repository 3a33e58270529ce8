"""Work on many row groups at once, which Ctrl-C ends after the calls that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

from ..progress import progress

Result = TypeVar("Result")

_running = threading.local()


def in_parallel(function: Callable[[int], Result], row_groups: Sequence[int], what: str, threads: int) -> list[Result]:
    """``function`` of each row group, in order.

    Raises:
        Whatever ``function`` raises; the other calls are cancelled then.
    """
    if len(row_groups) <= 1 or threads <= 1:
        return [function(row_group) for row_group in row_groups]
    stopped = threading.Event()

    def run(row_group: int) -> Result:
        _running.stopped = stopped
        return function(row_group)

    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="parquetry-select") as pool:
        try:
            return list(progress(pool.map(run, row_groups), what, len(row_groups), unit="row group"))
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def stop_if_cancelled() -> None:
    """To be called between two calls of a user's function.

    Raises:
        CancelledError: nobody waits any longer for what this thread does.
    """
    stopped = getattr(_running, "stopped", None)
    if stopped is not None and stopped.is_set():
        raise CancelledError
