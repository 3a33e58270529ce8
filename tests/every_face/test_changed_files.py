"""In every face, the next pass over a dataset must find the planned files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import TorchFace, installed_faces, plain_element

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError

FACES = installed_faces()
LOADERS = [TorchFace(2)] if any(isinstance(face, TorchFace) for face in FACES) else []


@pytest.mark.parametrize("face", [*FACES, *LOADERS], ids=lambda face: face.name)
def test_the_next_pass_refuses_a_file_that_was_replaced(tmp_path: Path, face: Any) -> None:
    pq.write_table(pa.table({"a": [1] * 40}), tmp_path / "x.parquet")
    pipeline = Pipeline(tmp_path, workers=1).where([("a", "==", 1)]).batch(20)
    begin = face.passes(pipeline)
    assert [plain_element(pipeline.element, batch) for batch in begin()] == [[{"a": 1}] * 20] * 2
    pq.write_table(pa.table({"a": [2] * 40}), tmp_path / "_new")
    os.replace(tmp_path / "_new", tmp_path / "x.parquet")
    with pytest.raises(Exception, match="changed since the pipeline was planned"):
        list(begin())


@pytest.mark.parametrize("column", ["numbers", "blobs"])
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_file_that_became_a_pipe_is_refused_without_waiting(tmp_path: Path, executor: Any, column: str) -> None:
    values = {"numbers": list(range(40)), "blobs": [bytes(5_000)] * 40}
    pq.write_table(pa.table({"a": values[column]}), tmp_path / "x.parquet", compression="none", use_dictionary=False)
    pipeline = Pipeline(tmp_path, executor=executor, workers=1).batch(20)
    assert len(list(pipeline)) == 2
    os.unlink(tmp_path / "x.parquet")
    os.mkfifo(tmp_path / "x.parquet")
    with pytest.raises(DatasetError, match="expected the version that the pipeline was planned with"):
        list(pipeline)
