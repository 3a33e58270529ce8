"""The TensorFlow half of the demo: Keras trains from a `ParquetDataset`."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import numpy as np
import pyarrow.compute as pc
import tensorflow as tf
from demo_report import Result
from tqdm.keras import TqdmCallback

from parquetry.tf_plugin import ParquetDataset


def to_xy(row: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the inputs and targets that ``model.fit`` expects."""
    return tf.cast(row["image"], tf.float32) / 255.0, row["label"]


def train_on_digits(digits: Path, epochs: int, batch_size: int) -> Result:
    """Trains a small convolutional network; returns its accuracy on the test rows."""
    keras.utils.set_random_seed(7)
    rows = ParquetDataset(digits, fields=["image", "label"])
    split = pc.field("split")
    train = rows.where(split == "train").shuffle(1_000, seed=7).batch(batch_size).map(to_xy).prefetch(2)
    test = rows.where(split == "test").batch(batch_size).map(to_xy)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    ends: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    bar = TqdmCallback(verbose=0, desc="Keras epochs", leave=False)
    model.fit(train, epochs=epochs, shuffle=False, verbose=0, callbacks=[clock, bar])  # the dataset shuffles
    _, accuracy = model.evaluate(test, verbose=0)
    timed_rows = (epochs - 1) * len(rows.where(split == "train"))
    return Result(
        "Keras, ParquetDataset",
        steps=epochs * len(train),
        rows_per_s=timed_rows / (ends[-1] - ends[0]),
        accuracy=float(accuracy),
    )


def first_windows(drives: Path, length: int, max_gap_ms: int) -> dict[str, np.ndarray]:
    """Returns the first batch of windows as numpy arrays."""
    rows = ParquetDataset(drives).ngram(length=length, timestamp="time_ms", max_gap=max_gap_ms, group_by="drive")
    windows = rows.shuffle(32, seed=3).batch(8)
    return {name: tensor.numpy() for name, tensor in next(iter(windows)).items()}
