"""With a row-group index, row groups are read without footers, as the footers say, and a wrong index is an error."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from s3_server import serving
from spies import spied

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.base.memory.lru_cache import LRUCache
from parquetry.common.dataset import index_footers, index_writer
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index import write_index
from parquetry.common.dataset.index_format import METADATA_KEY, IndexDescription, head_to_text
from parquetry.common.parquet import footers, group_footers
from parquetry.common.parquet.group_footers import FileFooter, read_group_footer

pytestmark = pytest.mark.versions

ROWS, GROUP_ROWS = 60, 4
INDEX = "_row_groups.parquet"
CACHES: tuple[LRUCache[Any, Any], ...] = (
    footers._kept,
    group_footers._stored,
    group_footers._cuts,
    group_footers._groups,
)


def table_of(first: int, *, late: bool = False) -> pa.Table:
    numbers = range(first, first + ROWS)
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "text": [f"text {number % 7}" for number in numbers],
        "pair": [{"a": number, "b": {"c": [number] * (number % 3)}} for number in numbers],
        "map": pa.array([[("k", number)] for number in numbers], pa.map_(pa.string(), pa.int64())),
        "wait": pa.array(numbers, pa.duration("s")),  # its type is only in Arrow's schema
        "some": pa.array([None if number % 3 else number for number in numbers], pa.int32()),
    }
    if late:
        columns = {"late": pa.array(numbers, pa.float64()), **dict(reversed(columns.items()))}
    table = pa.table(columns)
    return table.replace_schema_metadata({b"pandas": b'{"stop": %d}' % first})  # as pandas says for each file


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """Writes three files of two schemas, and their index."""
    for number in range(3):
        table = table_of(number * ROWS, late=number == 1)
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=GROUP_ROWS)
    write_index(tmp_path)
    for cache in CACHES:
        cache.clear()
    return tmp_path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the files whose footers are read from now on."""

    def refused(filesystem: Any, file: Any) -> pq.FileMetaData:
        raise AssertionError(f"the whole footer of {file.relative} is read")

    monkeypatch.setattr(footers, "load_footer", refused)
    return spied(monkeypatch, group_footers, "load_stored_footer", lambda filesystem, file: file.relative)


def rewrite(folder: Path, change: Callable[[pa.Table, dict[str, Any]], pa.Table]) -> None:
    """Changes the columns and the description of an index, with checksums that match."""
    table = pq.read_table(folder / INDEX)
    description = json.loads(pq.read_metadata(folder / INDEX).metadata[METADATA_KEY][8:])
    table = change(table, description)
    text = json.dumps(description).encode()
    table = table.replace_schema_metadata({METADATA_KEY: b"%08x" % zlib.crc32(text) + text})
    pq.write_table(table, folder / INDEX, write_page_checksum=True)


def as_before(table: pa.Table, description: dict[str, Any]) -> pa.Table:
    """Leaves out what earlier releases did not write."""
    del description["heads"]
    return table.drop_columns([name for name in table.column_names if name == "head" or name.startswith("chunk:")])


@pytest.mark.parametrize("names", [None, ["id"], ["pair.b.c", "wait"], ["map.key", "late"], ["none"]], ids=str)
def test_the_index_says_about_columns_what_the_footers_say(indexed: Path, names: list[str] | None) -> None:
    dataset = StoredDataset([str(indexed)])
    assert dataset.index is not None
    chosen = None if names is None else frozenset(names)
    groups = dataset.row_groups
    for number, (place, group) in enumerate(zip(groups.file.tolist(), groups.group.tolist(), strict=True)):
        file = dataset.files[place]
        ours = dataset.group_footer(number, chosen)
        theirs = read_group_footer(FileFooter(filesystem=dataset.filesystem, file=file), group, file, chosen)
        assert ours.index.endswith(INDEX)
        assert not theirs.index
        assert ours.rows == theirs.rows == GROUP_ROWS
        assert ours.chunk_descriptions() == theirs.chunk_descriptions()
        assert ours.columns.stored.equals(theirs.columns.stored)
        assert ours.footer.row_group(0).column(0).to_dict() == theirs.footer.row_group(0).column(0).to_dict()


@pytest.mark.parametrize("shuffled", [False, True])
def test_no_footer_is_read_if_there_is_an_index(indexed: Path, loads: list[str], shuffled: bool) -> None:
    rows = Pipeline(indexed, executor="threads").where(pc.field("id") >= 10)
    ids = [int(row["id"]) for row in (rows.shuffle(20, seed=1) if shuffled else rows)]
    assert sorted(ids) == [*range(10, 3 * ROWS)]
    assert loads == []


def test_files_that_differ_in_what_pandas_says_share_their_head(indexed: Path) -> None:
    stored = pq.read_metadata(indexed / INDEX).metadata[METADATA_KEY]
    assert len(IndexDescription.from_bytes(stored).heads) == 2


def test_an_index_of_an_earlier_release_is_used_with_the_footers(indexed: Path, loads: list[str]) -> None:
    expected = [repr(row) for row in Pipeline(indexed, executor="threads")]
    rewrite(indexed, as_before)
    dataset = StoredDataset([str(indexed)])
    assert dataset.index is not None
    assert [repr(row) for row in Pipeline(indexed, executor="threads")] == expected
    assert sorted({*loads}) == ["0.parquet", "1.parquet", "2.parquet"]
    assert len(loads) == 3


def test_columns_that_the_index_leaves_out_are_read_with_the_footers(indexed: Path, loads: list[str]) -> None:
    write_index(indexed, columns=["id", "pair.*"])
    for cache in CACHES:
        cache.clear()
    loads.clear()
    assert len(list(Pipeline(indexed, ["id", "pair.a"], executor="threads"))) == 3 * ROWS
    assert loads == []
    assert len(list(Pipeline(indexed, ["id", "text"], executor="threads"))) == 3 * ROWS
    assert len(loads) == 3


