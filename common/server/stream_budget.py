"""`StreamBudget`: divides a server's memory among its open streams, and limits their number."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..base.errors import PipelineError
from ..base.platform.processes import usable_memory_bytes
from .limits import ClientLimits

_LOGGER = logging.getLogger(__name__)


class StreamBudget:
    """The streams of a server and their memory. Thread-safe."""

    def __init__(self, limits: ClientLimits) -> None:
        self._most_streams = limits.max_streams
        self._lock = threading.Lock()
        self._streams = 0
        self._warned = False
        total_bytes = limits.total_memory_bytes or usable_memory_bytes() // 2
        self._least_bytes = max(1, total_bytes // (2 * limits.max_streams))
        self._free_bytes = max(0, total_bytes - limits.max_streams * self._least_bytes)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams

    def open_stream(self, wanted_bytes: int) -> StreamShare:
        """Opens a stream, whose share is at most ``wanted_bytes`` of memory. Close the result when it ends.

        Half of the memory is divided equally among as many streams as may be open. The other half goes to the first
        ones, each of which gets at most a quarter of what is left. So memory alone never refuses a stream.

        Raises:
            PipelineError: the maximum number of streams is open.
        """
        with self._lock:
            if self._streams >= self._most_streams:
                raise PipelineError(
                    f"server: expected at most {self._most_streams} streams at once, got one more. Close iterators "
                    "that you no longer need, use fewer loader workers, or start the server with a higher limit "
                    "max_streams."
                )
            extra_bytes = min(max(0, wanted_bytes - self._least_bytes), self._free_bytes // 4)
            granted_bytes = min(wanted_bytes, self._least_bytes + extra_bytes)
            if granted_bytes < wanted_bytes:  # a power of two, so that equal requests share sidecars
                granted_bytes = 1 << (granted_bytes.bit_length() - 1)
            extra_bytes = max(0, granted_bytes - self._least_bytes)
            self._streams += 1
            self._free_bytes -= extra_bytes
            number = self._streams
            warn = granted_bytes < wanted_bytes and not self._warned
            self._warned = self._warned or warn
        if warn:
            _LOGGER.warning(
                "stream %d gets %s of %s bytes of memory, and later ones less, so they may be slower. Raise the "
                "limit total_memory_bytes if this machine has more.",
                number,
                f"{granted_bytes:,}",
                f"{wanted_bytes:,}",
            )
        return StreamShare(granted_bytes, lambda: self._close_stream(extra_bytes))

    def _close_stream(self, extra_bytes: int) -> None:
        with self._lock:
            self._streams -= 1
            self._free_bytes += extra_bytes


class StreamShare:
    """One open stream's part of the budget.

    Attributes:
        memory_bytes: memory that the stream may fill ahead of its client.
    """

    def __init__(self, memory_bytes: int, close: Callable[[], None]) -> None:
        self.memory_bytes = memory_bytes
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Gives the share back. Idempotent."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> StreamShare:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
