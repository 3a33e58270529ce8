"""``select``: keeps only some fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.codec import fits_shape
from ..schema.element import output_of
from ..schema.field import UnischemaField
from .base import FieldNames, Stage, listed
from .columns import Columns
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection(Step):
    """Keeps only the columns at positions ``keep``."""

    taken: ClassVar[tuple[int, ...]] = ()
    projects: ClassVar[bool] = True
    keep: tuple[int, ...]

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        return [columns[number] for number in self.keep]

    @property
    def kept(self) -> tuple[int, ...]:
        return self.keep


@dataclass(frozen=True)
class Select(Stage):
    """Keeps only some fields; fields in ``declared`` say how their columns are decoded, with their own dtype and shape.

    Ahead of all other stages that use fields, it decides what is read. Later, it drops columns.
    """

    verb: ClassVar[str] = "select"
    sendable: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    selects: ClassVar[bool] = True
    changes_names: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",),)
    patterns: tuple[str, ...]
    declared: tuple[UnischemaField, ...] = ()  # a field in place of the base's property

    @classmethod
    def of(cls, fields: FieldNames | Iterable[FieldNames]) -> Select:
        """Creates the stage from names, regexes and fields."""
        items = listed("select", fields)
        declared = tuple(item for item in items if isinstance(item, UnischemaField))
        return cls(tuple(item.name if isinstance(item, UnischemaField) else item for item in items), declared)

    def check(self) -> None:
        if not self.patterns or not all(isinstance(name, str) for name in self.patterns):
            raise PipelineError(f"select: expected at least one field name or regex, got {self.patterns!r}.")

    def apply(self, columns: Columns) -> None:
        if columns.fields is None:
            columns.patterns.append(self.patterns)
            return
        for item in self.declared:
            _check_made(columns, item)
        keep = tuple(columns.matching(self.patterns))
        columns.steps.append(Projection(keep=keep))
        columns.outputs = [columns.outputs[number] for number in keep]


def _check_made(columns: Columns, item: UnischemaField) -> None:
    """Raises `PipelineError` if an earlier stage makes values of another dtype or shape than the field declares."""
    target = output_of(item)
    for number in columns.matching((item.name,)):
        output = columns.outputs[number]
        if not fits_shape(output.shape, target.shape) or (target.kind, target.dtype) != (
            output.kind,
            output.dtype,
        ):
            raise PipelineError(
                f"select: field '{output.name}': expected {target.dtype} of shape {target.shape}, got {output.dtype} "
                f"of shape {output.shape} from earlier stages. Give only the name, or convert it with cast() or pad()."
            )
