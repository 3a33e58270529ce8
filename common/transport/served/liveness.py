"""Detects servers that have stalled: stopped, frozen, or on a machine or network that is gone.

A server may compute for long before it sends a batch, so silence alone says nothing. The waiting client asks it
something else, on another connection: a server that answers is alive. See `sidecar.stalls` for processes of this
machine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...base.errors import SidecarError
from ...base.progress import warning_seconds

_LOGGER = logging.getLogger(__name__)
CHECK_S = 0.25
"""How often a waiting client checks."""
_LONGEST_ANSWER_S = 10.0


class ServerWatch:
    """Watches one wait for a server. Call it every `CHECK_S` seconds.

    Args:
        url: the server's address.
        timeout_s: the server has stalled if it sends nothing for this long, and then does not answer; ``None``: never.
        answers: asks the server something, and returns whether it answered within the given seconds.
    """

    def __init__(self, url: str, timeout_s: float | None, answers: Callable[[float], bool]) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._answers = answers
        self._begin = self._since = time.monotonic()
        self._has_warned = False

    def __call__(self) -> None:
        """Logs a warning after half a minute.

        Raises:
            SidecarError: the server has stalled.
        """
        waited_s = time.monotonic() - self._begin
        if not self._has_warned and waited_s >= warning_seconds():
            self._has_warned = True
            state = "still answers" if self._answers(_LONGEST_ANSWER_S) else "does not answer"
            _LOGGER.warning("the trainer has waited %.0f s for the server at %s, which %s.", waited_s, self._url, state)
        if self._timeout_s is None or time.monotonic() - self._since < self._timeout_s:
            return
        within_s = min(self._timeout_s, _LONGEST_ANSWER_S)
        if not self._answers(within_s):
            raise SidecarError(
                f"server at {self._url}: expected data within stall_timeout={self._timeout_s:g} s, or another answer "
                f"within {within_s:g} s more, got nothing. It may be stopped, or its machine or the network gone. "
                "Restart the server, and resume from a saved state if you have one."
            )
        self._since = time.monotonic()
