"""``nested``: reads lists of lists whose lengths differ at every level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, NoReturn

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.codecs import ReadListCodec
from ..schema.element import OutputField
from ..schema.field import UnischemaField
from .base import Stage
from .columns import Columns
from .steps import Step


@dataclass(frozen=True)
class Nested(Stage):
    """Treats some fields as nested lists of any lengths instead of arrays.

    It changes how fields are read, or what a user's function may return, so it must come before every other stage that
    works on their values.
    """

    verb: ClassVar[str] = "nested"
    sendable: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",),)
    patterns: tuple[str, ...]

    def apply(self, columns: Columns) -> None:
        fields = columns.open()
        stored, made = columns.stored, columns.made
        for number in columns.matching(self.patterns):
            output, own = columns.outputs[number], stored[number]
            if output.levels:
                continue
            levels = max((axis for axis, size in enumerate(output.shape, 1) if size is None), default=0)
            if own is not None:
                field = fields[own]
                if not field.is_list or not levels:
                    _refuse(output, f"{field.dtype} {field.shape}" + _storage(field))
                fields[own] = field.replace(codec=ReadListCodec(levels=levels))
            else:
                _make_lists(output, made[number], levels)
            columns.outputs[number] = replace(output, levels=levels)


def _storage(field: UnischemaField) -> str:
    return "" if field.is_list else f", stored by {field.storage}"


def _refuse(output: OutputField, what: str) -> NoReturn:
    raise PipelineError(
        f"nested: field '{output.name}': expected lists that may differ in length, got {what}. Name list fields only."
    )


def _make_lists(output: OutputField, made: tuple[list[Step], int, int] | None, levels: int) -> None:
    """Lets the user function that makes a field return lists."""
    step = None
    if made is not None:
        steps, place, number = made
        step = steps[place].with_lists(number, levels)
    if made is None or step is None:
        raise PipelineError(
            f"nested: field '{output.name}': expected stored lists, or lists declared in the output=[...] of a "
            "function, got the output of an earlier stage. Call nested() earlier."
        )
    if not levels or output.padded:
        _refuse(output, f"{output.dtype} {output.shape}, declared in the function's output=[...]")
    steps[place] = step


class NestedToShow(Nested):
    """Lists in the form used for display: rows with nulls inside become Python lists with ``None``.

    It is not a verb. It replaces `Nested` in pipelines that are displayed, and never leaves the process.
    """

    def apply(self, columns: Columns) -> None:
        fields = columns.open()
        for number in columns.matching(self.patterns):
            own = columns.stored[number]
            assert own is not None
            output = columns.outputs[number]
            levels = max((axis for axis, size in enumerate(output.shape, 1) if size is None), default=0)
            fields[own] = fields[own].replace(codec=ReadListCodec(nulls="keep", levels=levels if levels > 1 else 0))


def with_lists_to_show(stages: Iterable[Stage], patterns: tuple[str, ...]) -> list[Stage]:
    """The stages with a `NestedToShow` of the fields in place of every `Nested`."""
    return [NestedToShow(patterns), *(stage for stage in stages if not isinstance(stage, Nested))]
