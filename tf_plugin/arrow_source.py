"""The dataset over an Arrow stream: flat columns from tensorflow-io (or pyarrow), reshaped in the graph.

It takes an `Element` and the URL of an endpoint that sends the layout of `common.transport.served.flat_columns`. It
returns a `tf.data.Dataset` of the same elements, dtypes and specs as the native op's.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from parquetry.common.base.memory.arrow_views import as_numpy
from parquetry.common.schema.element import Element, OutputField
from parquetry.common.transport.served.address import Endpoint
from parquetry.common.transport.served.arrays import numbers_of
from parquetry.common.transport.served.flat_columns import FlatColumn, flat_columns_of, last_variable
from parquetry.common.transport.served.wire import SocketReader

from .arrow_versions import Reader
from .elements import Component, Leaf, assemble, leaves_of

_LOGGER = logging.getLogger(__name__)


def arrow_dataset(element: Element, endpoint: Endpoint, reader: Reader) -> tf.data.Dataset:
    """Returns a dataset over the stream of an endpoint. Every iterator opens its own connection."""
    flats, leaves = flat_columns_of(element), leaves_of(element)
    specs = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int64), *(_spec(flat, element) for flat in flats))

    def to_element(error: tf.Tensor, rows: tf.Tensor, *columns: tf.Tensor) -> Any:
        whole = tf.debugging.Assert(tf.equal(tf.strings.length(error), 0), [error], summarize=1)
        with tf.control_dependencies([whole]):
            kept = [tf.identity(column) for column in columns]
            rows = tf.identity(rows)
        parts = {(flat.field, flat.part, flat.axis): column for flat, column in zip(flats, kept, strict=True)}
        return element.nest([_value(leaf, element, rows, parts) for leaf in leaves])

    source = _tensorflow_io(endpoint, specs) if reader == "tensorflow-io" else _pyarrow(endpoint, specs, element)
    return source.map(to_element)


def _spec(flat: FlatColumn, element: Element) -> tf.TensorSpec:
    dtype = tf.dtypes.as_dtype(_dtype(flat, element))
    return tf.TensorSpec(() if flat.scalar else (None,), tf.string if dtype == tf.dtypes.as_dtype(object) else dtype)


def _dtype(flat: FlatColumn, element: Element) -> np.dtype[Any]:
    return element.leaves[flat.field].dtype if flat.part == "values" else np.dtype(np.int64)


def _value(leaf: Leaf, element: Element, rows: tf.Tensor, parts: dict[Any, tf.Tensor]) -> Any:
    """Builds one output of an element from its flat columns."""
    tensors = [_tensor(component, element, rows, parts) for component in leaf.components]
    for tensor, component in zip(tensors, leaf.components, strict=True):
        tensor.set_shape(component.spec.shape)
    return assemble(leaf, tensors)


def _tensor(component: Component, element: Element, rows: tf.Tensor, parts: dict[Any, tf.Tensor]) -> tf.Tensor:
    """Returns one component, in the form of the native op."""
    field, what, *axis = component.kind.split(":")
    number, output = int(field), element.leaves[int(field)]
    if what == "splits":
        return parts[number, "splits", int(axis[0])]
    values = parts[number, "values", -1]
    if what != "values":
        return tf.reshape(values, _shape(output, element, rows, parts.get((number, "shape", -1))))
    splits = parts[number, "splits", last_variable(output)]
    tail = [int(size or 0) for size in output.shape[last_variable(output) + 1 :]]
    return tf.reshape(values, tf.concat([splits[-1:], tf.constant(tail, tf.int64)], axis=0))


def _shape(output: OutputField, element: Element, rows: tf.Tensor, sent: tf.Tensor | None) -> tf.Tensor:
    if sent is not None:
        return sent
    fixed = tf.constant([int(size or 0) for size in output.element_shape], tf.int64)
    return tf.concat([rows[None], fixed], axis=0) if element.batched else fixed


def _tensorflow_io(endpoint: Endpoint, specs: Sequence[tf.TensorSpec]) -> tf.data.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use deprecated names of newer packages
        from tensorflow_io.arrow import ArrowStreamDataset
    return ArrowStreamDataset(
        [endpoint.for_tensorflow_io],
        list(range(len(specs))),
        tuple(spec.dtype for spec in specs),
        tuple(spec.shape for spec in specs),
    )


def _pyarrow(endpoint: Endpoint, specs: Sequence[tf.TensorSpec], element: Element) -> tf.data.Dataset:
    _LOGGER.warning(
        "transport='arrow': tensorflow-io crashes with TensorFlow %s, so the stream is read through pyarrow in Python. "
        "TensorFlow 2.16 reads it natively, and the native op (without transport=) works with every version.",
        tf.__version__,
    )

    dtypes = [np.dtype(object), np.dtype(np.int64), *(_dtype(flat, element) for flat in flat_columns_of(element))]

    def elements() -> Iterator[tuple[Any, ...]]:
        with _connected(endpoint) as connection:
            reader = pa.ipc.open_stream(pa.PythonFile(SocketReader(connection), mode="r"))
            for batch in reader:
                for row in range(batch.num_rows):
                    yield tuple(_item(*at, row) for at in zip(batch.columns, dtypes, strict=True))

    return tf.data.Dataset.from_generator(elements, output_signature=tuple(specs))


def _connected(endpoint: Endpoint) -> socket.socket:
    if endpoint.kind == "tcp":
        return socket.create_connection((endpoint.host, endpoint.port))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(endpoint.path)
    except BaseException:
        connection.close()
        raise
    return connection


def _item(column: pa.Array, dtype: np.dtype[Any], row: int) -> Any:
    """Returns one row of a column as numpy: a scalar, or the values of a list."""
    if not pa.types.is_list(column.type):
        return column[row].as_py()
    values = column[row].values
    return as_numpy(values) if dtype.kind == "O" else numbers_of(values, dtype)
