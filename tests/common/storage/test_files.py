"""Lists individually named files in a store where each query takes time."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from builders import write_table
from processes import PATIENCE_S

from parquetry.common import Pipeline, write_dataset
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.schema import Unischema, UnischemaField
from parquetry.common.storage.file_versions import versions_below
from parquetry.common.storage.files import list_files
from parquetry.common.storage.links import each_once

FILES = 4


class Store(fsspec.implementations.local.LocalFileSystem):
    """Records the requested paths; answers only when ``together`` queries wait at once."""

    cachable = False

    def __init__(self, together: int = 1) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._barrier = threading.Barrier(together)

    def info(self, path: Any, **options: Any) -> Any:
        self.asked.append(str(path))
        self._barrier.wait(PATIENCE_S)
        return super().info(path, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    folder = tmp_path_factory.mktemp("files") / "data"
    write_dataset(folder, schema, ({"id": number} for number in range(40)), row_group_rows=5, files=FILES)
    write_index(folder)
    return folder


def named(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.parquet") if not path.name.startswith("_"))


def test_many_files_are_asked_for_at_once(folder: Path) -> None:
    files = named(folder)
    listing = list_files(files, filesystem=Store(together=FILES))
    assert [file.path for file in listing.files] == files
    assert listing.roots == tuple(files)


def test_a_file_under_two_urls_is_read_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = named(folder)[0]
    assert len(Pipeline([first, first])) == len(Pipeline(first))
    for urls in ([first, str(folder)], [folder, folder], [f"{folder}/**", folder]):
        assert Pipeline(urls).dataset.files == Pipeline(folder).dataset.files
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "several URLs of one dataset lead to it. It is read once. To see some rows" in caplog.text


def test_a_file_under_two_names_is_read_once(folder: Path, tmp_path: Path) -> None:
    first = named(folder)[0]
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "hard.parquet").hardlink_to(first)
    for other in (f"/{folder}", f"file:///{folder}", f"/{first}", tmp_path / "link", tmp_path / "hard.parquet"):
        for urls in ([folder, other], [other, str(folder)]):
            assert len(Pipeline(urls)) == 40


def test_a_missing_file_among_many_is_named(folder: Path) -> None:
    files = [*named(folder), str(folder / "nothing.parquet")]
    with pytest.raises(DatasetError, match=r"nothing\.parquet'?: expected a directory or a Parquet file"):
        list_files(files, filesystem=Store())


def test_no_index_is_looked_for_below_a_file(folder: Path) -> None:
    store = Store()
    dataset = StoredDataset(named(folder), filesystem=store)
    assert dataset.index is None
    assert not [path for path in store.asked if "_row_groups" in path]
    assert len(dataset.row_groups.rows) == 8


def test_a_directory_has_its_index_and_the_same_rows(folder: Path) -> None:
    store = Store()
    assert StoredDataset([str(folder)], filesystem=store).index is not None
    whole = [int(n) for batch in Pipeline(str(folder)).batch(7) for n in batch["id"]]
    parts = [int(n) for batch in Pipeline(named(folder), filesystem=store).batch(7) for n in batch["id"]]
    assert whole == parts
    assert sorted(whole) == list(range(40))


def test_links_neither_repeat_files_nor_lose_them(tmp_path: Path) -> None:
    part = tmp_path / "data" / "part"
    write_dataset(str(part), Unischema("u", [UnischemaField("id", np.int64)]), [{"id": 1}])
    (tmp_path / "elsewhere").symlink_to(part)
    (tmp_path / "data" / "other").symlink_to(tmp_path / "elsewhere")
    assert len(Pipeline(tmp_path / "data")) == 1
    assert len(Pipeline(tmp_path / "data" / "other")) == 1
    (part / "loop").symlink_to(tmp_path / "data")
    with pytest.raises(DatasetError, match=r"/loop: the link leads to '.*data', which contains it\. Remove it\."):
        Pipeline(tmp_path / "data").dataset  # noqa: B018
    (part / "loop").unlink()
    (part / "gone.parquet").symlink_to(tmp_path / "nothing")
    with pytest.raises(
        DatasetError, match=r"gone\.parquet: the link is broken: '.*nothing' does not exist\. Remove it\."
    ):
        Pipeline(tmp_path / "data").dataset  # noqa: B018


def write(folder: Path, *names: str) -> list[Path]:
    """Writes a file with one ``id`` under each name."""
    for number, name in enumerate(names):
        write_table(folder, pa.table({"id": [number]}), name)
    return [folder / name for name in names]


def test_links_inside_a_directory_repeat_no_rows(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "run-1", "part-0.parquet", "part-1.parquet")
    (root / "latest").symlink_to("run-1")
    (root / "run-1" / "latest.parquet").symlink_to("part-1.parquet")
    (root / "run-1" / "hard.parquet").hardlink_to(root / "run-1" / "part-0.parquet")
    for urls in (root, f"{root}/*/*.parquet", sorted(root.rglob("*.parquet")), [root, root / "latest"]):
        assert [file.relative.rpartition("/")[2] for file in Pipeline(urls).dataset.files] == [
            "hard.parquet",
            "part-1.parquet",
        ]
        assert all("/run-1/" in file.path for file in Pipeline(urls).dataset.files)
    assert len(Pipeline(root / "latest")) == 2
    assert len(Pipeline(root / "run-1" / "latest.parquet")) == 1
    write_index(str(root))
    assert Pipeline(root).dataset.index is not None
    assert len(Pipeline(root)) == 2


def test_files_that_a_store_numbers_alike_are_still_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, numbers in (("a", [1]), ("b", [2, 3, 4])):
        write_table(tmp_path / name, pa.table({"x": numbers}))
    listing = list_files([str(tmp_path)])
    alike = [replace(file, version=replace(file.version, inode=(7,))) for file in listing.files]
    monkeypatch.setattr("os.path.samefile", lambda *_: True)
    assert each_once(listing.filesystem, alike) == alike


def test_a_link_to_a_partition_adds_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "day=2024-05-01", "part.parquet")
    (tmp_path / "day=latest").symlink_to("day=2024-05-01")
    assert [str(row["day"]) for row in Pipeline(tmp_path)] == ["2024-05-01"]
    assert "The rows have the values of the directories in the first of these names." in caplog.text


def test_equal_files_that_a_store_keeps_once_are_files_of_their_own_partitions(tmp_path: Path) -> None:
    (blob,) = write(tmp_path / "blobs", "0123")
    for name in ("k=1", "k=2", "k=2/again"):
        (tmp_path / "linked" / name).mkdir(parents=True)
        (tmp_path / "linked" / name / "part.parquet").symlink_to(blob)
        (tmp_path / "hard" / name).mkdir(parents=True)
        (tmp_path / "hard" / name / "part.parquet").hardlink_to(blob)
    for root in (tmp_path / "linked", tmp_path / "hard"):
        assert [int(row["k"]) for row in Pipeline(root)] == [1, 2]


def test_two_splits_that_share_a_blob_have_each_its_own(tmp_path: Path) -> None:
    (blob,) = write(tmp_path / "blobs", "0123")
    for split in ("train", "test"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{split}-00000-of-00002.parquet").symlink_to(blob)
    for split in ("train", "test"):
        (tmp_path / "data" / f"{split}-00001-of-00002.parquet").symlink_to(blob)
        assert len(Pipeline.from_huggingface_parquet(tmp_path, split=split)) == 1


class Refusing(fsspec.implementations.local.LocalFileSystem):
    """Raises a library's own error for missing credentials, which is not an OSError."""

    def info(self, path: str, **options: Any) -> Any:
        raise RuntimeError("Unable to locate credentials")


