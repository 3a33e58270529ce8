"""Work that takes long: `progress` shows a bar, `in_parallel` works on many row groups at once until Ctrl-C.

The bar is made only once some time has passed: making one starts a thread, which would be in the way of processes that
fork.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

AFTER_S = 2.0
_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], what: str, total: int, *, unit: str) -> Iterator[_Item]:
    """The items, with a bar on standard error from the moment that they take longer than `AFTER_S` seconds."""
    begin = time.monotonic()
    bar = None
    try:
        for done, item in enumerate(items, 1):
            yield item
            if bar is not None:
                bar.update()
            elif time.monotonic() - begin > AFTER_S:
                from tqdm import tqdm  # not at the start of every process

                bar = tqdm(total=total, desc=what, initial=done, leave=False, unit=unit)
    finally:
        if bar is not None:
            bar.close()


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
