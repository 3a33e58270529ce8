"""`DatasetPart`: what an executor gets of a dataset, which it reads without listing or planning again."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.compat.spark.reading import DatasetPart, ReadTask, _decode_row_group
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.plan.selection.select import every_row


def test_a_part_has_every_attribute_of_a_dataset(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(4)}), tmp_path / "x.parquet")
    dataset = StoredDataset([str(tmp_path)])
    assert vars(dataset).keys() - {"_filesystem"} <= vars(DatasetPart(dataset, np.array([0]))).keys()


def test_a_part_is_read_in_another_process(tmp_path: Path) -> None:
    schema = Unischema(
        "points", [UnischemaField("id", np.int64), UnischemaField("p", np.float32, (2,), NdarrayCodec())]
    )
    rows = [{"id": number, "p": np.full(2, number, np.float32)} for number in range(9)]
    write_dataset(tmp_path / "d", schema, rows, row_group_rows=3)
    dataset = StoredDataset([str(tmp_path / "d")])
    chosen = np.array([0, 2])
    part = DatasetPart(dataset, chosen)
    task = pickle.loads(pickle.dumps(ReadTask(part=part, rows=every_row(dataset).rows.row_groups(chosen))))
    values = [
        column.values.tolist()
        for row_group in range(2)
        for _, [column] in _decode_row_group(task, [schema["p"]], row_group)
    ]
    assert values == [[[n, n] for n in (0, 1, 2)], [[n, n] for n in (6, 7, 8)]]
