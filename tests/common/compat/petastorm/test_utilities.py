"""Caches and file systems under Petastorm's names, and the package's exports."""

from __future__ import annotations

import errno
import importlib
import os
import pickle
import shutil
import sys
import threading
import urllib.parse
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import parquetry.common.compat.petastorm as petastorm
from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, SchemaError
from parquetry.common.compat.petastorm import reading
from parquetry.common.compat.petastorm.benchmark.throughput import ReadMethod, WorkerPoolType, reader_throughput
from parquetry.common.compat.petastorm.codecs import NdarrayCodec, ScalarCodec
from parquetry.common.compat.petastorm.errors import DecodeFieldError
from parquetry.common.compat.petastorm.etl import petastorm_generate_metadata
from parquetry.common.compat.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from parquetry.common.compat.petastorm.fs_utils import (
    FilesystemResolver,
    get_filesystem_and_path_or_paths,
    normalize_dir_url,
)
from parquetry.common.compat.petastorm.loading import LoadJob, RowGroupLoader
from parquetry.common.compat.petastorm.local_disk_cache import LocalDiskCache, NullCache
from parquetry.common.compat.petastorm.tools import copy_dataset
from parquetry.common.compat.petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
from parquetry.common.compat.petastorm.utils import decode_row, run_in_subprocess
from parquetry.common.storage.file_cache import FileCache

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"


def test_the_public_names_are_there() -> None:
    assert petastorm.__all__ == sorted(petastorm.__all__)
    assert all(hasattr(petastorm, name) for name in petastorm.__all__)


def test_a_null_cache_computes_every_value_again() -> None:
    cache = NullCache()
    assert cache.get("key", lambda: 1) == 1
    assert cache.get("key", lambda: 2) == 2


def test_a_disk_cache_keeps_values_within_its_limit(tmp_path: Path) -> None:
    cache = LocalDiskCache(str(tmp_path / "cache"), 100_000, 4)
    assert cache.get("key", lambda: 42) == 42
    assert cache.get("key", lambda: 43) == 42
    assert LocalDiskCache(str(tmp_path / "cache"), 100_000, 4).get("key", lambda: 44) == 42
    for number in range(30):
        cache.get(f"key {number}", lambda: np.zeros(10_000, np.uint8))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 100_000
    LocalDiskCache(str(tmp_path / "cache"), 1000, 4, cleanup=False).cleanup()
    assert (tmp_path / "cache").exists()
    cache.cleanup()
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match="expected size_limit_bytes >= 1"):
        LocalDiskCache(str(tmp_path), 0, 4)


def test_a_cached_pickle_that_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    cache = LocalDiskCache(str(tmp_path / "cache"), 100_000, 4)
    assert cache.get("key", lambda: 1) == 1
    (file,) = (tmp_path / "cache").glob("*.pickle")
    file.chmod(0o666)
    assert cache.get("key", lambda: 2) == 2
    assert cache.get("key", lambda: 3) == 2  # it was rewritten


def test_a_full_disk_only_costs_a_cache_its_speed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileCache, "keep", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert LocalDiskCache(str(tmp_path / "cache"), 100_000, 4).get("key", lambda: 1) == 1
    assert "could not be kept: [Errno 28]" in caplog.text


def test_urls_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    filesystem, path = get_filesystem_and_path_or_paths(f"file://{tmp_path}/a")
    assert filesystem.exists(path)
    assert filesystem.open(path).read() == b"abc"
    assert path == f"{tmp_path}/a"
    given = pafs.LocalFileSystem()
    assert get_filesystem_and_path_or_paths(str(tmp_path), filesystem=given)[0] is given
    assert get_filesystem_and_path_or_paths([str(tmp_path), f"{tmp_path}/b"])[1] == [str(tmp_path), f"{tmp_path}/b"]
    for urls in (["file:///a", "hdfs:///b"], []):  # says so without connecting to either
        with pytest.raises(ValueError, match="expected one file system for all"):
            get_filesystem_and_path_or_paths(urls)
    assert normalize_dir_url("file:///a//") == "file:///a"
    for url in (None, 5, ""):
        with pytest.raises(ValueError, match="must be a string"):
            normalize_dir_url(url)


