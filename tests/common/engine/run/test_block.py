"""Loaded windows: where their rows are stored, and that their memory is freed once nothing references them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.run.block import LoadedBlock
from parquetry.common.engine.steps.source import RowPlaces

SCHEMA = Unischema(
    "window",
    [
        UnischemaField("id", np.int64),
        UnischemaField("image", np.uint8, (4, 4, 3), CompressedImageCodec("png")),
        UnischemaField("points", np.float32, (None, 3), NdarrayCodec()),
        UnischemaField("name", str),
        UnischemaField("vector", np.float32, (3,)),
        UnischemaField("tags", np.int32, (None,)),
    ],
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {
            "id": number,
            "image": np.full((4, 4, 3), number, np.uint8),
            "points": np.ones((number % 3, 3), np.float32),
            "name": f"row {number}",
            "vector": np.ones(3, np.float32),
            "tags": np.arange(number % 4, dtype=np.int32),
        }
        for number in range(200)
    ]
    folder = tmp_path_factory.mktemp("window") / "data"
    write_dataset(folder, SCHEMA, rows, row_group_rows=10)
    return folder


def test_rows_know_their_row_group_and_their_number_in_it() -> None:
    places = RowPlaces(["a", "b", "c"], [np.array([3, 5]), np.array([], np.int64), np.array([0])], [7, 8, 9])
    assert len(places) == 3
    assert [places.describe(row) for row in range(3)] == ["a, row 3", "a, row 5", "c, row 0"]
    row_groups, inside = places.identify(np.array([2, 0, 1]))
    assert row_groups.tolist() == [9, 7, 7]
    assert inside.tolist() == [0, 3, 5]


@pytest.mark.parametrize("windows", [False, True])
def test_windows_go_as_soon_as_nobody_holds_them(url: Path, windows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without the garbage collector, which may let a gigabyte of them pile up before it runs."""
    alive: weakref.WeakSet[LoadedBlock] = weakref.WeakSet()
    made: list[int] = []

    class Watched(LoadedBlock):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            alive.add(self)
            made.append(len(alive))

    monkeypatch.setattr("parquetry.common.engine.run.block.LoadedBlock", Watched)
    pipeline = Pipeline(url, workers=1)
    pipeline = pipeline.ngram(length=3, timestamp="id") if windows else pipeline
    gc.collect()
    gc.disable()
    try:
        batches = sum(1 for _ in pipeline.shuffle(10, seed=1).batch(5))
    finally:
        gc.enable()
    assert batches == 40
    assert len(made) >= 19
    assert not alive
