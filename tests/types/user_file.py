"""A user's file: what mypy and pyright know of parquetry where it is installed. `make check` runs both, strictly.

It is never run. Each ``assert_type`` is an error of the checker where the type is another one, or ``Any``.
"""

from __future__ import annotations

from typing import Any, assert_type

import parquetry
from parquetry import (
    CompressedImageCodec,
    ParquetDataset,
    ParquetIterable,
    ParquetMap,
    ParquetNode,
    ParquetPipe,
    ParquetryError,
    Pipeline,
    Unischema,
    UnischemaField,
    mix,
    write_dataset,
)

assert_type(parquetry.__version__, str)


def numpy_batches(url: str) -> None:
    rows = Pipeline(url, ["image", "label"]).where([("label", "==", 1)]).rename({"label": "y"})
    pipeline = rows.shuffle(1_000, seed=7).shard(8, 3).batch(64)
    assert_type(pipeline, Pipeline[dict[Any, Any]])
    for batch in pipeline:
        assert_type(batch, dict[Any, Any])
    for image, label in pipeline.as_tuple("image", "y").take(3):
        print(image, label)
    assert_type(rows[0], dict[Any, Any])
    assert_type(rows[:3], list[dict[Any, Any]])
    assert_type(rows.head(3), list[dict[Any, Any]])
    assert_type(len(rows), int)
    assert_type(rows.explain(), str)
    assert_type(mix([rows, rows], weights=[1, 2]), Pipeline[dict[Any, Any]])


def torch_batches(url: str) -> None:
    pipe = ParquetPipe(url).shuffle(1_000, seed=7).batch(64)
    assert_type(pipe, ParquetPipe[dict[Any, Any]])
    for batch in pipe:
        assert_type(batch, dict[Any, Any])
    for image, label in pipe.as_tuple("image", "label"):
        print(image, label)
    assert_type(ParquetIterable(url).ngram(length=4).batch(8), ParquetIterable[dict[Any, Any]])
    assert_type(ParquetMap(url)[3], dict[Any, Any])
    assert_type(ParquetNode(url).batch(8).next(), dict[Any, Any])


def tensorflow_batches(url: str) -> None:
    dataset = ParquetDataset(url).shuffle(1_000, seed=7).batch(64).as_tuple("image", "label")
    assert_type(dataset, ParquetDataset)
    assert_type(dataset.pipeline, Pipeline[dict[Any, Any]])


def write(url: str) -> None:
    schema = Unischema("tiles", [UnischemaField("image", bytes, (16, 16, 3), CompressedImageCodec("png"))])
    try:
        write_dataset(url, schema, [{"image": 1}])
    except ParquetryError as error:
        print(error)
