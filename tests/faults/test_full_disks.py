"""A full disk causes an error or a warning with the path, and leaves nothing unfinished behind.

These tests limit this process's files to a few kilobytes (``RLIMIT_FSIZE``). Writes then fail in the middle of a file,
as on a full disk, and no privileges are needed.
"""

from __future__ import annotations

import io
import os
import random
import resource
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common import DatasetWriter, Pipeline, Unischema, UnischemaField
from parquetry.common.apps.tools import convert, copy, rewrite
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.engine.read import disk_cache
from parquetry.common.tables.frames import keep_table

_MOST_BYTES = 4096
_SCHEMA = Unischema("full", [UnischemaField("id", np.int64), UnischemaField("raw", bytes)])


@contextmanager
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_rows(target: Path, row_group_rows: int = 50) -> None:
    draw = random.Random(7)
    with DatasetWriter(target, _SCHEMA, row_group_rows=row_group_rows) as writer:
        for _ in range(1_000):
            writer.write({"id": draw.randrange(1 << 40), "raw": draw.randbytes(40)})


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored")
    write_rows(root / "rows")
    write_rows(root / "many", row_group_rows=1)
    with tarfile.open(root / "samples.tar", "w") as tar:
        for number in range(100):
            member = tarfile.TarInfo(f"{number:05d}.txt")
            member.size = 200
            tar.addfile(member, io.BytesIO(os.urandom(100).hex().encode()))
    return root


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def unfinished(directory: Path) -> list[str]:
    """Returns the hidden files under a directory, except a copy's job, which another call continues."""
    return [
        path.name
        for path in directory.rglob(".*")
        if path.name not in (".lock", ".claims", ".parquetry-copy") and path.is_file()
    ]


@pytest.mark.parametrize(
    "write",
    [
        lambda stored, out: write_rows(out),
        lambda stored, out: rewrite(stored / "rows", out, progress=False),
        lambda stored, out: rewrite(stored / "rows", out, sort_by="id", progress=False),
        lambda stored, out: copy(stored / "rows", out, progress=False),
        lambda stored, out: convert(str(stored / "samples.tar"), out, progress=False),
    ],
    ids=["writer", "rewrite", "sorted", "copy", "convert"],
)
def test_a_dataset_that_does_not_fit_is_an_error_with_its_path(
    stored: Path, tmp_path: Path, write: Callable[[Path, Path], object]
) -> None:
    out = tmp_path / "out"
    with full_disk(), pytest.raises(DatasetError, match=rf"writing '{out}.*free space"):
        write(stored, out)
    assert unfinished(tmp_path) == []
    assert not list(tmp_path.rglob("*.parquet"))
    write(stored, out)  # once there is space, it can be written there
    assert list(out.glob("*.parquet"))


def test_an_index_that_does_not_fit_is_an_error_and_the_old_one_stays(stored: Path) -> None:
    index = stored / "many" / "_row_groups.parquet"
    for before in (False, True):
        content = index.read_bytes() if before else b""
        with full_disk(), pytest.raises(DatasetError, match=rf"row-group index '{index}': cannot be written"):
            write_index(stored / "many")
        assert index.exists() == before
        assert unfinished(stored / "many") == []
        if before:
            assert index.read_bytes() == content
        else:
            write_index(stored / "many")


def test_a_frame_that_does_not_fit_is_an_error_with_its_directory(cache_directory: Path) -> None:
    with full_disk(), pytest.raises(DatasetError, match=rf"cannot be kept in {cache_directory / 'frames'}"):
        keep_table(pa.table({"id": np.random.default_rng(7).integers(1 << 60, size=3_000)}))
    assert unfinished(cache_directory) == []


def test_a_selection_that_does_not_fit_is_a_warning_with_its_path(
    stored: Path, cache_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(stored / "rows", ["id"]).where([("id", ">", 1 << 39)])
    with full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        count = len(list(pipeline))
    assert 0 < count < 1_000
    assert f"{cache_directory / 'selections'}/" in caplog.text
    assert "could not be kept" in caplog.text
    assert unfinished(cache_directory) == []


def test_a_cache_that_does_not_fit_is_a_warning_with_its_directory(
    stored: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk_cache._warned.clear()
    pipeline = Pipeline(stored / "rows", ["raw"], executor="threads").cache(tmp_path / "kept")
    with full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        assert len(list(pipeline)) == 1_000
    assert f"cache {tmp_path / 'kept'} cannot be written" in caplog.text
    assert unfinished(tmp_path) == []
