"""``shuffle``: a new order in every epoch."""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

from ..base.process.dataclass import dataclass
from ..schema.plain import Seed
from .base import Decision, SeededStage, positive_integer


@dataclass(frozen=True)
class Shuffle(SeededStage):
    """A new order in every epoch; ``drawn`` marks a seed that the user did not give, so other processes differ."""

    verb: ClassVar[str] = "shuffle"
    sendable: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.ORDER
    unnamed: ClassVar[frozenset[str]] = frozenset({"seed"})
    sample_arguments: ClassVar[tuple[object, ...]] = (1, 0)
    buffer_size: int
    seed: Seed
    reshuffle_each_iteration: bool = True
    drawn: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        positive_integer("shuffle", "buffer_size", self.buffer_size)

    def __str__(self) -> str:
        shown = self.without_drawn_seed(super().__str__())
        return f"{shown}  # no seed (drew {self.seed})" if self.drawn else shown

    def with_seed(self, seed: int) -> Shuffle:
        return replace(self, seed=seed)
