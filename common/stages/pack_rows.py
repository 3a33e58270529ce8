"""``pack_rows``: packs whole rows of token lists into items of equal length."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..base.process.dataclass import dataclass
from .base import Stage
from .columns import Columns
from .names import StoredName
from .tokens import TokenLengths, TokenStage, check_numbers

Strategy = Literal["best_fit", "first_fit"]
Overlong = Literal["cut", "drop", "error"]


@dataclass(frozen=True)
class PackRows(TokenStage):
    """Packs as many whole rows into each item as fit.

    Attributes:
        fields: names of token lists, which are packed in parallel.
        strategy: places rows, longest first, into the fullest item with room or into the first item with room.
        overlong: what to do with rows longer than an item.
        pad_value: one number, or one per field.
    """

    verb: ClassVar[str] = "pack_rows"
    length: int
    fields: tuple[StoredName, ...]
    strategy: Strategy = "best_fit"
    overlong: Overlong = "cut"
    pad_value: Any = 0

    def check(self) -> None:
        super().check()
        check_numbers("pack_rows", "pad_value", self.pad_value)

    @property
    def measure(self) -> Stage:
        return TokenLengths(self.fields, self.length if self.overlong == "error" else None)

    def apply(self, columns: Columns) -> None:
        self.join(columns, None, self.pad_value, positions=True)
