"""Permutations drawn from a key, against a plain implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common.order import keyed
from parquetry.common.order.keyed import permutation, raw_words


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
        patch.setattr(keyed, "raw_words", lambda count, *key: words)
        assert permutation(len(words), 0).tolist() == np.argsort(words).tolist()


def test_the_order_of_a_key_is_what_it_always_was() -> None:
    assert permutation(8, 1, 2, 3).tolist() == [5, 4, 2, 6, 7, 1, 0, 3]
