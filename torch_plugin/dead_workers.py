"""Adds the reason for a loader worker's death to torch's own error.

torch names the process and the signal. This module adds whether the kernel ran out of memory, which of the loader's
workers it was, and where the loop can resume.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from typing import Any

import torch.utils.data

from parquetry.common.transport.exit_status import how_it_ended

_PROCESSES = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_loaders: weakref.WeakSet[Any] = weakref.WeakSet()


def install() -> None:
    """Makes errors that torch raises from its signal handler carry the explanation too. Idempotent.

    The handler runs wherever the training loop is, so no caller in this package could catch the error.
    """
    signal_handling = getattr(torch.utils.data._utils, "signal_handling", None)
    original = getattr(signal_handling, "_error_if_any_worker_fails", None)
    if original is not None and not hasattr(original, "_parquetry"):
        explaining = _explaining(original)
        explaining._parquetry = True  # type: ignore[attr-defined]
        signal_handling._error_if_any_worker_fails = explaining  # type: ignore[union-attr]


def follow(iterator: Any) -> None:
    """Registers a loader's iterator whose workers read a dataset of this package."""
    _loaders.add(iterator)


def explain(error: RuntimeError) -> None:
    """Adds the details to torch's error for dead workers. Changes no other error, and none twice."""
    text = str(error)
    found = _PROCESSES.search(text)
    if found is None or "parquetry:" in text:
        return
    dead = {int(process) for process in found[1].replace(",", " ").split()}
    known = [line for iterator in list(_loaders) for line in _deaths(iterator, dead)]
    if known:
        error.args = ("\n".join([text.rstrip(), *known, _ADVICE]), *error.args[1:])


def _deaths(iterator: Any, dead: set[int]) -> list[str]:
    workers = getattr(iterator, "_workers", [])
    lines = []
    for number, worker in enumerate(workers):
        if worker.pid in dead:
            code = worker.exitcode
            how = "died" if code is None else how_it_ended(code)
            lines.append(f"parquetry: loader worker {number} of {len(workers)} (process {worker.pid}): {how}.")
    return lines


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
