"""How many small batches are made at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry import CompressedImageCodec, Pipeline, UnischemaField

ENOUGH = 1 << 40


@pytest.fixture
def rows(tmp_path: Path) -> Pipeline:
    """Rows of 72 bytes: a number, and the overhead of a row."""
    pq.write_table(pa.table({"x": range(10_000)}), tmp_path / "x.parquet")
    return Pipeline(tmp_path)


def kept(row: dict[str, Any]) -> dict[str, Any]:
    return row


def test_small_batches_are_made_together_and_large_ones_alone(rows: Pipeline) -> None:
    assert rows.batch(8).plan().merged_steps(ENOUGH) == 128
    assert rows.batch(1 << 15).plan().merged_steps(ENOUGH) == 3
    assert rows.batch(1 << 21).plan().merged_steps(ENOUGH) == 1
    assert rows.plan().merged_steps(ENOUGH) == 1  # rows come in chunks


@pytest.mark.parametrize(("fields", "merged"), [(1, 8 << 20), (10, 8 << 20), (20, 15 << 20), (1_000, 32 << 20)])
def test_batches_of_many_fields_may_take_more_memory(tmp_path: Path, fields: int, merged: int) -> None:
    pq.write_table(pa.table({f"x{number}": [0] for number in range(fields)}), tmp_path / "wide.parquet")
    plan = Pipeline(tmp_path / "wide.parquet").batch(1).plan()
    assert plan.merged_bytes(ENOUGH) == merged
    assert plan.merged_bytes(1 << 20) == 1 << 20


def test_only_merged_jobs_are_large(rows: Pipeline) -> None:
    plan = rows.batch(1 << 14).plan()
    assert [plan.makes_large_jobs(steps) for steps in (1, 10, 20)] == [False, False, True]
    assert not rows.batch(1 << 21).plan().makes_large_jobs(1)


def test_they_fit_into_the_memory_that_is_left(rows: Pipeline) -> None:
    plan = rows.batch(32).plan()
    assert [plan.merged_steps(most) for most in (1 << 20, 1 << 15, 1, 0)] == [128, 14, 1, 1]


def test_steps_of_a_loader_worker_merge_less(rows: Pipeline) -> None:
    plan = rows.batch(1 << 14).plan()
    assert [plan.merged_steps(ENOUGH, workers) for workers in (1, 2, 8, 1000)] == [7, 3, 1, 1]


def test_the_first_batch_does_not_wait_for_many_slow_ones(rows: Pipeline, tmp_path: Path) -> None:
    assert rows.transform(kept).batch(8).plan().merged_steps(ENOUGH) == 32
    pq.write_table(pa.table({"image": pa.array([b""] * 10, pa.binary())}), tmp_path / "images.parquet")
    image = UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("png"))
    assert Pipeline(tmp_path / "images.parquet", [image]).batch(8).plan().merged_steps(ENOUGH) == 32


def test_a_function_gets_each_batch_as_soon_as_possible(rows: Pipeline) -> None:
    assert rows.batch(8).transform(kept).plan().merged_steps(ENOUGH) == 1


def test_batches_of_different_sizes_are_made_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1, 2]] * 1_000}), tmp_path / "x.parquet")
    rows = Pipeline(tmp_path)
    plan = rows.batch(8).pad("x").plan()
    assert plan.has_uneven_batches
    assert plan.merged_steps(ENOUGH) > 1
    assert not rows.batch(8).pad("x", shape=(2,)).plan().has_uneven_batches
    assert rows.batch(8).pad("x").transform(kept).plan().merged_steps(ENOUGH) == 1
    assert rows.bucket("x", boundaries=[1], batch_size=8).plan().merged_steps(ENOUGH) > 1
