"""Long-running work: `progress` and `pulse` show a bar, and `in_parallel` runs a function on many row groups.

The bar is created only after some time, because it starts a thread, which would interfere with processes that fork.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

AFTER_S = 2.0
_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], what: str, total: int, *, unit: str) -> Iterator[_Item]:
    """Yields the items, and shows a bar on standard error once they take longer than `AFTER_S` seconds."""
    begin = time.monotonic()
    bar = None
    try:
        for done, item in enumerate(items, 1):
            yield item
            if bar is not None:
                bar.update()
            elif time.monotonic() - begin > AFTER_S:
                from tqdm import tqdm  # imported only when needed

                bar = tqdm(total=total, desc=what, initial=done, leave=False, unit=unit)
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def pulse(what: str, log: logging.Logger) -> Iterator[None]:
    """Reports the start of work of unknown length, and how long it took.

    On a terminal, it shows a moving bar with the elapsed seconds. Otherwise, it logs two warnings.
    """
    begin = time.monotonic()
    if sys.stderr is None or not sys.stderr.isatty():
        log.warning("%s ...", what)
        yield
        log.warning("%s: done after %.0f s", what, time.monotonic() - begin)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        bar.add_task(what, total=None)
        yield
    console.print(f"{what}: done after {time.monotonic() - begin:.0f} s", highlight=False)


Result = TypeVar("Result")

_running = threading.local()


def in_parallel(function: Callable[[int], Result], row_groups: Sequence[int], what: str, threads: int) -> list[Result]:
    """Calls ``function`` for each row group in threads, and returns the results in order. Ctrl-C stops it.

    Raises:
        Whatever ``function`` raises. The other calls are then cancelled.
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
    """Raises if the work of this thread was cancelled. Call it between calls of a user's function.

    Raises:
        CancelledError: nobody waits for the result of this thread any more.
    """
    stopped = getattr(_running, "stopped", None)
    if stopped is not None and stopped.is_set():
        raise CancelledError
