"""The row-group index: it matches the footers, and is never used for files other than those it describes."""

from __future__ import annotations

import datetime
import decimal
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, FieldNotFoundError
from parquetry.common.dataset import dataset as dataset_module
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index import write_index
from parquetry.common.dataset.index_file import IndexFile
from parquetry.common.dataset.index_format import METADATA_KEY
from parquetry.common.engine.run.selecting import select_rows
from parquetry.common.pipeline.counting import count_lengths
from parquetry.common.plan.plan import Plan
from parquetry.common.plan.selection.statistics import column_bytes, column_statistics, decoded_bytes
from parquetry.common.stages.where import Where

pytestmark = pytest.mark.versions

ROWS = 40
GROUP = 7


def some_table(first: int, rows: int = ROWS) -> pa.Table:
    """Returns a column of every kind with statistics, and some without."""
    n = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(n, pa.int64()),
            "small": pa.array([i % 100 for i in n], pa.uint8()),
            "some": pa.array([None if i % 3 else i for i in n], pa.int32()),
            "half": pa.array(np.arange(first, first + rows).astype(np.float16)),
            "float": pa.array([float("nan") if i % 11 == 0 else i / 2 for i in n], pa.float32()),
            "flag": pa.array([i % 20 < 10 for i in n]),
            "text": pa.array([f"å{i:05d}" for i in n]),
            "large": pa.array([f"{i:05d}" for i in n], pa.large_string()),
            "word": pa.array([f"w{i // 10:04d}" for i in n]).dictionary_encode(),
            "bytes": pa.array([bytes([i % 250, 255]) for i in n], pa.binary()),
            "fixed": pa.array([bytes([i % 250, 1]) for i in n], pa.binary(2)),
            "day": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(days=i) for i in n]),
            "time": pa.array([i * 1_000_000_001 for i in n], pa.timestamp("ns")),
            "zoned": pa.array([i * 1_000_001 for i in n], pa.timestamp("us", "UTC")),
            "clock": pa.array([i * 1000 for i in n], pa.time64("us")),
            "span": pa.array([i * 1000 for i in n], pa.duration("ms")),
            "money": pa.array([decimal.Decimal(i).scaleb(-2) for i in n], pa.decimal128(12, 2)),
            "nothing": pa.nulls(rows, pa.int16()),
            "list": pa.array([[i, i + 1] for i in n], pa.list_(pa.int32())),
            "pair": pa.array([{"a": i, "b": {"c": str(i)}} for i in n]),
            "map": pa.array([[("k", i)] for i in n], pa.map_(pa.string(), pa.int64())),
        }
    )


FIELDS = [*(set(some_table(0, 1).column_names) - {"pair", "map"}), "pair.a", "pair.b.c", "map.key", "map.value"]


def make(root: Path, files: int = 4) -> Path:
    for number in range(files):
        directory = root / f"part={number % 2}"
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(some_table(number * ROWS), directory / f"{number}.parquet", row_group_size=GROUP)
    return root


def opened(*roots: Path) -> StoredDataset:
    """Opens the dataset and asserts that its index is used."""
    dataset = StoredDataset([str(root) for root in roots])
    assert dataset.index is not None
    return dataset


def without_index(*roots: Path) -> StoredDataset:
    """Opens the dataset from its footers."""
    dataset = StoredDataset([str(root) for root in roots])
    dataset.__dict__["index"] = None
    return dataset


def refused(root: Path) -> StoredDataset:
    """Opens the dataset and asserts that its index is not used."""
    dataset = StoredDataset([str(root)])
    assert dataset.index is None
    return dataset


def no_footers(*args: object) -> None:
    raise AssertionError("all footers were read")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "data")


@pytest.fixture
def indexed(root: Path) -> Path:
    write_index(str(root))
    return root


