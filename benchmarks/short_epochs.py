"""Measures what tf.data's autotuner adds to short epochs of ``model.fit``.

Run: ``python benchmarks/short_epochs.py``. Prints the seconds of an epoch (median and mean of a hundred), the longest
pause between two epochs, and how many pauses are longer than 50 ms, for chains with and without the autotuner. The
chains take turns, ten epochs each.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset

STEPS = 150
BATCH = 64
TURNS = 10
EPOCHS = 10
LONG_S = 0.05
SCHEMA = Unischema("points", [UnischemaField("x", np.float32, (16,)), UnischemaField("y", np.float32)])


class Clock(tf.keras.callbacks.Callback):
    """Notes the seconds of each epoch, with the pause before the next, and the pauses alone."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs_s: list[float] = []
        self.pauses_s: list[float] = []

    def on_train_begin(self, logs: object = None) -> None:
        """Forgets the previous call of ``fit``: what lies between two calls is not measured."""
        self._began = self._ended = 0.0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Notes the previous epoch."""
        now = time.perf_counter()
        if self._began:
            self.epochs_s.append(now - self._began)
        self._began = now

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Notes the pause before an epoch's first batch."""
        if batch == 0 and self._ended:
            self.pauses_s.append(time.perf_counter() - self._ended)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Notes when the batch ended."""
        self._ended = time.perf_counter()


def write(url: str) -> None:
    """Writes enough rows for one epoch."""
    points: NDArray[np.float32] = np.random.default_rng(0).random((STEPS * BATCH, 17), dtype=np.float32)
    write_dataset(url, SCHEMA, ({"x": point[:16], "y": point[16]} for point in points), row_group_rows=BATCH * 10)


def autotune(enabled: bool) -> tf.data.Options:
    """Returns options that say whether the autotuner runs."""
    options = tf.data.Options()
    options.autotune.enabled = enabled
    return options


def chains(url: str) -> dict[str, tf.data.Dataset]:
    """Returns the chains by name."""
    rows = ParquetDataset(url).shuffle(1_000, seed=1).batch(BATCH)
    fixed = rows.as_tuple("x", "y").prefetch(2)
    mapped = rows.map(lambda row: (row["x"], row["y"])).prefetch(2)
    return {
        "as_tuple, prefetch(2)": fixed,
        "  with the autotuner": fixed.with_options(autotune(True)),
        "map, prefetch(2)": mapped,
        "  without the autotuner": mapped.with_options(autotune(False)),
    }


def new_model() -> Any:
    """Returns a small model."""
    model = tf.keras.Sequential([tf.keras.layers.Input((16,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    return model


def main() -> None:
    """Measures and prints the results."""
    with tempfile.TemporaryDirectory() as directory:
        url = str(Path(directory) / "points")
        write(url)
        datasets, model = chains(url), new_model()
        clocks = {name: Clock() for name in datasets}
        for _, (name, dataset) in itertools.product(range(TURNS), datasets.items()):
            # One epoch more: the last one has no pause after it.
            model.fit(dataset, epochs=EPOCHS + 1, verbose=0, shuffle=False, callbacks=[clocks[name]])
    for name, clock in clocks.items():
        long = sum(pause > LONG_S for pause in clock.pauses_s)
        print(
            f"{name:24} epoch {statistics.median(clock.epochs_s):.3f} s, mean {statistics.mean(clock.epochs_s):.3f} s; "
            f"longest pause {max(clock.pauses_s):.3f} s, {long} of {len(clock.pauses_s)} above {LONG_S * 1000:.0f} ms"
        )


if __name__ == "__main__":
    main()
