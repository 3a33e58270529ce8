"""``bucketize``: codes by given and fitted boundaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DecodeError, PipelineError


def rows_of(directory: Path, **columns: object) -> Pipeline:
    pq.write_table(pa.table(columns), directory / "rows.parquet", row_group_size=3)
    return Pipeline(directory / "rows.parquet")


def test_a_boundary_belongs_to_the_bucket_above_it(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, x=[float("-inf"), 0.9, 1.0, None, float("inf")], n=[0, 1, 2, 3, 4])
    batch = next(iter(rows.bucketize("x", "n", boundaries=[1, 3]).batch(5)))
    assert batch["x"].tolist() == [0, 0, 1, None, 2]
    assert (batch["n"].dtype, batch["n"].tolist()) == (np.int64, [0, 1, 1, 2, 2])


def test_integers_are_compared_exactly(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, n=[2**60 + 1, 2**60 + 3, 5, -1], u=pa.array([0, 7, 254, 255], pa.uint8()))
    batch = next(iter(rows.bucketize("n", boundaries=[2.5, 2**60 + 2, 2**60 + 5]).batch(4)))
    assert batch["n"].tolist() == [1, 2, 1, 0]
    batch = next(iter(rows.bucketize("u", boundaries=[-3, 6.5, 254, 1e300]).batch(4)))
    assert batch["u"].tolist() == [1, 2, 3, 3]


def test_fitted_buckets_hold_equally_many_and_equal_boundaries_become_one(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, x=np.arange(100.0)[::-1], same=[1.0] * 60 + [2.0] * 40)
    made = rows.bucketize("x", "same", stats=rows.fit("x", "same"), buckets=5)
    batch = next(iter(made.batch(100)))
    assert np.bincount(batch["x"]).tolist() == [20] * 5
    assert len({*batch["same"].tolist()}) == 2
    assert batch["same"].max() < 4


def test_nan_and_wrong_boundaries_are_refused(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, x=[1.0, 2.0, 3.0, float("nan")])
    with pytest.raises(
        DecodeError, match=r"bucketize: field 'x', file .*row group 1, row 0: expected a number, got nan"
    ):
        list(rows.bucketize("x", boundaries=[1]))
    with pytest.raises(PipelineError, match="expected boundaries to be ascending finite numbers, got"):
        rows.bucketize("x", boundaries=[2, 1])
    with pytest.raises(PipelineError, match="expected either stats= or boundaries=, got neither"):
        rows.bucketize("x")
    with pytest.raises(PipelineError, match="expected buckets= with stats=, and only with it"):
        rows.bucketize("x", stats=rows.fit("x"))
    with pytest.raises(PipelineError, match="expected buckets to be an integer >= 2, got 1"):
        rows.bucketize("x", stats=rows.fit("x"), buckets=1)
