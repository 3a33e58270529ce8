"""Tables and data frames in PyTorch: the same rows as `Pipeline` gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from parquetry.common import Pipeline
from parquetry.torch_plugin import ParquetNode, ParquetPipe


def ids(dataset: ParquetPipe) -> list[int]:
    return [int(row["id"]) for row in dataset]


def test_a_delta_table_with_deleted_rows(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    import delta_tables as hand

    vector = hand.inline_vector([1, 4])
    data = pa.table({"id": pa.array(range(6), pa.int64())})
    hand.commit(
        tmp_path,
        0,
        hand.protocol(["deletionVectors"]),
        hand.metadata([hand.field("id", "long"), hand.field("day", "string")], ["day"]),
        hand.add(tmp_path, "a.parquet", data, {"day": "monday"}, deletionVector=vector),
    )
    pipeline = Pipeline.from_delta(tmp_path)
    dataset = ParquetPipe(pipeline, ["id"])
    assert ids(dataset) == [0, 2, 3, 5]
    shuffled = dataset.shuffle(4, seed=3).batch(2)
    assert [batch["id"].tolist() for batch in shuffled] == [
        batch["id"].tolist() for batch in pipeline.select("id").shuffle(4, seed=3).batch(2)
    ]
    loader = DataLoader(dataset.batch(2), batch_size=None, num_workers=2)
    assert sorted(number for batch in loader for number in batch["id"].tolist()) == [0, 2, 3, 5]
    (first,) = ParquetPipe.from_pipeline(pipeline).take(1)
    assert first["day"] == "monday"


def test_an_iceberg_table_with_equality_deletes(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    import iceberg_tables as hand

    data = pa.table({"id": pa.array(range(5), pa.int64())})
    table = hand.catalog_in(tmp_path).create_table("n.t", data.schema)
    table.append(data)
    hand.commit_deletes(table, hand.equality_deletes(table, "e.parquet", data.slice(2, 2), {"id": 1}))
    assert ids(ParquetPipe(Pipeline.from_iceberg(table))) == [0, 1, 4]


def test_a_data_frame(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pipeline = Pipeline.from_pandas(pd.DataFrame({"id": np.arange(4), "x": np.arange(4) / 2}))
    assert [float(row["x"]) for row in ParquetPipe(pipeline)] == [0.0, 0.5, 1.0, 1.5]


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "train-00000-of-00001.parquet")
    pipeline = Pipeline.from_huggingface_parquet(tmp_path, "train")
    assert ids(ParquetPipe(pipeline)) == [1, 2]
    assert [int(row["id"]) for row in ParquetNode(pipeline)] == [1, 2]
