"""``decimals``: delivers decimal fields as text, floats, or scaled integers."""

from __future__ import annotations

import decimal
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.codecs import ScaledDecimalCodec
from ..schema.element import output_of
from .base import Stage, matches
from .columns import Columns


@dataclass(frozen=True)
class Decimals(Stage):
    """Chooses the form in which decimal fields are delivered.

    It changes how fields are read, so it must come before every stage that works on values.
    """

    verb: ClassVar[str] = "decimals"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = ("text", ("x",))
    form: Literal["text", "float64", "scaled"]
    patterns: tuple[str, ...]

    def changes(self, name: str) -> bool:
        return self.form != "text" and matches(self.patterns, name)

    def apply(self, columns: Columns) -> None:
        fields = columns.open()
        if columns.row_steps or columns.item_steps or columns.window is not None:
            raise PipelineError(
                "decimals() must come before ngram(), transform(), nulls() and pad(): it changes how stored values are "
                "decoded."
            )
        for number in columns.matching(self.patterns):
            own = fields[number]
            if own.dtype is not decimal.Decimal:
                raise PipelineError(f"decimals: field '{own.name}': expected a decimal field, got {own.dtype}.")
            if self.form == "float64":
                fields[number] = own.replace(dtype=np.float64, codec=None if own.shape == () else own.codec)
            elif self.form == "scaled":
                fields[number] = own.replace(dtype=np.int64, codec=ScaledDecimalCodec())
            columns.outputs[number] = replace(output_of(fields[number]), path=columns.outputs[number].path)
