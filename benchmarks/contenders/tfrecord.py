"""TFRecord files of ``tf.train.Example``, read and decoded with plain tf.data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf
from numpy.typing import ArrayLike

from ..prepare import peer_folder
from ..steps import parquet_files
from ..workloads import CROP, CROPPED, DEVIATION, IMAGE_SHAPES, LIDAR_SHAPE, MEAN, NUMBERS, SEED, WINDOW, Case
from .tf_loops import eager, graph

SETTINGS = {
    "eager": "tf.data only: files interleaved, shuffle buffer as given, parallel parse and decode (AUTOTUNE), "
    "INTEGER_FAST decoder, prefetch(2); parse_example on whole batches where nothing is decoded",
    "graph": "the same, taken inside a tf.function, 8 batches a call",
}
_AUTO = tf.data.AUTOTUNE
_FILES = 4


def prepare(folder: Path, target: Path) -> None:
    """Writes the same rows as ``tf.train.Example``."""
    name = "parquet-ndarray" if folder.name == "lidar" else "parquet"
    share = -(-sum(pq.read_metadata(file).num_rows for file in parquet_files(folder / name)) // _FILES)
    rows = _EXAMPLES[folder.name](folder)
    for part in range(_FILES):
        with tf.io.TFRecordWriter(str(target / f"part-{part}.tfrecord")) as writer:
            for row in islice(rows, share):
                features = {name: _feature(value) for name, value in row.items()}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _feature(value: bytes | ArrayLike) -> tf.train.Feature:
    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    array = np.atleast_1d(value)
    if array.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=array))


def _image_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for file in parquet_files(folder / "parquet"):
        for batch in pq.ParquetFile(file).iter_batches(256, columns=["id", "event", "image"]):
            yield from batch.to_pylist()


def _lidar_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for number, path in enumerate(sorted((folder / "files").iterdir())):
        yield {"id": number, "points": np.load(path).tobytes()}


def _table_rows(folder: Path) -> Iterator[dict[str, Any]]:
    table = pq.read_table(parquet_files(folder / "parquet"))
    matrix = np.stack([table.column(name).to_numpy() for name in NUMBERS[folder.name]], axis=1)
    for label, numbers in zip(table.column("label").to_pylist(), matrix, strict=True):
        yield {"label": label, "x": numbers}


def _text_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for row in pq.read_table(parquet_files(folder / "parquet")).to_pylist():
        arrays = {"tokens": np.array(row["tokens"], np.int64), "scores": np.array(row["scores"], np.float32)}
        yield {**row, **arrays, "title": row["title"].encode()}


_EXAMPLES = {
    "images": _image_rows,
    "rare": _image_rows,
    "large": _image_rows,
    "lidar": _lidar_rows,
    "table": _table_rows,
    "wide": _table_rows,
    "texts": _text_rows,
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    dataset = _DATASETS[case.workload.key](case).prefetch(2)
    return eager(dataset) if case.variant == "eager" else graph(dataset)


def _records(case: Case) -> tf.data.Dataset:
    files = sorted(str(path) for path in peer_folder(case.data, "tfrecord").glob("*.tfrecord"))
    shuffled = case.workload.buffer_rows > 0
    dataset = tf.data.Dataset.from_tensor_slices(files)
    if shuffled:
        dataset = dataset.shuffle(len(files), seed=SEED)
        options = {"cycle_length": len(files), "num_parallel_calls": _AUTO, "deterministic": False}
        dataset = dataset.interleave(tf.data.TFRecordDataset, **options)
        dataset = dataset.shuffle(case.workload.buffer_rows, seed=SEED)
    else:
        dataset = tf.data.TFRecordDataset(files)
    return dataset.repeat(case.passes)


def _one(name: str) -> dict[str, Any]:
    return {"id": tf.io.FixedLenFeature([], tf.int64), name: tf.io.FixedLenFeature([], tf.string)}


def _pixels(record: tf.Tensor) -> dict[str, tf.Tensor]:
    row = tf.io.parse_single_example(record, _one("image"))
    pixels = tf.io.decode_jpeg(row["image"], channels=3, dct_method="INTEGER_FAST")
    return {"id": row["id"], "image": tf.ensure_shape(pixels, IMAGE_SHAPES["images"])}


def _images(case: Case) -> tf.data.Dataset:
    return _records(case).map(_pixels, num_parallel_calls=_AUTO).batch(case.workload.batch_size)


def _augmented(case: Case) -> tf.data.Dataset:
    def augment(record: tf.Tensor) -> dict[str, tf.Tensor]:
        row = tf.io.parse_single_example(record, _one("image"))
        encoded = row["image"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            tf.zeros([1, 0, 4]),
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        box = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.image.decode_and_crop_jpeg(encoded, box, channels=3, dct_method="INTEGER_FAST")
        small = tf.image.resize(pixels, (CROP, CROP), CROPPED[case.workload.key])
        small = tf.image.random_flip_left_right(small)
        return {"id": row["id"], "image": (small / 255 - tf.constant(MEAN)) / tf.constant(DEVIATION)}

    return _records(case).map(augment, num_parallel_calls=_AUTO).batch(case.workload.batch_size)


def _lidar(case: Case) -> tf.data.Dataset:
    def decode(record: tf.Tensor) -> dict[str, tf.Tensor]:
        row = tf.io.parse_single_example(record, _one("points"))
        return {"id": row["id"], "points": tf.reshape(tf.io.decode_raw(row["points"], tf.float32), LIDAR_SHAPE)}

    return _records(case).map(decode, num_parallel_calls=_AUTO).batch(case.workload.batch_size)


def _parsed(case: Case, features: dict[str, Any]) -> tf.data.Dataset:
    batched = _records(case).batch(case.workload.batch_size)
    return batched.map(lambda records: tf.io.parse_example(records, features), num_parallel_calls=_AUTO)


def _matrix(case: Case) -> tf.data.Dataset:
    numbers = tf.io.FixedLenFeature([len(NUMBERS[case.workload.data])], tf.float32)
    return _parsed(case, {"label": tf.io.FixedLenFeature([], tf.int64), "x": numbers})


def _table(case: Case) -> tf.data.Dataset:
    def columns(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"label": row["label"]} | dict(
            zip(NUMBERS[case.workload.data], tf.unstack(row["x"], axis=1), strict=True)
        )

    return _matrix(case).map(columns, num_parallel_calls=_AUTO)


def _texts(case: Case) -> tf.data.Dataset:
    features = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "title": tf.io.FixedLenFeature([], tf.string),
        "tokens": tf.io.RaggedFeature(tf.int64),
        "scores": tf.io.RaggedFeature(tf.float32),
    }
    return _parsed(case, features)


def _windows(case: Case) -> tf.data.Dataset:
    def stack(window: dict[str, tf.data.Dataset]) -> tf.data.Dataset:
        return tf.data.Dataset.zip({name: part.batch(WINDOW) for name, part in window.items()})

    frames = _records(case).map(_pixels, num_parallel_calls=_AUTO)
    windows = frames.window(WINDOW, shift=1, drop_remainder=True).flat_map(stack)
    return windows.batch(case.workload.batch_size)


def _filtered(case: Case) -> tf.data.Dataset:
    def is_event(record: tf.Tensor) -> tf.Tensor:
        return tf.io.parse_single_example(record, {"event": tf.io.FixedLenFeature([], tf.int64)})["event"] == 1

    kept = _records(case).filter(is_event).map(_pixels, num_parallel_calls=_AUTO)
    return kept.batch(case.workload.batch_size)


_DATASETS = {
    "a": _images,
    "b": _augmented,
    "b-large": _augmented,
    "c-ndarray": _lidar,
    "c-tensor": _lidar,
    "d": _table,
    "d-pack": _matrix,
    "d-wide": _table,
    "e": _texts,
    "f": _windows,
    "g": _filtered,
    "h": _images,
}
