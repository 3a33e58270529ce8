"""Waits of reading threads, which end as soon as nobody wants what is read.

An iteration gives each of its reading threads an `Interest`. It ends when the iteration is closed or the interpreter
exits. Waits between attempts, for a store's answer, and for another process then raise an error at once. A thread
without an interest waits to the end.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any

from ..errors import PipelineError

_here = threading.local()


class Interest:
    """Whether somebody still wants what some threads read. Thread-safe."""

    def __init__(self) -> None:
        self._ended: Future[None] = Future()
        _interests.add(self)

    def bind(self) -> None:
        """Makes the waits of this thread end with the interest.

        Raises:
            PipelineError: it has already ended.
        """
        _here.ended = self._ended
        _check(self._ended)

    def end(self) -> None:
        """Ends the waits of all threads that it is bound to, now and later. Idempotent."""
        with suppress(InvalidStateError):
            self._ended.set_result(None)


def pause(seconds: float) -> None:
    """Sleeps, while somebody wants what this thread reads.

    Raises:
        PipelineError: nobody does any more.
    """
    if getattr(_here, "ended", None) is None:
        time.sleep(seconds)
    else:
        first_done((), seconds)


def first_done(futures: Sequence[Future[Any]], seconds: float) -> set[Future[Any]]:
    """Waits for the first of some futures, and returns those that are done; none of them after ``seconds``.

    Raises:
        PipelineError: nobody wants what this thread reads any more.
    """
    ended: Future[None] | None = getattr(_here, "ended", None)
    done, _ = wait([*futures, *([] if ended is None else [ended])], timeout=seconds, return_when=FIRST_COMPLETED)
    _check(ended)
    return done


def _check(ended: Future[None] | None) -> None:
    if ended is not None and ended.done():
        raise PipelineError("iteration was closed.")


_interests: weakref.WeakSet[Interest] = weakref.WeakSet()


def _end_all() -> None:
    for interest in list(_interests):
        interest.end()


def _after_fork() -> None:
    """A forked child does not have the threads, and must not touch their locks."""
    global _interests
    _interests = weakref.WeakSet()
    _here.ended = None


# The interpreter waits for the threads of pools before it calls `atexit`. Python's own pools use this function, too.
_register = getattr(threading, "_register_atexit", None)
if _register is not None:
    _register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
