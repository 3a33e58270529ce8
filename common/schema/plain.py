"""`PlainFields`: converts users' arguments to plain Python values once, when a value object is built from them.

Accepts numbers, flags, strings and paths from numpy, pandas, pathlib or a framework. Converts them to ``int``,
``float``, ``bool``, ``str`` and tuples of these, and checks them against the annotated types of the fields. Leaves
other values unchanged.
"""

from __future__ import annotations

import operator
import os
import types
import typing
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from ..base.errors import ParquetryError, PipelineError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Seed = Annotated[int, "seed"]
"""A signed or unsigned 64-bit integer. Other integer fields are signed."""


class PlainFields:
    """Base class of frozen dataclasses that hold users' arguments. Fields are plain values by the time `check` runs.

    Subclasses validate themselves in `check`, not in ``__post_init__``.

    Raises:
        ParquetryError: (of class ``refusal``) a field has the wrong type, or an integer needs more than 64 bits.
    """

    refusal: ClassVar[type[ParquetryError]] = PipelineError

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for name in hints:
            object.__setattr__(self, name, plain(getattr(self, name)))
        self.check()
        for name, hint in hints.items():
            object.__setattr__(self, name, self._conformed(name, hint))

    def check(self) -> None:
        """Validates the fields beyond their types. Subclasses raise their errors here."""

    @property
    def called(self) -> str:
        """The name of this object in messages."""
        return type(self).__name__

    def _conformed(self, name: str, hint: object) -> Any:
        value = getattr(self, name)
        try:
            return conformed(value, hint)
        except TypeError as error:
            raise self.refusal(f"{self.called}: expected {name} to be {error}, got {value!r}.") from None


def is_null(value: object, *, text: bool = False) -> bool:
    """Whether a value means null: ``None``, pandas' ``NA`` or ``NaT``, or a NaN among texts or bytes (``text``)."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return text and isinstance(value, float) and value != value


def plain(value: Any) -> Any:
    """Converts a value to plain Python: numpy scalars and arrays (arrays, lists and ranges become tuples), paths, and
    anything with ``__index__``. Everything else, including timestamps, is returned unchanged.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "mM":
        return value
    if isinstance(value, tuple | list | range):
        return tuple(plain(item) for item in value)
    if isinstance(value, np.ndarray):
        return plain(value[()]) if value.ndim == 0 else tuple(plain(item) for item in value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(value)
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):  # a tensor; bool stays bool
        return plain(value.item())
    if hasattr(type(value), "__index__"):
        with suppress(TypeError):  # a tensor that is not an integer
            return operator.index(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def conformed(value: object, hint: object) -> Any:
    """Converts a plain value to its annotated type: integers to floats where the type is float, 0 and 1 to flags.

    Raises:
        TypeError: the value is not of that type. The text states the rule.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated and hint is not Seed:
        return conformed(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _any_of(value, arguments)
    if origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
        raise TypeError(f"one of {arguments}")
    if origin is tuple:
        return _tuple_of(value, arguments)
    return _simple(value, hint)


def integer(value: object, *, least: int | None = None) -> int | None:
    """Returns the value as a plain integer, or ``None`` if it is not a 64-bit integer of at least ``least``."""
    number = plain(value)
    low = -(1 << 63) if least is None else least
    return number if type(number) is int and low <= number < 1 << 63 else None


def _any_of(value: object, hints: Sequence[Any]) -> Any:
    rules = []
    for hint in sorted(hints, key=lambda each: each is float):  # tries float last, so integers stay integers
        try:
            return conformed(value, hint)
        except TypeError as error:
            rules.append(str(error))
    raise TypeError(" or ".join(dict.fromkeys(rules)))


def _tuple_of(value: object, hints: Sequence[Any]) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise TypeError("a sequence")
    if hints[-1] is Ellipsis:
        hints = [hints[0]] * len(value)
    if len(hints) != len(value):
        raise TypeError(f"a sequence of {len(hints)}")
    try:
        return tuple(conformed(item, hint) for item, hint in zip(value, hints, strict=True))
    except TypeError as error:
        raise TypeError(f"a sequence of [{error}]") from None


def _simple(value: Any, hint: Any) -> Any:
    if hint is None or hint is type(None):
        if value is None:
            return None
        raise TypeError("None")
    if hint is bool:
        if type(value) is bool or (type(value) is int and value in (0, 1)):
            return bool(value)
        raise TypeError("True or False")
    if hint is int or hint is Seed:
        if type(value) is int and -(1 << 63) <= value < 1 << (64 if hint is Seed else 63):
            return value
        raise TypeError("a 64-bit integer")
    if hint is float and type(value) in (int, float):
        return float(value)
    if not isinstance(value, hint):
        raise TypeError(f"a {hint.__name__}")
    return value


def hints_of(cls: Any) -> dict[str, Any]:
    """Returns the annotated type of each field of a dataclass."""
    return _hints(cls)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def is_utf_8(text: str) -> bool:
    """Returns whether UTF-8, and so Arrow, can hold a text. It cannot hold lone surrogates: Python makes them from half
    of an escaped pair in JSON, and from the bytes of a path that is not UTF-8.
    """
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def is_iterable(value: object) -> TypeIs[Iterable[Any]]:
    """Returns whether a value can be iterated. Arrays and tensors without axes cannot, although their types can."""
    return isinstance(value, Iterable) and getattr(value, "ndim", None) != 0


def data_frame_kind(value: object) -> str | None:
    """Returns ``"pandas"``, ``"polars"`` or ``"pyarrow"`` for their data frames and tables, otherwise ``None``."""
    module = type(value).__module__.partition(".")[0]
    frames = ("DataFrame", "LazyFrame", "Table", "RecordBatch")
    return module if module in ("pandas", "polars", "pyarrow") and type(value).__name__ in frames else None
