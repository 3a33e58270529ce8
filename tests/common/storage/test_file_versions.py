"""Only the planned version of a file is read: local files, and stores with tags, with times, or with neither."""

from __future__ import annotations

import gc
import io
import os
import pickle
from concurrent.futures import CancelledError
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from builders import build
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile
from memory_store import Store
from processes import exit_status_of_fork
from s3_server import serving

from parquetry.common import Pipeline, mix
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index import write_index
from parquetry.common.engine.read import fetch
from parquetry.common.storage import checked_files, file_versions, opening
from parquetry.common.storage.file_versions import FileVersion, version_of
from parquetry.common.storage.stores import store_of

CHANGED = "changed since the pipeline was planned. Create the pipeline again"
ROWS = 40


def content(first: int, *, label: int | None = None, rows: int = ROWS) -> bytes:
    """Writes a file with the numbers from ``first`` in four row groups; all such files have the same size."""
    i = np.arange(first, first + rows)
    table = pa.table({"i": i, "label": i if label is None else np.full(rows, label)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=10, compression="none", use_dictionary=False, column_encoding="PLAIN")
    return sink.getvalue().to_pybytes()


def numbers(pipeline: Pipeline) -> list[int]:
    return [int(row["i"]) for row in pipeline]


def rewrite(path: Path, new: bytes) -> None:
    path.write_bytes(new)


def replace(path: Path, new: bytes) -> None:
    """Puts another file under the name, with the first one's size and times."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(new)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)


def overwrite(path: Path, new: bytes) -> None:
    """Changes the file's content to other content of the same size, and restores its times."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.write(new)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = [rewrite, replace, overwrite]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of two files; nothing is cached from other tests."""
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "0.parquet").write_bytes(content(0))
    (folder / "1.parquet").write_bytes(content(ROWS))
    return folder


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_in_mid_epoch_is_an_error(data: Path, change: Any) -> None:
    for number in range(2, 20):
        (data / f"{number:02}.parquet").write_bytes(content(number * ROWS))
    rows = iter(Pipeline(data, workers=1, memory_limit=1))
    assert next(rows)["i"] == 0
    change(data / "19.parquet", content(10_000))
    found = []
    with pytest.raises(DatasetError, match=rf"19\.parquet: .*{CHANGED}"):
        found.extend(int(row["i"]) for row in rows)
    assert max(found, default=0) < 20 * ROWS


def test_a_file_that_is_removed_asks_for_a_new_pipeline(data: Path) -> None:
    pipeline = Pipeline(data)
    assert len(pipeline) == 2 * ROWS
    (data / "1.parquet").unlink()
    with pytest.raises(DatasetError, match=r"1\.parquet, row group 0: the file no longer exists\. .* again\.$"):
        numbers(pipeline)


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_epoch_holds_a_file_to_the_plan_and_a_new_pipeline_reads_it(data: Path, change: Any) -> None:
    path = data / "0.parquet"
    path.write_bytes(content(0, label=1))
    pipeline = Pipeline(data).where([("label", "==", 1)])
    assert numbers(pipeline) == list(range(ROWS))
    change(path, content(500, label=2))
    with pytest.raises(DatasetError, match=CHANGED):
        numbers(pipeline)
    assert numbers(Pipeline(data).where([("label", "<", 60)])) == [*range(500, 500 + ROWS), *range(ROWS, 60)]
    assert numbers(Pipeline(data).where([("label", "==", 2)])) == list(range(500, 500 + ROWS))


def test_other_rights_or_another_name_change_no_version(data: Path) -> None:
    pipeline = Pipeline(data)
    assert len(numbers(pipeline)) == 2 * ROWS
    path = data / "0.parquet"
    path.chmod(0o600)
    os.link(path, data / "_backup")
    assert len(numbers(pipeline)) == 2 * ROWS


