"""``rename``: gives fields new names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from ..base.errors import FieldNotFoundError, PipelineError
from ..base.process.dataclass import dataclass
from ..schema.field import no_such_field
from ..schema.plain import plain
from .base import Same, Stage
from .columns import Columns
from .names import NewNames


@dataclass(frozen=True)
class Rename(Stage):
    """Renames fields for everything that follows: ``(old, new)`` pairs, applied all at once."""

    verb: ClassVar[str] = "rename"
    sendable: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    changes_names: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = ((("x", "y"),),)
    names: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, names: Mapping[str, str]) -> Rename:
        """Creates the stage from ``{old: new}``."""
        if not isinstance(names, Mapping):
            raise PipelineError(f"rename: expected {{old: new}}, got {names!r}.")
        return cls(tuple((plain(old), plain(new)) for old, new in names.items()))

    def check(self) -> None:
        if not self.names or not all(isinstance(name, str) and name for pair in self.names for name in pair):
            raise PipelineError(
                f"rename: expected {{old: new}} with at least one pair of names, got {dict(self.names)}."
            )
        new = Counter(name for _, name in self.names)
        twice = next((name for name, count in new.items() if count > 1), None)
        if twice is not None:
            raise PipelineError(f"rename: expected a different new name for each field, got '{twice}' for several.")

    def name_before(self, name: str) -> str:
        return NewNames(self.names).before(name)

    def as_before(self, later: Same) -> Same:
        return NewNames(self.names).translated(later)

    def hides(self, name: str) -> bool:
        return True

    def apply(self, columns: Columns) -> None:
        columns.open()
        called = dict(self.names)
        known = columns.names
        for old in called:
            if old not in known:
                raise FieldNotFoundError(no_such_field(old, known))
        outputs = [
            replace(output, path=(*output.path[:-1], called.get(str(output.path[-1]), output.path[-1])))
            for output in columns.outputs
        ]
        paths = Counter(output.path for output in outputs)
        for before, output in zip(columns.outputs, outputs, strict=True):
            if before.path != output.path and paths[output.path] > 1:
                raise PipelineError(
                    f"rename: field '{before.name}': expected a name that no other field has, got '{output.path[-1]}'. "
                    "Rename the other field too, or leave it out with select()."
                )
        columns.outputs = outputs

    def __str__(self) -> str:
        return f"rename({dict(self.names)})"
