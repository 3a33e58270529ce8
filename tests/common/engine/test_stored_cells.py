"""Large values read straight from pages: the same batches as when Arrow reads them, on every executor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DatasetWriter,
    NdarrayCodec,
    Pipeline,
    TensorCodec,
    Unischema,
    UnischemaField,
)
from parquetry.common.engine import stored_cells
from parquetry.common.engine.stored_cells import CellReader, StoredCells, cells_of
from parquetry.common.errors import DatasetError, DecodeError

SCHEMA = Unischema(
    "cells",
    [
        UnischemaField("id", np.int64),
        UnischemaField("image", np.uint8, (4, 6, 3), CompressedImageCodec("png")),
        UnischemaField("sweep", np.float32, (5, 4), NdarrayCodec()),
        UnischemaField("ragged", np.float32, (None, 4), NdarrayCodec()),
        UnischemaField("packed", np.int16, (9,), CompressedNdarrayCodec()),
        UnischemaField("raw", np.float64, (3, 2), TensorCodec()),
        UnischemaField("rare", np.float32, (5,), NdarrayCodec(), nullable=True),
        UnischemaField("there", np.float32, (5,), NdarrayCodec(), nullable=True),
    ],
)
ROWS = 90


def row(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "id": number,
        "image": random.integers(0, 256, (4, 6, 3), np.uint8),
        "sweep": random.standard_normal((5, 4), np.float32),
        "ragged": random.standard_normal((number % 4, 4), np.float32),
        "packed": random.integers(-9, 9, 9).astype(np.int16),
        "raw": random.standard_normal((3, 2)),
        "rare": None if 40 <= number < 45 else random.standard_normal(5, np.float32),
        "there": random.standard_normal(5, np.float32),
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("cells") / "data")
    with DatasetWriter(folder, SCHEMA, row_group_rows=20, files=2, compression=None) as writer:
        writer.expect_rows(ROWS)
        for number in range(ROWS):
            writer.write(row(number))
    return folder


@pytest.fixture(autouse=True)
def small_values_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_cells, "_LARGE_VALUE_BYTES", 1)


def through_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellReader, "read", lambda *_: {})


def pipelines(url: str, data: st.DataObject) -> Pipeline:
    pipeline = Pipeline(url, workers=1).nulls("drop", "rare")
    if data.draw(st.booleans()):
        pipeline = pipeline.where(pc.field("id").isin(sorted(data.draw(st.sets(st.integers(0, 39), min_size=1)))))
    if data.draw(st.booleans()):
        pipeline = pipeline.shuffle(data.draw(st.sampled_from([5, 50, 500])), seed=data.draw(st.integers(0, 9)))
    batch = data.draw(st.sampled_from([None, 1, 7, 32]))
    return pipeline if batch is None else pipeline.batch(batch)


def assert_same(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            np.testing.assert_array_equal(value, right[name])
            assert value.dtype == right[name].dtype
        elif isinstance(value, int | float | np.generic):
            assert value == right[name]
        else:
            assert len(value) == len(right[name])
            for one, other in zip(value, right[name], strict=True):
                np.testing.assert_array_equal(one, other)


@given(data=st.data())
def test_batches_are_the_same_as_through_arrow(url: str, data: st.DataObject) -> None:
    pipeline = pipelines(url, data)
    first = iter(pipeline)
    state = first.state_dict()
    direct = list(first)
    with pytest.MonkeyPatch.context() as patch:
        through_arrow(patch)
        again = iter(pipeline)
        again.load_state_dict(state)  # the same epoch
        arrow = list(again)
    assert len(direct) == len(arrow)
    for one, other in zip(direct, arrow, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("field", ["image", "sweep"])
def test_the_sidecar_hands_large_values_on(tmp_path: Path, field: str) -> None:
    """With workers (images), and in the reader's own threads."""
    large = Unischema(
        "large",
        [
            UnischemaField("image", np.uint8, (40, 60, 3), CompressedImageCodec("png")),
            UnischemaField("sweep", np.float32, (700,), NdarrayCodec()),
        ],
    )
    random = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "data", large, row_group_rows=7, compression=None) as writer:
        for _ in range(30):
            image = random.integers(0, 256, (40, 60, 3), np.uint8)
            writer.write({"image": image, "sweep": random.standard_normal(700, np.float32)})
    threads = Pipeline(tmp_path / "data", [field]).shuffle(12, seed=3).batch(8)
    [fetcher] = threads.plan().fetchers()
    assert isinstance(fetcher.fetch(0, None).columns[0], StoredCells)
    sidecar = Pipeline(tmp_path / "data", [field], executor="sidecar", workers=2).shuffle(12, seed=3).batch(8)
    for one, other in zip(threads, sidecar, strict=True):
        np.testing.assert_array_equal(one[field], other[field])


