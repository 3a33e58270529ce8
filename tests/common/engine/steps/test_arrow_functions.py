"""Functions on Arrow batches: `transform` with ``batched="arrow"``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from drive_rows import ROWS, drive_once

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import TransformError

pytestmark = pytest.mark.versions

drive = drive_once(executor="threads", workers=2)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("double", pc.multiply(batch.column("id"), 2))


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_function_may_work_on_arrow_batches(drive: Pipeline, executor: str) -> None:
    pipeline = drive.select("id", "name", "points", "tags").with_options(executor=executor, workers=1)
    changed = pipeline.transform(doubled, output=[UnischemaField("double", np.int64)], batched="arrow")
    rows = list(changed)
    assert [int(row["double"]) for row in rows] == [2 * number for number in range(40)]
    assert [row["name"] for row in rows] == [row["name"] for row in ROWS]
    assert all(np.array_equal(row["points"], ROWS[n]["points"]) for n, row in enumerate(rows))
    assert [row["tags"].tolist() for row in rows] == [row["tags"] for row in ROWS]


def test_an_arrow_function_is_held_to_its_declaration(drive: Pipeline) -> None:
    with pytest.raises(TransformError, match="Declare them in adds="):
        list(drive.select("id").transform(doubled, batched="arrow"))
    with pytest.raises(TransformError, match="expected 40 rows, as in its input, got 1"):
        list(drive.select("id").transform(lambda batch: batch.slice(0, 1), batched="arrow").batch(40))
    with pytest.raises(TransformError, match="expected a pyarrow RecordBatch or Table, got int"):
        list(drive.select("id").transform(lambda batch: 3, batched="arrow"))
