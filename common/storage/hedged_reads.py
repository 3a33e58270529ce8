"""`hedged_read` runs a read from a store, hedges it if it is slow, and gives up if the store never responds.

A store's client may wait for a response forever. Each read therefore runs in a thread of its own, and the caller waits
for at most `SILENT_S`, plus the time that the bytes need on a slow connection. If a read takes longer than almost all
recent ones of its size (`latencies`), a hedged request is sent: a second request often overtakes a straggler. A request
without a response for `SLOW_S` counts as lost, and another one is sent, again and again. The first response wins, and
the others are cancelled, as far as their client allows (`SlotLease.when_closed`). All reads share the slots of the
store's endpoint with other processes (`request_slots`). `Patience` limits all attempts at a read together.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ..base.errors import ResourceError
from ..base.metrics.counters import Count, add, counters_here, counting
from ..base.progress import first_done
from ..base.threads import start_thread
from .latencies import Latencies, latencies_of
from .request_slots import SlotLease, slots_of, using

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)
SLOW_S = 10.0
"""A request without a response for this long counts as lost, unless the store is usually as slow."""
SILENT_S = 60.0
"""A read that takes longer has failed."""
QUESTION_S = 20.0
"""A question about a file that takes longer has failed. Its answer has no more than a few hundred bytes."""
PATIENCE_S = 180.0
"""A read whose attempts took this long in total has failed for good; see `Patience`."""
_LISTING_S = 900.0  # a store lists a thousand files per response
_SLOW_LISTING_S = 30.0
_USUAL_BYTES_PER_S = 8e6
_SLOWEST_BYTES_PER_S = 1e6
_ATTEMPTS_IN_TIME = 3  # at reads that are slow because they are large
_POLL_S = 0.05


class Patience:
    """How long the attempts at one read may take in total. Waiting for a slot of the store does not count."""

    def __init__(self, seconds: float) -> None:
        self.left_s = seconds

    @classmethod
    def of_read(cls, size_bytes: int) -> Patience:
        """For a read of this many bytes."""
        return cls(PATIENCE_S + _ATTEMPTS_IN_TIME * size_bytes / _SLOWEST_BYTES_PER_S)


def hedged_read(
    read: Callable[[], _T],
    place: str,
    *,
    size_bytes: int = 0,
    is_listing: bool = False,
    is_question: bool = False,
    endpoint: str = "",
    patience: Patience | None = None,
) -> _T:
    """Returns what ``read`` returns.

    ``read`` may run several times at once, in other threads, and may still run when this function has returned.

    Args:
        place: what is read, for messages.
        size_bytes: how much is read. Each megabyte adds a second to the longest wait.
        is_listing: whether a directory is listed, which may take minutes and is never hedged.
        is_question: whether it asks about a file, and reads no part of it.
        endpoint: the store; see `stores.endpoint_of`. The read waits until there is a slot for it (`request_slots`),
            which does not count as waiting for a response.
        patience: what is left for this and further attempts; ``None`` = as long as one attempt may take.

    Raises:
        TimeoutError: there was no response in time.
        PipelineError: the read was cancelled; see `CancelToken`.
        Exception: whatever ``read`` raised.
    """
    silent_s = _LISTING_S if is_listing else SILENT_S + size_bytes / _SLOWEST_BYTES_PER_S
    silent_s = min(silent_s, QUESTION_S) if is_question else silent_s
    patience = patience or Patience(silent_s)
    silent_s = min(silent_s, patience.left_s)
    known = latencies_of(endpoint)
    with slots_of(endpoint).taken() as held:
        asked = [_Request(read, held)]
        until_s = asked[0].began_s + silent_s
        try:
            if is_listing:
                if not _wait_for_success(asked, _SLOW_LISTING_S):
                    _LOGGER.warning("%s: the store is still listing files after %.0f s.", place, _SLOW_LISTING_S)
                    _wait_for_success(asked, until_s - time.monotonic())
            else:
                _hedge(asked, known, held, place, size_bytes, until_s)
            ended = [request for request in asked if request.future.done()]
            if not ended:
                raise TimeoutError(f"the store timed out: expected a response within {silent_s:.0f} s, got none")
            first = next((request for request in ended if request.has_succeeded), ended[0])
            result: _T = first.future.result()
            if not is_listing:
                known.note(size_bytes, time.monotonic() - first.began_s, overtook=first is not asked[0])
            return result
        finally:
            patience.left_s -= time.monotonic() - asked[0].began_s
            # A thread that is still reading is forgotten, also by tracebacks. It ends when its read does.
            _idle.helpers += [request.helper for request in asked if request.future.done()]
            asked.clear()


def _hedge(
    asked: list[_Request], known: Latencies, held: SlotLease, place: str, size_bytes: int, until_s: float
) -> None:
    """Waits until one request has succeeded, all have failed, or time is up. Sends further ones meanwhile."""
    longest_s, usual_s = SLOW_S + size_bytes / _USUAL_BYTES_PER_S, known.slow_after(size_bytes)
    slow_s = min(longest_s, usual_s or longest_s)
    silent_s = max(longest_s, usual_s or 0.0)
    while True:
        began_s = time.monotonic()
        is_ready = _wait_for_success(asked, min(slow_s, until_s - began_s))
        if is_ready or not _may_ask_again(asked, known, held, began_s + silent_s, until_s):
            return
        add(Count.RETRIES, 1)
        waited_s = time.monotonic() - asked[0].began_s
        _LOGGER.log(
            logging.WARNING if slow_s >= SLOW_S else logging.DEBUG,
            *("%s: no response from the store for %.1f s, sending request %d.", place, waited_s, len(asked) + 1),
        )
        with suppress(ResourceError):  # no thread for it: the others may still get their response
            asked.append(_Request(asked[0].read, held))
        slow_s = silent_s


def _may_ask_again(
    asked: list[_Request], known: Latencies, held: SlotLease, silent_at_s: float, until_s: float
) -> bool:
    """Waits until another request is allowed and has a slot. Returns false if none is needed by then, or time is up.

    A request that takes longer than almost all others may be hedged within a share of all requests. From
    ``silent_at_s`` on, it counts as lost, and another one takes its place.
    """
    is_allowed = False
    while (now_s := time.monotonic()) < until_s:
        is_allowed = is_allowed or now_s >= silent_at_s or known.may_ask_twice()
        if is_allowed and held.extend(1):
            return True
        if _wait_for_success(asked, min(_POLL_S, until_s - now_s)):
            return False
    return False


def _wait_for_success(asked: list[_Request], seconds: float) -> bool:
    """Waits until one of some requests has succeeded, or all have failed. Returns false if the time is up before."""
    until_s = time.monotonic() + seconds
    while True:
        rest = [request.future for request in asked if not request.future.done()]
        if not rest or any(request.has_succeeded for request in asked):
            return True
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        first_done(rest, left_s)


class _Request:
    """A read that runs in a thread of its own."""

    def __init__(self, read: Callable[[], Any], held: SlotLease) -> None:
        self.read = read
        self.began_s = time.monotonic()
        self.helper, self.future = _ask(read, held)

    @property
    def has_succeeded(self) -> bool:
        return self.future.done() and self.future.exception() is None


def _ask(read: Callable[[], Any], held: SlotLease) -> tuple[_Helper, Future[Any]]:
    helper = None
    while _idle.helpers and (helper is None or helper.pid != os.getpid()):  # a fork copies the list, not the threads
        helper = _idle.helpers.pop()
    if helper is None or helper.pid != os.getpid():
        helper = _Helper()
    return helper, helper.run(read, held)


class _Helper:
    """A thread that reads for another one. It ends when this object is no longer referenced."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        start_thread(threading.Thread(target=_serve, args=(self._tasks,), name="parquetry-store", daemon=True))
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def run(self, read: Callable[[], Any], held: SlotLease) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, read, counters_here(), held))
        return future


def _serve(tasks: queue.SimpleQueue[Any]) -> None:
    while (task := tasks.get()) is not None:
        future, read, counters, held = task
        try:
            with counting(counters), using(held):
                future.set_result(read())
        except BaseException as error:
            future.set_exception(error)
        del task, future, read, counters, held  # an idle thread keeps no references


class _Idle(threading.local):
    """The idle helpers of a thread. They keep their connections to the store open."""

    def __init__(self) -> None:
        self.helpers: list[_Helper] = []


_idle = _Idle()
