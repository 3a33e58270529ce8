"""`PlainFields`: arguments of users as plain Python values, converted once, where a value is made of them.

In: numbers, flags, texts and paths as numpy, pandas, pathlib or a framework gives them. Out: ``int``, ``float``,
``bool``, ``str`` and tuples of these, held to the annotated types of the fields. Other values are left as they are.
"""

from __future__ import annotations

import operator
import os
import types
import typing
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from ..errors import ParquetryError, PipelineError

Seed = Annotated[int, "seed"]
"""An integer of 64 bits, with or without a sign; other integers have a sign."""


class PlainFields:
    """Base of frozen dataclasses that are made of users' arguments: their fields are plain when `check` sees them.

    Subclasses check themselves in `check`, not in ``__post_init__``.

    Raises:
        ParquetryError: (of class ``refusal``) a field that is not of its annotated type, or an integer over 64 bits.
    """

    refusal: ClassVar[type[ParquetryError]] = PipelineError

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]  # mypy takes the class for its objects
        for name in hints:
            object.__setattr__(self, name, plain(getattr(self, name)))
        self.check()
        for name, hint in hints.items():
            object.__setattr__(self, name, self._conformed(name, hint))

    def check(self) -> None:
        """Raises what is wrong with the fields, beyond their types."""

    @property
    def called(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def _conformed(self, name: str, hint: object) -> Any:
        value = getattr(self, name)
        try:
            return conformed(value, hint)
        except TypeError as error:
            raise self.refusal(f"{self.called}: expected {name} to be {error}, got {value!r}.") from None


def plain(value: Any) -> Any:
    """A value in plain Python: scalars and arrays of numpy (arrays and lists become tuples), anything with
    ``__index__``, paths. Everything else, time stamps too, is left as it is.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "mM":
        return value
    if isinstance(value, tuple | list):
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
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):  # a tensor: knows bool from int
        return plain(value.item())
    if hasattr(type(value), "__index__"):
        with suppress(TypeError):  # a tensor of another type
            return operator.index(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def conformed(value: object, hint: object) -> Any:
    """A plain value in an annotated type: integers where numbers are wanted become floats, 0 and 1 flags.

    Raises:
        TypeError: it is not of that type; the text is the rule.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _any_of(value, arguments)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
        raise TypeError(f"one of {arguments}")
    if origin is tuple:
        return _tuple_of(value, arguments)
    return _simple(value, hint)


def integer(value: object, *, least: int | None = None) -> int | None:
    """The plain integer that a value is, if it is one of 64 bits and at least ``least``; else ``None``."""
    number = plain(value)
    low = -(1 << 63) if least is None else least
    return number if type(number) is int and low <= number < 1 << 63 else None


def _any_of(value: object, hints: Sequence[Any]) -> Any:
    rules = []
    for hint in sorted(hints, key=lambda each: each is float):  # an integer stays one where it may
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
        raise TypeError("an integer of 64 bits")
    if hint is float and type(value) in (int, float):
        return float(value)
    if not isinstance(value, hint):
        raise TypeError(f"a {hint.__name__}")
    return value


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def data_frame_kind(value: object) -> str | None:
    """``"pandas"``, ``"polars"`` or ``"pyarrow"`` for a data frame or table of theirs, ``None`` for anything else."""
    module = type(value).__module__.partition(".")[0]
    frames = ("DataFrame", "LazyFrame", "Table", "RecordBatch")
    return module if module in ("pandas", "polars", "pyarrow") and type(value).__name__ in frames else None
