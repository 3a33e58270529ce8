"""Columns of encoded values: arrays of nulls, and when their memory is freed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common import (
    CompressedImageCodec,
    Pipeline,
    ScalarCodec,
    Unischema,
    UnischemaField,
    write_dataset,
)
from parquetry.common.engine.columns.batch import Dense, Ragged, as_one_array
from parquetry.common.engine.columns.coded_column import CodedColumn
from parquetry.common.engine.columns.stored_values import StoredValues

pytestmark = pytest.mark.versions


def test_an_array_of_nulls_alone_keeps_the_axes_of_known_length() -> None:
    nulls = Ragged(np.array([[0, 0, 3]] * 2), np.zeros(0, np.uint8), (2,), np.zeros(2, bool))
    found = as_one_array(nulls)
    assert isinstance(found, Dense)
    assert found.values.shape == (2, 0, 0, 3)


@pytest.mark.parametrize("stage", ["batches", "crops", "windows"])
def test_a_column_is_freed_without_the_garbage_collector(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that waits for the collector keeps the memory of its images meanwhile."""
    fields = [
        UnischemaField("id", np.int64, (), ScalarCodec(), False),
        UnischemaField("x", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg"), False),
    ]
    rows = [{"id": number, "x": np.full((16, 16, 3), number, np.uint8)} for number in range(64)]
    write_dataset(tmp_path / "data", Unischema("rows", fields), rows, row_group_rows=8)
    made: list[weakref.ref[Any]] = []

    for kind in (CodedColumn, StoredValues):  # the values are what holds the memory

        def noted(self: Any, *arguments: Any, begin: Any = kind.__init__, **options: Any) -> None:
            begin(self, *arguments, **options)
            made.append(weakref.ref(self))

        monkeypatch.setattr(kind, "__init__", noted)
    pipeline = Pipeline(tmp_path / "data", executor="threads", workers=1)
    if stage == "windows":
        pipeline = pipeline.ngram(length=2, timestamp="id")
    if stage == "crops":
        pipeline = pipeline.random_crop("x", (8, 8))
    gc.disable()
    try:
        assert sum(1 for _ in pipeline.batch(4)) > 8
        held = sum(column() is not None for column in made)
    finally:
        gc.enable()
    assert len(made) >= 8
    assert held == 0
