"""Columns that the compiled core decodes straight into canonical form, compared with those that go through Arrow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from spies import spied

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import DatasetError
from parquetry.common.base.native.library import is_compiled
from parquetry.common.dataset.arrow_read import TooLargeError
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.engine.read.column_reader import NOTHING, ReadContext, ReaderChain, ReadRequest, ReadResult
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.engine.read.native_reader import NativeColumnReader
from parquetry.common.parquet import native_decode

pytestmark = pytest.mark.skipif(not is_compiled(), reason="the compiled core reads them")
ROWS = 500


def table() -> pa.Table:
    random = np.random.default_rng(0)
    numbers = random.normal(size=ROWS)
    holes = pa.array([None if row % 7 == 0 else row for row in range(ROWS)], pa.int32())
    return pa.table(
        {
            "id": np.arange(ROWS),
            "real": numbers.astype(np.float32),
            "small": random.integers(-9, 9, ROWS).astype(np.int8),
            "holes": holes,
            "text": [None if row % 5 == 0 else f"row {row}" for row in range(ROWS)],
            "label": [("good", "bad" * 30)[row % 2] for row in range(ROWS)],
            "bytes": [bytes([row % 256]) * (row % 3) for row in range(ROWS)],
            "list": [list(range(row % 4)) for row in range(ROWS)],
            "three": pa.array([[row, 1, 2] for row in range(ROWS)], pa.list_(pa.float32())),
            "flag": random.integers(0, 2, ROWS).astype(bool),
            "day": pa.array(np.arange(ROWS, dtype=np.int32), pa.date32()),
            "texts": [["a"] * (row % 3) for row in range(ROWS)],
        }
    )


READ = {"id", "real", "small", "holes", "text", "label", "bytes", "list", "three"}


def fetched(path: Path, rows: Any, fields: list[UnischemaField] | None = None, **options: Any) -> dict[str, pa.Array]:
    dataset = StoredDataset([str(path)])
    fields = list(dataset.schema) if fields is None else fields
    found = Fetcher(dataset, fields, ReadContext(**options)).fetch(0, rows)
    columns = [pa.array(each) if isinstance(each, np.ndarray) else each for each in found.columns]
    for column in columns:
        column.validate(full=True)
    return dict(zip([field.name for field in fields], columns, strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(table(), tmp_path / "x.parquet", compression=dict.fromkeys(table().column_names, "snappy"))
    return tmp_path / "x.parquet"


@pytest.mark.parametrize("rows", [None, range(ROWS), np.arange(20, 90), np.arange(0, ROWS, 3), np.zeros(0, np.int64)])
@pytest.mark.parametrize("three", [(3,), (None,)])
def test_columns_are_those_that_go_through_arrow(
    path: Path, rows: Any, three: tuple[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [
        UnischemaField("three", np.float32, three) if field.name == "three" else field
        for field in StoredDataset([str(path)]).schema
    ]
    found = fetched(path, rows, fields)
    monkeypatch.setattr(NativeColumnReader, "read", lambda *_, **__: NOTHING)
    wanted = fetched(path, rows, fields)
    assert found.keys() == wanted.keys()
    for name, column in wanted.items():
        assert found[name].type == column.type, name
        assert found[name].equals(column), name


def test_which_columns_are_read(path: Path) -> None:
    dataset = StoredDataset([str(path)])
    reader = NativeColumnReader(dataset, list(dataset.schema))
    found, used_bytes, *_ = reader.read(ReadRequest(row_group=0))
    assert found.keys() == READ
    assert used_bytes > 0
    assert {name for name, values in found.items() if isinstance(values, np.ndarray)} == {"id", "real", "small"}
    assert reader.read(
        ReadRequest(row_group=0, done=dict.fromkeys(["id", "text"], np.empty(0)))
    ).values.keys() == READ - {"id", "text"}
    assert reader.read(ReadRequest(row_group=0, room_bytes=used_bytes - 1)) == NOTHING


def test_types_that_differ_from_the_dataset_are_left_to_arrow(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(3, dtype=np.int32), "y": ["a", "b", "c"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": np.arange(3, dtype=np.int64), "y": ["a", "b", "c"]}), tmp_path / "b.parquet")
    dataset = StoredDataset([str(tmp_path)])
    reader = NativeColumnReader(dataset, list(dataset.schema))
    assert [reader.read(ReadRequest(row_group=group)).values.keys() for group in (0, 1)] == [{"y"}, {"x", "y"}]
    assert next(iter(Pipeline(tmp_path).batch(6)))["x"].tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("change", ["replaced", "rewritten", "gone", "cut"])
def test_a_file_that_changed_is_an_error(path: Path, change: str) -> None:
    dataset = StoredDataset([str(path)])
    fetcher = Fetcher(dataset, list(dataset.schema))
    fetcher.fetch(0, None)
    other = path.with_suffix(".other")
    shutil.copy(path, other)
    if change == "replaced":
        other.replace(path)
    elif change == "rewritten":
        path.write_bytes(other.read_bytes())
        os.utime(path, ns=(1, 1))
    elif change == "cut":
        os.truncate(path, 100)
    else:
        path.unlink()
    with pytest.raises(DatasetError, match=r"x\.parquet"):
        fetcher.fetch(0, None)
    assert NativeColumnReader(dataset, list(dataset.schema)).read(ReadRequest(row_group=0)) == NOTHING


def test_long_text_in_a_dictionary_counts_as_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": ["long" * 100] * 2000}), path)
    assert fetched(path, None)["x"].to_pylist() == ["long" * 100] * 2000
    assert fetched(path, None, room_bytes=1 << 20)["x"].to_pylist() == ["long" * 100] * 2000
    with pytest.raises(TooLargeError):
        fetched(path, None, room_bytes=400_000)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("chunk", ["plain", "dictionary"])
def test_small_row_groups_that_are_read_together_have_the_values_of_each(
    tmp_path: Path, compression: str, chunk: str
) -> None:
    path = tmp_path / "small.parquet"
    pq.write_table(table(), path, row_group_size=7, compression=compression, use_dictionary=chunk == "dictionary")
    dataset = StoredDataset([str(path)])
    fetcher = Fetcher(dataset, list(dataset.schema))
    row_groups = list(range(0, len(dataset.row_groups), 3))
    together = fetcher.read_together(row_groups)
    assert all({"id", "real", "small"} <= set(each) for each in together)
    assert not any({"text", "label", "bytes", "list", "three"} & set(each) for each in together)
    for row_group, values in zip(row_groups, together, strict=True):
        total = int(dataset.row_groups.rows[row_group])
        for rows in (None, np.arange(1, total, 2)):
            apart = fetcher.fetch(row_group, rows)
            joined = fetcher.fetch(row_group, rows, together=values)
            for field, one, other in zip(dataset.schema, apart.columns, joined.columns, strict=True):
                assert pa.array(one).equals(pa.array(other)), field.name


def test_nothing_is_read_together_that_takes_more_than_its_room(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "small.parquet", row_group_size=10)
    dataset = StoredDataset([str(tmp_path / "small.parquet")])
    fetcher = Fetcher(dataset, list(dataset.schema), ReadContext(room_bytes=100))
    assert fetcher.read_together([0, 1, 2]) == [{}, {}, {}]


def test_a_file_that_changed_is_not_read_together(tmp_path: Path) -> None:
    path = tmp_path / "small.parquet"
    pq.write_table(table(), path, row_group_size=10)
    dataset = StoredDataset([str(path)])
    fetcher = Fetcher(dataset, list(dataset.schema))
    assert fetcher.read_together([0, 1])[0]
    pq.write_table(table().slice(1), path, row_group_size=10)
    assert fetcher.read_together([0, 1]) == [{}, {}]


@pytest.mark.parametrize("shuffled", [False, True])
def test_small_row_groups_take_few_calls_of_the_core(
    tmp_path: Path, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 400
    pq.write_table(pa.table({"id": np.arange(2 * count)}), tmp_path / "small.parquet", row_group_size=2)
    calls = spied(monkeypatch, native_decode, "decode_chunks", lambda chunks, *_, **options: len(chunks))
    rows = Pipeline(str(tmp_path), executor="threads")
    if shuffled:
        rows = rows.shuffle(400, seed=1)
    assert sorted(row["id"] for row in rows) == list(range(2 * count))
    assert sum(calls) == count
    assert len(calls) < count / 8


def test_a_damaged_row_group_among_small_ones_is_named(tmp_path: Path) -> None:
    path = tmp_path / "small.parquet"
    pq.write_table(table().select(["id"]), path, row_group_size=10, use_dictionary=False, write_page_checksum=True)
    chunk = pq.ParquetFile(path).metadata.row_group(20).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="row group 20: expected readable columns"):
        list(Pipeline(str(path), executor="threads").batch(10))


def test_a_chain_reads_nothing_that_is_done() -> None:
    asked: list[set[str]] = []

    class Rest:
        def read(self, request: ReadRequest) -> ReadResult:
            asked.append(set(request.done))
            return ReadResult({"b": np.ones(1)})

    chain = ReaderChain([Rest(), Rest()], count=2)
    assert set(chain.read(ReadRequest(row_group=0, done={"a": np.zeros(1)})).values) == {"a", "b"}
    assert asked == [{"a"}]


def test_a_filter_and_a_rank_read_the_pages_of_their_rows(tmp_path: Path) -> None:
    rows = 400_000
    values = {name: np.random.default_rng(1).random(rows) for name in "abc"}
    path = tmp_path / "x.parquet"
    pages: dict[str, Any] = {"use_dictionary": False, "data_page_size": 1 << 14, "compression": "none"}
    pq.write_table(pa.table({"id": np.arange(rows), **values}), path, row_group_size=rows, **pages)
    pipeline = Pipeline(path, ["id", "a"], executor="threads", workers=1)
    whole, found = iter(pipeline.batch(rows)), iter(pipeline.where(pc.field("id") < 4000).batch(4000))
    expected, some = next(whole), next(found)
    assert all(np.array_equal(some[name], expected[name][:4000]) for name in ("id", "a"))
    assert found.stats().read_bytes < 0.03 * whole.stats().read_bytes
    ranks = [iter(pipeline.shuffle(rows, seed=3).shard(8, rank).batch(rows // 8)) for rank in range(8)]
    batches = [next(rank) for rank in ranks]
    places = np.concatenate([batch["id"] for batch in batches])
    assert np.array_equal(np.sort(places), np.arange(rows))
    assert np.array_equal(np.concatenate([batch["a"] for batch in batches]), expected["a"][places])
    assert max(rank.stats().read_bytes for rank in ranks) < 2 * whole.stats().read_bytes / 8