def test_files_of_more_heads_than_an_index_holds_are_read_with_their_footers(
    indexed: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_writer, "_MOST_HEADS", 1)
    write_index(indexed)
    for cache in CACHES:
        cache.clear()
    loads.clear()
    assert len(list(Pipeline(indexed, executor="threads"))) == 3 * ROWS
    assert {*loads} == {"1.parquet"}


def test_row_groups_of_the_index_are_read_in_parts_and_kept_in_a_temporary_file(
    indexed: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sorted(repr(row) for row in Pipeline(indexed, executor="threads"))
    rewrite(indexed, lambda table, _: table)
    monkeypatch.setattr(index_footers, "_CHUNKS_AT_ONCE", 20)
    monkeypatch.setattr(group_footers, "_MOST_CUT_BYTES", 1)
    monkeypatch.setattr(group_footers, "_MOST_PARSED_BYTES", 1)
    loads.clear()
    rows = Pipeline(indexed, executor="threads").shuffle(20, seed=1)
    assert sorted(repr(row) for row in rows) == expected
    assert loads == []


def test_damage_in_the_places_is_reported_and_footers_are_read(
    indexed: Path, loads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    chunk = next(
        chunk
        for chunk in map(pq.read_metadata(indexed / INDEX).row_group(0).column, range(100))
        if chunk.path_in_schema == "chunk:id"
    )
    content = bytearray((indexed / INDEX).read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 6] ^= 0x40
    (indexed / INDEX).write_bytes(content)
    assert [row["id"] for row in Pipeline(indexed, ["id"], executor="threads")] == [*range(3 * ROWS)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "expected valid columns" in caplog.text
    assert len(loads) == 3


def no_head(table: pa.Table, description: dict[str, Any]) -> pa.Table:
    description["heads"] = [head_to_text(b"no footer")] * 2
    return table


def a_bomb(table: pa.Table, description: dict[str, Any]) -> pa.Table:
    description["heads"] = [head_to_text(bytes(300 << 20))] * 2
    return table


@pytest.mark.parametrize("change", [no_head, a_bomb])
def test_a_damaged_head_is_reported_and_footers_are_read(
    indexed: Path,
    loads: list[str],
    change: Callable[[pa.Table, dict[str, Any]], pa.Table],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rewrite(indexed, change)
    assert [row["id"] for row in Pipeline(indexed, ["id"], executor="threads")] == [*range(3 * ROWS)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "expected a valid head of files" in caplog.text
    assert len(loads) == 3


def test_a_file_without_columns_is_read_with_its_footer(indexed: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}).select([]), indexed / "3.parquet")
    write_index(indexed)
    dataset = StoredDataset([str(indexed)])
    assert dataset.group_footer(len(dataset.row_groups) - 1, frozenset(["id"])).index == ""


def swapped(table: pa.Table, one: str, other: str) -> pa.Table:
    first, second = table.column(one), table.column(other)
    table = table.set_column(table.schema.get_field_index(one), one, second)
    return table.set_column(table.schema.get_field_index(other), other, first)


def other_types(table: pa.Table, _: dict[str, Any]) -> pa.Table:
    return swapped(table, "chunk:id", "chunk:text")


def no_chunks(table: pa.Table, _: dict[str, Any]) -> pa.Table:
    place = table.schema.get_field_index("chunk:text")
    return table.set_column(place, "chunk:text", [pa.array([b"\x01"] * len(table), pa.binary())])


@pytest.mark.parametrize("lie", [other_types, no_chunks])
def test_an_index_that_cannot_be_true_is_an_error_that_says_how_to_make_a_new_one(
    indexed: Path, lie: Callable[[pa.Table, dict[str, Any]], pa.Table]
) -> None:
    rewrite(indexed, lie)
    with pytest.raises(DatasetError, match=rf"row-group index .*{INDEX}: expected the places .* write_index\(\) makes"):
        list(Pipeline(indexed, ["id", "text"], executor="threads"))


def test_pages_that_are_not_what_the_index_says_are_an_error_that_names_it(indexed: Path) -> None:
    file = indexed / "0.parquet"
    status, content = file.stat(), bytearray(file.read_bytes())
    chunk = pq.read_metadata(file).row_group(0).column(0)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DatasetError, match=rf"0\.parquet, row group 0: .* write_index\(\) makes a new .*{INDEX}"):
        list(Pipeline(indexed, ["id"], executor="threads"))


@pytest.mark.parametrize(
    ("count", "shuffled"),
    [(200, False), (200, True), pytest.param(3000, True, marks=pytest.mark.slow)],
)
def test_a_row_group_of_a_store_takes_one_request_if_there_is_an_index(
    tmp_path: Path, count: int, shuffled: bool
) -> None:
    folder, numbers = tmp_path / "lake" / "rows", list(range(count // 2))
    folder.mkdir(parents=True)
    for number in range(2):
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table({"id": numbers, "text": list(map(str, numbers))}), file, row_group_size=1)
        os.utime(file, (1e9, 1e9))  # the store's times are whole seconds
    write_index(folder)
    for cache in CACHES:
        cache.clear()
    with serving(tmp_path) as server:
        rows = Pipeline(server.url("lake/rows"), executor="threads")
        rows = rows.shuffle(50, seed=1) if shuffled else rows
        assert sorted(int(row["id"]) for row in rows) == sorted([*numbers, *numbers])
        assert server.count()["GET"] <= 1.1 * count