def assert_same(got: StoredDataset, expected: StoredDataset, names: list[str]) -> None:
    """Asserts that row groups, statistics, and bytes are equal, including types."""
    for name in ("file", "group", "rows"):
        ours, theirs = getattr(got.row_groups, name), getattr(expected.row_groups, name)
        assert ours.dtype == theirs.dtype == np.int64
        assert ours.tolist() == theirs.tolist()
    assert got.fingerprint == expected.fingerprint
    for name in names:
        ours, theirs = column_statistics(got, name), column_statistics(expected, name)
        for bound in ("minimum", "maximum"):
            left, right = getattr(ours, bound), getattr(theirs, bound)
            assert (left is None) == (right is None), name
            assert left is None or left.equals(right), name
        assert ours.null_count.tolist() == theirs.null_count.tolist(), name
        assert ours.exact == theirs.exact, name
    for row_group in range(len(expected.row_groups)):
        for chosen in ([], names, *([name] for name in names)):
            assert column_bytes(got, row_group, chosen) == column_bytes(expected, row_group, chosen), chosen
            assert decoded_bytes(got, row_group, chosen) == decoded_bytes(expected, row_group, chosen), chosen


def test_the_index_says_what_the_footers_say(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = without_index(indexed)
    assert len(expected.file_facts.counts) == 4
    monkeypatch.setattr(dataset_module, "_facts_in_footers", no_footers)
    assert_same(opened(indexed), expected, [*FIELDS, "part", "not there"])


def test_statistics_are_there_for_every_type_that_has_them(indexed: Path) -> None:
    known = {name for name in FIELDS if column_statistics(opened(indexed), name).minimum is not None}
    assert {"id", "some", "float", "text", "word", "day", "time", "zoned", "money", "pair.a", "pair.b.c"} <= known


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("id") < 21,
        (pc.field("time") >= pa.scalar(50 * 1_000_000_001, pa.timestamp("ns"))) & (pc.field("part") == 1),
        pc.field("text") == "å00033",
        pc.field("word").isin(["w0001", "w0009"]),
        pc.field("nothing").is_null() & (pc.field("flag") == True),  # noqa: E712  # an expression, not a test
        pc.field("small") > 300,
    ],
    ids=str,
)
def test_a_filter_finds_the_same_rows_with_and_without_the_index(
    indexed: Path, expression: pc.Expression, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "first"))
    select = partial(select_rows, memory_limit=1 << 30, count=partial(count_lengths, Pipeline(indexed)))
    expected = Plan(without_index(indexed), [Where.of(expression)], select).selection
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "second"))
    got = Plan(opened(indexed), [Where.of(expression)], select).selection
    assert got.reports == expected.reports
    assert got.rows.before.tolist() == expected.rows.before.tolist()
    assert got.rows.values.tolist() == expected.rows.values.tolist()


def test_one_footer_is_read_without_the_others(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "stored_footers", no_footers)
    assert opened(indexed).footer(2).num_rows == ROWS


def test_only_chosen_columns_are_described_and_the_others_come_from_footers(root: Path) -> None:
    path = write_index(root, columns=["id", "pair.*", "list"])
    names = pq.read_schema(path).names
    assert {name for name in names if ":" in name} == {
        *(f"{kind}:{name}" for name in ("id", "pair.a", "pair.b.c") for kind in ("min", "max", "nulls")),
        *(
            f"{kind}:{leaf}"
            for leaf in ("id", "pair.a", "pair.b.c", "list.list.element")
            for kind in ("stored", "decoded", "chunk")
        ),
    }
    assert_same(opened(root), without_index(root), FIELDS)


def test_a_column_that_matches_nothing_is_refused(root: Path) -> None:
    with pytest.raises(FieldNotFoundError, match="field 'speed': expected the name of a field"):
        write_index(str(root), columns=["speed"])
    assert {path.name for path in root.iterdir()} == {"part=0", "part=1"}


def test_an_index_that_is_written_again_replaces_the_old_one(indexed: Path) -> None:
    pq.write_table(some_table(500), indexed / "part=1" / "9.parquet", row_group_size=3)
    assert write_index(str(indexed)) == str(indexed / "_row_groups.parquet")
    assert_same(opened(indexed), without_index(indexed), ["id"])
    assert {path.name for path in indexed.iterdir()} == {"part=0", "part=1", "_row_groups.parquet"}


def test_the_index_has_a_line_for_each_row_group(indexed: Path) -> None:
    table = pq.read_table(indexed / "_row_groups.parquet").drop_columns(["min:time", "max:time"])  # not for datetime
    assert table.num_rows == 4 * 6
    first = pq.read_metadata(indexed / "part=0" / "0.parquet").row_group(0)
    line = table.slice(0, 1).to_pylist()[0]
    assert line["file"] == "part=0/0.parquet"
    assert line["rows"] == GROUP
    assert line["size_bytes"] == (indexed / "part=0" / "0.parquet").stat().st_size
    assert line["compressed_bytes"] == sum(first.column(n).total_compressed_size for n in range(first.num_columns))
    assert (line["min:id"], line["max:id"], line["nulls:id"]) == (0, 6, 0)
    assert (line["min:nothing"], line["nulls:nothing"]) == (None, 7)


