"""``repeat``: makes several passes over the data."""

from __future__ import annotations

from typing import ClassVar

from ..base.process.dataclass import dataclass
from .base import Decision, Stage, count_or_zero


@dataclass(frozen=True)
class Repeat(Stage):
    """Makes ``count`` passes; ``None`` = repeat forever."""

    verb: ClassVar[str] = "repeat"
    sendable: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.PASSES
    count: int | None = None

    def check(self) -> None:
        if self.count is not None:
            count_or_zero("repeat", self.count)

    def endless_after(self, endless: bool) -> bool:
        return endless or self.count is None
