"""The order of words is numpy's, and words for which the core cannot tell it are left to numpy."""

from __future__ import annotations

import numpy as np
import pytest

from parquetry.common.base.native.kernels import word_order


def uniform(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, np.uint64)


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 262_145, 1 << 20])
def test_many_uniform_words_are_in_order(count: int) -> None:
    words = uniform(count)
    assert np.array_equal(word_order(words), np.argsort(words))


def test_words_that_share_their_first_bits_are_refused_soon() -> None:
    assert word_order(uniform(200_000) >> np.uint64(40)) is None


def test_words_may_lie_apart() -> None:
    words = uniform(1_000)
    assert np.array_equal(word_order(words[::3]), np.argsort(words[::3]))
