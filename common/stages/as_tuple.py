"""``as_tuple``: returns rows as tuples, which a training loop can unpack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..base.errors import FieldNotFoundError, PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import Form, OutputField, leaves_of
from ..schema.field import UnischemaField, no_such_field
from .base import Decision, Stage
from .columns import Columns
from .select import Projection


@dataclass(frozen=True)
class AsTuple(Stage):
    """Arranges rows as described by ``form``, whose leaves are field names; other fields are left out."""

    verb: ClassVar[str] = "as_tuple"
    sendable: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.FORM
    decides_order: ClassVar[bool] = False
    changes_names: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("tuple", "x"),)
    form: Any

    @classmethod
    def of(cls, parts: Sequence[object]) -> AsTuple:
        """Creates the stage from field names, and tuples, lists and dicts of them."""
        return cls(("tuple", *(_form_of(part) for part in parts)))

    def check(self) -> None:
        if not leaves_of(self.form):
            raise PipelineError("as_tuple: expected at least one field, got none.")

    def apply(self, columns: Columns) -> None:
        columns.form = self.form
        if columns.fields is None:
            columns.patterns.append(tuple(leaves_of(self.form)))
            return
        keep = tuple(sorted(set(leaves_of(numbered(self.form, columns.outputs)))))
        columns.steps.append(Projection(keep=keep))
        columns.outputs = [columns.outputs[number] for number in keep]

    def __str__(self) -> str:
        return f"as_tuple{shown(self.form)}"


def _form_of(part: object) -> Form:
    """Converts a part to the form that is stored in JSON."""
    if isinstance(part, UnischemaField):
        return part.name
    if isinstance(part, Mapping) and part and all(isinstance(key, str) for key in part):
        return ("dict", *((str(key), _form_of(value)) for key, value in part.items()))
    if isinstance(part, tuple | list) and part:
        return ("tuple", *map(_form_of, part))
    if isinstance(part, str) and part:
        return str(part)
    raise PipelineError(f"as_tuple: expected field names, or tuples or dicts {{key: name}} of them, got {part!r}.")


def numbered(form: Form, outputs: Sequence[OutputField]) -> Form:
    """Replaces the column names in a form with column numbers.

    In windows with fields per offset, a name stands for the column at its only offset, or for a dict by offset if there
    are several. ``"1.name"`` is the column at offset 1.

    Raises:
        FieldNotFoundError: no column has the name.
    """
    by_last: dict[object, list[int]] = {}
    by_name: dict[object, list[int]] = {}
    for number, output in enumerate(outputs):
        by_last.setdefault(output.path[-1], []).append(number)
        by_name.setdefault(output.name, []).append(number)

    def replaced(part: Form) -> Form:
        if isinstance(part, tuple):
            kind, *parts = part
            if kind == "tuple":
                return (kind, *map(replaced, parts))
            return (kind, *((key, replaced(inner)) for key, inner in parts))
        matches = by_last.get(part) or by_name.get(part)
        if not matches:
            raise FieldNotFoundError(f"as_tuple: {no_such_field(part, dict.fromkeys(map(str, by_last)))}")
        return matches[0] if len(matches) == 1 else ("dict", *((outputs[number].path[0], number) for number in matches))

    return replaced(form)


def shown(form: Form) -> str:
    """Formats a form the way Python prints the tuples and dicts it stands for."""
    if not isinstance(form, tuple):
        return repr(form)
    kind, *parts = form
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {shown(part)}" for key, part in parts) + "}"
    return "(" + ", ".join(map(shown, parts)) + (",)" if len(parts) == 1 else ")")
