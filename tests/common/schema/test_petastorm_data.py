"""Datasets written by Petastorm, read value by value.

The newest is checked against the formulas that made its values, the older ones against numpy and Pillow.
"""

from __future__ import annotations

import decimal
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from parquetry.common import Pipeline

pytestmark = pytest.mark.versions

DATA = Path(__file__).parents[2] / "data" / "petastorm"
OLD = ("0.4.0", "0.7.0", "0.7.6")


def read(version: str, **options: Any) -> Pipeline:
    """Returns a pipeline over a stored dataset."""
    return Pipeline(str(DATA / version), executor="threads", workers=2, **options)


def expected(number: int) -> dict[str, Any]:
    """Returns row ``number`` of the 0.12.1 dataset."""
    h, w, c = np.meshgrid(np.arange(8), np.arange(6), np.arange(3), indexing="ij")
    label = "pedestrian" if number % 3 == 0 else "vehicle"
    return {
        "drive": f"d{number // 20}",
        "id": number,
        "stamp_ms": 1_000_000 * (number // 20) + 100 * (number % 20),
        "label": None if number % 7 == 0 else label,
        "speed": None if number % 5 == 0 else np.float32(number / 2),
        "count_u16": 60_000 + number,
        "price": format((decimal.Decimal(number) / 8).normalize(), "f"),
        "png": ((18 * h + 3 * w + c + number) % 256).astype(np.uint8),
        "png16": (np.arange(20).reshape(4, 5) * 3000 + number).astype(np.uint16),
        "matrix": (np.arange(12).reshape(3, 4) * number).astype(np.float32),
        "points": (np.arange(3 * (number % 4 + 1)).reshape(-1, 3) + number).astype(np.float32),
        "names": None if number % 4 == 0 else [b"a\x00b", b"c" * (number % 3 + 1)],
    }


def test_every_value_of_the_newest_dataset_is_what_was_written() -> None:
    rows = list(read("0.12.1"))
    assert [int(row["id"]) for row in rows] == list(range(60))
    for number, row in enumerate(rows):
        jpeg = row.pop("jpeg").astype(int)
        assert np.abs(jpeg - [number * 4 % 200, 100, 50]).max() <= 4  # quality 90 is slightly lossy
        wanted = expected(number)
        assert list(row) == ["drive", "id", "stamp_ms", "label", "speed", "count_u16", "price", "png", "png16", "matrix", "points", "names"]  # fmt: skip
        for name, value in wanted.items():
            if isinstance(value, np.ndarray):
                assert row[name].dtype == value.dtype
                assert np.array_equal(row[name], value), (number, name)
            elif isinstance(value, list):
                assert row[name].tolist() == value, (number, name)
            else:
                assert row[name] == value, (number, name)


def test_the_jpeg_is_what_pillow_decodes() -> None:
    table = pq.read_table(DATA / "0.12.1" / "drive=d1" / "part-00001.parquet")
    stored = [np.asarray(Image.open(io.BytesIO(raw))) for raw in table["jpeg"].to_pylist()]
    rows = list(read("0.12.1", fields=["jpeg", "drive"]).where(pc.field("drive") == "d1"))
    assert len(rows) == len(stored) == 20
    for row, image in zip(rows, stored, strict=True):
        assert np.abs(row["jpeg"].astype(int) - image).max() <= 2  # decoders may round differently


def test_filters_windows_and_shuffles_work_on_it() -> None:
    pipeline = read("0.12.1", fields=["id", "drive", "png", "names"])
    assert [int(row["id"]) for row in pipeline.where((pc.field("drive") == "d2") & (pc.field("id") < 43))] == [
        40,
        41,
        42,
    ]
    assert sorted(int(row["id"]) for row in pipeline.shuffle(10, seed=1)) == list(range(60))
    windows = pipeline.ngram({-1: ["id"], 1: ["id", "names"]}, timestamp="stamp_ms", max_gap=100)
    assert [int(window[-1]["id"]) for window in windows] == [n for n in range(60) if n % 20 < 18]
    unsigned = read("0.12.1").where(pc.field("count_u16") >= 60_058)
    assert [int(row["count_u16"]) for row in unsigned] == [60_058, 60_059]


@pytest.mark.parametrize("version", OLD)
def test_older_datasets_decode_to_what_numpy_and_pillow_decode(version: str) -> None:
    rows = list(read(version))
    (path,) = (DATA / version / "partition_key=p_0").glob("*.parquet")
    stored = pq.ParquetFile(path).read().to_pylist()
    schema = read(version).schema
    assert len(rows) == len(stored) == 10
    for row, raw in zip(rows, stored, strict=True):
        assert row["partition_key"] == "p_0"
        for field in schema:
            if field.name == "partition_key":
                continue
            value, wanted = row[field.name], _decoded(field.name, raw[field.name])
            if wanted is None:
                assert value is None
            elif isinstance(wanted, np.ndarray):
                assert value.shape == wanted.shape
                assert value.tolist() == wanted.tolist(), field.name
            else:
                assert value == wanted, field.name
            if not isinstance(value, str | None) and value.dtype != object:
                assert value.dtype == field.dtype


def _decoded(name: str, raw: Any) -> Any:
    if isinstance(raw, bytes):
        opened = Image.open(io.BytesIO(raw)) if name == "image_png" else np.load(io.BytesIO(raw))
        return np.asarray(opened)
    return format(raw.normalize(), "f") if isinstance(raw, decimal.Decimal) else raw
