"""Token lists joined into items, as a `tf.data.Dataset`."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from parquetry.common import Pipeline
from parquetry.tf_plugin import ParquetDataset


def test_items_are_dense_and_go_on_from_a_state(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(0, 100, size).tolist() for size in random.integers(0, 20, 60)]
    pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "t.parquet", row_group_size=9)
    base = Pipeline(tmp_path / "t.parquet").shuffle(16, seed=1)
    for pipeline in (base.concat(32, "tokens", separator=-1, positions=True), base.pack_rows(32, "tokens")):
        batched = pipeline.batch(4, drop_remainder=True)
        dataset = ParquetDataset.from_pipeline(batched)
        names = ("tokens", "segment_ids", "position_ids")
        assert dataset.element_spec == {name: tf.TensorSpec((4, 32), tf.int32) for name in names}
        expected = [{name: values.tolist() for name, values in batch.items()} for batch in batched]
        found = [{name: values.numpy().tolist() for name, values in batch.items()} for batch in dataset]
        assert found == expected
        assert len(dataset) == len(expected)
        again = ParquetDataset.from_pipeline(batched)
        next(itertools.islice(again, 2, None))
        rest = ParquetDataset.from_pipeline(batched).load_state_dict(again.state_dict(3))
        assert [batch["tokens"].numpy().tolist() for batch in rest] == [batch["tokens"] for batch in expected[3:]]
