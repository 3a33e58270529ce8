"""``batch``: groups rows along a new leading axis."""

from __future__ import annotations

from typing import ClassVar

from ..base.process.dataclass import dataclass
from .base import Decision, Stage, positive_integer
from .columns import Columns


@dataclass(frozen=True)
class Batch(Stage):
    """Groups rows along a new leading axis; later stages work on batches."""

    verb: ClassVar[str] = "batch"
    sendable: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.BATCHES
    unnamed: ClassVar[frozenset[str]] = frozenset({"batch_size"})
    sample_arguments: ClassVar[tuple[object, ...]] = (1,)
    batch_size: int
    drop_remainder: bool = False

    def check(self) -> None:
        positive_integer("batch", "batch_size", self.batch_size)

    def apply(self, columns: Columns) -> None:
        columns.open()
        columns.batched = True
