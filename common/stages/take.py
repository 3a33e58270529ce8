"""``take`` and ``skip``: keep only the first elements, or all but the first."""

from __future__ import annotations

from typing import ClassVar

from ..base.process.dataclass import dataclass
from .base import Decision, Stage, count_or_zero


@dataclass(frozen=True)
class Cut(Stage):
    """Base of both: keeps the elements from ``start`` to ``stop``."""

    sendable: ClassVar[bool] = True
    selects: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.CUT
    sample_arguments: ClassVar[tuple[object, ...]] = (1,)
    count: int

    def check(self) -> None:
        count_or_zero(self.verb, self.count)

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The number of the first element, and the number after the last (``None`` = to the end)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Take(Cut):
    """Keeps only the first elements."""

    verb: ClassVar[str] = "take"
    keeps_first: ClassVar[bool] = True

    @property
    def bounds(self) -> tuple[int, int | None]:
        return 0, self.count

    def endless_after(self, endless: bool) -> bool:
        return False


@dataclass(frozen=True)
class Skip(Cut):
    """Keeps all but the first elements."""

    verb: ClassVar[str] = "skip"

    @property
    def bounds(self) -> tuple[int, int | None]:
        return self.count, None
