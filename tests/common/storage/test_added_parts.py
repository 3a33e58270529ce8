"""Readers see all files of a part that a writer adds, or none of them, whenever they list."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from s3_server import serving

from parquetry.common.base.errors import DatasetError
from parquetry.common.storage import files
from parquetry.common.storage.added_parts import ADDED, ADDING, note_path, note_text, roll_back
from parquetry.common.storage.file_versions import FileVersion, versions_below
from parquetry.common.storage.files import list_files
from parquetry.common.storage.whole_files import claim

PART = "0123456789abcdef" * 2
OLD, NEW = ["day=1/part-0.parquet", "part-0.parquet"], ["day=1/part-1.parquet", "day=2/part-1.parquet"]


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def note(root: Path, mark: str) -> Path:
    path = Path(note_path(str(root), PART, mark))
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(note_text(NEW))
    return path


def listed(url: object) -> list[str]:
    return [file.path.partition("/data/")[2] for file in list_files([str(url)]).files]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "bucket/data", *OLD, *NEW)
    return tmp_path / "bucket/data"


def test_files_of_a_part_that_is_being_added_are_left_out(root: Path, tmp_path: Path) -> None:
    pending = note(root, ADDING)
    assert listed(root) == listed(f"{root}/**/*.parquet") == listed(tmp_path) == OLD
    assert listed(root / "day=1") == OLD[:1]
    with pytest.raises(DatasetError, match=r"expected Parquet files, found none among"):
        listed(root / "day=2")
    pending.rename(note_path(str(root), PART, ADDED))
    assert listed(root) == listed(tmp_path) == sorted(OLD + NEW)


def test_a_dataset_is_listed_again_if_a_part_was_added_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listing sees one of the two files, because the writer moves them while it runs."""
    (root / NEW[1]).unlink()
    runs = []

    def slow(*arguments: Any) -> list[FileVersion]:
        listing = versions_below(*arguments)
        runs.append(1)
        if len(runs) == 1:
            put(root, NEW[1])
            note(root, ADDED)
        return listing

    monkeypatch.setattr(files, "versions_below", slow)
    assert listed(root) == sorted(OLD + NEW)
    assert len(runs) == 2


def test_a_store_is_asked_for_notes_only_where_there_are_any(root: Path, tmp_path: Path) -> None:
    with serving(tmp_path) as store:
        url = store.url("bucket/data")
        assert len(list_files([url]).files) == 4
        requests = len(store.log)
        note(root, ADDING)
        store.log.clear()
        assert [file.relative for file in list_files([url]).files] == OLD
        assert len(store.log) <= requests + 4


def test_a_part_that_is_added_while_a_store_answers_is_in_the_listing(root: Path, tmp_path: Path) -> None:
    with serving(tmp_path) as store:
        pending = note(root, ADDING)

        def settles(method: str, path: str) -> None:
            if path.endswith(ADDING) and pending.exists():
                pending.rename(note_path(str(root), PART, ADDED))

        store.fault = settles
        assert len(list_files([store.url("bucket/data")]).files) == 4
        assert not pending.exists()


def test_a_note_that_cannot_be_understood_is_an_error_with_its_path(root: Path) -> None:
    for text in ('{"files": ["../../etc/passwd"]}', '{"files": ["/etc/part-0"]}', "{", "[]", '{"files": [1]}'):
        note(root, ADDING).write_text(text)
        with pytest.raises(DatasetError, match=rf"file .*{PART}\.adding: expected the paths of the files .*delete it"):
            listed(root)
        roll_back(pafs.LocalFileSystem(), str(root))
        assert (root / NEW[0]).exists()


def test_only_the_files_of_dead_writers_are_removed(root: Path) -> None:
    local, hidden = pafs.LocalFileSystem(), root / f".parquetry-{PART}"
    pending = note(root, ADDING)
    hidden.mkdir()
    owner = os.open(hidden, os.O_RDONLY)
    claim(owner)
    roll_back(local, str(root))
    assert pending.exists()
    assert (root / NEW[0]).exists()
    os.close(owner)
    roll_back(local, str(root))
    assert not pending.exists()
    assert listed(root) == OLD
    assert not (root / "day=2").exists()


def test_notes_of_added_parts_are_kept_for_readers_that_list_now(root: Path) -> None:
    old, local = note(root, ADDED), pafs.LocalFileSystem()
    roll_back(local, str(root))
    assert old.exists()
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    roll_back(local, str(root))
    assert not old.exists()
    assert listed(root) == sorted(OLD + NEW)
    assert json.loads(note_text(["part-0"])) == {"version": 1, "files": ["part-0"]}
