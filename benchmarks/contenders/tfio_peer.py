"""tensorflow-io: Parquet read with its own tf.data op."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
import tensorflow_io as tfio

from ..steps import parquet_files
from ..workloads import NUMBERS, SEED, Case
from .tf_loops import eager

SETTINGS = {"": "IODataset.from_parquet of each file in turn, tf.data's shuffle and batch, prefetch(2)"}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    spec = {"label": tf.int64, **dict.fromkeys(NUMBERS["table"], tf.float32)}
    files = [tfio.IODataset.from_parquet(file, columns=spec) for file in parquet_files(case.data / "parquet")]
    rows = files[0]
    for more in files[1:]:
        rows = rows.concatenate(more)
    rows = rows.shuffle(case.workload.buffer_rows, seed=SEED).repeat(case.passes)
    return eager(rows.batch(case.workload.batch_size).prefetch(2))
