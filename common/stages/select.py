"""``select``: keeps only some fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import PipelineError
from ..schema.field import UnischemaField
from .base import Stage
from .columns import Columns
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection(Step):
    """Keeps only the columns at positions ``keep``."""

    keep: tuple[int, ...]

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        return [columns[number] for number in self.keep]


@dataclass(frozen=True)
class Select(Stage):
    """Keeps only some fields; fields in ``declared`` override how the dataset's schema decodes their columns.

    Ahead of all other stages that use fields, it decides what is read. Later, it drops columns.
    """

    verb: ClassVar[str] = "select"
    sendable: ClassVar[bool] = True
    patterns: tuple[str, ...]
    declared: tuple[UnischemaField, ...] = ()  # a field in place of the base's property

    @classmethod
    def of(cls, fields: Iterable[str | UnischemaField]) -> Select:
        """Creates the stage from names, regexes and fields; a field with a codec declares how its column is decoded."""
        given = list(fields)
        declared = tuple(item for item in given if isinstance(item, UnischemaField) and item.codec is not None)
        return cls(tuple(item.name if isinstance(item, UnischemaField) else item for item in given), declared)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "declared": [item.to_json() for item in self.declared]}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        declared = tuple(UnischemaField.from_json(item) for item in parameters.get("declared", ()))
        return cls(tuple(parameters["patterns"]), declared)

    @classmethod
    def sample(cls) -> Stage:
        return cls(("x",))

    def check(self) -> None:
        if not self.patterns or not all(isinstance(name, str) for name in self.patterns):
            raise PipelineError(f"select: expected at least one field name or regex, got {self.patterns!r}.")

    @property
    def changes_names(self) -> bool:
        return True

    def apply(self, columns: Columns) -> None:
        if columns.fields is None:
            columns.patterns.append(self.patterns)
            return
        keep = tuple(columns.matching(self.patterns))
        columns.steps.append(Projection(keep=keep))
        columns.outputs = [columns.outputs[number] for number in keep]
