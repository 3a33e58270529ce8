"""`migrate_code` changes what it is sure of, keeps the rest as it is, and says what it left."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("libcst")

from parquetry.common.apps.tools import CodeChange, migrate_code
from parquetry.common.base.errors import DatasetError

PROGRAM = """\
import numpy as np
import petastorm
import petastorm.pytorch, os
import petastorm.tf_utils as tf_utils
from petastorm import (
    make_reader as open_rows,  # rows
    make_batch_reader,
)
from petastorm.unischema import Unischema, UnischemaField
from petastorm.workers_pool.thread_pool import ThreadPool
from petastorm.utils import no_such_name

WORD = UnischemaField("word", np.unicode_, (), None, True)
with open_rows("file:///a", hdfs_driver="libhdfs", num_epochs=1) as reader:
    loader = petastorm.pytorch.DataLoader(reader)
reader = make_batch_reader(
    "file:///a",
    seed=1,
    pyarrow_serialize=False,
)
other = petastorm.make_reader("file:///a", zmq_copy_buffers=chosen())
mine = make_index("file:///a", hdfs_driver="libhdfs")
patch("petastorm.reader.Reader")
spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", "file:///cache")
"""
CHANGED = """\
import numpy as np
import parquetry.petastorm as petastorm
import parquetry.petastorm as petastorm, os
import parquetry.petastorm.tf_utils as tf_utils
from parquetry.petastorm import (
    make_reader as open_rows,  # rows
    make_batch_reader,
)
from parquetry.petastorm.unischema import Unischema, UnischemaField
from petastorm.workers_pool.thread_pool import ThreadPool
from parquetry.petastorm.utils import no_such_name

WORD = UnischemaField("word", np.str_, (), None, True)
with open_rows("file:///a", num_epochs=1) as reader:
    loader = petastorm.pytorch.DataLoader(reader)
reader = make_batch_reader(
    "file:///a",
    seed=1,
)
other = petastorm.make_reader("file:///a", zmq_copy_buffers=chosen())
mine = make_index("file:///a", hdfs_driver="libhdfs")
patch("petastorm.reader.Reader")
spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", "file:///cache")
"""


def change_of(path: Path, program: str) -> CodeChange:
    path.write_text(program)
    [change] = migrate_code([path])
    return change


def test_imports_arguments_and_removed_names_change_and_nothing_else(tmp_path: Path) -> None:
    change = change_of(tmp_path / "train.py", PROGRAM)
    assert (tmp_path / "train.py").read_text() == change.after == CHANGED
    assert change.left == (
        (10, "petastorm.workers_pool.thread_pool: an internal module of Petastorm, which parquetry does not have"),
        (11, "petastorm.utils.no_such_name: parquetry has no such name"),
        (23, '"petastorm.reader.Reader": if this text names a module, change it by hand'),
    )
    assert "-from petastorm.unischema import" in change.diff
    assert "+from parquetry.petastorm.unischema import" in change.diff


def test_a_changed_program_does_not_change_again(tmp_path: Path) -> None:
    assert change_of(tmp_path / "train.py", CHANGED).diff == ""


def test_a_changed_program_runs(tmp_path: Path) -> None:
    program = (
        "import petastorm.codecs\nfrom petastorm.unischema import Unischema\nmade = petastorm.codecs.ScalarCodec\n"
    )
    names: dict[str, object] = {}
    exec(change_of(tmp_path / "a.py", program).after, names)
    assert names["made"].__name__ == "ScalarCodec"  # type: ignore[attr-defined]


def test_names_that_numpy_removed_are_imported_by_their_other_names(tmp_path: Path) -> None:
    program = "import petastorm\nfrom numpy import array, unicode_, string_ as raw\n"
    assert change_of(tmp_path / "a.py", program).after == (
        "import parquetry.petastorm as petastorm\nfrom numpy import array, str_ as unicode_, bytes_ as raw\n"
    )


def test_directories_are_searched_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/train.py", "b.py", "notes.txt"):
        (tmp_path / name).write_text("import petastorm\r\n", newline="")
    (tmp_path / "c.py").write_text("import pandas\n")
    for hidden in (".venv/bin", "env/lib/site-packages"):
        (tmp_path / hidden).mkdir(parents=True)
        (tmp_path / hidden / "d.py").write_text("import petastorm\n")
    changes = migrate_code([tmp_path], dry_run=True)
    assert [Path(change.path).name for change in changes] == ["train.py", "b.py"]
    assert changes[0].after == "import parquetry.petastorm as petastorm\r\n"
    assert (tmp_path / "b.py").read_bytes() == b"import petastorm\r\n"
    migrate_code([tmp_path])
    assert (tmp_path / "b.py").read_bytes() == b"import parquetry.petastorm as petastorm\r\n"


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    assert (
        change_of(tmp_path / "a.py", "\ufeffimport petastorm\n").after
        == "\ufeffimport parquetry.petastorm as petastorm\n"
    )


def test_an_error_in_one_file_changes_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import petastorm\n")
    (tmp_path / "b.py").write_text("import petastorm\nprint 'a'\n")
    with pytest.raises(DatasetError, match=r"b\.py', line 2: expected Python 3"):
        migrate_code([tmp_path])
    assert (tmp_path / "a.py").read_text() == "import petastorm\n"
    (tmp_path / "c.ipynb").write_text('{"cells": ["import petastorm"]}')
    with pytest.raises(DatasetError, match=r"got the notebook '.*c\.ipynb'. Export it as a program"):
        migrate_code([tmp_path / "c.ipynb"])
    with pytest.raises(DatasetError, match=r"none\.py'. There is none"):
        migrate_code([tmp_path / "none.py"])
    (tmp_path / "b.py").write_bytes(b"# petastorm \xff\n")
    with pytest.raises(DatasetError, match=r"b\.py': expected UTF-8"):
        migrate_code([tmp_path])
