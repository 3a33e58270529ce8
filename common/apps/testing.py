"""The resumability oracle: `assert_resumable` restarts an iterator from every step and compares the rest of the run.

It takes a function that makes fresh iterators, and works with anything that has ``state_dict`` and ``load_state_dict``:
iterators of a `Pipeline`, `ParquetPipe`, `ParquetNode`, ``StatefulDataLoader``. Elements may be nested dicts, lists and
tuples of numpy arrays, `RaggedArray`, TensorFlow and PyTorch tensors, strings and numbers. They are compared exactly,
including dtypes.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from ..schema.ragged import RaggedArray, object_array


class Resumable(Protocol):
    """An iterator that can be stopped and resumed."""

    def __iter__(self) -> Iterator[Any]:
        """Returns itself."""

    def __next__(self) -> Any:
        """Returns the next element."""

    def state_dict(self) -> Any:
        """Returns the current position."""

    def load_state_dict(self, state: object) -> Any:
        """Continues from where the state was taken."""


def assert_resumable(make_iterator: Callable[[], Resumable], *, steps: int | None = None) -> None:
    """Asserts that a state from any step gives exactly the rest of the elements, and that taking it changes nothing.

    The reference is one run without states. A second run takes the state twice before every step and at the end. Every
    state goes through pickle, as in a checkpoint, and is loaded into a fresh iterator, whose remaining elements are
    compared with the reference. The state that the restored iterator returns before its first step must restore the
    same elements as well.
    Args:
        make_iterator: returns a fresh iterator over the same elements. If each iterator shuffles differently, as with
            ``lambda: iter(pipeline)``, loading a state must restore the epoch in which it was taken.
        steps: the number of elements to check, for endless or long iterators; ``None`` = all.

    Raises:
        AssertionError: names the number of elements consumed, and the part of the element that differs.
    """
    first = make_iterator()
    start = _frozen(first.state_dict())
    expected = list(itertools.islice(first, steps))
    states = _states_of_a_run(make_iterator, start, expected, whole=steps is None)
    for consumed, state in enumerate(states):
        where = f"restored after {consumed} of {len(expected)} elements"
        iterator = make_iterator()
        iterator.load_state_dict(pickle.loads(state))
        again = _frozen(iterator.state_dict())
        _compare_tail(iterator, expected, consumed, where, whole=steps is None)
        if again != state:
            iterator = make_iterator()
            iterator.load_state_dict(pickle.loads(again))
            _compare_tail(iterator, expected, consumed, f"{where}, twice", whole=steps is None)


def assert_same(found: object, expected: object, where: str = "value") -> None:
    """Raises `AssertionError` and names the location if two elements differ in structure, dtype, shape or value.

    NaN equals NaN. Masked arrays must have equal masks, and equal values where they are not masked.
    """
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping), f"{where}: expected a dict, got {type(found).__name__}"
        assert list(found) == list(expected), f"{where}: expected the keys {list(expected)}, got {list(found)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
        return
    if isinstance(expected, str | bytes) or expected is None:
        assert type(found) is type(expected), f"{where}: expected {expected!r}, got {found!r}"
        assert found == expected, f"{where}: expected {expected!r}, got {found!r}"
        return
    if isinstance(expected, RaggedArray):
        assert isinstance(found, RaggedArray), f"{where}: expected a RaggedArray, got {type(found).__name__}"
        assert found.lead == expected.lead, f"{where}: expected leading axes {expected.lead}, got {found.lead}"
        _assert_same_arrays(found.shapes, expected.shapes, f"{where}.shapes")
        _assert_same_arrays(found.values, expected.values, f"{where}.values")
        return
    if isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple), f"{where}: expected a list, got {type(found).__name__}"
        assert len(found) == len(expected), f"{where}: expected {len(expected)} values, got {len(found)}"
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            assert_same(mine, theirs, f"{where}[{number}]")
        return
    _assert_same_arrays(_as_array(found, where), _as_array(expected, where), where)


def _frozen(state: object) -> bytes:
    return pickle.dumps(state)


def _states_of_a_run(
    make_iterator: Callable[[], Resumable], start: bytes, expected: list[Any], *, whole: bool
) -> list[bytes]:
    """Returns the states before every step and at the end of a run, which must still give ``expected``."""
    iterator = make_iterator()
    iterator.load_state_dict(pickle.loads(start))
    states = []
    for number, element in enumerate(expected):
        iterator.state_dict()
        states.append(_frozen(iterator.state_dict()))
        elements = list(itertools.islice(iterator, 1))
        assert elements, f"a run that takes states ended after {number} elements, expected {len(expected)}"
        assert_same(elements[0], element, f"element {number} of a run that takes states")
    states.append(_frozen(iterator.state_dict()))
    if whole:
        more = list(itertools.islice(iterator, 1))
        assert not more, f"a run that takes states gave more than {len(expected)} elements"
    return states


def _compare_tail(iterator: Resumable, expected: list[Any], consumed: int, where: str, *, whole: bool) -> None:
    left = len(expected) - consumed
    tail = list(itertools.islice(iterator, None if whole else left))
    assert len(tail) == left, f"an iterator {where} gave {len(tail)} elements, expected {left}"
    for number, (mine, theirs) in enumerate(zip(tail, expected[consumed:], strict=True), consumed):
        assert_same(mine, theirs, f"element {number} of an iterator {where}")


def _as_array(value: object, where: str) -> np.ndarray:
    """Converts a scalar, array, or framework tensor to numpy. Ragged and nested tensors become object arrays."""
    for method in ("to_list", "unbind"):  # tf.RaggedTensor, and torch's nested tensors
        if method == "to_list" or getattr(value, "is_nested", False):
            parts = getattr(value, method, None)
            if parts is not None:
                return object_array([_as_array(part, where) for part in parts()])
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return value
    array = np.asarray(value)
    assert array.dtype != object, f"{where}: expected an array, a tensor, or a number, got {type(value).__name__}"
    return array


def _assert_same_arrays(actual: np.ndarray, expected: np.ndarray, where: str) -> None:
    assert actual.dtype == expected.dtype, f"{where}: expected dtype {expected.dtype}, got {actual.dtype}"
    assert actual.shape == expected.shape, f"{where}: expected shape {expected.shape}, got {actual.shape}"
    masked = isinstance(expected, np.ma.MaskedArray)
    assert isinstance(actual, np.ma.MaskedArray) == masked, f"{where}: one has nulls and the other has none"
    if masked:
        mask = np.ma.getmaskarray(expected)
        assert np.array_equal(np.ma.getmaskarray(actual), mask), f"{where}: different values are null"
        actual, expected = np.ma.filled(actual, 0), np.ma.filled(expected, 0)
    if expected.dtype == object:
        for index in np.ndindex(expected.shape):
            assert_same(actual[index], expected[index], f"{where}{list(index)}")
        return
    equal_nan = expected.dtype.kind in "fc"
    same = np.array_equal(actual, expected, equal_nan=equal_nan)
    assert same, f"{where}: expected {_shown(expected)}, got {_shown(actual)}"


def _shown(array: np.ndarray) -> str:
    text = repr(array.tolist())
    return text if len(text) <= 120 else text[:117] + "..."