def other_size(root: Path) -> None:
    path = root / "part=1" / "1.parquet"
    status = path.stat()
    pq.write_table(some_table(0, 5), path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def other_time(root: Path) -> None:
    path = root / "part=1" / "1.parquet"
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 2_000))


def renamed(root: Path) -> None:
    os.rename(root / "part=1" / "1.parquet", root / "part=1" / "11.parquet")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another size": (other_size, r"stale: file .*1\.parquet: expected \d+ bytes, got \d+"),
    "another time": (other_time, r"stale: file .*1\.parquet: expected the version that has"),
    "a new file": (
        lambda root: pq.write_table(some_table(900), root / "part=0" / "9.parquet"),
        r"stale: expected every file, got none for .*9\.parquet",
    ),
    "a file that is gone": (
        lambda root: (root / "part=1" / "3.parquet").unlink(),
        r"stale: file .*3\.parquet: expected the file, found none",
    ),
    "a renamed file": (renamed, r"stale: file .*1\.parquet: expected the file, found none"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_index_is_reported_and_not_used(indexed: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    apply, message = CHANGES[change]
    apply(indexed)
    dataset = refused(indexed)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert re.search(message, caplog.text)
    files = sorted(indexed.rglob("[0-9]*.parquet"))
    assert dataset.row_groups.rows.sum() == sum(pq.read_metadata(path).num_rows for path in files)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_in_column(path: Path, name: str) -> None:
    """Damages the values of one column in a way that only a checksum detects reliably."""
    group = pq.read_metadata(path).row_group(0)
    column = next(group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == name)
    raw = bytearray(path.read_bytes())
    raw[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 6] ^= 0x40
    path.write_bytes(raw)


def in_another_order(path: Path) -> None:
    metadata = pq.read_schema(path).metadata
    table = pq.read_table(path)
    pq.write_table(table.take(list(reversed(range(len(table))))).replace_schema_metadata(metadata), path)


def described_otherwise(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: b'["not", "a", "description"]'}), path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut in half": cut_in_half,
    "empty": lambda path: os.truncate(path, 0),
    "text": lambda path: path.write_text("not Parquet"),
    "a bit in a page": lambda path: flip_in_column(path, "rows"),
    "another Parquet file": lambda path: pq.write_table(some_table(0), path),
    "lines in another order": in_another_order,
    "another description": described_otherwise,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_index_is_reported_and_not_used(indexed: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGE[kind](indexed / "_row_groups.parquet")
    dataset = refused(indexed)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "expected" in caplog.text
    assert "footers of all files are read instead" in caplog.text
    assert_same(dataset, without_index(indexed), ["id"])


def test_damage_in_a_column_that_is_read_later_is_reported_once(
    indexed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip_in_column(indexed / "_row_groups.parquet", "min:id")
    dataset = opened(indexed)
    assert_same(dataset, without_index(indexed), ["id", "small"])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "expected valid columns" in caplog.text


def test_an_index_that_is_replaced_while_in_use_is_not_read_further(
    indexed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = opened(indexed)
    pq.write_table(some_table(900), indexed / "part=0" / "9.parquet")
    write_index(str(indexed))
    assert column_statistics(dataset, "id").minimum.to_pylist()[0] == 0
    assert "changed since the pipeline was planned" in caplog.text


def test_a_dataset_that_moved_keeps_its_index(indexed: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "set"
    moved.parent.mkdir()
    os.rename(indexed, moved)
    assert_same(opened(moved), without_index(moved), ["id", "part"])


def test_a_copy_with_new_times_does_not_use_the_index(
    indexed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(indexed, tmp_path / "kept")
    assert_same(opened(tmp_path / "kept"), without_index(indexed), ["id"])
    shutil.copytree(indexed, tmp_path / "copy", copy_function=shutil.copyfile)
    assert refused(tmp_path / "copy").row_groups.rows.sum() == 4 * ROWS
    assert "expected the version that has" in caplog.text


def test_files_without_row_groups_are_described(root: Path, tmp_path: Path) -> None:
    with pq.ParquetWriter(root / "part=0" / "1.parquet", some_table(0).schema):
        pass
    os.rename(root / "part=0" / "0.parquet", root / "part=0" / "7.parquet")
    assert pq.read_metadata(root / "part=0" / "1.parquet").num_row_groups == 0
    write_index(str(root))
    assert_same(opened(root), without_index(root), ["id", "part"])


def test_a_dataset_without_any_row_group_has_an_index(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", some_table(0).schema):
        pass
    write_index(str(tmp_path))
    assert_same(opened(tmp_path), without_index(tmp_path), ["id"])


def test_files_of_different_columns_and_types_give_the_same_statistics(tmp_path: Path) -> None:
    wide = pa.table({"a": [1, 2], "b": ["x", "y"], "late": [1.5, 2.5], "grows": [{"p": 1, "q": 2}] * 2})
    narrow = pa.table({"a": [3, 4], "grows": [{"p": 5}] * 2})
    other = pa.table({"a": pa.array([5, 6], pa.int32()), "b": [[1], [2]], "grows": [{"p": 7}] * 2})
    tables = [narrow, wide, other, narrow]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=1)
    write_index(str(tmp_path))
    names = ["a", "b", "late", "grows.p", "grows.q", "grows", "b.list.element"]
    assert_same(opened(tmp_path), without_index(tmp_path), names)
    os.rename(tmp_path / "1.parquet", tmp_path / "-.parquet")
    write_index(str(tmp_path))
    assert_same(opened(tmp_path), without_index(tmp_path), names)


def test_several_directories_with_an_index_each_are_one_dataset(tmp_path: Path) -> None:
    one, two = make(tmp_path / "b"), make(tmp_path / "a", files=3)
    write_index(str(one), columns=["id", "text"])
    write_index(str(two))
    assert_same(opened(one, two), without_index(one, two), ["id", "text", "day", "list"])


def test_one_directory_without_an_index_means_no_index(indexed: Path, tmp_path: Path) -> None:
    plain = make(tmp_path / "plain")
    assert StoredDataset([str(indexed), str(plain)]).index is None


def test_a_single_file_is_read_without_an_index(indexed: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = indexed / "part=0" / "0.parquet"
    assert StoredDataset([str(path)]).index is None
    assert caplog.records == []
    with pytest.raises(DatasetError, match="expected one directory, got a file"):
        write_index(str(path))


def test_another_file_system_can_hold_an_index() -> None:
    memory = fsspec.filesystem("memory")
    memory.makedirs("/indexed")
    for number in range(2):
        with memory.open(f"/indexed/{number}.parquet", "wb") as stream:
            pq.write_table(some_table(number * ROWS), stream, row_group_size=GROUP)
    try:
        write_index("memory://indexed")
        dataset = StoredDataset(["memory://indexed"])
        assert dataset.index is not None
        assert column_statistics(dataset, "id").minimum.to_pylist() == [*range(0, 40, 7), *range(40, 80, 7)]
        assert len(memory.ls("/indexed")) == 3
    finally:
        memory.rm("/indexed", recursive=True)


def test_a_failed_write_leaves_the_old_index_and_no_piece(indexed: Path) -> None:
    before = (indexed / "_row_groups.parquet").read_bytes()
    (indexed / "part=1" / "3.parquet").write_bytes(b"PAR1 damaged PAR1")
    with pytest.raises(DatasetError, match=r"3\.parquet: expected a readable Parquet file"):
        write_index(str(indexed))
    assert (indexed / "_row_groups.parquet").read_bytes() == before
    assert {path.name for path in indexed.iterdir()} == {"part=0", "part=1", "_row_groups.parquet"}


def test_an_index_that_cannot_be_written_says_so(root: Path) -> None:
    (root / "_row_groups.parquet" / "x").mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"row-group index '.*_row_groups\.parquet': cannot be written"):
        write_index(str(root))
    assert StoredDataset([str(root)]).index is None


def test_columns_of_a_wide_index_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({f"c{number}": [1, 2] for number in range(300)})
    write_index(write_table(tmp_path, table, row_group_size=1))
    reads: list[int] = []
    read = IndexFile.read
    monkeypatch.setattr(IndexFile, "read", lambda part, names: reads.append(len(names)) or read(part, names))
    assert len(list(Pipeline(tmp_path, executor="threads"))) == 2
    assert max(reads) == 300
    assert len(reads) < 10
