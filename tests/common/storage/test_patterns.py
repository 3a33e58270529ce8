"""Patterns name the files that Python's `glob` finds, on every file system."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_server import serving

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.storage.file_versions import versions_below
from parquetry.common.storage.files import list_files
from parquetry.common.storage.patterns import pattern_of

NAMES = st.sampled_from(["a", "b", "ab", "a[1]", "x=1", "x=2", "B"])
FILES = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/".join(names) + ".parquet")
PARTS = st.sampled_from(["*", "**", "?", "a*", "[ab]", "[!a]", "x=*", "*.parquet", "a.parquet", "a[[]1]", "a", "a?*"])


def write(path: Path, *numbers: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(numbers, pa.int64())}), path)


def ids(url: object, **options: object) -> list[int]:
    return sorted(int(row["id"]) for row in Pipeline(url, ["id"], **options))


def found_by_glob(root: Path, pattern: str) -> set[str]:
    """The files that match, and those in directories that match."""
    found = set()
    matches = glob.glob(f"{root}/{pattern}", recursive=True)
    for path in (Path(match) for match in matches if match[-1] != "/" or os.path.isdir(match)):  # glob does not check
        found.update(str(file) for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    return found


@given(st.sets(FILES, min_size=1, max_size=8), st.lists(PARTS, min_size=1, max_size=4))
def test_the_files_that_glob_finds_are_listed(files: set[str], parts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(b"x")
        pattern = pattern_of(f"{root}/{'/'.join(parts)}")
        wanted = found_by_glob(root, "/".join(parts)) if pattern else set()
        if not wanted or pattern is None:
            return
        inside = pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())
        for filesystem, base in ((None, f"{root}/"), (fsspec.filesystem("file"), f"{root}/"), (inside, "")):
            listing = list_files([base + "/".join(parts)], filesystem=filesystem)
            prefix = "" if base else f"{root}/"
            assert {prefix + file.path.lstrip("/" if prefix else "") for file in listing.files} == wanted
            assert len(listing.roots) == len(wanted)


def test_only_directories_that_may_match_are_listed(tmp_path: Path) -> None:
    for name in ("a/x.parquet", "b/x.parquet", "b/c/x.parquet"):
        write(tmp_path / name, 1)
    (tmp_path / "b" / "loop").symlink_to(tmp_path)  # an error if it is listed
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    assert len(ids(f"{tmp_path}/a/*.parquet")) == len(ids(f"{tmp_path}/[a]*/*")) == 1
    with pytest.raises(DatasetError, match="link"):
        ids(f"{tmp_path}/**/*.parquet")
    seen: list[str] = []

    def wants(path: str, is_directory: bool) -> bool:
        seen.append(path)
        return not is_directory

    assert versions_below(pafs.LocalFileSystem(), str(tmp_path / "b" / "c"), wants)
    assert seen == [str(tmp_path / "b" / "c" / "x.parquet")]


def test_a_name_with_wildcards_that_exists_is_that_file(tmp_path: Path) -> None:
    write(tmp_path / "part-[1].parquet", 1)
    write(tmp_path / "part-1.parquet", 2)
    assert ids(f"{tmp_path}/part-[1].parquet") == [1]
    assert ids(f"{tmp_path}/part-[[]1].parquet") == [1]
    assert ids(f"{tmp_path}/part-[0-9].parquet") == [2]


def test_directories_below_the_pattern_s_beginning_are_partitions(tmp_path: Path) -> None:
    for year in (2023, 2024):
        for place in ("eu", "us"):
            write(tmp_path / f"year={year}" / place / "p.parquet", year)
    rows = list(Pipeline(f"{tmp_path}/year=*/eu/*.parquet"))
    assert [(int(row["id"]), int(row["year"])) for row in rows] == [(2023, 2023), (2024, 2024)]
    both = Pipeline([f"{tmp_path}/year=*/eu/*", tmp_path / "year=2023" / "us"])
    assert sorted(int(row["year"]) for row in both) == [2023, 2023, 2024]
    assert "year" not in Pipeline(f"{tmp_path}/year=2023/*/p.parquet").schema.fields


def test_a_pattern_takes_the_schema_and_the_version_of_its_directory(tmp_path: Path) -> None:
    schema = Unischema("rows", [UnischemaField("id", np.int64), UnischemaField("x", np.float32, (2,))])
    url = tmp_path / "data"
    write_dataset(
        url, schema, ({"id": n, "x": np.full(2, n, np.float32)} for n in range(12)), row_group_rows=4, files=3
    )
    (url / "_row_groups.parquet").unlink(missing_ok=True)
    whole, matched = Pipeline(url), Pipeline(f"{url}/part-*.parquet")
    assert matched.schema == whole.schema
    assert matched.dataset.version == whole.dataset.version
    iterator = iter(whole.shuffle(4, seed=1))
    first = [int(next(iterator)["id"]) for _ in range(5)]
    again = iter(matched.shuffle(4, seed=1))
    again.load_state_dict(iterator.state_dict())
    assert sorted(first + [int(row["id"]) for row in again]) == list(range(12))


def test_a_pattern_for_some_files_does_not_use_the_index_of_all(tmp_path: Path) -> None:
    from parquetry.common.dataset.index import write_index

    for number in range(3):
        write(tmp_path / f"{number}.parquet", number)
    write_index(tmp_path)
    assert ids(f"{tmp_path}/[12].parquet") == [1, 2]
    with pytest.raises(DatasetError, match="expected one directory, got a file or several URLs"):
        write_index(f"{tmp_path}/*.parquet")


def test_a_last_slash_asks_for_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", 1)
    write(tmp_path / "sub" / "b.parquet", 2)
    monkeypatch.chdir(tmp_path)
    assert ids("*/") == ids(f"{tmp_path}/*/") == ids(f"file://{tmp_path}/*/") == [2]
    assert ids("*") == [1, 2]


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_first_slash_of_a_file_system_does_not_matter(tmp_path: Path, slash: str) -> None:
    write(tmp_path / "_x" / "data" / "year=1" / "a.parquet", 1)
    inside = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/{tmp_path.name}/year=1/a.parquet", (tmp_path / "_x/data/year=1/a.parquet").read_bytes())
    wrapped = pafs.PyFileSystem(pafs.FSSpecHandler(memory))
    for url in ("_x/data", "_x/data/year=*/*.parquet", "_x/data/*/"):
        assert ids(f"{slash}{url}", filesystem=inside) == [1]
    for url in (tmp_path.name, f"{tmp_path.name}/year=*/*.parquet"):
        assert ids(f"{slash}{url}", filesystem=wrapped, executor="threads") == [1]


@pytest.mark.parametrize("url", ["", ["a", ""], "a\0b"])
def test_a_url_that_names_nothing_is_refused(url: object) -> None:
    with pytest.raises(PipelineError, match="expected a URL, a path, or a list of them"):
        Pipeline(url)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*.pq", r"found none below '.*' that matches"),
        ("nothing/*.parquet", r"found nothing at '.*/nothing', where the pattern begins"),
        ("1.parquet/*", r"found nothing at '.*/1\.parquet', where the pattern begins"),
        ("table/*.parquet", "found a Delta table"),
        ("table/x=*/*.parquet", "found a Delta table"),
        ("table/x=1/*.parquet", "found a Delta table"),
        ("*/x=1/*.parquet", "found a Delta table"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused(tmp_path: Path, pattern: str, message: str) -> None:
    write(tmp_path / "1.parquet", 1)
    write(tmp_path / "table" / "0.parquet", 1)
    write(tmp_path / "table" / "x=1" / "0.parquet", 1)
    (tmp_path / "table" / "_delta_log").mkdir()
    (tmp_path / "table" / "_delta_log" / f"{0:020}.json").write_text("{}")
    with pytest.raises(DatasetError, match=message):
        ids(f"{tmp_path}/{pattern}")
    assert ids(f"{tmp_path}/*.parquet") == [1]  # beside the table


def test_patterns_work_in_stores(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "bucket" / "data" / f"year={number}" / "part-0.parquet", number)
        write(tmp_path / "bucket" / "data" / f"year={number}" / "part-1.parquet", 10 + number)
    with serving(tmp_path) as store:
        assert ids(store.url("bucket/data/year=[01]/*-0.parquet")) == [0, 1]
        assert ids(store.url("bucket/data/**/part-1.parquet")) == [10, 11, 12]
        with pytest.raises(DatasetError, match="that matches"):
            ids(store.url("bucket/data/*.parquet"))
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/{tmp_path.name}/a.parquet", (tmp_path / "bucket/data/year=1/part-0.parquet").read_bytes())
    assert ids(f"memory://{tmp_path.name}/[a-c].parquet", executor="threads") == [1]


def test_relative_patterns_are_found_by_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        write(tmp_path / f"{number}.parquet", number)
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline("*.parquet", ["id"], executor="sidecar")
    monkeypatch.chdir(os.sep)
    assert sorted(int(row["id"]) for row in pipeline) == [0, 1]
