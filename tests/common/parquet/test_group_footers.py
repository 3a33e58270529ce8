"""Row groups are read with footers that describe only them and their columns, which say what the whole footer says."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spies import spied

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.base.memory.lru_cache import LRUCache
from parquetry.common.base.native.library import is_compiled
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.parquet import footers, group_footers
from parquetry.common.parquet.group_footers import (
    GroupFooter,
    StoredFooter,
    kept_cut,
    load_stored_footer,
    read_stored_footer,
)
from parquetry.common.parquet.native_decode import kept_columns
from parquetry.common.storage.temporary import TemporaryBuffer

pytestmark = pytest.mark.versions

ROWS, GROUP_ROWS = 120, 2
THREADS = 8
TABLE = pa.table(
    {
        "id": range(ROWS),
        "a.e": [f"text {n}" for n in range(ROWS)],
        "a": [{"b": n, "c": {"d": [n] * (n % 3)}} for n in range(ROWS)],
        "map": pa.array([[("k", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "wait": pa.array(range(ROWS), pa.duration("s")),  # its type is only in Arrow's schema
        "time": pa.array(range(ROWS), pa.timestamp("ns", "Europe/Paris")),
    }
)
CHOICES = {
    None: ["id", "a.e", "a", "map", "wait", "time"],
    frozenset(["id"]): ["id"],
    frozenset(["a.e"]): ["a.e", "a"],
    frozenset(["a.c.d", "wait"]): ["a", "wait"],
    frozenset(["map.key", "time", "none"]): ["map", "time"],
    frozenset(["none"]): ["id"],  # a footer has at least one column
}


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    for cache in (footers._kept, group_footers._stored, group_footers._cuts, group_footers._groups):
        cache.clear()


def written(folder: Path, files: int = 1, **options: Any) -> StoredDataset:
    for number in range(files):
        pq.write_table(TABLE, folder / f"{number}.parquet", row_group_size=GROUP_ROWS, **options)
    return StoredDataset([str(folder)])


def no_room(monkeypatch: pytest.MonkeyPatch, cuts: int = 1) -> None:
    """Leaves no room for footers in memory, except for some of those that are cut."""
    monkeypatch.setattr(group_footers, "_MOST_STORED_BYTES", 1)
    monkeypatch.setattr(group_footers, "_MOST_PARSED_BYTES", 1)
    monkeypatch.setattr(group_footers, "_MOST_CUT_BYTES", cuts)
    for cache in (group_footers._stored, group_footers._cuts, group_footers._groups):
        cache.clear()
    group_footers.keep_footers_within(1 << 30, Owner())


class Owner:
    """A pipeline that reads."""


def cut_group(footer: StoredFooter, dataset: StoredDataset, names: frozenset[str] | None, *, bare: bool) -> GroupFooter:
    part = footer.head.part(names)
    return kept_cut(part, [footer.cut(part, bare=bare)]).group(dataset.files[0], 7)


@pytest.mark.parametrize("names", CHOICES, ids=lambda names: " ".join(sorted(names or ["all"])))
@pytest.mark.parametrize("store_schema", [True, False])
def test_a_part_of_a_footer_reads_the_rows_that_the_whole_footer_does(
    names: frozenset[str] | None, store_schema: bool, tmp_path: Path
) -> None:
    dataset = written(tmp_path, store_schema=store_schema)
    whole = pq.read_metadata(tmp_path / "0.parquet")
    for number in (0, 1, 59):
        described = dataset.group_footer(number, names)
        footer, columns = described.footer, CHOICES[names]
        assert (footer.num_row_groups, footer.num_rows, described.group) == (1, GROUP_ROWS, 0)
        assert footer.created_by == whole.created_by
        assert footer.schema.to_arrow_schema().equals(
            pa.schema([whole.schema.to_arrow_schema().field(name) for name in columns])
        )
        assert described.columns.arrow.names == columns
        chunks = {chunk.path_in_schema: chunk for chunk in map(whole.row_group(number).column, range(8))}
        size_bytes = 0
        for leaf in range(footer.num_columns):
            ours = footer.row_group(0).column(leaf).to_dict()
            theirs = chunks[ours["path_in_schema"]].to_dict()
            size_bytes += theirs["total_uncompressed_size"]
            left_out = {"statistics", "is_stats_set", "has_offset_index", "has_column_index"}
            assert {key: value for key, value in ours.items() if key not in left_out} == {
                key: value for key, value in theirs.items() if key not in left_out
            }
        assert footer.row_group(0).total_byte_size == size_bytes
        with pq.ParquetFile(tmp_path / "0.parquet", metadata=footer) as file:
            expected = pq.ParquetFile(tmp_path / "0.parquet").read_row_group(number, columns=columns)
            assert file.read().equals(expected.select(columns))


def test_columns_keep_their_statistics_for_planning(tmp_path: Path) -> None:
    dataset = written(tmp_path)
    (footer,) = dataset.footers_of(["id"])
    whole = pq.read_metadata(tmp_path / "0.parquet")
    assert (footer.num_row_groups, footer.num_columns, footer.num_rows) == (ROWS // GROUP_ROWS, 1, ROWS)
    for number in range(footer.num_row_groups):
        assert footer.row_group(number).column(0).to_dict() == whole.row_group(number).column(0).to_dict()


@pytest.mark.parametrize("bare", [True, False])
def test_without_the_compiled_core_the_same_columns_are_cut(
    bare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = written(tmp_path)
    fast = load_stored_footer(dataset.filesystem, dataset.files[0])
    monkeypatch.setattr(group_footers, "footer_fields", lambda *_: None)
    monkeypatch.setattr(group_footers, "cut_row_groups", lambda *_, **__: None)
    slow = load_stored_footer(dataset.filesystem, dataset.files[0])
    assert slow.rows.tolist() == fast.rows.tolist()
    for names in CHOICES:
        ours, theirs = (cut_group(footer, dataset, names, bare=bare).footer for footer in (slow, fast))
        assert ours.schema.equals(theirs.schema)
        for leaf in range(ours.num_columns):
            one, other = (footer.row_group(0).column(leaf) for footer in (ours, theirs))
            assert one.data_page_offset == other.data_page_offset
            assert one.total_compressed_size == other.total_compressed_size
        group = cut_group(fast, dataset, names, bare=bare)
        known = group.facts[
            ["values", "unpacked_bytes", "stored_bytes", "data_page", "dictionary_page", "begin", "end"]
        ]
        with monkeypatch.context() as patch:
            patch.setattr(group_footers, "chunk_facts", lambda *_: None)
            again = cut_group(slow, dataset, names, bare=bare)
            assert again.facts[[*known.dtype.names]].tolist() == known.tolist()


def test_files_with_the_same_schema_share_their_head(tmp_path: Path) -> None:
    dataset = written(tmp_path, files=3)
    first, second, third = (read_stored_footer(dataset.filesystem, file) for file in dataset.files)
    assert first.head is second.head is third.head
    assert dataset.group_footer(0).columns is dataset.group_footer(100).columns


def test_other_columns_are_added_to_those_of_a_file(tmp_path: Path) -> None:
    dataset = written(tmp_path)
    assert dataset.group_footer(0, frozenset(["id"])).footer.num_columns == 1
    assert dataset.group_footer(0, frozenset(["wait"])).footer.num_columns == 2
    both = dataset.group_footer(3, frozenset(["id"]))
    assert both.columns.arrow.names == ["id", "wait"]
    assert dataset.group_footer(3, frozenset(["wait"])) is both


@pytest.mark.parametrize("order", ["in order", "shuffled"])
def test_footers_beyond_the_limit_are_read_again(order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, files=3)
    rows = Pipeline(tmp_path, ["id", "a.e"], executor="threads")
    rows = rows.shuffle(30, seed=2) if order == "shuffled" else rows
    expected = [repr(row) for row in rows]
    no_room(monkeypatch)
    again = Pipeline(tmp_path, ["id", "a.e"], executor="threads")
    assert [repr(row) for row in (again.shuffle(30, seed=2) if order == "shuffled" else again)] == expected
    assert len(group_footers._stored) == len(group_footers._cuts) == len(group_footers._groups) == 1


def test_a_footer_is_loaded_once_to_plan_and_once_to_read_if_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, files=3)
    loads = spied(monkeypatch, group_footers, "load_stored_footer", lambda filesystem, file: file.relative)
    # Room for where the row groups are, but not for what they are.
    no_room(monkeypatch, cuts=3 * (group_footers._FOOTER_BYTES + 24 * ROWS // GROUP_ROWS))
    rows = Pipeline(tmp_path, ["id", "a.e", "time"], executor="threads").shuffle(60, seed=1)
    assert sorted(int(row["id"]) for row in rows) == sorted([*range(ROWS)] * 3)
    assert sorted(loads) == sorted([f"{number}.parquet" for number in range(3)] * 2)


def test_a_full_temporary_file_goes_with_the_last_footer_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, files=3)
    files: list[weakref.ref[TemporaryBuffer]] = []

    def counted() -> TemporaryBuffer:
        file = TemporaryBuffer()
        files.append(weakref.ref(file))
        return file

    monkeypatch.setattr(group_footers, "TemporaryBuffer", counted)
    monkeypatch.setattr(group_footers, "_spill", group_footers._Spill())
    monkeypatch.setattr(group_footers, "_MOST_SPILLED_BYTES", 1)
    no_room(monkeypatch)
    assert len(list(Pipeline(tmp_path, ["id"], executor="threads").shuffle(60, seed=1))) == 3 * ROWS
    assert len(files) > 3
    assert sum(file() is not None for file in files) <= 2  # of the footer that is kept, and the latest


def test_the_second_footer_of_a_folder_is_read_at_once(tmp_path: Path) -> None:
    table = pa.table({f"a column with a long name {number}": [1] for number in range(1000)})
    for number in range(3):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    dataset = StoredDataset([str(tmp_path)])
    group_footers._ends.clear()
    (first, second, _), reads = dataset.files, []

    class Source:
        def __init__(self, path: str) -> None:
            self._file = pa.OSFile(path)
            self.size = self._file.size

        def read_at(self, count: int, begin: int) -> bytes:
            reads.append(count)
            content: bytes = self._file.read_at(count, begin)
            return content

    for file in (first, second):
        load_stored_footer(dataset.filesystem, file)
        reads.clear()
        footers.footer_tail(Source(file.path), group_footers._first_bytes(file))
        assert len(reads) == 1
    assert footers.FIRST_BYTES < reads[0] < 2 * (tmp_path / "0.parquet").stat().st_size


def test_columns_that_are_not_read_take_no_memory(tmp_path: Path) -> None:
    def kept_bytes(columns: int) -> int:
        folder = tmp_path / str(columns)
        folder.mkdir()
        table = pa.table({f"x{number}": np.arange(40, dtype=np.int32) for number in range(columns)})
        pq.write_table(table, folder / "0.parquet", row_group_size=1)
        dataset = StoredDataset([str(folder)])
        group_footers._cuts.clear()
        dataset.group_footer(0, frozenset(["x0"]))
        return group_footers._cuts.size

    assert kept_bytes(100) < 1.1 * kept_bytes(2)  # places later in a file are larger numbers


class Meeting(LRUCache[Any, Any]):
    """A cache whose threads have all looked for a value before the first one makes it."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self._looks = threading.Semaphore(0)
        self.makes = 0

    def get(self, key: Any) -> Any:
        value = super().get(key)
        self._looks.release()
        return value

    def made(self, key: Any, make: Callable[[], Any], *is_enough: Callable[[Any], bool]) -> Any:
        def counted() -> Any:
            if self.makes == 0:
                self.makes = 1
                for _ in range(THREADS):
                    assert self._looks.acquire(timeout=30)
            else:
                self.makes += 1
            return make()

        return super().made(key, counted, *is_enough)


