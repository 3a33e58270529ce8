"""``nulls``: the policy for missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.codecs import ReadListCodec
from ..schema.element import OutputField
from ..schema.field import Shape
from .base import EVERY_FIELD, Decision, Fill, Stage, check_fill, matches
from .columns import Columns, companion
from .names import StoredPattern
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class NullStep(Step):
    """A policy for the nulls of column ``number``.

    Attributes:
        policy: ``"error"``, ``"fill"`` (with ``value``), or ``"mask"`` (zeros, plus a bool column at the end).
        elements: whether that column has a flag per list element; until this step, column ``number`` holds the flags.
    """

    number: int
    policy: Literal["error", "fill", "mask"]
    value: Any
    field: OutputField
    elements: bool = False

    @property
    def changes_one_column(self) -> bool:
        return self.policy != "mask"

    @property
    def adds_column(self) -> bool:
        return self.policy == "mask"


@dataclass(frozen=True)
class Nulls(Stage):
    """Handles nulls in some fields and inside their lists; ``"drop"`` is a filter.

    With ``elements``, a mask has one flag per list element instead of one per list.
    """

    verb: ClassVar[str] = "nulls"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = ("error", ("x",))
    policy: Literal["error", "drop", "fill", "mask"]
    patterns: tuple[StoredPattern, ...]
    value: Fill = None
    elements: bool = False

    def check(self) -> None:
        if not isinstance(self.policy, str) or self.policy not in ("error", "drop", "fill", "mask"):
            raise PipelineError(f"nulls: expected 'error', 'drop', 'fill' or 'mask', got {self.policy!r}.")
        if (self.policy == "fill") != (self.value is not None):
            raise PipelineError("nulls: expected value= with 'fill', and only with it.")
        check_fill("nulls", "value", self.value)
        if self.elements and (self.policy != "mask" or self.patterns == EVERY_FIELD):
            raise PipelineError("nulls: expected elements=True only with 'mask' and field names.")

    @property
    def decides(self) -> Decision:
        return Decision.ITEMS if self.policy == "drop" else Decision.FIELDS

    def changes(self, name: str) -> bool:
        return self.policy == "fill" and matches(self.patterns, name)

    @property
    def keeps_lengths(self) -> bool:
        return self.policy == "fill"

    @property
    def changes_names(self) -> bool:
        return self.policy == "mask"

    def apply(self, columns: Columns) -> None:
        columns.open()
        stored = columns.stored
        masks: list[OutputField] = []
        for number in columns.matching(self.patterns):
            output = columns.outputs[number]
            if not output.nullable and self.patterns == EVERY_FIELD:
                continue
            if self.policy != "drop":
                value = fill_value(output, self.value, output.shape) if self.policy == "fill" else None
                self._settle_elements(columns, stored[number], output, value)
                step = NullStep(number=number, policy=self.policy, value=value, field=output, elements=self.elements)
                columns.steps.append(step)
            columns.outputs[number] = replace(output, nullable=False)
            if self.policy == "mask":
                flags = companion(output, "__valid", np.dtype(bool), output.shape if self.elements else ())
                masks.append(replace(flags, levels=output.levels if self.elements else 0))
        columns.add(*masks, verb="nulls")

    def _settle_elements(self, columns: Columns, stored: int | None, output: OutputField, value: Any) -> None:
        """Sets how the lists of a stored field are read, so that none of their elements is null.

        Raises:
            PipelineError: ``elements`` is set and the field is not a stored list.
        """
        fields = columns.open()
        if stored is None or not fields[stored].is_list:
            if self.elements:
                origin = "the output of an earlier stage" if stored is None else str(fields[stored].storage)
                raise PipelineError(
                    f"nulls: field '{output.name}': expected stored lists for elements=True, got {origin}. "
                    "Call it earlier, or leave elements out."
                )
            return
        if self.elements:
            read = ReadListCodec(nulls="flag", levels=output.levels)
        elif self.policy == "fill" and np.ndim(value) == 0:
            read = ReadListCodec(nulls="fill", value=value, levels=output.levels)
        else:
            return
        fields[stored] = fields[stored].replace(codec=read)


def fill_value(output: OutputField, value: object, shape: Shape = ()) -> Any:
    """Converts a fill value to the column's type.

    Args:
        shape: the shape that the value may have instead of being one number.

    Raises:
        PipelineError: the column cannot hold the value.
    """
    kind: type | None = {"text": str, "bytes": bytes}.get(output.kind)
    if kind is not None:
        if isinstance(value, kind):
            return value
        raise PipelineError(f"field '{output.name}': expected a fill value of type {kind.__name__}, got {value!r}.")
    try:
        array = np.asarray(value)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN as an integer
            result = array.astype(output.dtype)
        exact = bool(np.all(result == array)) if output.dtype.kind != "f" else not _overflows(array, result)
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise PipelineError(
            f"field '{output.name}': expected a fill value that {output.dtype} can hold, got {value!r}."
        )
    if result.shape not in ((), shape):
        also = f" or values of shape {shape}" if shape else ""
        raise PipelineError(f"field '{output.name}': expected one fill value{also}, got shape {result.shape}.")
    return result


def _overflows(given: np.ndarray, result: np.ndarray) -> bool:
    return bool((np.isfinite(given.astype(np.float64)) & ~np.isfinite(result)).any())
