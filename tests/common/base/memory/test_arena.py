"""Memory of batches that are held: regions up to a number and a size, then memory of their own for each array."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from parquetry.common.base.memory.arena import Region, RegionPool

pytestmark = pytest.mark.versions

PAGE, MANY = 1 << 16, np.dtype(np.uint8)


def batch(pool: RegionPool, size_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two columns of a batch."""
    region = pool.acquire(size_bytes)
    columns = region.allocate(MANY, (size_bytes // 2,)), region.allocate(MANY, (size_bytes // 2,))
    region.end()
    return columns


def share(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two columns lie in one region, so that either keeps both."""

    def owner(array: Any) -> Any:
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array.base

    return owner(first) is owner(second)


@pytest.mark.parametrize(("size_bytes", "shared"), [(PAGE, 6), (8 * PAGE, 3), (2 * PAGE, 5)])
def test_columns_get_memory_of_their_own_once_many_batches_are_held(size_bytes: int, shared: int) -> None:
    pool = RegionPool(most_held=6, few_held=3, few_bytes=8 * PAGE)
    held = [batch(pool, size_bytes) for _ in range(8)]
    assert [share(*columns) for columns in held] == [True] * shared + [False] * (8 - shared)
    del held[:shared]
    gc.collect()
    assert share(*batch(pool, size_bytes))


def test_a_limit_of_the_number_alone() -> None:
    pool = RegionPool(most_held=2)
    held = [batch(pool, 100 * PAGE) for _ in range(3)]
    assert [share(*columns) for columns in held] == [True, True, False]
    unlimited = RegionPool()
    held = [batch(unlimited, PAGE) for _ in range(50)]
    assert all(share(*columns) for columns in held)


def test_other_kinds_of_regions_have_limits_only_if_they_say_so() -> None:
    pool = RegionPool(most_held=1)
    for limited in (False, True):
        pool.use(Region, limited=limited)
        held = [batch(pool, PAGE) for _ in range(2)]
        assert [share(*columns) for columns in held] == [True, not limited]
        del held
