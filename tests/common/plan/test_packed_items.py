"""Packing: the same bins as from packing one row after another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common.plan.packed_items import packed


def one_by_one(sizes: list[int], length: int, *, best: bool) -> list[list[int]]:
    """Packs the longest rows first, each into the fullest bin with room, or into the first one."""
    bins: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        fits = [number for number, taken in enumerate(bins) if sum(taken) + size <= length]
        if not fits:
            bins.append([size])
        else:
            bins[max(fits, key=lambda number: (sum(bins[number]), -number)) if best else fits[0]].append(size)
    return bins


@settings(max_examples=60, deadline=None)
@given(data=st.data(), length=st.integers(1, 30), best=st.booleans())
def test_rows_are_packed_as_one_after_the_other(data: st.DataObject, length: int, best: bool) -> None:
    sizes = data.draw(st.lists(st.integers(1, length), max_size=60))
    found, ends = packed(np.bincount([0, 0, *sizes], minlength=length + 1), length, best=best)
    bins = [found[begin:end].tolist() for begin, end in pairwise(ends.tolist())]
    assert sorted(bins) == sorted(one_by_one(sizes, length, best=best))


@pytest.mark.parametrize("best", [True, False])
def test_bins_are_nearly_full_for_lengths_as_texts_have_them(best: bool) -> None:
    drawn = np.random.default_rng(0).lognormal(6, 1, 3000).astype(np.int64)
    sizes = np.minimum(drawn + 1, 2048)
    found, ends = packed(np.bincount(sizes, minlength=2049), 2048, best=best)
    assert sorted(found) == sorted(sizes)
    assert sizes.sum() / ((len(ends) - 1) * 2048) > 0.97
