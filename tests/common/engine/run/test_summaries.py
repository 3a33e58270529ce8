"""The sketch of quantiles: exact while it is small, and within the error that it states."""

from __future__ import annotations

import numpy as np
import pytest

from parquetry.common.engine.run.summaries import QuantileSketch


def sketch_of(values: np.ndarray, size: int) -> QuantileSketch:
    sketch = QuantileSketch()
    for first in range(0, len(values), size):
        sketch.add(values[first : first + size])
    return sketch


@pytest.mark.parametrize("count", [1, 2, 7, 65_536])
def test_quantiles_of_few_numbers_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    sketch = sketch_of(values, 1_000)
    assert (sketch.count, sketch.error) == (count, 0)
    np.testing.assert_allclose(sketch.quantiles(7), np.quantile(values, np.arange(8) / 7), rtol=1e-12)
    assert QuantileSketch().quantiles(7) == ()


@pytest.mark.parametrize("kind", ["random", "ascending", "descending", "equal", "skewed"])
def test_quantiles_of_many_numbers_are_within_the_error_that_it_states(kind: str) -> None:
    count = 700_000
    values = np.random.default_rng(1).normal(size=count)
    if kind == "skewed":
        values = np.exp(5 * values)
    values = {"ascending": np.sort(values), "descending": np.sort(values)[::-1], "equal": values * 0}.get(kind, values)
    sketch = sketch_of(values, 99_999)
    assert 0 < sketch.error / count < 1e-4
    ordered, ranks = np.sort(values), np.arange(101) * (count - 1) / 100
    found = np.array(sketch.quantiles(100))
    assert (np.searchsorted(ordered, found, "left") <= ranks + sketch.error + 1).all()
    assert (np.searchsorted(ordered, found, "right") >= ranks - sketch.error - 1).all()
