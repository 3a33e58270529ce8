"""Long-running work: `progress` and `pulse` show a bar, and a `CancelToken` ends the waits of threads.

The bar is created only after some time, because it starts a thread, which would interfere with processes that fork.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any, TypeVar

from .errors import PipelineError
from .threads import ThreadPool

AFTER_S = 2.0
WARNING_S = 30.0
"""How long to wait for another process before a warning is logged; ``PARQUETRY_STALL_WARNING_S`` replaces it."""
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

    On a terminal, it shows a moving bar with the elapsed seconds if rich is there, as with Keras. Otherwise, it logs
    two warnings.
    """
    begin = time.monotonic()
    if sys.stderr is None or not sys.stderr.isatty() or find_spec("rich") is None:
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

_token: ContextVar[CancelToken | None] = ContextVar("_token", default=None)


def in_parallel(function: Callable[[int], Result], row_groups: Sequence[int], what: str, threads: int) -> list[Result]:
    """Calls ``function`` for each row group in threads, and returns the results in order. Ctrl-C stops it.

    Raises:
        Whatever ``function`` raises. The other calls are then cancelled.
    """
    if len(row_groups) <= 1 or threads <= 1:
        return [function(row_group) for row_group in row_groups]
    with thread_pool(threads, "parquetry-select") as pool:
        return list(progress(pool.map(function, row_groups), what, len(row_groups), unit="row group"))


@contextmanager
def thread_pool(threads: int, name: str) -> Iterator[ThreadPool]:
    """Runs work in threads while the block runs. If the block raises, as for Ctrl-C, the work is cancelled.

    Inside a thread that has a `CancelToken`, the pool's threads share it.
    """
    outer = _token.get()
    token = outer or CancelToken()
    with ThreadPool(threads, name, token.bind) as pool:
        try:
            yield pool
        except BaseException:
            if outer is None:
                token.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class CancelToken:
    """A cancellation token that threads share. Thread-safe.

    When it is cancelled (`cancel`), or the interpreter exits, waits in these threads (between attempts, for a store's
    response, for another process) raise an error at once. A thread without a token waits to the end.

    Attributes:
        cancelled: done when it is cancelled.
    """

    def __init__(self) -> None:
        self.cancelled: Future[None] = Future()
        _tokens.add(self)

    def bind(self) -> None:
        """Makes the waits of this thread, or of this call of a `ThreadPool`, end when the token is cancelled."""
        _token.set(self)

    def check(self) -> None:
        """Raises if it is cancelled.

        Raises:
            PipelineError: it is cancelled.
        """
        if self.cancelled.done():
            raise PipelineError("iteration was closed.")

    def cancel(self) -> None:
        """Cancels: ends the waits of all threads that it is bound to, now and later. Idempotent."""
        with suppress(InvalidStateError):
            self.cancelled.set_result(None)


def warning_seconds() -> float:
    """Returns how long to wait for another process before a warning is logged."""
    with suppress(ValueError):
        return float(os.environ.get("PARQUETRY_STALL_WARNING_S", WARNING_S))
    return WARNING_S


def pause(seconds: float) -> None:
    """Sleeps, unless this thread's work is cancelled.

    Raises:
        PipelineError: it is cancelled.
    """
    if _token.get() is None:
        time.sleep(seconds)
    else:
        first_done((), seconds)


def first_done(futures: Sequence[Future[Any]], seconds: float) -> set[Future[Any]]:
    """Waits until one of the futures is done. Returns all that are done; none after ``seconds`` seconds.

    Raises:
        PipelineError: this thread's work is cancelled.
    """
    token = _token.get()
    cancelled = [] if token is None else [token.cancelled]
    done, _ = wait([*futures, *cancelled], timeout=seconds, return_when=FIRST_COMPLETED)
    check_cancelled()
    return done


def check_cancelled() -> None:
    """Raises if this thread's work is cancelled. Call it between calls of a user's function.

    Raises:
        PipelineError: the work is cancelled.
    """
    token = _token.get()
    if token is not None:
        token.check()


_tokens: weakref.WeakSet[CancelToken] = weakref.WeakSet()


def _end_all() -> None:
    for token in list(_tokens):
        token.cancel()


def _after_fork() -> None:
    """A forked child does not have the threads, and must not touch their locks."""
    global _tokens
    _tokens = weakref.WeakSet()
    _token.set(None)


atexit.register(_end_all)  # before the function of `threads`, which waits for the threads
os.register_at_fork(after_in_child=_after_fork)
