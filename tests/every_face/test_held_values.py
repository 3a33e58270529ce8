"""Keeping a small value of each batch, such as the labels of an epoch, does not keep the whole batches."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import psutil
import pytest
from faces import TORCH_WARNINGS, rows_over
from processes import in_own_process

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset

pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNINGS]
ROWS, BATCH, PASSES = 120, 6, 40
FRAME = (120, 120, 3)
EPOCH_BYTES = ROWS * PASSES * int(np.prod(FRAME))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("held") / "frames"
    schema = Unischema(
        "frames", [UnischemaField("id", np.int64), UnischemaField("frame", np.uint8, FRAME, NdarrayCodec())]
    )
    rows = ({"id": number, "frame": np.full(FRAME, number, np.uint8)} for number in range(ROWS))
    write_dataset(target, schema, rows, row_group_rows=20)
    return str(target)


FACES = ["threads", "sidecar", "ParquetIterable", "ParquetIterable in a worker", "tensorflow"]


def batches(face: str, url: str) -> Any:
    name, _, in_worker = face.partition(" ")
    rows = rows_over(name, url, workers=1).batch(BATCH).repeat(PASSES)
    if not in_worker:
        return rows
    from torch.utils.data import DataLoader

    return DataLoader(rows, batch_size=None, num_workers=1)


@pytest.mark.nightly
@pytest.mark.parametrize("face", FACES)
def test_keeping_the_labels_of_an_epoch_keeps_nothing_else(face: str, url: str) -> None:
    batches(face, url)  # skips if its framework is not installed
    assert in_own_process(grown_by_labels, face, url) < EPOCH_BYTES / 2


def grown_by_labels(face: str, url: str) -> int:
    """Keeps the labels of an epoch. Returns by how many bytes memory has grown meanwhile."""
    for _ in zip(range(30), batches(face, url), strict=False):
        pass  # the memory of batches in flight
    gc.collect()
    before = psutil.Process().memory_info().rss
    held = [batch["id"] for batch in batches(face, url)]
    grown: int = psutil.Process().memory_info().rss - before
    assert [int(value[0]) for value in held] == list(range(0, ROWS, BATCH)) * PASSES
    return grown


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
def test_all_batches_of_an_epoch_can_be_kept(face: str, url: str) -> None:
    held = list(batches(face, url))
    for number, batch in enumerate(held):
        first = number * BATCH % ROWS
        assert np.asarray(batch["id"]).tolist() == list(range(first, first + BATCH))
        assert (np.asarray(batch["frame"]) == np.arange(first, first + BATCH).reshape(-1, 1, 1, 1)).all()
