"""Writes a small dataset and trains a Keras model from it."""

import tempfile

import keras
import numpy as np

from parquetry import CompressedImageCodec, ParquetDataset, Unischema, UnischemaField, write_dataset

schema = Unischema(
    "tiles",
    [
        UnischemaField("image", np.uint8, (16, 16, 3), CompressedImageCodec("png")),
        UnischemaField("label", np.int64),
    ],
)
# Tiles that are red (label 0) or green (label 1).
rows = [{"image": np.full((16, 16, 3), np.eye(3)[n % 2] * 200, np.uint8), "label": n % 2} for n in range(1_000)]
url = tempfile.mkdtemp()
write_dataset(url, schema, rows, row_group_rows=100)

dataset = ParquetDataset(url).shuffle(200, seed=7).batch(64).as_tuple("image", "label").prefetch(2)
model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(dataset, epochs=3, shuffle=False)  # the dataset shuffles, in a new order for each epoch
