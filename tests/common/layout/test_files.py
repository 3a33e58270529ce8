"""Listing files that are named one by one, in a store where each question is a wait."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import numpy as np
import pytest

from parquetry.common import Pipeline, write_dataset
from parquetry.common.errors import DatasetError
from parquetry.common.layout.dataset import StoredDataset
from parquetry.common.layout.files import list_files
from parquetry.common.layout.index_writer import write_index
from parquetry.common.schema import Unischema, UnischemaField

FILES = 4


class Store(fsspec.implementations.local.LocalFileSystem):
    """Notes which paths are asked for; answers only when ``together`` questions wait at once."""

    cachable = False

    def __init__(self, together: int = 1) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._barrier = threading.Barrier(together)

    def info(self, path: Any, **options: Any) -> Any:
        self.asked.append(str(path))
        self._barrier.wait(30)
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
