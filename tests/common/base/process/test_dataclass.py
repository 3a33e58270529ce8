"""`dataclass` against the standard library's: the same classes, made by both, behave the same."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import in_own_process

from parquetry.common import CompressedImageCodec
from parquetry.common.base.process.dataclass import dataclass

pytestmark = pytest.mark.versions

_DEFAULTS = {
    "none": lambda: dataclasses.MISSING,
    "value": lambda: 3,
    "field": lambda: field(default=4),
    "unseen": lambda: field(default=5, repr=False, compare=False),
    "unhashed": lambda: field(default=6, hash=False),
    "factory": lambda: field(default_factory=list, compare=False),
    "by name": lambda: field(default=7, kw_only=True),
    "not given": lambda: field(default=8, init=False),
    "not given, made": lambda: field(default_factory=dict, init=False, compare=False),
}


def _both(names: list[str], **options: bool) -> list[type]:
    made = []
    for decorate in (dataclasses.dataclass, dataclass):
        body: dict[str, Any] = {"__annotations__": {f"f{n}": "int" for n in range(len(names))}, "__module__": __name__}
        body |= {f"f{n}": _DEFAULTS[name]() for n, name in enumerate(names) if name != "none"}
        made.append(decorate(**options)(type("Made", (), body)))
    return made


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@given(
    st.integers(0, 3),
    st.lists(st.sampled_from([name for name in _DEFAULTS if name != "none"]), max_size=4),
    st.fixed_dictionaries({name: st.booleans() for name in ("repr", "eq", "frozen", "slots", "kw_only")}),
    st.data(),
)
def test_classes_behave_as_those_of_the_standard_library(
    required: int, names: list[str], options: dict[str, bool], data: st.DataObject
) -> None:
    theirs, ours = _both(["none"] * required + names, **options)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    by_place = data.draw(st.lists(st.integers(0, 1), max_size=5))
    by_name = data.draw(st.dictionaries(st.sampled_from(["f0", "f1", "f2", "other"]), st.integers(0, 1)))
    one, other = (_outcome(lambda made=made: made(*by_place, **by_name)) for made in (theirs, ours))
    if not isinstance(one, theirs):
        assert one[0] is other[0] is TypeError
        return
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    again, more = theirs(*by_place, **by_name), ours(*by_place, **by_name)
    assert (one == again, one != again) == (other == more, other != more)
    if options["repr"]:
        assert repr(one) == repr(other)
    if options["eq"]:
        assert _outcome(lambda: hash(one)) == _outcome(lambda: hash(other))
    for change in (lambda it: setattr(it, "f0", 9), lambda it: delattr(it, "f0"), lambda it: setattr(it, "free", 1)):
        changed = [_outcome(lambda it=it, change=change: change(copy.copy(it))) for it in (one, other)]
        assert isinstance(changed[1], tuple) == isinstance(changed[0], tuple)
        if isinstance(changed[0], tuple) and issubclass(changed[0][0], FrozenInstanceError):
            assert changed[0] == changed[1]
    assert not options["slots"] or not hasattr(other, "__dict__")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    first: int
    parts: list[int] = field(default_factory=list)
    kind: ClassVar[str] = "base"

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first: expected 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Derived(_Base):
    second: int = 2


@dataclasses.dataclass(frozen=True)
class _TheirSubclass(_Derived):
    third: int = 3


@dataclass(frozen=True, eq=False)
class _ByIdentity:
    value: int


@dataclass(frozen=True)
class _OwnMethods:
    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OwnMethods)

    def __hash__(self) -> int:
        return 5

    def __repr__(self) -> str:
        return "mine"


def test_fields_are_inherited_and_checks_run() -> None:
    made = _Derived(first=1)
    assert (made.first, made.second, made.parts, made.kind) == (1, 2, [], "base")
    assert made.parts is not _Derived(first=1).parts
    with pytest.raises(ValueError, match="first"):
        _Derived(first=-1)
    assert made != _Base(first=1)
    assert dataclasses.replace(made, second=5) == _Derived(first=1, second=5)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'first'"):
        made.first = 2  # type: ignore[misc]


def test_the_standard_library_decorates_subclasses() -> None:
    made = _TheirSubclass(first=1, third=4)
    assert repr(made) == "_TheirSubclass(first=1, parts=[], second=2, third=4)"
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Open", (_Derived,), {"__annotations__": {"more": "int"}}))


@pytest.mark.parametrize("made", [_Base(first=3), _Derived(first=3, parts=[1], second=4), _TheirSubclass(first=1)])
def test_frozen_values_survive_pickle_and_copies(made: _Base) -> None:
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)


def test_methods_of_the_class_itself_stay() -> None:
    assert _OwnMethods(1.0) == _OwnMethods(2.0)
    assert (hash(_OwnMethods(1.0)), repr(_OwnMethods(1.0))) == (5, "mine")
    assert _ByIdentity(1) != _ByIdentity(1)
    assert len({_ByIdentity(1), _ByIdentity(1)}) == 2


def test_equal_means_the_same_class_and_identical_values_are_equal() -> None:
    @dataclass(frozen=True)
    class One:
        value: float

    assert One(1.0) != SimpleNamespace(value=1.0)
    nan = float("nan")
    assert One(nan) == One(nan)  # as tuples compare
    assert One(nan) != One(float("nan"))


def test_values_that_contain_themselves_can_be_shown() -> None:
    @dataclass
    class Node:
        following: list[Any]

    node = Node([])
    node.following.append(node)
    assert "..." in repr(node)


def test_a_class_is_compiled_when_it_is_first_made() -> None:
    @dataclass(frozen=True)
    class Late:
        value: int

    assert not inspect.isfunction(vars(Late)["__init__"])
    assert Late(1).value == 1
    assert inspect.isfunction(vars(Late)["__init__"])
    assert Late.__init__.__qualname__.endswith("Late.__init__")
    assert Late.__init__.__globals__["__name__"] == Late.__init__.__module__ == __name__  # to tracebacks, too
    assert inspect.get_annotations(Late.__init__)["value"] == "int"
    assert typing.get_type_hints(_Base.__init__) == {"first": int, "parts": list[int], "return": type(None)}


def reprs_before_and_after_pickling_by_value() -> list[str]:
    codec = CompressedImageCodec("jpeg", quality=70)
    cloudpickle.register_pickle_by_value(sys.modules[CompressedImageCodec.__module__])
    before = repr(codec)
    return [before, repr(pickle.loads(cloudpickle.dumps(codec)))]


def test_classes_can_be_pickled_by_value() -> None:
    # In a process of its own, because cloudpickle gives the class methods that see copies of its module's names.
    before, after = in_own_process(reprs_before_and_after_pickling_by_value)
    assert before == after == repr(CompressedImageCodec("jpeg", quality=70))
    assert copy.deepcopy(CompressedImageCodec.__dataclass_params__).frozen
