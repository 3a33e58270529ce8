"""Warns when a training loop waits long for one worker of a torch loader, and says what that worker is doing.

torch checks every few seconds whether a worker it waits for has died, and waits on if not. A worker that is stopped or
hangs would therefore hold the loop forever without a word. There is no warning while torch receives a batch that such a
worker has announced: only a thread could notice that, and forks from processes with more threads are risky.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from parquetry.common.progress import warning_seconds
from parquetry.common.transport.sidecar.stalls import state_of

_LOG = logging.getLogger(__name__)


def watched(original: Callable[..., tuple[bool, Any]]) -> Callable[..., tuple[bool, Any]]:
    """Returns torch's ``_try_get_data``, with a warning if it has failed for too long in one wait of the loop.

    It is about loaders whose iterator has ``_parquetry_since``, the time since which the loop waits.
    """

    @functools.wraps(original)
    def try_get(self: Any, *args: Any, **options: Any) -> tuple[bool, Any]:
        found = original(self, *args, **options)
        since = getattr(self, "_parquetry_since", None)
        if not found[0] and since is not None and time.perf_counter() - since >= warning_seconds():
            self._parquetry_since = None  # once per wait
            _warn(self, time.perf_counter() - since)
        return found

    return try_get


def _warn(iterator: Any, waited_s: float) -> None:
    workers = getattr(iterator, "_workers", [])
    task = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None), (-1,))
    if 0 <= task[0] < len(workers):
        pid = workers[task[0]].pid
        _LOG.warning(
            "the training loop has waited %.0f s for loader worker %d (process %d), which is %s.",
            waited_s,
            task[0],
            pid,
            state_of(pid),
        )
