"""Files known only to the graph are listed for each epoch."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from parquetry.tf_plugin import ParquetDataset


def _write(path: Path, value: int, count: int = 40) -> None:
    pq.write_table(pa.table({"a": [value] * count}), path.with_name("_new"))
    os.replace(path.with_name("_new"), path)


def test_files_that_only_the_graph_knows_are_listed_for_each_epoch(tmp_path: Path) -> None:
    like, read = tmp_path / "like.parquet", tmp_path / "read.parquet"
    _write(like, 0)
    _write(read, 1, count=3)
    urls = tf.data.Dataset.from_tensors(str(read))
    dataset = urls.flat_map(lambda url: ParquetDataset(url, like=str(like), workers=1).where([("a", ">", 0)]))
    assert [row["a"].numpy() for row in dataset] == [1, 1, 1]
    _write(read, 2, count=2)
    assert [row["a"].numpy() for row in dataset] == [2, 2]
