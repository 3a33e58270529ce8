"""`Tally` counts what a consumer received, and `Gauge` the memory that an object holds."""

from __future__ import annotations

import time

from .counters import Count, Counters


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
