"""`Recut`: how a state cuts one pass into other streams, because it continued on other numbers of ranks."""

from __future__ import annotations

from typing import Any

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.plain import PlainFields

MOST_CUTS = 16
"""So often what is left of a pass is cut anew. Then a state has a few hundred bytes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recut(PlainFields):
    """How what was left of one pass was cut into other streams, whenever it continued on other numbers of ranks.

    Attributes:
        iteration: the number of the iterator, from 0.
        passes: the number of the pass in it.
        streams: the number of streams in which the pass began.
        cuts: ``((rows, streams), ...)``: after so many rows of the pass, what was left was cut into so many streams.
    """

    iteration: int
    passes: int
    streams: int
    cuts: tuple[tuple[int, int], ...]

    def check(self) -> None:
        numbers = [
            self.iteration,
            self.passes,
            self.streams,
            len(self.cuts),
            *(one for cut in self.cuts for one in cut),
        ]
        if min(numbers[:2]) < 0 or min(numbers[2:]) < 1 or len(self.cuts) > MOST_CUTS:
            raise PipelineError(f"shard: expected recut from a state, got {self.to_json()}.")

    def to_json(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "passes": self.passes, "streams": self.streams, "cuts": self.cuts}
