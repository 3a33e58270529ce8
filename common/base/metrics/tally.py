"""`Tally` counts what a consumer received, and `Gauge` the memory that an object holds. `Waits` says how long a
training loop waited for data, by cause; the causes add up to the whole wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from ..process.dataclass import dataclass
from .counters import Count, Counters

_COUNTS = {
    "store": Count.WAITED_STORE_S,
    "parquet": Count.WAITED_PARQUET_S,
    "decode": Count.WAITED_DECODE_S,
    "transform": Count.WAITED_TRANSFORM_S,
    "hand_over": Count.WAITED_HAND_OVER_S,
    "device_copy": Count.WAITED_DEVICE_COPY_S,
}


class Gauge:
    """The bytes that one object holds now, as part of the total of its iteration."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._noted = 0.0

    def set(self, value: float) -> None:
        """Sets the current value. May be called from any thread, but not concurrently."""
        if value != self._noted:
            self._counters.row()[Count.MEMORY_BYTES] += value - self._noted
            self._noted = value


class Tally:
    """Counts what a consumer received. Updates the counters at most a hundred times a second, as elements may be tiny.

    Args:
        waits: whether to count waiting time. Pass False if another consumer waits for these elements.
    """

    __slots__ = ("_counters", "_elements", "_handed_s", "_latest", "_rows", "_told", "_waited_s", "_waits")

    def __init__(self, counters: Counters, *, waits: bool) -> None:
        self._counters, self._waits = counters, waits
        self._rows = self._elements = 0
        self._waited_s = self._handed_s = self._latest = self._told = 0.0

    def add(self, rows: int, elements: int, begin: float) -> None:
        """Counts rows that have arrived now in ``elements`` elements, after waiting since ``begin``."""
        self._latest = now = time.perf_counter()
        self._rows += rows
        self._elements += elements
        self._waited_s += now - begin
        if now - self._told > _TOLD_EVERY_S:
            self.tell()

    def add_ready(self, rows: int, elements: int, begin: float, ready: int) -> int:
        """Counts rows that had arrived before, and were converted since ``begin``.

        Timing a small step takes as long as converting it. So unless the consumer is slow, the time of this step also
        counts for some of the ``ready`` steps that follow. Returns how many; pass those to `add_like`.
        """
        now = time.perf_counter()
        like = min(ready, _MOST_LIKE) if now - self._latest < _TOLD_EVERY_S else 0
        self._latest = now
        self._rows += rows
        self._elements += elements
        taken_s = (now - begin) * (1 + like)
        self._waited_s += taken_s
        self._handed_s += taken_s
        if now - self._told > _TOLD_EVERY_S:
            self.tell()
        return like

    def add_like(self, rows: int, elements: int) -> None:
        """Counts the rows of a step whose time is counted already."""
        self._rows += rows
        self._elements += elements

    def hand_over(self, begin: float) -> None:
        """Counts the time since ``begin`` that it took to convert the latest element."""
        self._latest = time.perf_counter()
        self._waited_s += self._latest - begin
        self._handed_s += self._latest - begin

    def complete(self, totals: dict[Count, float]) -> None:
        """Adds to totals what the counters do not include yet. Any thread may call it, as it writes no counters."""
        if not self._elements:
            return
        totals[Count.ROWS] += self._rows
        totals[Count.ELEMENTS] += self._elements
        totals[Count.HAND_OVER_S] += self._handed_s
        if self._waits:
            if totals[Count.FIRST] <= totals[Count.BEGAN]:
                totals[Count.FIRST] = self._latest
            else:
                totals[Count.WAIT_S] += self._waited_s
                totals[Count.WAITED_HAND_OVER_S] += self._handed_s
            totals[Count.LAST] = self._latest

    def tell(self) -> None:
        """Updates the counters."""
        if not self._elements:
            return
        row = self._counters.row()
        row[Count.ROWS] += self._rows
        row[Count.ELEMENTS] += self._elements
        row[Count.HAND_OVER_S] += self._handed_s
        if self._waits:
            self._counters.waited(self._waited_s, self._latest, handed_s=self._handed_s)
        self._rows = self._elements = 0
        self._waited_s = self._handed_s = 0.0
        self._told = self._latest


_TOLD_EVERY_S = 0.01
_MOST_LIKE = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds that a consumer waited, by cause.

    >>> Waits(start=1.0, decode=3.0).total_s
    4.0

    Attributes:
        start: the wait for the first element.
        store: the disk or the network.
        parquet: reading and decompressing row groups.
        decode: decoding values and gathering them into batches.
        transform: your functions, and verbs that work on values.
        hand_over: converting batches, and passing them between processes.
        device_copy: enqueuing copies to a device, and waiting until there is room for another one.
        other: no measured cause, such as a server, a busy processor, or Python's GIL.
    """

    start: float = 0.0
    store: float = 0.0
    parquet: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    hand_over: float = 0.0
    device_copy: float = 0.0
    other: float = 0.0

    @classmethod
    def of(cls, totals: Mapping[Count, float], start_s: float, wait_s: float) -> Waits:
        """Builds waits from counters; ``wait_s`` is the whole wait after the first element."""
        parts = {cause: totals[count] for cause, count in _COUNTS.items()}
        split_s = sum(parts.values())
        scale = wait_s / split_s if split_s > wait_s else 1.0  # a pass that runs may be counted while it is read
        parts = {cause: scale * seconds for cause, seconds in parts.items()}
        return cls(start=start_s, **parts, other=max(wait_s - sum(parts.values()), 0.0))

    @property
    def total_s(self) -> float:
        """The whole wait."""
        return sum(self.to_json().values())

    def shares_of(self, seconds: float) -> dict[str, float]:
        """Returns each cause's share of a time."""
        return {cause: wait_s / seconds if seconds else 0.0 for cause, wait_s in self.to_json().items()}

    def to_json(self) -> dict[str, float]:
        """Returns the seconds by cause."""
        return asdict(self)
