"""A file that the system does not let a process read is not called damaged, and no advice says to remove it."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from page_shell import run_parquetry

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, access_failed
from parquetry.common.dataset.dataset import read_key_values
from parquetry.common.dataset.index import load_index, write_index
from parquetry.common.engine.read.file_cells import read_whole
from parquetry.common.parquet.footers import load_footer, remedy
from parquetry.common.storage.file_cache import FileCache
from parquetry.common.storage.file_versions import look
from parquetry.common.storage.files import list_files
from parquetry.common.tables.delta_log import _read_commit

HARMFUL = re.compile(r"damaged|corrupt|remove it|delete it|write it again|repair", re.IGNORECASE)
NAME = "rows.parquet"
LOCAL = pafs.LocalFileSystem()
_NOBODY = 65534


@contextmanager
def denied(path: Path) -> Iterator[None]:
    """Takes the right to read a file from this process, also from root. Other threads lose it, too."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


def footer(folder: Path) -> Callable[[], object]:
    (file,) = Pipeline(folder).dataset.files
    return lambda: load_footer(LOCAL, file)


def columns(folder: Path) -> Callable[[], object]:
    pipeline = Pipeline(folder, executor="threads", workers=1)
    pipeline.plan()
    return lambda: next(iter(pipeline))


def metadata(folder: Path) -> Callable[[], object]:
    version = look(LOCAL, str(folder / NAME))[1]
    assert version is not None
    return lambda: read_key_values(LOCAL, version)


def delta_commit(folder: Path) -> Callable[[], object]:
    return lambda: list(_read_commit(LOCAL, str(folder / NAME)))


def listed_image(folder: Path) -> Callable[[], object]:
    version = look(LOCAL, str(folder / NAME))[1]
    assert version is not None
    return lambda: read_whole(version, memoryview(bytearray(version.size_bytes)))


@pytest.mark.parametrize("reader", [footer, columns, metadata, delta_commit, listed_image])
def test_a_file_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, reader: Callable[[Path], Callable[[], object]]
) -> None:
    pq.write_table(pa.table({"id": range(5)}), tmp_path / NAME)
    read = reader(tmp_path)
    with denied(tmp_path / NAME), pytest.raises(DatasetError, match=r"[Pp]ermission denied.*may not read it") as raised:
        read()
    assert NAME in str(raised.value)
    assert not HARMFUL.search(str(raised.value))


def test_verify_says_once_which_file_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as directory:  # nobody may list what is below `tmp_path`
        os.chmod(directory, 0o755)
        file = Path(directory, NAME)
        pq.write_table(pa.table({"id": range(5)}), file)
        assert run_parquetry("verify", directory).exit_code == 0  # imports what nobody may read, too
        with denied(file):
            shown = run_parquetry("verify", directory)
    text = shown.output.replace("\n", "")
    assert shown.exit_code == 1
    assert text.startswith(f"file: file {file}: cannot be read: ")
    assert "may not read it" in text
    assert not HARMFUL.search(text)


def test_an_index_that_may_not_be_read_is_not_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"id": range(5)}), tmp_path / NAME)
    listing = list_files([str(tmp_path)])
    index = Path(write_index(str(tmp_path)))
    with denied(index):
        assert load_index(listing) is None
    assert "cannot be reached" in caplog.text
    assert "write_index" not in caplog.text


def test_a_kept_file_of_another_user_is_not_called_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = FileCache(tmp_path, ".kept")
    cache.save("a", b"kept")
    with denied(Path(cache.path("a"))):
        assert cache.load("a", bytes) is None
    assert "kept file cannot be read" in caplog.text
    assert not HARMFUL.search(caplog.text)
    assert cache.load("a", bytes) == b"kept"


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES)),
        *(ConnectionResetError("by the peer"), TimeoutError("the mount"), PermissionError("denied")),
    ],
    ids=repr,
)
def test_what_the_system_refuses_says_nothing_about_the_bytes(error: Exception) -> None:
    told = remedy(error, "Remove it, or write it again.")
    assert told
    assert not HARMFUL.search(told)


@pytest.mark.parametrize(
    "error",
    [
        *(OSError("Corrupt snappy compressed data."), OSError(errno.EINVAL, "Invalid argument"), pa.ArrowInvalid("x")),
        *(FileNotFoundError(errno.ENOENT, "No such file"), DatasetError("a page"), ValueError("x"), None),
    ],
    ids=repr,
)
def test_other_errors_are_about_bytes_that_were_seen(error: Exception | None) -> None:
    assert access_failed(error) == ""
