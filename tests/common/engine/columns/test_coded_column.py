"""Columns of encoded values: what stands in place of a null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces import Face, installed_faces

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.columns.batch import Dense, Ragged, as_one_array

FIELDS = {
    "image": (UnischemaField("x", np.uint8, (None, None, 3), CompressedImageCodec("png"), True), np.uint8),
    "array": (UnischemaField("x", np.float32, (None, 4), NdarrayCodec(), True), np.float32),
    "texts": (UnischemaField("x", np.str_, (2, None), NdarrayCodec(), True), np.str_),
}


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
@pytest.mark.parametrize("name", FIELDS)
def test_a_masked_null_is_empty_along_variable_axes_only(tmp_path: Path, name: str, face: Face) -> None:
    field, dtype = FIELDS[name]
    value = np.ones([axis or 5 for axis in field.shape], dtype)
    rows: list[dict[str, Any]] = [{"x": value}, {"x": None}]
    write_dataset(tmp_path / "data", Unischema("rows", [field]), rows)
    empty = np.zeros([axis or 0 for axis in field.shape], dtype)
    pipeline = Pipeline(tmp_path / "data").nulls("mask")
    assert [row["x"].shape for row in pipeline] == [value.shape, empty.shape]
    wanted = [{"x": row.tolist(), "x__valid": valid} for row, valid in ((value, True), (empty, False))]
    assert face.elements(pipeline) == wanted
    assert face.elements(pipeline.batch(1)) == [[row] for row in wanted]


def test_an_array_of_nulls_alone_keeps_the_axes_of_known_length() -> None:
    nulls = Ragged(np.array([[0, 0, 3]] * 2), np.zeros(0, np.uint8), (2,), np.zeros(2, bool))
    found = as_one_array(nulls)
    assert isinstance(found, Dense)
    assert found.values.shape == (2, 0, 0, 3)
