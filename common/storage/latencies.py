"""`Latencies`: how long recent reads from a store took, and so when a read is slow enough to hedge.

In: the seconds and the size of each finished read. Out: after how many seconds to send a hedged request, and whether
one is allowed. Hedged requests are at most a share of all reads, so that a store that is slow for everybody does not
get twice the requests.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection

from ..base.process.forks import ForkLock

FLOOR_S = 0.25
"""No hedged request is sent sooner."""
PERCENTILE = 95
"""Of recent reads of about the same size, how many percent are faster than a straggler."""
HEDGED_SHARE = 0.05
"""The largest share of reads that are hedged."""
FEWEST_READS = 20
"""Until there were this many reads of a size, none of them counts as slow."""
_RECENT_READS = 200
_BURST = 3.0  # the most hedged requests in a row, after many reads without any
_CLASS_BITS = 2  # the sizes of a class differ by less than a factor of four


class Latencies:
    """What is known about the reads from one endpoint in this process. Thread-safe."""

    def __init__(self) -> None:
        self._recent: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT_READS))
        self._allowed = _BURST
        self._lock = ForkLock()

    def note(self, size_bytes: int, seconds: float, *, overtook: bool = False) -> None:
        """Notes that a read has finished.

        Args:
            seconds: how long the request took that was answered.
            overtook: whether another request was sent before it, and is still without an answer. If this one was no
                straggler, the store answers, and only lost the other one: then this one does not count as hedged.
        """
        with self._lock:
            recent = self._recent[_class_of(size_bytes)]
            is_refunded = overtook and seconds <= (_slow_after(recent) or 0.0)
            recent.append(seconds)
            self._allowed = min(_BURST, self._allowed + (1 if is_refunded else HEDGED_SHARE))

    def slow_after(self, size_bytes: int) -> float | None:
        """Returns after how many seconds a read of this size is a straggler; ``None`` if too few reads were seen."""
        with self._lock:
            return _slow_after(self._recent.get(_class_of(size_bytes), ()))

    def may_ask_twice(self) -> bool:
        """Whether one more hedged request is within the share. If so, it counts as made."""
        with self._lock:
            if self._allowed < 1:
                return False
            self._allowed -= 1
            return True


_known: dict[str, Latencies] = {}
_lock = ForkLock()


def latencies_of(endpoint: str) -> Latencies:
    """Returns what this process knows about an endpoint."""
    with _lock:
        return _known.setdefault(endpoint, Latencies())


def _slow_after(recent: Collection[float]) -> float | None:
    if len(recent) < FEWEST_READS:
        return None
    return max(FLOOR_S, sorted(recent)[(len(recent) - 1) * PERCENTILE // 100])


def _class_of(size_bytes: int) -> int:
    return size_bytes.bit_length() // _CLASS_BITS
