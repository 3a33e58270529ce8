"""Columns that are decoded, augmented, packed or empty: every face gives the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import int96_column, write_int96
from faces import Face, installed_faces

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset

ROWS = 22
PAIRS = np.arange(2 * ROWS, dtype=np.int16).reshape(ROWS, 2)
NUMBERS = np.arange(ROWS) / 3
FIELDS = {
    "image": (UnischemaField("x", np.uint8, (None, None, 3), CompressedImageCodec("png"), True), np.uint8),
    "array": (UnischemaField("x", np.float32, (None, 4), NdarrayCodec(), True), np.float32),
    "texts": (UnischemaField("x", np.str_, (2, None), NdarrayCodec(), True), np.str_),
}


pytestmark = pytest.mark.versions


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    schema = Unischema(
        "rows",
        [
            UnischemaField("id", np.int64),
            UnischemaField("jpeg", np.uint8, (24, 30, 3), CompressedImageCodec("jpeg", 90)),
            UnischemaField("mask", np.uint8, (24, 30), CompressedImageCodec("png")),
            UnischemaField("pair", np.int16, (2,)),
            UnischemaField("number", np.float64),
        ],
    )
    rows = [
        {
            "id": n,
            "jpeg": np.add.outer(np.arange(24) * 4, np.arange(30) * 3)[..., None].repeat(3, 2).astype(np.uint8) + n,
            "mask": np.full((24, 30), n, np.uint8),
            "pair": PAIRS[n],
            "number": NUMBERS[n],
        }
        for n in range(ROWS)
    ]
    target = tmp_path_factory.mktemp("decoded") / "rows"
    write_dataset(target, schema, rows, row_group_rows=6)
    return str(target)


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_augmented_images_are_the_same(url: str, face: Any) -> None:
    pipeline = (
        Pipeline(url, ["jpeg", "mask"])
        .shuffle(6, seed=1)
        .random_resized_crop(["jpeg", "mask"], 12, seed=3)
        .random_flip(["jpeg", "mask"], seed=4)
        .normalize("jpeg", (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
        .permute("jpeg", dims=("C", "H", "W"))
        .batch(6)
    )
    wanted = [{name: column.tolist() for name, column in batch.items()} for batch in pipeline]
    found = face.elements(pipeline)
    assert len(found) == len(wanted) == 4
    for batch, rows in zip(wanted, found, strict=True):
        assert [row["mask"] for row in rows] == batch["mask"]
        assert [row["jpeg"] for row in rows] == batch["jpeg"]


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_packed_columns_are_the_same(url: str, face: Any) -> None:
    pipeline = Pipeline(url, ["id", "pair", "number"]).shuffle(9, seed=1).pack("x", ["pair", "number"]).batch(8)
    wanted = np.concatenate([PAIRS.astype(np.float64), NUMBERS[:, None]], axis=1)
    rows = [row for batch in face.elements(pipeline) for row in batch]
    assert sorted(row["id"] for row in rows) == list(range(ROWS))
    assert [row["x"] for row in rows] == [wanted[row["id"]].tolist() for row in rows]


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


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_int96_timestamps_of_other_writers_are_exact(tmp_path: Path, face: Face) -> None:
    stamps = [-62_135_596_800_000_000, -1, 0, 2**55, 253_402_300_799_999_999]
    url = write_int96(
        tmp_path / "a.parquet", pa.table({"id": range(5), "at": int96_column(stamps)}), created_by="impala 2.0"
    )
    pipeline = Pipeline(url)
    assert face.elements(pipeline) == [{"id": n, "at": stamp} for n, stamp in enumerate(stamps)]
    later = pipeline.where([("at", ">=", np.datetime64("2500-01-01"))])
    assert [row["id"] for row in face.elements(later)] == [3, 4]
