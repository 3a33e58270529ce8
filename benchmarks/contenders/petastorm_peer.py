"""Programs written for Petastorm on the same Parquet files: its reader, its torch loaders and its tf.data bridge.

They run with Petastorm 0.13.1 in its own environment, and with parquetry's shim in parquetry's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from petastorm import make_batch_reader, make_reader
from petastorm.ngram import NGram
from petastorm.predicates import in_lambda
from petastorm.transform import TransformSpec
from petastorm.unischema import UnischemaField

from ..steps import augment
from ..touch import rows_of
from ..workloads import CROP, CROPPED, SEED, WINDOW, Case

SETTINGS = {
    "reader": "make_reader (d: make_batch_reader), a pool of one thread for each processor, rows stacked",
    "torch": "petastorm.pytorch.DataLoader (d: BatchedDataLoader) with a shuffling queue of the buffer's size, threads",
    "tf": "make_petastorm_dataset, tf.data's shuffle and batch (d: unbatch before them, as documented), prefetch(2)",
    "tf-rebatch": "make_petastorm_dataset of make_batch_reader(shuffle_rows=True), tf.data's rebatch, prefetch(2)",
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    if case.variant == "reader":
        return map(rows_of, _batched_rows(case))
    if case.variant == "torch":
        return map(rows_of, _torch_batches(case))
    return _tf_batches(case)


def _reader(case: Case, **options: object) -> Any:
    key = case.workload.key
    shuffled = case.workload.buffer_rows > 0
    folder = case.data / (f"parquet-{key.partition('-')[2]}" if key.startswith("c") else "parquet")
    common = {
        "reader_pool_type": "thread",
        "workers_count": case.workers,
        "num_epochs": case.passes,
        "seed": SEED,
        "shuffle_row_groups": shuffled,
        **options,
    }
    if key.startswith("d"):
        return make_batch_reader(f"file://{folder}", **common)
    if case.workload.data in ("images", "rare"):
        names = ["id", "event", "image"] if key == "g" else ["id", "image"]  # the predicate needs its fields
        common.setdefault("schema_fields", names)
    if key in CROPPED:
        image = UnischemaField("image", np.float32, (CROP, CROP, 3), None, False)
        common["transform_spec"] = TransformSpec(_augment_row, edit_fields=[image])
    if key == "f":
        common["schema_fields"] = NGram({step: ["id", "image"] for step in range(WINDOW)}, 1, "id")
    if key == "b-filter":
        common["predicate"] = in_lambda(["id"], lambda number: number % 2 == 0)
    if key == "g":
        common["predicate"] = in_lambda(["event"], lambda event: event == 1)
    return make_reader(f"file://{folder}", **common)


def _augment_row(row: dict[str, Any]) -> dict[str, Any]:
    row["image"] = augment(row["image"], np.random.default_rng(), CROPPED["b"])
    return row


def _batched_rows(case: Case) -> Iterator[dict[str, Any]]:
    size = case.workload.batch_size
    if case.workload.key.startswith("d"):
        for group in _reader(case, shuffle_rows=True):
            columns = group._asdict()
            rows = len(next(iter(columns.values())))
            for begin in range(0, rows, size):
                yield {name: column[begin : begin + size] for name, column in columns.items()}
        return
    waiting = []
    for row in _reader(case):
        waiting.append(_windowed(row) if case.workload.key == "f" else row._asdict())
        if len(waiting) == size:
            yield _stacked(waiting)
            waiting = []
    if waiting:
        yield _stacked(waiting)


def _stacked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _windowed(row: dict[int, Any]) -> dict[str, Any]:
    return {name: np.stack([getattr(row[step], name) for step in range(WINDOW)]) for name in ("id", "image")}


def _torch_batches(case: Case) -> Iterator[dict[str, Any]]:
    from petastorm.pytorch import BatchedDataLoader, DataLoader

    options = {"batch_size": case.workload.batch_size, "shuffling_queue_capacity": case.workload.buffer_rows}
    loader = BatchedDataLoader if case.workload.key.startswith("d") else DataLoader
    return iter(loader(_reader(case), **options))


def _tf_batches(case: Case) -> Iterator[int]:
    from petastorm.tf_utils import make_petastorm_dataset

    from .tf_loops import eager

    workload = case.workload
    if case.variant == "tf-rebatch":
        rows = make_petastorm_dataset(_reader(case, shuffle_rows=True))
        return eager(rows.rebatch(workload.batch_size).prefetch(2))
    rows = make_petastorm_dataset(_reader(case))
    if workload.key.startswith("d"):
        rows = rows.unbatch()
    if workload.buffer_rows:
        rows = rows.shuffle(workload.buffer_rows, seed=SEED)
    return eager(rows.batch(workload.batch_size).prefetch(2))
