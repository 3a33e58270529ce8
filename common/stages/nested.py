"""``nested``: lists of lists that differ in length at every level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

from ..errors import PipelineError
from ..schema.codecs import ReadListCodec
from ..schema.element import OutputField
from ..schema.field import UnischemaField
from .base import Stage
from .columns import Columns
from .steps import Step


@dataclass(frozen=True)
class Nested(Stage):
    """Some fields are lists, whatever their lengths, and not arrays.

    It changes how fields are read, or what a user's function may give, so it stands before every other stage that works
    on their values.
    """

    verb: ClassVar[str] = "nested"
    sendable: ClassVar[bool] = True
    patterns: tuple[str, ...]

    @classmethod
    def sample(cls) -> Stage:
        return cls(("x",))

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
        f"nested: field '{output.name}': expected lists that may differ in length, got {what}. Name fields of lists "
        "only."
    )


def _make_lists(output: OutputField, made: tuple[list[Step], int, int] | None, levels: int) -> None:
    """Lets the function that gives a field give lists."""
    step = None
    if made is not None:
        steps, place, number = made
        step = steps[place].with_lists(number, levels)
    if made is None or step is None:
        raise PipelineError(
            f"nested: field '{output.name}': expected lists as they are stored, or as the output=[...] of a function "
            "declares them, got what an earlier stage made. Call nested() earlier."
        )
    if not levels or output.padded:
        _refuse(output, f"{output.dtype} {output.shape}, as the function's output=[...] declares it")
    steps[place] = step


class NestedToShow(Nested):
    """The lists of some fields as people look at them: rows with nulls inside as Python lists, with ``None``.

    It is no verb: it stands for `Nested` in pipelines that are shown, and never leaves the process.
    """

    def apply(self, columns: Columns) -> None:
        fields = columns.open()
        for number in columns.matching(self.patterns):
            own = columns.stored[number]
            assert own is not None
            output = columns.outputs[number]
            levels = max((axis for axis, size in enumerate(output.shape, 1) if size is None), default=0)
            fields[own] = fields[own].replace(codec=ReadListCodec(nulls="keep", levels=levels if levels > 1 else 0))
