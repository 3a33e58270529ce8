"""``cache``: keeps fetched columns on local disk."""

from __future__ import annotations

from typing import ClassVar

from ..base.process.dataclass import dataclass
from .base import Decision, Stage, positive_integer


@dataclass(frozen=True)
class Cache(Stage):
    """Keeps fetched columns on local disk. It changes no element; the last cache stage of a pipeline wins."""

    verb: ClassVar[str] = "cache"
    decides: ClassVar[Decision] = Decision.BYTES
    sample_arguments: ClassVar[tuple[object, ...]] = ("x",)
    directory: str
    max_bytes: int | None = None

    def check(self) -> None:
        if self.max_bytes is not None:
            positive_integer("cache", "max_bytes", self.max_bytes)
