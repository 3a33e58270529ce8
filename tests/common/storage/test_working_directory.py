"""If the working directory is gone, a relative path is an error that names both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError
from parquetry.common.storage.filesystem import absolute


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "gone"
    directory.mkdir()
    monkeypatch.chdir(directory)
    directory.rmdir()
    return tmp_path


SCHEMA = Unischema("rows", [UnischemaField("id", np.int64)])
USES: dict[str, Callable[[Path], object]] = {
    "rows": lambda path: Pipeline("rows"),
    "row*": lambda path: Pipeline(["row*"]),
    "kept": lambda path: Pipeline(path).cache("kept"),
    "out": lambda path: write_dataset("out", SCHEMA, [{"id": 1}]),
}


@pytest.mark.parametrize("name", USES)
def test_a_relative_path_in_a_directory_that_is_gone_is_an_error(gone: Path, name: str) -> None:
    expected = rf"path '{re.escape(name)}': it is relative, .*'{gone}/gone', no longer exists"
    with pytest.raises(DatasetError, match=expected):
        USES[name](gone)


@pytest.mark.usefixtures("gone")
def test_absolute_paths_are_read_as_usual(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(3)}), tmp_path / "rows.parquet")
    assert len(list(Pipeline(tmp_path / "rows.parquet", executor="threads"))) == 3
    assert absolute("/a/../b") == "/b"
    assert absolute("~") == os.path.expanduser("~")
