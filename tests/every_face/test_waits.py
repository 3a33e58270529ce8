"""Rows, bytes and the time that training waits: counted where elements are taken, and split by cause, in every face."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces import SIDECAR, THREADS, MapFace, NodeFace, TensorFlowFace, TorchFace

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.metrics.watching import stats_of

BATCHES = 12
NEEDS = {"tensorflow": "tensorflow", "ParquetIterable": "torch", "map": "torch", "node": "torchdata"}
FACES = [
    face
    for face in (THREADS, SIDECAR, TensorFlowFace(), TorchFace(), TorchFace(0), TorchFace(2), NodeFace(), MapFace(2))
    if importlib.util.find_spec(NEEDS.get(face.name.partition("-")[0], "numpy"))
]


def slow(rows: dict[str, Any]) -> dict[str, Any]:
    """Takes longer than everything else that a loader does for such a batch."""
    time.sleep(0.02)
    return rows


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("waits") / "rows"
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    write_dataset(target, schema, ({"id": number} for number in range(4 * BATCHES)), row_group_rows=4)
    return str(target)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_rows_of_each_pass_are_counted_and_waits_for_a_slow_function_are_part_of_all_waiting(
    url: Path, face: Any
) -> None:
    pipeline = Pipeline(url, workers=1).batch(4).transform(slow, batched=True)
    start = face.passes(pipeline)
    for _ in range(2):  # each pass is counted from zero
        iterator = start()
        assert len(list(iterator)) == BATCHES
        stats = (stats_of(iterator) or stats_of(start.__self__))()  # type: ignore[misc]  # one of them has stats
        assert (stats.rows, stats.elements) == (4 * BATCHES, BATCHES)
        assert min(stats.read_bytes, stats.delivered_bytes, stats.parquet_s, stats.decode_s) > 0
        assert stats.wait_s <= stats.seconds
    assert stats.waits.transform > 0
    assert stats.wait_shares["transform"] <= stats.wait_share <= 1 + 1e-9
    assert stats.waits.start == stats.startup_s > 0
    assert stats.waits.total_s == pytest.approx(stats.startup_s + stats.wait_s)
    assert stats.wait_share == pytest.approx(sum(stats.wait_shares.values()))
