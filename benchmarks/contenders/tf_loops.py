"""Takes batches from a `tf.data.Dataset`, one by one in Python or many at a time in a graph, and touches each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ..touch import training_step

_Fields = list[Any]  # tensors and ragged tensors
_Layout = tuple[list[int], list[int]]
BATCHES_PER_CALL = 8  # per graph call, like steps_per_execution in Keras


def eager(dataset: tf.data.Dataset) -> Iterator[int]:
    """Yields the row count of each batch, taken in Python."""
    train = training_step()
    if train is not None:
        yield from map(train, dataset)
        return
    layout: _Layout | None = None
    for turn, batch in enumerate(dataset):
        fields = list(batch.values()) if isinstance(batch, dict) else tf.nest.flatten(batch)
        layout = layout or _layout(fields)
        for value in _wanted(fields, layout, turn):
            _look_now(value)
        yield _rows_now(fields[0])


def graph(dataset: tf.data.Dataset, batches_per_call: int = BATCHES_PER_CALL) -> Iterator[int]:
    """Yields the row count of several batches at a time, taken inside a ``tf.function``."""

    @tf.function
    def some(iterator: Iterator[object]) -> Any:
        rows, seen = tf.constant(0, tf.int64), tf.constant(0.0)
        for _ in tf.range(batches_per_call):
            fields = tf.nest.flatten(next(iterator))
            for value in _wanted(fields, _layout(fields), 0):
                seen += tf.cast(tf.strings.length(look(value)) if value.dtype == tf.string else look(value), tf.float32)
            rows += _rows(fields[0])
        return rows, seen

    iterator = iter(dataset)
    while True:
        yield int(some(iterator)[0])


def _look_now(value: tf.Tensor | tf.RaggedTensor) -> None:
    """Like `benchmarks.touch`, through a memory view: calling an op from Python takes longer than a batch."""
    numbers = value.flat_values if isinstance(value, tf.RaggedTensor) else value
    if numbers.dtype == tf.string:
        look(value)
    else:
        np.asarray(memoryview(numbers))[..., -1].sum()


def _rows_now(first: tf.Tensor | tf.RaggedTensor) -> int:
    return int(first.row_splits.shape[0] - 1 if isinstance(first, tf.RaggedTensor) else first.shape[0])


def look(value: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """Like `benchmarks.touch`, with TensorFlow ops."""
    if isinstance(value, tf.RaggedTensor):
        value = value.flat_values
    rank = len(value.shape)
    if rank == 1:
        return value[-1]
    last = value[(slice(None), *([-1] * (rank - 1)))]
    return tf.reduce_sum(tf.cast(last, tf.float32))


def _layout(fields: _Fields) -> _Layout:
    """Returns the positions of fields with several values per row, and of flat ones; asking every tensor is slow."""
    wide = [place for place, field in enumerate(fields) if isinstance(field, tf.RaggedTensor) or len(field.shape) > 1]
    return wide, [place for place in range(len(fields)) if place not in wide]


def _wanted(fields: _Fields, layout: _Layout, turn: int) -> _Fields:
    """Returns every field with several values per row, and one of the flat ones."""
    wide, flat = layout
    return [fields[place] for place in (*wide, *flat[turn % max(1, len(flat)) :][:1])]


def _rows(first: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return tf.shape(first, out_type=tf.int64)[0]
