"""``standardize``: what it computes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import every_case

from parquetry.common import Pipeline
from parquetry.common.base.errors import FieldNotFoundError, PipelineError


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    path = Path(tmp_path_factory.mktemp("rows")) / "rows.parquet"
    columns = {
        "x": [1.0, None, float("nan"), float("inf")],
        "n": pa.array([7, 7, 7, 7], pa.int16()),
        "list": [[1.0, 3.0], None, [], [5.0]],
        "text": ["a", "b", "c", "d"],
        "none": pa.array([None] * 4, pa.float32()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return Pipeline(path)


def test_numbers_are_scaled_in_lists_too_and_nulls_nan_and_infinity_stay(rows: Pipeline) -> None:
    batch = next(iter(rows.standardize("x", "list", mean=1, std=2).batch(4)))
    np.testing.assert_array_equal(batch["x"].filled(-9), np.array([0, -9, np.nan, np.inf], np.float32))
    assert [None if each is None else each.tolist() for each in batch["list"]] == [[0, 1], None, [], [2]]
    assert {batch["x"].dtype, batch["list"][0].dtype} == {np.dtype(np.float32)}
    halves = next(iter(rows.select("n").standardize("n", mean=0.0, std=1e-9, dtype=np.float16)))
    assert (halves["n"].dtype, halves["n"]) == (np.float16, np.inf)


def test_what_was_fitted_scales_each_field_and_a_constant_becomes_zero(rows: Pipeline) -> None:
    stats = rows.fit("n", "list")
    batch = next(iter(rows.standardize("n|list", stats=stats, dtype="float64").batch(4)))
    assert batch["n"].tolist() == [0, 0, 0, 0]
    values = np.array([1.0, 3.0, 5.0])
    made = np.concatenate([each for each in batch["list"] if each is not None])
    np.testing.assert_array_equal(made, (values - values.mean()) / values.std())


def test_equal_numbers_become_zero_even_if_their_sum_is_rounded(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.1] * 7}), tmp_path / "rows.parquet", row_group_size=3)
    rows = Pipeline(tmp_path)
    stats = rows.fit("x")
    assert (stats["x"].mean, stats["x"].std) == (0.1, 0)  # type: ignore[union-attr]  # these are numbers
    assert [row["x"] for row in rows.standardize("x", stats=stats)] == [0] * 7


@every_case(
    ("standardize", "error", "message"),
    [
        (lambda rows, _: rows.standardize("x"), PipelineError, "standardize: expected either stats= or mean= and std=, got neither"),
        (lambda rows, stats: rows.standardize("x", stats=stats, mean=1), PipelineError, "standardize: expected either stats= or mean= and std=, got both"),
        (lambda rows, _: rows.standardize("x", mean=1), PipelineError, "expected both mean= and std=, got only one"),
        (lambda rows, _: rows.standardize("x", mean=1, std=0), PipelineError, "expected std above 0, got 0"),
        (lambda rows, _: rows.standardize("x", mean=float("nan"), std=1), PipelineError, r"expected mean to be a finite number, got \(nan,\)"),
        (lambda rows, _: rows.standardize("x", stats={"x": 1}), PipelineError, "expected stats= to be what fit"),
        (lambda rows, stats: rows.standardize("n", stats=stats), FieldNotFoundError, "field 'n': expected the name of a field"),
        (lambda rows, stats: rows.standardize("text", stats=stats), PipelineError, "standardize 'text': expected statistics of numbers, got those of a category"),
        (lambda rows, stats: rows.standardize("none", stats=stats), PipelineError, "standardize 'none': expected statistics of numbers, got no finite numbers"),
        (lambda rows, _: rows.standardize("text", mean=0, std=1).element, PipelineError, "standardize: field 'text': expected numbers, got text"),
        (lambda rows, _: rows.standardize("x", mean=0, std=1, dtype="int8"), PipelineError, "expected dtype to be one of"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(rows: Pipeline, standardize: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        standardize(rows, rows.fit("x", "text", "none"))
