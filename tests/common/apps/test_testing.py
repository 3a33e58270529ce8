"""`assert_resumable` accepts correct iterators, and names the step where one is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from parquetry.common import RaggedArray
from parquetry.common.apps.testing import assert_resumable, assert_same


class Counter:
    """Counts to ``stop``; subclasses break one promise each."""

    def __init__(self, stop: int = 4) -> None:
        self.stop = stop
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.number >= self.stop:
            raise StopIteration
        self.number += 1
        return self.element(self.number)

    def element(self, number: int) -> Any:
        return {"x": np.full(2, number, np.float32), "nested": {0: [f"n{number}", None, b"raw"]}}

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def test_an_iterator_that_keeps_its_promise_passes() -> None:
    assert_resumable(Counter)


def test_only_the_first_steps_of_an_endless_iterator_are_looked_at() -> None:
    assert_resumable(lambda: Counter(10**9), steps=5)


def test_a_fresh_iterator_may_be_at_another_epoch_if_the_state_restores_it() -> None:
    epochs = iter(range(1000))

    class Epochs(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.epoch = next(epochs)

        def element(self, number: int) -> Any:
            return self.epoch * 100 + number

        def state_dict(self) -> dict[str, int]:
            return {"number": self.number, "epoch": self.epoch}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.number, self.epoch = state["number"], state["epoch"]

    assert_resumable(Epochs)


class LosesOne(Counter):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"] + (state["number"] == 2)


class GivesOneTwice(Counter):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"] - (state["number"] == self.stop)


class IsMovedByTakingItsState(Counter):
    def state_dict(self) -> dict[str, int]:
        self.number += self.number == 3
        return super().state_dict()


class ForgetsOnTheSecondState(Counter):
    fresh = True

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def state_dict(self) -> dict[str, int]:
        return {"number": 0} if getattr(self, "loaded", False) and self.number == 2 else super().state_dict()


class ChangesTheDtype(Counter):
    dtype = np.float32

    def element(self, number: int) -> Any:
        return np.full(2, number, self.dtype)

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.dtype = np.float32 if self.number == 0 else np.float64  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (LosesOne, r"restored after 2 of 4 elements gave 1 elements, expected 2"),
        (GivesOneTwice, r"restored after 4 of 4 elements gave 1 elements, expected 0"),
        (IsMovedByTakingItsState, r"a run that takes states ended after 3 elements, expected 4"),
        (ForgetsOnTheSecondState, r"element 0 of a run in which|restored after \d of 4 elements"),
        (
            ChangesTheDtype,
            r"element 1 of an iterator restored after 1 of 4 elements: expected dtype float32, got float64",
        ),
    ],
)
def test_a_broken_promise_is_reported_with_its_place(broken: type[Counter], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_resumable(broken)


def _masked(mask: list[bool]) -> np.ndarray:
    return np.ma.MaskedArray(np.arange(3.0), mask)


@pytest.mark.parametrize(
    ("found", "expected", "message"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, r"value: expected the keys \['a', 'b'\], got \['a'\]"),
        ({"a": [1, 2]}, {"a": [1, 3]}, r"value\['a'\]\[1\]: expected 3, got 2"),
        ("a", b"a", r"expected b'a', got 'a'"),
        (None, "a", r"expected 'a', got None"),
        (np.zeros(2), np.zeros(3), r"expected shape \(3,\), got \(2,\)"),
        (np.array([1.0]), np.array([np.nan]), r"expected \[nan\], got \[1.0\]"),
        (_masked([True, False, False]), _masked([False, True, False]), r"different values are null"),
        (np.arange(3.0), _masked([False, True, False]), r"one has nulls and the other has none"),
        (RaggedArray(np.arange(3), np.array([[1], [2]])), RaggedArray(np.arange(3), np.array([[2], [1]])), r"shapes"),
        ([1], [1, 2], r"expected 2 values, got 1"),
        (object(), 1, r"expected an array, a tensor, or a number, got object"),
    ],
)
def test_differences_are_reported(found: Any, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_same(found, expected)


def test_equal_elements_of_every_kind_are_equal() -> None:
    def element() -> Any:
        objects = np.empty(2, dtype=object)
        objects[:] = ["a", None]
        ragged = RaggedArray(np.arange(3), np.array([[1], [2]]))
        return {"n": np.nan, 1: (objects, ragged), "m": _masked([True, False, True]), "s": np.str_("x")}

    assert_same(element(), element())
