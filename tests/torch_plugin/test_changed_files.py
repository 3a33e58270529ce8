"""A file that changes between two passes of a loader is an error, in this process and in loader workers."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import import_framework

from parquetry.common.errors import DatasetError

import_framework("torch")
from torch.utils.data import DataLoader  # noqa: E402  # its import may warn

from parquetry.torch_plugin import ParquetIterable  # noqa: E402


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_pass_is_held_to_the_plan(tmp_path: Path, workers: int) -> None:
    pq.write_table(pa.table({"a": [1] * 40}), tmp_path / "x.parquet")
    loader = DataLoader(
        ParquetIterable(tmp_path).where([("a", "==", 1)]).batch(10), batch_size=None, num_workers=workers
    )
    assert [batch["a"].tolist() for batch in loader] == [[1] * 10] * 4
    pq.write_table(pa.table({"a": [2] * 40}), tmp_path / "_new")
    os.replace(tmp_path / "_new", tmp_path / "x.parquet")
    with pytest.raises(DatasetError, match="changed since the pipeline was planned"):
        list(loader)
