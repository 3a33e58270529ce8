"""`NewNames`: translates field names used after a rename into the names from before it.

Filters and windows read storage, where fields have their old names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import FieldNotFoundError


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

    def patterns_before(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Names and regexes that select the same fields before the rename."""
        return tuple(map(self._pattern_before, patterns))

    def _pattern_before(self, pattern: str) -> str:
        touched = list(dict.fromkeys(name for pair in self.pairs for name in pair))
        if pattern in touched:
            return self.before(pattern)
        try:
            hidden = [re.escape(name) for name in touched if re.fullmatch(pattern, name)]
            chosen = [re.escape(old) for old, new in self.pairs if re.fullmatch(pattern, new)]
        except re.error:
            return pattern  # the lookup of fields reports what is wrong with it
        return "|".join([*chosen, rf"(?!(?:{'|'.join(hidden)})\Z)(?:{pattern})"]) if hidden else pattern


class RenamedRows:
    """Wraps a function of rows or batches: takes old field names and calls the function with the new ones."""

    def __init__(self, function: Callable[[Any], Any], names: NewNames) -> None:
        self._function = function
        self._called = dict(names.pairs)
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, row: Mapping[str, Any]) -> Any:
        return self._function({self._called.get(name, name): value for name, value in row.items()})
