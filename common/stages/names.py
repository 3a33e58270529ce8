"""Types with which a stage declares its values that name stored fields, and `NewNames`, which translates these values.

Filters and windows read storage, where fields have the names from before every rename. What a stage reads and how it is
written before a rename both follow from its declared values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Annotated, Any, TypeVar, get_args

from ..base.errors import FieldNotFoundError
from ..base.process.dataclass import dataclass
from ..schema.plain import PlainFields, hints_of
from .functions import UserFunction
from .predicates.column_predicates import ColumnPredicate
from .predicates.expression import (
    FieldRef,
    expression_from_json,
    expression_to_json,
    parse_expression,
    walk,
    with_other_names,
)

Same = TypeVar("Same", bound=PlainFields)


@dataclass(frozen=True, slots=True)
class NewNames:
    """An ``(old, new)`` pair for each field that a stage renames."""

    pairs: tuple[tuple[str, str], ...]

    def before(self, name: str) -> str:
        """The field's name before the rename.

        Raises:
            FieldNotFoundError: the field now has another name.
        """
        for old, new in self.pairs:
            if new == name:
                return old
        for old, new in self.pairs:
            if old == name:
                raise FieldNotFoundError(f"field '{name}': expected its new name '{new}', got the old one.")
        return name

    def pattern_before(self, pattern: str) -> str:
        """A name or regex that selects the same fields before the rename."""
        touched = list(dict.fromkeys(name for pair in self.pairs for name in pair))
        if pattern in touched:
            return self.before(pattern)
        try:
            hidden = [re.escape(name) for name in touched if re.fullmatch(pattern, name)]
            chosen = [re.escape(old) for old, new in self.pairs if re.fullmatch(pattern, new)]
        except re.error:
            return pattern  # the lookup of fields reports what is wrong with it
        return "|".join([*chosen, rf"(?!(?:{'|'.join(hidden)})\Z)(?:{pattern})"]) if hidden else pattern

    def translated(self, stage: Same) -> Same:
        """The stage with the names from before the rename in every value that names stored fields."""
        changed = {}
        for name, mark in _marks(stage):
            value = getattr(stage, name)
            names = [mark.before(each, self) for each in _each(value)]
            changed[name] = tuple(names) if isinstance(value, tuple) else names[0] if names else None
        return replace(stage, **changed)  # type: ignore[type-var]  # stages are dataclasses


class RenamedRows:
    """Wraps a function of rows or batches: takes old field names and calls the function with the new ones."""

    def __init__(self, function: Callable[[Any], Any], names: NewNames) -> None:
        self._function = function
        self._called = dict(names.pairs)
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, row: Mapping[str, Any]) -> Any:
        return self._function({self._called.get(name, name): value for name, value in row.items()})


@dataclass(frozen=True, slots=True)
class Stored:
    """Marks, in an annotated type, values that name stored fields. In tuples, it marks each item.

    Attributes:
        before: the value as it is written before a rename.
    """

    before: Callable[[Any, NewNames], Any]
    names: Callable[[Any], Iterable[str]] = lambda value: ()


def stored_names(stage: PlainFields) -> Iterator[str]:
    """Yields the names of stored fields in the values of a stage."""
    for name, mark in _marks(stage):
        for each in _each(getattr(stage, name)):
            yield from mark.names(each)


def _each(value: object) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _marks(stage: Any) -> tuple[tuple[str, Stored], ...]:
    return _marks_of(stage.__class__)


@cache
def _marks_of(kind: Any) -> tuple[tuple[str, Stored], ...]:
    """The marked fields of a dataclass."""
    return tuple((name, mark) for name, hint in hints_of(kind).items() for mark in _marks_in(hint))


def _marks_in(hint: object) -> Iterator[Stored]:
    own = (each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Stored))
    return chain(own, *map(_marks_in, get_args(hint)))


def _names_in(expression: str) -> Iterator[str]:
    nodes = walk(parse_expression(expression_from_json(expression)))
    return (node.name for node in nodes if isinstance(node, FieldRef))


StoredName = Annotated[str, Stored(lambda name, new: new.before(name), lambda name: (name,))]
"""The name of a stored field that the stage reads."""
StoredPattern = Annotated[str, Stored(lambda pattern, new: new.pattern_before(pattern))]
"""A name or regex that selects stored fields. It is not among the names that the stage `reads`."""
StoredExpression = Annotated[
    str,
    Stored(lambda json, new: expression_to_json(with_other_names(expression_from_json(json), new.before)), _names_in),
]
"""A serialized Arrow expression over stored fields."""
StoredPredicate = Annotated[
    ColumnPredicate, Stored(lambda asks, new: asks.on(new.before(asks.field)), lambda asks: (asks.field,))
]
"""A condition on one stored field."""
RowFunction = Annotated[
    UserFunction, Stored(lambda called, new: UserFunction(RenamedRows(called.function, new), called.digest))
]
"""A function of rows or batches of stored fields."""
MadeText = Annotated[str, Stored(lambda text, new: "")]
"""The text of a translated value, which the stage makes again if it is empty."""
STORED_PART = Stored(lambda part, new: new.translated(part), lambda part: part.reads)
"""Marks a value that declares its own stored fields."""