def test_every_plain_column_without_nulls_is_read_this_way(url: str) -> None:
    plan = Pipeline(url).plan()
    [fetcher] = plan.fetchers()
    names = [field.name for field in SCHEMA.fields.values()]
    direct = {
        (unit, names[number])
        for unit in range(6)
        for number, column in enumerate(fetcher.fetch(unit, None).columns)
        if isinstance(column, StoredCells)
    }
    coded = set(names) - {"id"}
    assert {name for _, name in direct} == coded
    assert {unit for unit, name in direct if name == "there"} == set(range(6))
    assert 0 < len([unit for unit, name in direct if name == "rare"]) < 6  # one row group has nulls


@pytest.mark.parametrize("options", [{"compression": "snappy"}, {"use_dictionary": ["image"], "compression": None}])
def test_columns_that_are_not_plain_are_read_by_arrow(url: str, tmp_path: Path, options: dict[str, Any]) -> None:
    pq.write_table(pq.read_table(data_file(url)), tmp_path / "x.parquet", **options)
    [fetcher] = Pipeline(tmp_path, ["image"]).plan().fetchers()
    assert isinstance(fetcher.fetch(0, None).columns[0], pa.Array)


def data_file(url: str) -> Path:
    return sorted(Path(url).rglob("part*.parquet"))[0]


def test_a_file_that_went_away_or_was_cut_is_arrows_error(url: str, tmp_path: Path) -> None:
    source = data_file(url)
    copy = tmp_path / "data" / source.name
    copy.parent.mkdir()
    copy.write_bytes(source.read_bytes())
    pipeline = Pipeline(copy.parent, ["sweep"]).batch(5)
    assert len(pipeline)
    os.truncate(copy, 2_000)
    with pytest.raises(DatasetError, match="row group 0: expected readable columns"):
        list(pipeline)
    copy.unlink()
    with pytest.raises(DatasetError, match="row group 0: expected readable columns"):
        list(pipeline)


def test_a_damaged_value_is_named_with_its_file_and_row(url: str, tmp_path: Path) -> None:
    source = data_file(url)
    content = bytearray(source.read_bytes())
    place = content.index(b"\x89PNG", content.index(b"\x89PNG") + 1)
    content[place + 20 : place + 24] = b"oops"
    (tmp_path / source.name).write_bytes(content)
    with pytest.raises(DecodeError, match=rf"{source.name}, row group 0, row 1: CompressedImageCodec could not decode"):
        list(Pipeline(tmp_path, ["image"]))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    wanted=st.sets(st.integers(0, 29)),
    fixed=st.booleans(),
    offset=st.integers(0, 3),
)
def test_some_cells_are_the_bytes_of_those_rows(lengths: list[int], wanted: set[int], fixed: bool, offset: int) -> None:
    values = [bytes([number]) * (7 if fixed else length) for number, length in enumerate(lengths)]
    array = pa.array([b"before!"] * offset + values, pa.binary(7) if fixed else pa.large_binary()).slice(offset)
    rows = np.array(sorted(number for number in wanted if number < len(values)), np.int64)
    cells = cells_of(array)
    some = cells.take(rows)
    assert [some.data[a:b].tobytes() for a, b in zip(some.starts, some.ends, strict=True)] == [values[n] for n in rows]
    covered = [
        int(cells.starts[first]) + distance * step for first, count, distance in cells.runs() for step in range(count)
    ]
    assert covered == cells.starts.tolist()


def test_few_of_many_cells_do_not_hold_the_memory_of_all() -> None:
    cells = cells_of(pa.array([bytes(1_000)] * 100, pa.large_binary()))
    assert cells.take(np.array([3, 5])).data.nbytes == 2_000
    assert cells.take(np.arange(90)).data is cells.data
