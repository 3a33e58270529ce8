"""Permutations drawn from a key, against a plain implementation."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common.plan.order import permutations
from parquetry.common.plan.order.permutations import permutation, raw_words, sorted_on_disk
from parquetry.common.storage import temporary
from parquetry.common.storage.temporary import NoRoomError

pytestmark = pytest.mark.versions


@settings(max_examples=100, deadline=None)
@given(count=st.integers(0, 5000) | st.sampled_from([65_535, 65_536, 65_537, 262_144, 262_145]), key=st.integers())
def test_a_permutation_is_the_order_that_sorts_the_words_of_its_key(count: int, key: int) -> None:
    found = permutation(count, key, 3)
    assert found.dtype == np.int64
    assert np.array_equal(found, np.argsort(raw_words(count, key, 3), kind="stable"))


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.integers(0, 63) | st.integers(0, 2**64 - 1), min_size=2, max_size=40, unique=True).map(
        lambda numbers: np.array(numbers, np.uint64)
    )
)
def test_words_that_differ_in_their_lowest_bits_alone_are_sorted_by_all_bits(words: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutations, "raw_words", lambda count, *key: words)
        assert permutation(len(words), 0).tolist() == np.argsort(words).tolist()


@settings(max_examples=50, deadline=None)
@given(
    words=st.lists(st.integers(0, 3) | st.integers(0, 2**64 - 1), min_size=1, max_size=300),
    piece=st.integers(1, 100),
    range_bits=st.integers(0, 9),
)
def test_words_sorted_on_disk_are_those_sorted_in_memory(words: list[int], piece: int, range_bits: int) -> None:
    given_words = np.array(words, np.uint64)
    pieces = [given_words[first : first + piece] for first in range(0, len(words), piece)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutations, "_RANGE_BITS", range_bits)
        found = sorted_on_disk(pieces, len(words))
    assert found.dtype == np.int64
    assert found.tolist() == np.argsort(given_words, kind="stable").tolist()


@pytest.mark.parametrize("room", [True, False])
def test_a_large_permutation_is_the_same_with_and_without_room_for_it(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = np.argsort(raw_words(300_000, 4), kind="stable")
    monkeypatch.setattr(permutations, "_FEW", 1000)
    monkeypatch.setattr(permutations, "_PIECE", 70_000)
    if not room:
        monkeypatch.setattr(
            temporary, "temporary_file", Mock(side_effect=NoRoomError("expected room for temporary files in /full."))
        )
    found = permutation(300_000, 4)
    assert np.array_equal(found, wanted)
    is_mapped = found.base is not None and not isinstance(found.base, np.ndarray)
    assert is_mapped == room


def test_the_order_of_a_key_never_changes() -> None:
    assert permutation(8, 1, 2, 3).tolist() == [5, 4, 2, 6, 7, 1, 0, 3]
