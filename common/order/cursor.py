"""`Cursor`: the position of an iterator, and its share of the elements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A global position: all ranks together have returned ``rows`` rows of pass ``passes``."""

    passes: int = 0
    rows: int = 0


START = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position at which an iterator begins.

    Attributes:
        iteration: the number of this iterator, from 0. It decides the epoch of the shuffle.
        origin: the global position at which the current number of ranks started.
        start: elements that this part has consumed since ``origin``.
        worker, workers: this loader worker's part: every ``workers``-th element, starting at ``worker``.
        skipped: rows that failed and were left out between ``origin`` and here (``on_error="skip"``).
    """

    iteration: int = 0
    origin: Origin = START
    start: int = 0
    worker: int = 0
    workers: int = 1
    skipped: int = 0