@pytest.mark.parametrize("says", ["tag", "time", ""])
def test_a_store_is_held_to_the_plan(says: str) -> None:
    store = Store(says=says)
    store.put_file_bytes("/data/0.parquet", content(0))
    pipeline = Pipeline("/data", filesystem=store, executor="threads")
    assert numbers(pipeline) == list(range(ROWS))
    store.put_file_bytes("/data/0.parquet", content(1000))
    with pytest.raises(DatasetError, match=rf"file /data/0\.parquet: .*{CHANGED}"):
        numbers(pipeline)
    assert numbers(Pipeline("/data", filesystem=store, executor="threads")) == list(range(1000, 1000 + ROWS))


@pytest.mark.parametrize("says", ["tag", "time", ""])
def test_nothing_is_found_that_was_kept_of_another_version_or_store(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    first, second = Store("first", says), Store("second", says)
    first.put_file_bytes("/data/0.parquet", content(0))
    second.put_file_bytes("/data/0.parquet", content(1000))

    def rows(store: Store, **options: Any) -> list[int]:
        pipeline = Pipeline("/data", filesystem=store, executor="threads").where([("i", "<", 1500)])
        return numbers(pipeline.cache(str(tmp_path / "cache")))

    assert rows(first) == list(range(ROWS))
    assert rows(second) == list(range(1000, 1000 + ROWS))
    first.put_file_bytes("/data/0.parquet", content(1490))
    assert rows(first) == list(range(1490, 1500))
    first.put_file_bytes("/data/0.parquet", content(300))
    assert rows(first) == list(range(300, 300 + ROWS))
    assert bool(list((tmp_path / "cache").glob("*.table"))) == bool(says)


def test_the_version_is_the_same_in_another_look_and_another_after_each_change(data: Path) -> None:
    versions = [StoredDataset([str(data)]).version for _ in range(2)]
    for change in CHANGES:
        change(data / "1.parquet", content(1000 + len(versions)))
        versions.append(StoredDataset([str(data)]).version)
    assert versions[0] == versions[1]
    assert len(set(versions)) == len(versions) - 1


def test_the_version_of_undated_files_is_made_of_their_footers() -> None:
    store = Store()
    store.put_file_bytes("/data/0.parquet", content(0))
    first, again = (StoredDataset(["/data"], filesystem=store) for _ in range(2))
    assert first.version == again.version
    assert not first.is_cacheable
    store.put_file_bytes("/data/0.parquet", content(7))
    assert StoredDataset(["/data"], filesystem=store).version != first.version


@pytest.mark.parametrize("says", ["tag", "time", ""])
def test_an_index_is_used_only_if_the_store_tells_versions_apart(says: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(says=says)
    for number in range(2):
        store.put_file_bytes(f"/data/{number}.parquet", content(number))
    local = pafs.PyFileSystem(_Writing(store))
    write_index("/data", filesystem=local)
    assert (StoredDataset(["/data"], filesystem=store).index is not None) == bool(says)
    store.put_file_bytes("/data/1.parquet", content(1000))
    assert StoredDataset(["/data"], filesystem=store).index is None
    assert f"is stale: file /data/{1 if says else 0}.parquet: expected" in caplog.text


class _Buffer(io.BytesIO):
    def __init__(self, store: Store, path: str) -> None:
        super().__init__()
        self._end = lambda: store.put_file_bytes(path, self.getvalue())

    def close(self) -> None:
        if not self.closed:
            self._end()
        super().close()


class _Writing(pafs.FSSpecHandler):
    """Puts new files into a `Store`."""

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Buffer(self.fs, path), mode="w")

    def move(self, src: str, dest: str) -> None:
        self.fs.put_file_bytes(dest, self.fs.files.pop(src))


class _TaggedFile(MemoryFile):
    """A file of s3fs, which makes a request for details that it was not given."""

    asked: ClassVar[list[Any]] = []

    def __init__(self, fs: Any, path: str, data: bytes, name: str) -> None:
        super().__init__(fs, path, data)
        setattr(self, name, {"RequestPayer": "requester"})
        self._name = name

    def read(self, size: int = -1) -> bytes:
        self.asked.append((getattr(self, self._name), self.__dict__.get("details", {}).get("ETag")))
        return bytes(super().read(size))


@pytest.fixture
def single_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each row group fetched by itself, so that there is something to check between requests."""
    monkeypatch.setattr(fetch, "RUN_BYTES", 0)


@pytest.mark.usefixtures("single_row_groups")
@pytest.mark.parametrize("name", ["read_kw", "req_kw"])
def test_each_read_through_s3fs_requires_the_etag_and_nothing_else_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Store, "protocol", ("s3", "s3a"))
    monkeypatch.setattr(_TaggedFile, "asked", [])
    monkeypatch.setattr(Store, "_open", lambda self, path, **_: _TaggedFile(self, path, self.files[path], name))
    store = Store(name, says="tag")
    store.put_file_bytes("/data/0.parquet", content(0))
    pipeline = Pipeline("/data", filesystem=store, executor="threads")
    assert len(pipeline) == ROWS
    asked = store.asked
    assert len(numbers(pipeline)) == ROWS
    assert store.asked == asked
    assert len(_TaggedFile.asked) >= 4  # row groups
    assert all(seen == ({"RequestPayer": "requester", "IfMatch": '"1"'}, '"1"') for seen in _TaggedFile.asked)


@pytest.mark.usefixtures("single_row_groups")
def test_a_store_is_asked_about_a_file_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("once", says="tag")
    store.put_file_bytes("/data/0.parquet", content(0))
    pipeline = Pipeline("/data", filesystem=store, executor="threads", workers=1)
    assert len(numbers(pipeline)) == ROWS
    asked = store.asked
    for epochs in (1, 2):
        assert len(numbers(pipeline)) == ROWS
        assert store.asked == asked + epochs
    monkeypatch.setattr(checked_files, "RECHECK_S", 0)
    assert len(numbers(pipeline)) == ROWS
    assert store.asked >= asked + 2 + 4  # row groups


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_change_is_noticed_at_the_end_of_the_epoch_at_the_latest(tmp_path: Path, executor: str) -> None:
    build(tmp_path / "lake" / "rows", [[10, 10, 10]], names=("id",))
    (path,) = (tmp_path / "lake" / "rows").glob("part*.parquet")
    with serving(tmp_path) as server:
        pipeline = Pipeline(server.url("lake/rows"), ["id"], executor=executor, workers=1)
        assert len(pipeline) == 30

        def change(method: str, asked: str) -> None:
            if method == "GET" and "part" in asked:  # a row group: the footer is known
                os.utime(path, (1, 1))

        server.fault = change
        with pytest.raises(DatasetError, match=CHANGED):
            list(pipeline)


@pytest.mark.usefixtures("single_row_groups")
def test_files_of_s3_are_opened_once_and_checked_by_one_listing_an_epoch(tmp_path: Path) -> None:
    build(tmp_path / "lake" / "rows", [[10, 10, 10], [10, 10]], names=("id",))
    with serving(tmp_path) as server:
        pipeline = Pipeline(server.url("lake/rows"), ["id"], executor="threads")
        assert len(pipeline) == 50
        for _ in range(2):
            server.log.clear()
            assert len(list(pipeline)) == 50
            assert server.count("part") == {"GET": 5}
            assert [(method, path) for method, path, _ in server.log].count(("GET", "lake")) == 1


def test_partitions_are_checked_by_one_listing(tmp_path: Path) -> None:
    for part in range(2):
        build(tmp_path / "lake" / "rows" / f"day={part}", [[10]], names=("id",))
    with serving(tmp_path) as server:
        pipeline = Pipeline(server.url("lake/rows"), ["id"], executor="threads")
        assert len(pipeline) == 20
        server.log.clear()
        assert len(list(pipeline)) == 20
        assert server.count("part") == {"GET": 2}
        assert [(method, path) for method, path, _ in server.log].count(("GET", "lake")) == 1


def test_files_that_were_named_are_checked_one_by_one(tmp_path: Path) -> None:
    build(tmp_path / "lake" / "rows", [[10]] * 3, names=("id",))
    names = sorted(path.name for path in (tmp_path / "lake" / "rows").glob("part*.parquet"))
    with serving(tmp_path) as server:
        pipeline = Pipeline([server.url(f"lake/rows/{name}") for name in names[:2]], ["id"], executor="threads")
        assert len(pipeline) == 20
        server.log.clear()
        assert len(list(pipeline)) == 20
        assert server.count("part") == {"GET": 2, "HEAD": 2}


def test_files_are_kept_open_in_a_bounded_number_and_close_with_their_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_files, "MOST_OPEN", 2)
    build(tmp_path / "lake" / "rows", [[10]] * 5, names=("id",))
    gc.collect()
    known = set(checked_files._known)
    with serving(tmp_path) as server:
        pipeline = Pipeline(server.url("lake/rows"), ["id"], executor="threads")
        assert len(list(pipeline)) == 50
        (key,) = set(checked_files._known) - known
        assert len(checked_files._known[key].open) == 2
        assert len(list(pipeline)) == 50
        del pipeline
        gc.collect()
        assert key not in checked_files._known


def test_a_forked_process_shares_no_connection_with_its_parent(tmp_path: Path) -> None:
    build(tmp_path / "lake" / "rows", [[10, 10, 10]], names=("id",))
    with serving(tmp_path) as server:
        pipeline = Pipeline(server.url("lake/rows"), ["id"], executor="threads")
        rows = [int(row["id"]) for row in pipeline]
        before = set(server.connections)
        server.connections.clear()
        assert exit_status_of_fork(lambda: [int(row["id"]) for row in pipeline] == rows) == 0
        assert server.connections
        assert server.connections.isdisjoint(before)


def test_stores_have_names_without_their_credentials() -> None:
    def named(filesystem: Any) -> str:
        return store_of(
            filesystem if isinstance(filesystem, pafs.FileSystem) else pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
        )

    first = pafs.S3FileSystem(access_key="a", secret_key="b", region="r", endpoint_override="host:1")
    second = pafs.S3FileSystem(access_key="c", secret_key="d", region="r", endpoint_override="host:1")
    third = pafs.S3FileSystem(access_key="a", secret_key="b", region="r", endpoint_override="host:2")
    assert named(first) == named(second) != named(third)
    local = LocalFileSystem()
    systems = [local, DirFileSystem("/a", local), DirFileSystem("/b", local), Store("a"), Store("b")]
    systems += [pafs.LocalFileSystem(), pafs.SubTreeFileSystem("/a", pafs.LocalFileSystem())]
    assert len({named(system) for system in systems} - {""}) == len(systems)


def test_a_store_without_a_name_keeps_nothing_for_other_plans() -> None:
    store = Store(says="tag")
    store.put_file_bytes("/data/0.parquet", content(0))
    store.storage_options["hook"] = lambda: None  # cannot be pickled
    assert not StoredDataset(["/data"], filesystem=store).is_cacheable


@pytest.mark.parametrize(
    ("listed", "opened", "same"),
    [
        ({"size": 1, "LastModified": 5.25}, {b"content-length": b"1", b"Last-Modified": b"1970-01-01T00:00:05Z"}, True),
        ({"size": 1, "LastModified": 5.25}, {"size": 1, "Last-Modified": "Thu, 01 Jan 1970 00:00:06 GMT"}, False),
        ({"size": 1, "mtime": 5.25}, {"size": 1, "mtime": 5.75}, False),
        ({"size": 1, "ETag": '"a"'}, {"size": 1, "ETag": 'W/"a"'}, True),
        ({"size": 1, "ETag": '"a"'}, {"size": 1, "ETag": '"b"'}, False),
        ({"size": 1, "ETag": '"a"', "mtime": 5}, {"size": 1, "generation": 7, "mtime": 5}, True),
        ({"size": 1, "updated": "1970-01-01T00:00:05.123456789Z"}, {"size": 1, "updated": 5.123457}, True),
        ({"size": 1}, {"size": 2}, False),
    ],
)
def test_versions_from_a_listing_are_compared_with_those_from_opening(listed: Any, opened: Any, same: bool) -> None:
    first, second = version_of("s", "p", listed), version_of("s", "p", opened)
    assert second.became(first) == first.became(second) == (not same)


def test_a_version_goes_to_json_and_back(data: Path) -> None:
    version = file_versions.current_version(pafs.LocalFileSystem(), str(data / "0.parquet"))
    assert version is not None
    assert FileVersion.from_json(version.to_json()) == version


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_loader_worker_reads_the_version_that_its_trainer_planned(data: Path, change: Any, mixed: bool) -> None:
    pipeline = Pipeline(data)
    pipeline = mix([pipeline, Pipeline(data).take(5)], seed=1, stop="all") if mixed else pipeline
    length = len(pipeline)
    set_spawning_popen(object())  # type: ignore[arg-type]  # what multiprocessing does while it starts a child
    try:
        sent = pickle.dumps(pipeline)
    finally:
        set_spawning_popen(None)
    assert len(numbers(pickle.loads(sent))) == length
    elsewhere = pickle.dumps(pipeline)
    change(data / "1.parquet", content(1000))
    with pytest.raises(DatasetError, match=CHANGED):
        numbers(pickle.loads(sent))
    assert len(numbers(pickle.loads(elsewhere))) == length  # another time, another plan


class KeepsListings(Store):
    """A store whose file system keeps listings, as clients of object stores do."""

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path)
        return self.dircache[path] if detail else [each["name"] for each in self.dircache[path]]

    def find(self, path: str, *args: Any, detail: bool = False, **options: Any) -> Any:
        found = {each["name"]: each for each in self.dircache.get(path, [])} or super().find(path, detail=True)
        self.dircache[path] = list(found.values())
        return found if detail else list(found)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        kept = self.dircache.get(self._parent(path), [])
        return next((each for each in kept if each["name"] == path), None) or super().info(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear() if path is None else self.dircache.pop(path, None)


@pytest.mark.parametrize("files", [1, 3])
def test_a_listing_that_a_file_system_keeps_hides_no_change(files: int) -> None:
    store = KeepsListings("", "tag")
    for number in range(files):
        store.put_file_bytes(f"/data/{number}.parquet", rows_from(40 * number))
    pipeline = Pipeline("/data", filesystem=store, executor="threads")
    assert len(list(pipeline)) == files * 40
    store.put_file_bytes("/data/0.parquet", rows_from(1000))
    with pytest.raises(DatasetError, match=CHANGED):
        list(pipeline)
    assert 1000 in [row["id"] for row in Pipeline("/data", filesystem=store, executor="threads")]


def rows_from(first: int) -> bytes:
    """Returns a file of 40 rows, of the same size for all."""
    sink = io.BytesIO()
    numbers = pa.table({"id": np.arange(first, first + 40)})
    pq.write_table(numbers, sink, row_group_size=10, compression="none", use_dictionary=False, column_encoding="PLAIN")
    return sink.getvalue()


def test_a_cancelled_read_asks_the_store_nothing_more(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = Pipeline(data).dataset.files[0].version
    asked: list[object] = []
    monkeypatch.setattr(opening, "current_version", lambda *_: asked.append(1))
    with pytest.raises(CancelledError), opening.opened(pafs.LocalFileSystem(), version):
        raise CancelledError
    assert not asked
    with pytest.raises(OSError, match="reset"), opening.opened(pafs.LocalFileSystem(), version):
        raise OSError("reset")
    assert asked
