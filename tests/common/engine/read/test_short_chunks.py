"""A column chunk with fewer or more values than its footer says is an error on every read path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import SIDECAR, THREADS, Face

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, DecodeError
from parquetry.common.engine.read.column_reader import ReadRequest
from parquetry.common.engine.read.disk_cache import DiskCache
from parquetry.common.engine.read.fetch import Fetcher, fetchers_of
from parquetry.common.engine.read.file_cells import RowGroupColumns
from parquetry.common.engine.read.kept_tables import table_key
from parquetry.common.engine.run.block import BlockParts

pytestmark = pytest.mark.versions

ROWS = 8
COLUMNS = {
    "number": pa.array(range(ROWS), pa.int64()),
    "text": pa.array([f"t{n}" for n in range(ROWS)]),
    "list": pa.array([[n] * 3 for n in range(ROWS)]),
    "maybe": pa.array([None if n % 3 == 0 else n for n in range(ROWS)]),
}
CHUNK = r"row group 0: expected (8 rows of column '\w+', as the footer says, got|readable columns)"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("short") / "source.parquet"
    table = pa.table({**COLUMNS, "label": pa.array([10 * n for n in range(ROWS)])})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    return path.read_bytes()


def shortened(content: bytes, column: str) -> list[bytes]:
    """Yields the file with each bit of the column's page header flipped, one at a time."""
    metadata = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    chunks = [metadata.column(number) for number in range(metadata.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == column)
    begin = chunk.data_page_offset
    changed = []
    for place in range(begin, begin + chunk.total_compressed_size - chunk.total_uncompressed_size // 2)[:24]:
        for bit in range(8):
            copy = bytearray(content)
            copy[place] ^= 1 << bit
            changed.append(bytes(copy))
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
def test_a_bit_of_a_page_header_moves_no_row(source: bytes, column: str, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    errors = 0
    for content in shortened(source, column):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        try:
            rows = list(Pipeline(path, [column, "label"], executor="threads", workers=1))
        except (DatasetError, DecodeError):
            errors += 1
        else:
            assert [int(row["label"]) for row in rows] == [10 * n for n in range(ROWS)]
    assert errors


@pytest.fixture
def short(source: bytes, tmp_path: Path) -> Path:
    """Writes a file whose ``number`` chunk claims fewer values than its row group."""
    path = tmp_path / "data" / "x.parquet"
    path.parent.mkdir()
    for content in shortened(source, "number"):
        path.write_bytes(content)
        try:
            if len(pq.ParquetFile(path).read_row_group(0, columns=["number"])) < ROWS:
                return path
        except (pa.ArrowException, OSError):
            continue
    raise AssertionError("expected a bit that shortens the chunk")


@pytest.mark.parametrize("face", [THREADS, SIDECAR], ids=lambda face: face.name)
@pytest.mark.parametrize(
    "verbs",
    [
        lambda pipeline: pipeline,
        lambda pipeline: pipeline.batch(3),
        lambda pipeline: pipeline.shuffle(10, seed=1).batch(8),
        lambda pipeline: pipeline.pack("packed", ["number", "label"]),
        lambda pipeline: pipeline.where([("number", ">=", 0), ("number", "!=", 100)]).where([("label", "!=", 70)]),
    ],
    ids=["rows", "batches", "shuffled", "packed", "filtered"],
)
@pytest.mark.parametrize("memory_limit", [None, 1], ids=["in memory", "in slices"])
def test_a_short_chunk_is_an_error(
    short: Path, face: Face, verbs: Callable[[Pipeline], Pipeline], memory_limit: int | None
) -> None:
    with pytest.raises(DatasetError, match=CHUNK):
        face.elements(verbs(Pipeline(short, ["number", "label"], memory_limit=memory_limit)))


def test_a_short_chunk_is_not_kept_in_a_cache(short: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(DatasetError, match=CHUNK):
            list(Pipeline(short, ["number"]).cache(str(tmp_path / "cache")))
    assert not list(tmp_path.glob("cache/*.table"))


def test_a_cache_entry_of_another_length_counts_as_missing(source: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(source)
    pipeline = Pipeline(path, ["number"]).cache(str(tmp_path / "cache"))
    [fetcher] = fetchers_of(pipeline.plan())
    DiskCache(str(tmp_path / "cache"), None).put(
        table_key(pipeline.dataset, 0, fetcher.fields, frozenset()), pa.table({"number": pa.array(range(ROWS - 1))})
    )
    assert [int(row["number"]) for row in pipeline] == list(range(ROWS))


def test_values_of_a_chunk_that_says_another_count_than_its_row_group_are_left_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Unischema("rows", [UnischemaField("sweep", np.float32, (40, 40), NdarrayCodec())])
    write_dataset(tmp_path / "data", schema, ({"sweep": np.full((40, 40), n, np.float32)} for n in range(6)))
    pipeline = Pipeline(tmp_path / "data")
    [fetcher] = fetchers_of(pipeline.plan())
    assert set(fetcher._cells.read(ReadRequest(row_group=0)).values) <= {"sweep"}
    groups = pipeline.dataset.row_groups
    monkeypatch.setattr(
        pipeline.dataset, "row_groups", type(groups)(file=groups.file, group=groups.group, rows=groups.rows + 1)
    )
    assert fetcher._cells.read(ReadRequest(row_group=0)).values == {}
    with pytest.raises(DatasetError, match="expected 7 rows of column 'sweep', as the footer says, got 6"):
        fetcher.fetch(0, None)


def test_a_window_holds_each_part_to_its_rows() -> None:
    field = UnischemaField("number", np.int64)
    parts = [RowGroupColumns((pa.array([1, 2, 3]),)), RowGroupColumns((pa.array([4]),))]
    rows = [np.arange(3), np.arange(2)]
    with pytest.raises(DatasetError, match=r"second: expected 2 values of column 0, got 1\. The file is damaged"):
        BlockParts(parts, ["first", "second"], rows, [field], row_groups=[0, 1])


def test_the_rows_of_petastorms_readers_are_held_to_the_count(short: Path) -> None:
    from parquetry.common.compat.petastorm import make_batch_reader

    reader = make_batch_reader(short.parent.as_uri(), reader_pool_type="dummy", num_epochs=1)
    with reader, pytest.raises(Exception, match=CHUNK):
        list(reader)


def test_the_stored_columns_of_a_row_group_are_held_to_the_count(short: Path) -> None:
    pipeline = Pipeline(short)
    fetcher: Any = Fetcher(pipeline.dataset, [pipeline.schema["label"], pipeline.schema["number"]])
    with pytest.raises(DatasetError, match=CHUNK):
        fetcher.stored(0)
