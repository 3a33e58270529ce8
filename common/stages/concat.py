"""``concat``: joins rows of token lists end to end and cuts them into items of equal length."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..base.process.dataclass import dataclass
from .base import Stage
from .columns import Columns
from .names import StoredName
from .tokens import TokenLengths, TokenStage, check_numbers

Remainder = Literal["drop", "pad"]


@dataclass(frozen=True)
class Concat(TokenStage):
    """Joins the tokens of rows end to end, in row order.

    Attributes:
        fields: names of token lists, which are cut at the same places.
        separator: the token between rows: one number, or one per field; ``None`` = no separator.
        remainder: what to do with the last tokens of an epoch if they are too few for an item.
        pad_value: one number, or one per field.
    """

    verb: ClassVar[str] = "concat"
    spans_rows: ClassVar[bool] = True
    length: int
    fields: tuple[StoredName, ...]
    separator: Any = None
    positions: bool = False
    remainder: Remainder = "drop"
    pad_value: Any = 0

    def check(self) -> None:
        super().check()
        if self.separator is not None:
            check_numbers("concat", "separator", self.separator)
        check_numbers("concat", "pad_value", self.pad_value)

    @property
    def measure(self) -> Stage:
        return TokenLengths(self.fields)

    def apply(self, columns: Columns) -> None:
        self.join(columns, self.separator, self.pad_value, positions=self.positions)
