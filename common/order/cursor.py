"""`Cursor`: where an iterator stands, and which part of the elements is its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A global position: ``rows`` of pass ``passes`` were handed out by all ranks together."""

    passes: int = 0
    rows: int = 0


START = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where an iterator begins.

    Attributes:
        iteration: which iterator of the pipeline it is, from 0; decides the epoch of the shuffle.
        origin: the global position from which this number of ranks began.
        start: elements that this part has consumed since then.
        worker, workers: the part of a loader worker: every ``workers``-th element from ``worker``.
        skipped: rows that failed and were left out between ``origin`` and here (``on_error="skip"``).
    """

    iteration: int = 0
    origin: Origin = START
    start: int = 0
    worker: int = 0
    workers: int = 1
    skipped: int = 0
