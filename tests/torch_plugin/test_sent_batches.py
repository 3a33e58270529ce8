"""Messages of batches: described once for all that look alike, and many in one region."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.engine.columns.batch import Column, Dense
from parquetry.torch_plugin.loader_workers import loader_memory, sent_batches

SIZES = [(3, 5), (2, 7), (3, 5), (1, 1), (4, 9), (5, 2000)]
SIZED = (2 + 1, 1 + 1)  # the numbers of the two fields: their axes, and where they are


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pq.write_table(pa.table({"id": range(4), "length": range(4)}), tmp_path / "a.parquet")
    return Pipeline(tmp_path, executor="threads").batch(2)


def test_batches_that_differ_in_size_are_described_alike_and_share_regions(pipeline: Pipeline) -> None:
    worker = multiprocessing.get_context("fork").Process(target=_send, args=(pipeline,))  # as a loader worker does
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0


def _send(pipeline: Pipeline) -> None:
    assert loader_memory.share_regions()
    encoder = sent_batches.Encoder(pipeline.element)
    sent = [_columns(*size) for size in SIZES]
    messages = [message for columns in sent for message in encoder(columns, 1)]
    assert len({token for message in messages for (_, _, token, *_), _ in sent_batches.regions_of(message)}) == 1
    heads = {message[: len(message) - 8 * sum(SIZED)] for message in messages}
    assert len(heads) == 1
    for columns, message in zip(sent, messages, strict=True):
        batch = sent_batches.decode(message)
        assert [tensor.tolist() for tensor in batch.values()] == [column.values.tolist() for column in columns]
    (large,) = encoder(_columns(1, loader_memory._COPIES_BYTES), 1)
    assert not set(sent_batches.regions_of(large)) & set(sent_batches.regions_of(messages[0]))
    several = list(encoder([Dense(np.arange(8)), Dense(np.arange(8))], 4))
    assert [sent_batches.decode(message)["id"].tolist() for message in several] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_encoder_that_is_dropped_gives_its_region_back(pipeline: Pipeline) -> None:
    worker = multiprocessing.get_context("fork").Process(target=_drop, args=(pipeline,))
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0


def _drop(pipeline: Pipeline) -> None:
    gc.disable()  # no cycle keeps it
    assert loader_memory.share_regions()
    encoder = sent_batches.Encoder(pipeline.element)
    (message,) = encoder(_columns(3, 5), 1)
    batch = sent_batches.decode(message)
    del batch, encoder
    ((memory, _),) = sent_batches.regions_of(message)
    again = sent_batches.Encoder(pipeline.element)(_columns(3, 5), 1)
    assert [named for named, _ in sent_batches.regions_of(next(iter(again)))] == [memory]


def _columns(rows: int, width: int) -> list[Column]:
    return [Dense(np.arange(rows * width).reshape(rows, width)), Dense(np.full(rows, width))]
