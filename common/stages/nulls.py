"""``nulls``: what becomes of missing values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..errors import PipelineError
from ..schema.element import OutputField
from .base import EVERY_FIELD, Decision, Stage, matches
from .columns import Columns, companion
from .names import NewNames
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class NullStep(Step):
    """A policy for the nulls of column ``number``.

    Attributes:
        policy: ``"error"``, ``"fill"`` (with ``value``), or ``"mask"`` (zeros, and a bool companion column at the end).
    """

    number: int
    policy: Literal["error", "fill", "mask"]
    value: Any
    field: OutputField

    @property
    def changes_one_column(self) -> bool:
        return self.policy != "mask"

    @property
    def adds_column(self) -> bool:
        return self.policy == "mask"


@dataclass(frozen=True)
class Nulls(Stage):
    """What becomes of nulls in some fields; ``"drop"`` is a filter."""

    verb: ClassVar[str] = "nulls"
    sendable: ClassVar[bool] = True
    policy: Literal["error", "drop", "fill", "mask"]
    patterns: tuple[str, ...]
    value: Any = None

    @classmethod
    def sample(cls) -> Stage:
        return cls("error", ("x",))

    def check(self) -> None:
        if self.policy not in ("error", "drop", "fill", "mask"):
            raise PipelineError(f"nulls: expected 'error', 'drop', 'fill' or 'mask', got {self.policy!r}.")
        if (self.policy == "fill") != (self.value is not None):
            raise PipelineError("nulls: expected value= with 'fill', and only with it.")

    @property
    def decides(self) -> Decision:
        return Decision.ITEMS if self.policy == "drop" else Decision.FIELDS

    def in_names_before(self, names: NewNames) -> Nulls:
        return replace(self, patterns=names.patterns_before(self.patterns))

    def changes(self, name: str) -> bool:
        return self.policy == "fill" and matches(self.patterns, name)

    @property
    def changes_names(self) -> bool:
        return self.policy == "mask"

    def apply(self, columns: Columns) -> None:
        columns.open()
        for number in columns.matching(self.patterns):
            output = columns.outputs[number]
            if not output.nullable and self.patterns == EVERY_FIELD:
                continue
            if self.policy != "drop":
                value = fill_value(output, self.value) if self.policy == "fill" else None
                columns.steps.append(NullStep(number=number, policy=self.policy, value=value, field=output))
            columns.outputs[number] = replace(output, nullable=False)
            if self.policy == "mask":
                columns.outputs.append(companion(output, "__valid", np.dtype(bool), ()))


def fill_value(output: OutputField, value: object) -> Any:
    """A value in the column's type.

    Raises:
        PipelineError: the column cannot hold it.
    """
    wanted: Any = {"text": str, "bytes": bytes}.get(output.kind)
    if wanted is not None:
        if isinstance(value, wanted):
            return value
        raise PipelineError(f"field '{output.name}': expected a fill value of type {wanted.__name__}, got {value!r}.")
    try:
        result = np.asarray(value).astype(output.dtype)
        exact = output.dtype.kind == "f" or bool(np.all(result == np.asarray(value)))
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise PipelineError(
            f"field '{output.name}': expected a fill value that {output.dtype} can hold, got {value!r}."
        )
    return result
