"""`dataclass`: the standard library's, but quick to define.

The standard library compiles up to six methods for each class, which took half of an import of parquetry. Here,
``__init__`` is compiled when it is first needed, and the other methods are closures over the names of the fields.
Everything else is left to the standard library. So `dataclasses.fields`, `dataclasses.replace`, pattern matching, and
subclasses that it decorates work as usual.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: TID251  # type checkers see the original
else:

    def dataclass(cls=None, /, *, init=True, repr=True, eq=True, frozen=False, slots=False, kw_only=False):
        """Decorates a class as ``dataclasses.dataclass`` does. Methods that it defines itself stay as they are."""

        def made(cls):
            return _made(cls, init=init, repr=repr, eq=eq, frozen=frozen, slots=slots, kw_only=kw_only)

        return made if cls is None else made(cls)


class _Parameters:
    """``__dataclass_params__`` of a class.

    The standard library refuses subclasses of a frozen class that are not frozen. `_made` does not tell it that a class
    is frozen, because it would compile two methods. So a class is frozen to everyone except `_made`.
    """

    def __init__(self, given: object, frozen: bool) -> None:
        self.given = given
        self._frozen = frozen

    def __getattr__(self, name: str) -> Any:
        if name == "given":  # not set yet: the object is being unpickled
            raise AttributeError(name)
        return getattr(self.given, name)

    def __repr__(self) -> str:
        return repr(self.given)

    @property
    def frozen(self) -> bool:
        return self._frozen and not getattr(_making, "now", False)


_making = threading.local()


class _FromFactory:
    """The default in signatures of fields that a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FROM_FACTORY = _FromFactory()


class _LateInit:
    """The ``__init__`` of a class until it is first looked up. Then the compiled function takes its place."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        init = _compiled_init(self._cls)
        if self._cls.__dict__.get("__init__") is self:
            self._cls.__init__ = init
        return init if instance is None else MethodType(init, instance)


def _made(cls: type[Any], *, init: bool, repr: bool, eq: bool, frozen: bool, slots: bool, kw_only: bool) -> type[Any]:
    own = {**cls.__dict__}
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # otherwise the standard library writes a signature, after a long look at the class
    _making.now = True
    try:
        made: type[Any] = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)  # noqa: TID251
    finally:
        _making.now = False
    made.__dataclass_params__ = _Parameters(made.__dataclass_params__, frozen)
    all_fields = fields(made)
    names = tuple(each.name for each in all_fields)
    methods: dict[str, Any] = {}
    if frozen:
        methods |= _frozen_methods(made, names)
        if slots:
            methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
    if repr:
        methods["__repr__"] = _repr(tuple(each.name for each in all_fields if each.repr))
    if eq:
        methods["__eq__"] = _eq(_values(tuple(each.name for each in all_fields if each.compare)))
        hashed = tuple(each.name for each in all_fields if (each.compare if each.hash is None else each.hash))
        if "__hash__" not in own or ("__eq__" in own and own["__hash__"] is None):
            made.__hash__ = _hash(_values(hashed)) if frozen else None  # type: ignore[assignment]
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if init:
        made.__init__ = _LateInit(made)
    return made


def _frozen_methods(cls: type[Any], names: tuple[str, ...]) -> dict[str, Any]:
    def assign(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": assign, "__delattr__": delete}


def _getstate(self: object) -> list[Any]:
    """Returns what pickle keeps: by default, it would assign to the slots of a frozen class."""
    return [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]  # a dataclass


def _setstate(self: object, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):  # type: ignore[arg-type]  # a dataclass
        object.__setattr__(self, each.name, value)


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def represent(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return represent


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def equals(self: object, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return equals


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that returns the values of the given fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda item: tuple(getattr(item, name) for name in names)


def _compiled_init(cls: type[Any]) -> FunctionType:
    """Compiles the ``__init__`` of a class from its fields."""
    init_fields = [each for each in fields(cls) if each.init]
    by_place = [_parameter(each) for each in init_fields if not each.kw_only]
    by_name = [_parameter(each) for each in init_fields if each.kw_only]
    parameters = ["self", *by_place, *(["*", *by_name] if by_name else [])]
    values: dict[str, Any] = {"__set": object.__setattr__, "__from_factory": _FROM_FACTORY}
    lines = []
    for each in fields(cls):
        values |= {f"__default_{each.name}": each.default, f"__factory_{each.name}": each.default_factory}
        lines += _assignment(each)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n  ".join(lines or ["pass"])
    text = f"def make({', '.join(values)}):\n def __init__({', '.join(parameters)}):\n  {body}\n return __init__"
    module = sys.modules.get(cls.__module__)  # whose names the annotations use, and tracebacks, too
    made: dict[str, Any] = {}
    exec(text, {"__name__": cls.__module__} if module is None else module.__dict__, made)
    init: FunctionType = made["make"](**values)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {each.name: each.type for each in init_fields} | {"return": None}
    return init


def _parameter(item: Field[Any]) -> str:
    if item.default is not MISSING:
        return f"{item.name}=__default_{item.name}"
    return item.name if item.default_factory is MISSING else f"{item.name}=__from_factory"


def _assignment(item: Field[Any]) -> list[str]:
    name = item.name
    if item.default_factory is not MISSING:
        made = f"__factory_{name}()"
        value = f"{made} if {name} is __from_factory else {name}" if item.init else made
    elif item.init:
        value = name
    else:
        return [] if item.default is MISSING else [f"__set(self, {name!r}, __default_{name})"]
    return [f"__set(self, {name!r}, {value})"]
