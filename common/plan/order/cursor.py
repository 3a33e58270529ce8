"""`Cursor`: the position of an iterator, and its share of the elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...base.process.dataclass import dataclass

if TYPE_CHECKING:  # the protocol imports this module, and tests start it on its own
    from ...stages.shard import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A global position: all ranks together have returned ``rows`` rows of pass ``passes``."""

    passes: int = 0
    rows: int = 0


START = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipState:
    """What a loader worker's part has left out (``on_error="skip"``). It is false if nothing was left out.

    Attributes:
        rows: the number of rows that failed.
        batches: with ``bucket``, the number of batches whose rows all failed.
        ahead: with ``bucket``, the rows that later batches have given to earlier ones: ``(stream, cycle, pass,
            wraparounds, block, bucket, rows)``; see `engine.run.bucket_skipping`.
    """

    rows: int = 0
    batches: int = 0
    ahead: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return self.rows > 0

    def to_json(self) -> dict[str, object]:
        """Returns the members of a state."""
        refilled = {"batches": self.batches, "ahead": [list(each) for each in self.ahead]}
        return {"skipped": self.rows, **{name: value for name, value in refilled.items() if value}}

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> SkipState:
        """Returns what the members of a state say."""
        ahead = tuple(tuple(each) for each in members.get("ahead") or ())
        return cls(rows=members.get("skipped") or 0, batches=members.get("batches") or 0, ahead=ahead)


NOTHING = SkipState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position at which an iterator begins.

    Attributes:
        iteration: the number of this iterator, from 0. It decides the epoch of the shuffle.
        origin: the global position at which the current number of ranks started.
        start: elements that this part has consumed since ``origin``.
        worker, workers: this loader worker's part: every ``workers``-th element, starting at ``worker``.
        skipped: what was left out between ``origin`` and here (``on_error="skip"``).
    """

    iteration: int = 0
    origin: Origin = START
    start: int = 0
    worker: int = 0
    workers: int = 1
    skipped: SkipState = NOTHING

    def part(self, shard: Shard | None) -> tuple[int, int]:
        """Returns the number of this loader worker's part among those of all ranks, and the number of parts."""
        ranks, rank = (1, 0) if shard is None else (shard.num_shards, shard.index)
        return rank * self.workers + self.worker, ranks * self.workers
