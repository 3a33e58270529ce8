"""`resolve`: the file system for a URL, and the path it gets."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from processes import PATIENCE_S

from parquetry.common.base.errors import DatasetError
from parquetry.common.storage.filesystem import _with_retry_limit, credentials_advice, resolve
from parquetry.common.storage.stores import fsspec_of

pytestmark = pytest.mark.versions


def test_a_local_path_becomes_absolute_and_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    filesystem, path = resolve(str(tmp_path / "a%20b"))
    assert isinstance(filesystem, pafs.LocalFileSystem)
    assert path == str(tmp_path / "a%20b")
    for given in (tmp_path / "train", "data/../train/", "~/train"):
        assert resolve(given)[1] == os.path.join(os.getcwd(), "train")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///data/my%20set/drive%3D1/", "/data/my set/drive=1"),
        ("file://localhost/data/a#b?c", "/data/a#b?c"),
        ("FILE:///data/x", "/data/x"),
        ("file:/data/x%25", "/data/x%"),
        ("dbfs:/data/x%25", "/dbfs/data/x%25"),  # of Databricks, which decodes nothing
        ("dbfs:/Volumes/main/a/", "/Volumes/main/a"),
        ("dbfs:///data", "/dbfs/data"),
    ],
)
def test_a_file_url_is_percent_decoded(url: str, path: str) -> None:
    filesystem, found = resolve(url)
    assert isinstance(filesystem, pafs.LocalFileSystem)
    assert found == path


@pytest.mark.parametrize("url", ["file://server/data", "file://data"])
def test_a_file_url_of_another_host_is_refused(url: str) -> None:
    with pytest.raises(
        DatasetError, match=r"expected a file URL of this machine, got host '(server|data)'.*three slashes"
    ):
        resolve(url)


@pytest.mark.parametrize("url", ["", None, 3, b"/data"])
def test_a_url_that_is_not_text_is_refused(url: object) -> None:
    with pytest.raises(DatasetError, match=r"expected a non-empty string or path"):
        resolve(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["/data/\udcff", "s3://user:secret@bucket/\ud800"])
def test_a_url_that_is_not_utf_8_is_refused(url: str) -> None:
    with pytest.raises(DatasetError, match=r"expected a path in UTF-8, got '.*\\ud.*'\. Rename it\.") as caught:
        resolve(url)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(not hasattr(pafs, "S3FileSystem"), reason="pyarrow was built without S3")
def test_s3_goes_through_pyarrow() -> None:
    filesystem, path = resolve("s3://bucket/train%20set/?region=eu-west-1")
    assert isinstance(filesystem, pafs.S3FileSystem)
    assert (filesystem.region, path) == ("eu-west-1", "bucket/train set")


def test_s3_with_storage_options_goes_through_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def url_to_fs(url: str, **options: object) -> tuple[MemoryFileSystem, str]:
        seen.update(options, url=url)
        return MemoryFileSystem(), "/bucket/train"

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    filesystem, path = resolve("s3://bucket/train", storage_options={"anon": True})
    assert isinstance(filesystem, pafs.PyFileSystem)
    assert path == "/bucket/train"
    assert seen == {"anon": True, "url": "s3://bucket/train"}


def test_a_scheme_of_fsspec_goes_through_fsspec() -> None:
    filesystem, path = resolve("memory://resolved/train/")
    assert isinstance(filesystem, pafs.PyFileSystem)
    assert path == "/resolved/train"


def test_a_chain_of_fsspec_goes_through_fsspec(tmp_path: Path) -> None:
    filesystem, path = resolve(
        "simplecache::memory://chained", storage_options={"simplecache": {"cache_storage": str(tmp_path)}}
    )
    assert isinstance(filesystem, pafs.PyFileSystem)
    assert path == "/chained"


def test_an_unknown_scheme_names_the_scheme_and_the_remedy() -> None:
    with pytest.raises(DatasetError, match=r"knows, got 'nosuch'.*Correct the URL, or pass a ready filesystem"):
        resolve("nosuch://bucket/train")


def test_a_missing_fsspec_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", Mock(side_effect=ImportError("Install s3fs to access S3")))
    with pytest.raises(
        DatasetError, match=r"library for 's3' is not installed \(Install s3fs.* pip install 'parquetry\[s3\]'"
    ):
        resolve("s3://bucket/train", storage_options={"anon": True})


def test_missing_fsspec_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        DatasetError, match=r"'memory' needs fsspec, which is not installed. Run: pip install 'parquetry\[remote\]'"
    ):
        resolve("memory://train")


def test_a_file_system_that_fsspec_cannot_set_up_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"fsspec could not set up 'zip' with the options \['mode'\]"):
        resolve(f"zip://train::file://{tmp_path}/none.zip", storage_options={"mode": "r"})


def test_a_bad_uri_of_pyarrow_says_so() -> None:
    with pytest.raises(DatasetError, match=r"pyarrow could not set up 's3'"):
        resolve("s3://bucket/train?nonsense=1")


@pytest.mark.parametrize("url", ["hdfs://namenode:8020/drives", "viewfs://cluster/drives"])
def test_hdfs_goes_through_pyarrow_and_says_what_it_needs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    with pytest.raises(DatasetError, match=r"pyarrow could not set up '(hdfs|viewfs)' .*CLASSPATH to the output of"):
        resolve(url)


def test_a_given_filesystem_is_used_with_its_own_form_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert resolve("inner/train/", filesystem=given) == (given, "inner/train")
    assert resolve("s3://inner/train", filesystem=given) == (given, "inner/train")
    monkeypatch.chdir(tmp_path)
    local = pafs.LocalFileSystem()
    assert resolve("train", filesystem=local) == (local, os.path.join(os.getcwd(), "train"))


def test_a_given_fsspec_filesystem_is_wrapped() -> None:
    given = fsspec.filesystem("memory")
    filesystem, path = resolve("memory://train", filesystem=given)
    assert isinstance(filesystem, pafs.PyFileSystem)
    assert filesystem.handler.fs is given
    assert path == "/train"


def test_a_filesystem_of_another_kind_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"expected a pyarrow.fs.FileSystem or an fsspec file system, got str"):
        resolve("train", filesystem="local")


def test_storage_options_that_nothing_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"expected none with filesystem=, got \['anon'\]"):
        resolve("train", filesystem=pafs.LocalFileSystem(), storage_options={"anon": True})
    with pytest.raises(DatasetError, match=r"expected none for a local path, got \['anon'\]"):
        resolve(tmp_path, storage_options={"anon": True})


@pytest.mark.parametrize(
    ("url", "error", "named"),
    [
        ("s3://bucket/x", OSError("AWS Error ACCESS_DENIED during HeadObject operation"), "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/x", PermissionError("no"), "AWS_PROFILE"),
        ("gs://bucket/x", OSError("status(401): Anonymous caller"), "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://box/x", ValueError("AzureOptions doesn't contain a valid account name"), "AZURE_CLIENT_SECRET"),
        ("hf://datasets/a/b", OSError("401 Client Error: Unauthorized"), "HF_TOKEN"),
    ],
)
def test_a_store_that_refuses_names_its_credentials(url: str, error: Exception, named: str) -> None:
    assert named in credentials_advice(url, error)
    assert credentials_advice(url, OSError("connection reset after 4013 bytes")) == ""
    assert credentials_advice("/data/x", error) == ""


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("gs://bucket/x", "gs://bucket/x?retry_limit_seconds=2"),
        ("gcs://me@bucket/x?scheme=http", "gcs://me@bucket/x?scheme=http&retry_limit_seconds=2"),
        ("gs://bucket?retry_limit_seconds=7", "gs://bucket?retry_limit_seconds=7"),
    ],
)
def test_google_storage_gives_up_within_seconds(url: str, asked: str) -> None:
    assert _with_retry_limit(url) == asked


class _OfOneProcess(LocalFileSystem):
    """Refuses to work in a forked process, as fsspec's remote file systems do."""

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.owner = os.getpid()

    def info(self, path: Any, **options: Any) -> Any:
        if self.owner != os.getpid():
            raise RuntimeError("This class is not fork-safe")
        return super().info(path, **options)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_forked_process_makes_a_file_system_of_its_own(tmp_path: Path, wrapped: bool) -> None:
    given = _OfOneProcess()
    filesystem, path = resolve(
        str(tmp_path), filesystem=pafs.PyFileSystem(pafs.FSSpecHandler(given)) if wrapped else given
    )
    assert fsspec_of(filesystem) is given
    with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=_keep, initargs=(filesystem, path)) as pool:
        assert pool.submit(_type_of_kept).result(PATIENCE_S) == pafs.FileType.Directory
    assert fsspec_of(filesystem) is given


_KEPT: list[Any] = []


def _keep(*kept: Any) -> None:
    _KEPT[:] = kept


def _type_of_kept() -> pafs.FileType:
    filesystem, path = _KEPT
    return filesystem.get_file_info(path).type
