"""``clip``: bounds of floats and integers, given and fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    path = Path(tmp_path_factory.mktemp("rows")) / "rows.parquet"
    x = [float("-inf"), None, float("nan"), 2.5, float("inf")]
    pq.write_table(pa.table({"x": x, "n": pa.array([1, 2, 3, 4, 250], pa.uint8())}), path)
    return Pipeline(path)


def test_bounds_replace_what_is_beyond_and_keep_the_dtype(rows: Pipeline) -> None:
    batch = next(iter(rows.clip("x", low=0, high=2).clip("n", low=1.5, high=1e9).batch(5)))
    np.testing.assert_array_equal(batch["x"].filled(-9), [0, -9, np.nan, 2, 2])
    assert (batch["n"].dtype, batch["n"].tolist()) == (np.uint8, [2, 2, 3, 4, 250])
    one_side = next(iter(rows.clip("n", high=3.9).batch(5)))
    assert one_side["n"].tolist() == [1, 2, 3, 3, 3]


def test_fitted_bounds_are_quantiles(rows: Pipeline) -> None:
    stats = rows.fit("n", quantiles=4)
    assert next(iter(rows.clip("n", stats=stats, quantiles=(0.25, 0.75)).batch(5)))["n"].tolist() == [2, 2, 3, 4, 4]
    assert next(iter(rows.clip("n", stats=stats).batch(5)))["n"].tolist() == [1, 2, 3, 4, 250]
    with pytest.raises(PipelineError, match=r"from 0\.25 to 0\.75, got 0\.01\. Write fit\(\.\.\., quantiles=100\)"):
        rows.clip("n", stats=stats, quantiles=(0.01, 0.75))


def test_integers_that_floats_leave_out_are_bounds_and_stay_within_fitted_ones(tmp_path: Path) -> None:
    numbers = [2**60 + 1, 2**60 + 3, 2**60 + 7, -(2**62) - 1]
    pq.write_table(
        pa.table({"n": numbers, "u": pa.array([2**64 - 1, 2**64 - 3, 1, 0], pa.uint64())}), tmp_path / "n.parquet"
    )
    rows = Pipeline(tmp_path / "n.parquet")
    clipped = next(iter(rows.clip("n", low=2**60 + 2, high=2**60 + 5).batch(4)))
    assert clipped["n"].tolist() == [2**60 + 2, 2**60 + 3, 2**60 + 5, 2**60 + 2]
    whole = next(iter(rows.clip("n", "u", stats=rows.fit("n", "u")).batch(4)))
    assert (whole["n"].tolist(), whole["u"].tolist()) == (numbers, [2**64 - 1, 2**64 - 3, 1, 0])
    assert Pipeline.from_json(rows.clip("n", high=2**60 + 5).to_json()) == rows.clip("n", high=2**60 + 5)


def test_wrong_bounds_are_refused(rows: Pipeline) -> None:
    with pytest.raises(PipelineError, match="clip: expected either stats= or low= or high=, got neither"):
        rows.clip("x")
    with pytest.raises(PipelineError, match=r"expected finite numbers, low <= high, got low=3\.0, high=2\.0"):
        rows.clip("x", low=3.0, high=2.0)
    with pytest.raises(PipelineError, match=r"expected bounds with a number of uint8 between them, got 1\.2 and 1\.8"):
        _ = rows.clip("n", low=1.2, high=1.8).element
    with pytest.raises(PipelineError, match="expected quantiles to be two numbers"):
        rows.clip("n", stats=rows.fit("n"), quantiles=(0.1,))
