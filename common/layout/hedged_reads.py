"""`hedged_read` runs a read from a store, hedges it if it is slow, and gives up if the store never responds.

A store's client may wait for a response forever. Each read therefore runs in a thread of its own, and the caller waits
for at most `SILENT_S`, plus the time that the bytes need on a slow connection. If a read takes longer than almost all
recent ones of its size (`latencies`), a hedged request is sent: a second request often overtakes a straggler. The first
response wins. All reads share the slots of the store's endpoint with other processes (`request_slots`).
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
from typing import Any, TypeVar

from ..counting.counters import Count, add, counters_here, counting
from ..progress import first_done
from .latencies import Latencies, latencies_of
from .request_slots import SlotLease, slots_of, using

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)
SLOW_S = 10.0
"""A hedged request is sent for a read that takes longer, even if nothing is known about the store yet."""
SILENT_S = 60.0
"""A read that takes longer has failed."""
QUESTION_S = 20.0
"""A question about a file that takes longer has failed. Its answer has no more than a few hundred bytes."""
_LISTING_S = 900.0  # a store lists a thousand files per response
_SLOW_LISTING_S = 30.0
_USUAL_BYTES_PER_S = 8e6
_SLOWEST_BYTES_PER_S = 1e6
_POLL_S = 0.05


def hedged_read(
    read: Callable[[], _T],
    place: str,
    *,
    size_bytes: int = 0,
    is_listing: bool = False,
    is_question: bool = False,
    endpoint: str = "",
) -> _T:
    """Returns what ``read`` returns.

    ``read`` may run twice at the same time, in other threads, and may still run when this function has returned.

    Args:
        place: what is read, for messages.
        size_bytes: how much is read. Each megabyte adds a second to the longest wait.
        is_listing: whether a directory is listed, which may take minutes and is never hedged.
        is_question: whether it asks about a file, and reads no part of it.
        endpoint: the store; see `stores.endpoint_of`. The read waits until there is a slot for it (`request_slots`),
            which does not count as waiting for a response.

    Raises:
        TimeoutError: there was no response in time.
        PipelineError: the read was cancelled; see `CancelToken`.
        Exception: whatever ``read`` raised.
    """
    silent_s = _LISTING_S if is_listing else SILENT_S + size_bytes / _SLOWEST_BYTES_PER_S
    silent_s = min(silent_s, QUESTION_S) if is_question else silent_s
    known = latencies_of(endpoint)
    slow_s = silent_s if is_listing else _slow_after(known, size_bytes)
    with slots_of(endpoint).taken() as held:
        began_s = time.monotonic()
        asked = [_ask(read, held)]
        try:
            if is_listing and not first_done([asked[0][1]], _SLOW_LISTING_S):
                _LOGGER.warning("%s: the store is still listing files after %.0f s.", place, _SLOW_LISTING_S)
            first_done([asked[0][1]], min(slow_s, silent_s))
            until_s = began_s + silent_s
            if slow_s < silent_s and _is_worth_asking_twice(asked[0][1], known, held, until_s):
                _tell_of_second(place, slow_s, size_bytes)
                asked.append(_ask(read, held))
                _wait_for_success([future for _, future in asked], until_s - time.monotonic())
            ended = [future for _, future in asked if future.done()]
            if not ended:
                raise TimeoutError(f"the store timed out: expected a response within {silent_s:.0f} s, got none")
            result: _T = next((future for future in ended if future.exception() is None), ended[0]).result()
            if not is_listing:
                known.note(size_bytes, time.monotonic() - began_s)
            return result
        finally:
            # A thread that is still reading is forgotten. It ends when its read does.
            _idle.helpers += [helper for helper, future in asked if future.done()]


def _slow_after(known: Latencies, size_bytes: int) -> float:
    longest_s = SLOW_S + size_bytes / _USUAL_BYTES_PER_S
    return min(longest_s, known.slow_after(size_bytes) or longest_s)


def _is_worth_asking_twice(first: Future[Any], known: Latencies, held: SlotLease, until_s: float) -> bool:
    """Waits until a hedged request is allowed and has a slot. Returns false if the first ends before, or time is up."""
    is_allowed = False
    while not first.done() and time.monotonic() < until_s:
        is_allowed = is_allowed or known.may_ask_twice()
        if is_allowed and held.extend(1):
            return True
        first_done([first], min(_POLL_S, max(0.0, until_s - time.monotonic())))
    return False


def _tell_of_second(place: str, slow_s: float, size_bytes: int) -> None:
    add(Count.RETRIES, 1)
    level = logging.WARNING if slow_s >= SLOW_S else logging.DEBUG
    _LOGGER.log(level, "%s: no response from the store for %.1f s, sending a second request.", place, slow_s)


def _wait_for_success(futures: list[Future[Any]], seconds: float) -> None:
    """Waits until one of two reads has succeeded, or both have failed."""
    done = first_done(futures, seconds)
    rest = [future for future in futures if future not in done]
    if rest and done and all(future.exception() is not None for future in done):
        first_done(rest, seconds)


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
        threading.Thread(target=_serve, args=(self._tasks,), name="parquetry-store", daemon=True).start()
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
