"""A sidecar's next epoch is held to the files that were planned."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.errors import DatasetError


def test_the_second_epoch_refuses_a_file_that_was_replaced(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1] * 40}), tmp_path / "x.parquet")
    pipeline = Pipeline(tmp_path, executor="sidecar", workers=1).where([("a", "==", 1)]).batch(20)
    assert [batch["a"].tolist() for batch in pipeline] == [[1] * 20] * 2
    pq.write_table(pa.table({"a": [2] * 40}), tmp_path / "_new")
    os.replace(tmp_path / "_new", tmp_path / "x.parquet")
    with pytest.raises(DatasetError, match="changed since the pipeline was planned"):
        list(pipeline)