@pytest.mark.parametrize("part", ["whole", "row groups"])
def test_threads_load_a_footer_once(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = written(tmp_path)
    assert len(dataset.row_groups) == ROWS // GROUP_ROWS
    meeting = Meeting()
    monkeypatch.setattr(*((footers, "_kept") if part == "whole" else (group_footers, "_cuts")), meeting)
    with ThreadPoolExecutor(THREADS) as pool:
        read = (lambda _: dataset.footer(0)) if part == "whole" else dataset.group_footer
        list(pool.map(read, range(THREADS)))
    assert meeting.makes == 1


@pytest.mark.parametrize("part", ["whole", "row groups"])
def test_a_footer_that_could_not_be_loaded_is_loaded_again(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = written(tmp_path)
    module, name = (footers, "load_footer") if part == "whole" else (group_footers, "load_stored_footer")
    loads: list[str] = []
    load = getattr(module, name)

    def fails_once(*arguments: Any) -> pq.FileMetaData | StoredFooter:
        loads.append("load")
        if len(loads) == 1:
            raise DatasetError("not now")
        footer: pq.FileMetaData | StoredFooter = load(*arguments)
        return footer

    monkeypatch.setattr(module, name, fails_once)
    read = dataset.footer if part == "whole" else dataset.head
    with pytest.raises(DatasetError, match="not now"):
        read(0)
    assert read(0).num_columns == read(0).num_columns == 8
    assert len(loads) == 2


def test_a_damaged_row_group_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    if not is_compiled():
        pytest.skip("no compiled core")
    written(tmp_path, files=2)
    path = tmp_path / "1.parquet"
    content = bytearray(path.read_bytes())
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[content.rindex(b"\x18\x02id\x15", begin) + 5] ^= 1 << 5  # the compression of the last row group
    path.write_bytes(content)
    dataset = StoredDataset([str(tmp_path)])
    for read in (footers.load_footer, load_stored_footer):
        assert read(dataset.filesystem, dataset.files[0])
        with pytest.raises(DatasetError, match=r"1\.parquet"):
            read(dataset.filesystem, dataset.files[1])


def test_a_row_group_that_only_pyarrow_refuses_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    group = written(tmp_path).group_footer(0, frozenset(["id"]))
    group._stored = group._stored[:-1]  # as it would be if the core had let damage pass
    with pytest.raises(DatasetError, match=r"0\.parquet"):
        _ = group.footer


@pytest.mark.skipif(not is_compiled(), reason="the compiled core reads the columns")
def test_what_the_core_knows_of_columns_stays_within_a_part_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, row_groups, limit_bytes = 300, 20, 4 << 20
    numbers = {f"c{number}": np.arange(row_groups, dtype=np.int32) for number in range(columns)}
    pq.write_table(pa.table(numbers), tmp_path / "0.parquet", row_group_size=1)
    dataset, owner = StoredDataset([str(tmp_path)]), Owner()
    monkeypatch.setattr(group_footers, "_limits", weakref.WeakKeyDictionary())  # of this test alone
    group_footers.keep_footers_within(limit_bytes, owner)
    fetcher = Fetcher(dataset, list(dataset.schema))
    for row_group in range(row_groups):
        fetcher.fetch(row_group, None)
    assert 0 < kept_columns.size <= limit_bytes // 4
    assert kept_columns.size <= group_footers.kept_footer_bytes()