def test_a_resolver_gives_the_file_system_of_a_url(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    url = f"file://{tmp_path}/a"
    for given in (url, urllib.parse.urlparse(url)):
        resolver = FilesystemResolver(given)
        assert resolver.parsed_dataset_url() == urllib.parse.urlparse(url)
        assert resolver.filesystem().exists(resolver.get_dataset_path())
        assert pickle.loads(pickle.dumps(resolver.filesystem_factory()))().exists(str(tmp_path))
    with pytest.raises(ValueError, match=r"expected a scheme\. Prepend file://"):
        FilesystemResolver(str(tmp_path))


def test_a_parsed_url_without_a_host_is_no_path_of_this_machine() -> None:
    for url in ("memory:///a", "memory://a/b", "memory:///a?b=c"):
        expected, given = FilesystemResolver(url), FilesystemResolver(urllib.parse.urlparse(url))
        assert given.filesystem() is expected.filesystem()
        assert given.get_dataset_path() == expected.get_dataset_path()
    with pytest.raises(OSError, match="'s3:///a'"):
        FilesystemResolver(urllib.parse.urlparse("s3:///a"))


def test_a_file_system_that_was_given_out_is_taken_in_again() -> None:
    filesystem, path = get_filesystem_and_path_or_paths(str(REAL))
    with petastorm.make_reader(path, schema_fields=["id"], filesystem=filesystem) as reader:
        assert len(list(reader)) == 60


def test_other_urls_get_fsspecs_file_systems() -> None:
    filesystem, path = get_filesystem_and_path_or_paths("memory://bucket/a")
    with filesystem.open(path, "wb") as file:
        file.write(b"abc")
    assert filesystem.exists(path)
    assert get_filesystem_and_path_or_paths("memory://bucket/a")[0].cat(path) == b"abc"


def test_a_file_system_needs_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("parquetry.common.compat.petastorm.fs_utils.import_module", absent)
    with pytest.raises(DatasetError, match=r"Run: pip install 'parquetry\[remote\]'"):
        get_filesystem_and_path_or_paths(str(tmp_path))


def test_rows_that_something_else_has_read_are_decoded() -> None:
    array = NdarrayCodec()
    fields = [
        UnischemaField("matrix", np.int32, (2,), array, False),
        UnischemaField("scalar", np.uint8, (), ScalarCodec(pa.int16()), False),
        UnischemaField("raw", np.bytes_, (), None, False),
        UnischemaField("list", np.int64, (None,), None, False),
        UnischemaField("none", np.int64, (), None, True),
    ]
    encoded = array.encode(fields[0], np.array([1, 2], np.int32))
    row = {"matrix": encoded, "scalar": 3, "raw": bytearray(b"a\0"), "list": [1], "none": None, "other": 1}
    read = decode_row(row, Unischema("s", fields))
    np.testing.assert_array_equal(read.pop("matrix"), np.array([1, 2], np.int32), strict=True)
    assert read == {"scalar": 3, "raw": b"a\0", "list": [1], "none": None}
    assert type(read["scalar"]) is np.uint8
    with pytest.raises(DecodeFieldError, match='Decoding field "matrix" failed'):
        decode_row({"matrix": b"bogus"}, Unischema("s", fields))


def test_a_local_cache_is_removed_on_demand(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_type": "local-disk", "cache_location": str(tmp_path / "cache")}
    with petastorm.make_reader(str(REAL), schema_fields=["id"], **options) as reader:
        assert len(list(reader)) == 60
        assert any((tmp_path / "cache").iterdir())
        reader.cleanup_cache()
        assert not (tmp_path / "cache").exists()
        reader.cleanup_cache()
    with petastorm.make_reader(str(REAL), schema_fields=["id"], **options) as reader:
        list(reader)
        (tmp_path / "cache" / "mine").touch()
        reader.cleanup_cache()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mine"]
    with petastorm.make_reader(str(REAL), schema_fields=["id"]) as reader:
        reader.cleanup_cache()


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_the_cache_of_a_live_reader_is_removed_after_what_it_loads_is_kept(
    tmp_path: Path, pool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    removed = []

    def clear(directory: str) -> None:
        assert all(future.done() for future in reader._futures)
        removed.append(directory)

    monkeypatch.setattr(reading, "clear", clear)
    options: dict[str, Any] = {"cache_type": "local-disk", "cache_location": str(tmp_path), "reader_pool_type": pool}
    with petastorm.make_reader(str(REAL), schema_fields=["id"], workers_count=2, **options) as reader:
        next(reader)
        reader.cleanup_cache()
        assert len(list(reader)) == 59
    assert removed == [str(tmp_path)]
    assert capsys.readouterr().out == "Cache cleanup complete.\n"


@pytest.mark.parametrize("stops", [False, True])
def test_removing_the_cache_waits_for_row_groups_that_nobody_reads_any_more(
    tmp_path: Path, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    loaded: list[int] = []
    load = RowGroupLoader.load

    def load_slowly(self: RowGroupLoader, job: LoadJob) -> Any:
        if job.row_group == 0:
            assert began.wait(60)
            raise ZeroDivisionError
        result = load(self, job)
        if job.row_group == 1:
            began.set()
            assert go_on.wait(60)
            loaded.append(1)
        return result

    cleared: list[list[int]] = []
    monkeypatch.setattr(RowGroupLoader, "load", load_slowly)
    monkeypatch.setattr(reading, "clear", lambda directory: cleared.append(list(loaded)))
    options: dict[str, Any] = {"cache_type": "local-disk", "cache_location": str(tmp_path), "workers_count": 2}
    with petastorm.make_reader(str(REAL), ["id"], shuffle_row_groups=False, **options) as reader:
        with pytest.raises(ZeroDivisionError):
            next(reader)
        if stops:
            reader.stop()  # cancels those that no thread has begun
        removing = threading.Thread(target=reader.cleanup_cache, daemon=True)
        removing.start()
        removing.join(0.2)
        assert not cleared
        go_on.set()
        removing.join(60)
    assert cleared == [[1]]


def test_the_cache_of_a_stopped_reader_is_removed(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 8:
            began.set()
            assert go_on.wait(60)
        return row

    cache = tmp_path / "cache"
    options: dict[str, Any] = {"cache_type": "local-disk", "cache_location": str(cache), "workers_count": 1}
    spec = petastorm.TransformSpec(wait)
    with petastorm.make_reader(str(REAL), ["id"], shuffle_row_groups=False, transform_spec=spec, **options) as reader:
        next(reader)
        assert began.wait(60)
        reader.stop()  # its other row groups are cancelled
        removing = threading.Thread(target=reader.cleanup_cache, daemon=True)
        removing.start()
        go_on.set()
        removing.join(60)
        assert not removing.is_alive()
    assert not cache.exists()


def test_a_disk_cache_too_small_for_its_values_is_refused(tmp_path: Path) -> None:
    text = r"Condition 'size_limit_bytes / shards < 5 \* expected_row_size_bytes' needs to hold.*>= 10000, got 5000"
    with pytest.raises(ValueError, match=text):
        LocalDiskCache(str(tmp_path), 5000, 200, shards=10)
    for cache in (
        LocalDiskCache(str(tmp_path), 10_000, 200, shards=10),
        LocalDiskCache(str(tmp_path), 5000, 200, shards=10, eviction_policy="none"),
    ):
        assert cache.get("key", lambda: 1) == 1


def test_cleaning_up_a_disk_cache_survives_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = LocalDiskCache(str(tmp_path / "cache"), 1 << 20, 4, cleanup=True)
    cache.get("key", lambda: 1)
    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", lambda _: (_ for _ in ()).throw(OSError("busy")))
        cache.cleanup()
    assert capsys.readouterr().out == "Error during rmtree: busy\n"
    for _ in range(2):
        cache.cleanup()
        assert not (tmp_path / "cache").exists()


def test_a_function_runs_in_a_process_of_its_own() -> None:
    assert run_in_subprocess(os.getpid) != os.getpid()
    with pytest.raises(ValueError, match="invalid literal"):
        run_in_subprocess(int, "a")


def test_errors_are_those_that_programs_catch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for error in (ValueError, OSError):
        with pytest.raises(error, match=r"found nothing there.*scheme-less"):
            get_schema_from_dataset_url("/nowhere")
    with pytest.raises(DatasetError, match="found nothing there") as raised:
        get_schema_from_dataset_url("file:///nowhere")
    assert not isinstance(raised.value, ValueError)
    with pytest.raises(AssertionError, match="expected a Unischema, got dict"):
        dict_to_spark_row({}, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\['nothing'\] do not match any fields.*Fields are"):
        copy_dataset.copy_dataset(None, str(REAL), "", ["nothing"], [], False, 1, 196)
    spark = SimpleNamespace(AnalysisException=type("AnalysisException", (Exception,), {}))
    (tmp_path / "part").write_bytes(b"")
    with pytest.raises(DatasetError, match="already exists") as raised:
        copy_dataset.copy_dataset(None, str(REAL), str(tmp_path), ["id"], [], False, 1, 196)
    assert not isinstance(raised.value, spark.AnalysisException)
    monkeypatch.setitem(sys.modules, "pyspark.sql.utils", spark)
    with pytest.raises(spark.AnalysisException, match="already exists") as raised:
        copy_dataset.copy_dataset(None, str(REAL), str(tmp_path), ["id"], [], False, 1, 196)
    assert isinstance(raised.value, DatasetError)


def test_a_dataset_is_copied(tmp_path: Path) -> None:
    target = str(tmp_path / "copy")
    copy_dataset.copy_dataset(None, str(REAL), target, ["id", "label"], ["label"], False, 2, 1)
    rows = list(Pipeline(target))
    assert {row["id"] for row in rows} == {i for i in range(60) if i % 7}
    assert set(rows[0]) == {"id", "label"}
    with pytest.raises(DatasetError):
        copy_dataset.copy_dataset(None, str(REAL), target, None, None, False, None, None)
    copy_dataset._main([str(REAL), target, "--field-regex", "id", "--overwrite-output", "--row-group-size-mb", "1"])
    assert [set(row) for row in Pipeline(target).take(1)] == [{"id"}]


def test_a_schema_is_written_for_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "data"
    shutil.copytree(REAL / "drive=d0", source)
    with pytest.raises(SchemaError, match="Could not find the unischema"):
        petastorm_generate_metadata.generate_petastorm_metadata(None, str(source))
    with pytest.raises(SchemaError, match=r"expected the dotted name of a Unischema, got 'pathlib\.Path'"):
        petastorm_generate_metadata.generate_petastorm_metadata(None, str(source), "pathlib.Path")
    (tmp_path / "fields_of_the_test.py").write_text(
        "import numpy as np\n"
        "from parquetry.common.compat.petastorm.unischema import Unischema, UnischemaField\n"
        "New = Unischema('New', [UnischemaField('id', np.int64, (), None, False)])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    petastorm_generate_metadata._main(["--dataset_url", str(source), "--unischema_class", "fields_of_the_test.New"])
    petastorm_generate_metadata.generate_petastorm_metadata(None, str(source))
    with petastorm.make_reader(str(source)) as reader:
        assert list(reader.schema.fields) == ["id"]
        assert len(list(reader)) == 20


def test_throughput_is_measured() -> None:
    for options in ({"pool_type": WorkerPoolType.NONE}, {"pool_type": WorkerPoolType.THREAD, "loaders_count": 1}):
        result = reader_throughput(
            str(REAL), ["id"], warmup_cycles_count=3, measure_cycles_count=70, spawn_new_process=False, **options
        )
        assert result.samples_per_second == pytest.approx(1 / result.time_mean)
    assert [str(method) for method in ReadMethod] == ["tf", "python"]
    with pytest.raises(ValueError, match="expected measure_cycles_count >= 1"):
        reader_throughput(str(REAL), measure_cycles_count=0)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("tools.copy_dataset", ["copy_dataset", "args_parser", "main"]),
        ("etl.petastorm_generate_metadata", ["generate_petastorm_metadata", "main"]),
        ("benchmark.throughput", ["reader_throughput", "BenchmarkResult", "ReadMethod", "WorkerPoolType"]),
        ("utils", ["decode_row", "DecodeFieldError"]),
    ],
)
def test_names_that_public_code_imports_are_there(module: str, names: list[str]) -> None:
    found = importlib.import_module(f"parquetry.common.compat.petastorm.{module}")
    assert [name for name in names if not hasattr(found, name)] == []