def test_a_store_that_refuses_to_list_names_its_credentials() -> None:
    with pytest.raises(DatasetError, match=r"cannot be reached: Unable to locate credentials\. .* AWS_ACCESS_KEY_ID"):
        list_files(["s3://bucket/x"], filesystem=Refusing())


def test_a_directory_into_which_a_copy_is_being_moved_is_refused(tmp_path: Path) -> None:
    hidden = ".parquetry-copy"
    for folder in ("data/p=1", "data/_old/p=1", f"data/{hidden}/p=1", f"data/_old/{hidden}"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "part-0.parquet").write_bytes(b"x")
    (tmp_path / f"data/_old/{hidden}/moving").touch()  # an old target of another writer
    urls = ("data", "", "data/*/*.parquet", "**/*.parquet", "data/p=1", "data/p=1/*.parquet")
    for url in urls:
        assert len(list_files([str(tmp_path / url)]).files) == 1
    (tmp_path / f"data/{hidden}/moving").touch()
    for url in urls:
        with pytest.raises(DatasetError, match=r"its files are being moved into place .*/?moving'\)\. Open it again"):
            list_files([str(tmp_path / url)])
    assert len(list_files([str(tmp_path / "data/p=1/part-0.parquet")]).files) == 1


def test_errors_that_concern_no_file_give_no_advice_about_networks() -> None:
    with pytest.raises(
        DatasetError, match=r"'/dev/null': cannot be reached: .*\. Check the path and its permissions\.$"
    ):
        list_files(["/dev/null"])


@pytest.mark.parametrize("name", ["", "a.JPG"])
def test_images_are_no_dataset_and_name_from_image_folder(tmp_path: Path, name: str) -> None:
    for image in ("a.JPG", "b.png"):
        (tmp_path / image).write_bytes(b"no matter what")
    with pytest.raises(DatasetError, match=r"found images, such as 'a.JPG'. .* from_image_folder\(url\)"):
        list_files([str(tmp_path / name)])


def test_splits_that_are_read_together_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def messages(*names: str, split: str | None = None) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"id": [1]}), folder / name)
        caplog.clear()
        if split is not None:
            assert "id" in Pipeline.from_huggingface_parquet(folder, split).schema.fields
        for url in () if split else (folder, folder, folder / "**/train-*.parquet", [folder / name for name in names]):
            assert "id" in Pipeline(url).schema.fields
        return caplog.messages

    splits = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
    both = (*splits, "data/test-00000-of-00001-0f3a.parquet")
    [warning] = messages(*both)
    assert "of several splits (test, train)" in warning
    assert "from_huggingface_parquet(url, split='train')" in warning
    assert messages(*splits) == messages(*splits, "data/other.parquet") == messages(*both, split="train") == []


def test_a_file_and_a_directory_that_vanish_while_they_are_listed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/x.parquet", "b/y.parquet", "z.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    scandir = os.scandir

    def moving(place: str) -> Any:
        if place == str(tmp_path):
            entries = [*scandir(place)]
            for name in ("b", "z.parquet"):
                (tmp_path / name).rename(tmp_path / "a" / f".{name}")
            return nullcontext(entries)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", moving)
    files = versions_below(pafs.LocalFileSystem(), str(tmp_path))
    assert sorted(file.path for file in files if ".parquet" in file.path) == [
        str(tmp_path / "a" / name) for name in (".b/y.parquet", ".z.parquet", "x.parquet")
    ]
