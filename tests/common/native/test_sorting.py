"""The order of words is numpy's, and words for which the core cannot tell it are left to numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.native.kernels import word_order


def uniform(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, np.uint64)


@examples(100)
@given(
    count=st.integers(0, 3_000) | st.sampled_from([65_535, 65_536, 65_537, 262_145, 1 << 20]), seed=st.integers(0, 99)
)
def test_uniform_words_are_in_order(count: int, seed: int) -> None:
    words = uniform(count, seed)
    found = word_order(words)
    assert found is not None
    assert found.dtype == np.int64
    assert np.array_equal(found, np.argsort(words, kind="stable"))


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 262_145, 1 << 20])
def test_many_uniform_words_are_in_order(count: int) -> None:
    words = uniform(count)
    assert np.array_equal(word_order(words), np.argsort(words))


@examples(200)
@given(
    words=st.lists(
        st.integers(0, 7) | st.integers((1 << 64) - 8, (1 << 64) - 1) | st.integers(0, (1 << 64) - 1), max_size=200
    ),
    times=st.integers(1, 3),
)
def test_other_words_are_in_order_or_refused(words: list[int], times: int) -> None:
    given_words = np.array(words * times, np.uint64)
    found = word_order(given_words)
    if len(set(words)) < len(given_words):
        assert found is None
    if found is not None:
        assert np.array_equal(found, np.argsort(given_words, kind="stable"))


def test_words_that_share_their_first_bits_are_refused_soon() -> None:
    assert word_order(uniform(200_000) >> np.uint64(40)) is None


def test_words_may_lie_apart() -> None:
    words = uniform(1_000)
    assert np.array_equal(word_order(words[::3]), np.argsort(words[::3]))


def test_more_than_a_million_words_are_refused() -> None:
    assert word_order(np.zeros((1 << 20) + 1, np.uint64)) is None


@pytest.mark.usefixtures("by_numpy")
def test_without_the_core_no_order_is_known() -> None:
    assert word_order(uniform(10)) is None
