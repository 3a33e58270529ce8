"""Explains loader workers that died, and warns of those that make the training loop wait.

If a worker dies, torch names the process and the signal. This module adds whether the kernel ran out of memory, which
of the loader's workers it was, and where the loop can resume.

While it waits for a worker, torch checks every few seconds whether the worker has died, and otherwise keeps waiting. A
worker that is stopped or hangs would therefore block the loop forever, silently. There is no warning while torch
receives a batch that such a worker has announced: only a thread could notice that, and forks from processes with more
threads are risky.
"""

from __future__ import annotations

import functools
import logging
import re
import time
import weakref
from collections.abc import Callable
from typing import Any

from parquetry.common.base.progress import warning_seconds
from parquetry.common.transport.children import how_it_ended
from parquetry.common.transport.stalls import state_of

from ..torch_internals import awaited_worker, extend_worker_check, has_received, is_forked, worker_check, workers_of

_LOGGER = logging.getLogger(__name__)
_PROCESSES = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_DYING_S = 1.0
_LOOK_S = 0.01
_loaders: weakref.WeakSet[Any] = weakref.WeakSet()


def install() -> None:
    """Makes errors that torch raises from its signal handler carry the explanation too. Idempotent.

    The handler runs wherever the training loop is, so no caller in this package could catch the error.
    """
    extend_worker_check(_explaining)


def follow(iterator: object) -> None:
    """Registers a loader's iterator whose workers read a dataset of this package."""
    _loaders.add(iterator)


def check_workers() -> None:
    """Raises torch's error if a loader worker of this process has died, or does so within a second.

    A worker that is killed loses its files a moment before torch can see that it has ended.
    """
    check = worker_check()
    end = time.monotonic() + _DYING_S
    while check is not None:
        check()
        if time.monotonic() >= end:
            return
        time.sleep(_LOOK_S)


def explain(error: RuntimeError) -> None:
    """Adds the details to torch's error for dead workers. Changes no other error, and none twice."""
    text = str(error)
    match = _PROCESSES.search(text)
    if match is None or "parquetry:" in text:
        return
    dead = {int(process) for process in match[1].replace(",", " ").split()}
    loaders = list(_loaders)
    known = [line for iterator in loaders for line in _deaths(iterator, dead)]
    if known:
        advice = _START_ADVICE if any(_failed_to_start(iterator, dead) for iterator in loaders) else _ADVICE
        error.args = ("\n".join([text.rstrip(), *known, advice]), *error.args[1:])


def _deaths(iterator: object, dead: set[int]) -> list[str]:
    workers = workers_of(iterator)
    lines = []
    for number, worker in enumerate(workers):
        if worker.pid in dead:
            code = worker.exitcode
            how = "died" if code is None else how_it_ended(code)
            lines.append(f"parquetry: loader worker {number} of {len(workers)} (process {worker.pid}): {how}.")
    return lines


def _failed_to_start(iterator: object, dead: set[int]) -> bool:
    """Whether a worker that is a new interpreter ended with an error before the loader got anything from any worker.

    Errors of the dataset reach the loop. What ends a worker like this is the import of the program or of its modules.
    """
    if has_received(iterator):
        return False
    return any(worker.pid in dead and worker.exitcode == 1 and not is_forked(worker) for worker in workers_of(iterator))


_START_ADVICE = (
    "It ended while it started: its own traceback is above. A worker that is spawned, or started by a fork server, "
    'imports your program again. So put what the program does under `if __name__ == "__main__":`; what stands outside '
    "runs in each worker, too."
)
_ADVICE = (
    "If memory ran out, use fewer workers or lower memory_limit, which applies to each worker (1 GiB by default). "
    "With num_workers=0 the dataset reads in this process, where `python -X faulthandler` shows where it crashes. "
    "To resume, load the last state you saved."
)


def _explaining(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def check(*args: Any) -> Any:
        try:
            return original(*args)
        except RuntimeError as error:
            explain(error)
            raise

    return check


def watched(original: Callable[..., tuple[bool, Any]]) -> Callable[..., tuple[bool, Any]]:
    """Returns torch's ``_try_get_data``, with a warning if it has failed for too long in one wait of the loop.

    It is about loaders whose iterator has ``_parquetry_since``, the time since which the loop waits.
    """

    @functools.wraps(original)
    def try_get(self: Any, *args: Any, **options: Any) -> tuple[bool, Any]:
        result = original(self, *args, **options)
        since = getattr(self, "_parquetry_since", None)
        if not result[0] and since is not None and time.perf_counter() - since >= warning_seconds():
            self._parquetry_since = None  # once per wait
            _warn_of_wait(self, time.perf_counter() - since)
        return result

    return try_get


def _warn_of_wait(iterator: object, waited_s: float) -> None:
    workers, number = workers_of(iterator), awaited_worker(iterator)
    if number is None:
        _LOGGER.warning("the training loop has waited %.0f s for its %d loader workers.", waited_s, len(workers))
    elif 0 <= number < len(workers):
        pid = workers[number].pid
        _LOGGER.warning(
            "the training loop has waited %.0f s for loader worker %d (process %d), which is %s.",
            waited_s,
            number,
            pid,
            state_of(pid),
        )
