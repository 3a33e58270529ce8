"""`make_petastorm_dataset` and `tf_tensors`: readers of `parquetry.petastorm` in TensorFlow, under Petastorm's names.

Elements are named tuples of tensors (for windows, ``{offset: named tuple}``) with the schema's static shapes. Text,
bytes and decimals are ``tf.string``, dates and time stamps ``tf.int64`` (nanoseconds since 1970), uint16 ``tf.int32``
and uint32 ``tf.int64``. Rows pass through Python one by one; `ParquetDataset` is faster.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import warnings
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parquetry.common.base.errors import DecodeError, NullValueError, PipelineError, SchemaError, needs_framework
from parquetry.common.compat.petastorm.ngram import NGram
from parquetry.common.compat.petastorm.reading import DescribedSamples
from parquetry.common.compat.petastorm.unischema import Unischema, UnischemaField
from parquetry.common.compat.petastorm.values import null_partitions
from parquetry.common.schema.ragged import object_array

with needs_framework("parquetry.petastorm.tf_utils", "tensorflow", extra="tensorflow"):
    import tensorflow as tf

RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"
"""The name of the graph op that returns the size of the shuffling queue of `tf_tensors`."""

_TF_DTYPES = {
    np.bool_: tf.bool,
    np.int8: tf.int8,
    np.uint8: tf.uint8,
    np.int16: tf.int16,
    np.uint16: tf.int32,
    np.int32: tf.int32,
    np.uint32: tf.int64,
    np.int64: tf.int64,
    np.float16: tf.float16,
    np.float32: tf.float32,
    np.float64: tf.float64,
    np.str_: tf.string,
    np.bytes_: tf.string,
    np.datetime64: tf.int64,
    decimal.Decimal: tf.string,
}
_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
_AGAIN = (
    "Running multiple iterations over make_petastorm_dataset is not recommend for performance issue: "  # its text
    "the dataset is iterated once more, so its reader starts over and reads all data again. "
    "Give num_epochs to make_reader, or call cache() on the dataset before repeat()."
)
_LEFT = (
    "make_petastorm_dataset: the dataset is iterated once more after an iteration that was left. Rows that it had read "
    "ahead, {rows} at most, are skipped. Use one iterator, or read on with take() and skip() of one dataset."
)
_BLOCK_ROWS = 64
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_BLOCK_BYTES = 4 << 20


def make_petastorm_dataset(reader: DescribedSamples) -> Any:
    """Returns a ``tf.data.Dataset`` of a reader's rows, row groups (of a batched reader), or windows.

    The reader must stay open while you iterate the dataset. A second iteration resets it, with a warning.

    Raises:
        SchemaError: TensorFlow has no type for a field.
    """
    schema, ngram = _schema_of("make_petastorm_dataset", reader), reader.ngram
    fields = _flat_fields(schema, ngram)
    dtypes = _nested(schema, ngram, [dtype for _, dtype in fields])
    shapes = _nested(schema, ngram, [tf.TensorShape(_shape(field, reader.batched_output)) for field, _ in fields])

    most = 0 if reader.batched_output else _block_rows(fields)
    ahead = 0

    def rows() -> Iterator[list[Any]]:
        if ahead > 1 and not reader.last_row_consumed:
            warnings.warn(_LEFT.format(rows=ahead - 1), UserWarning, stacklevel=2)
        _begin(reader)
        for sample in reader:
            if reader.batched_output:
                for name in null_partitions(schema, sample._asdict()):
                    raise _null(name)
            steps = [sample] if ngram is None else [sample[offset] for offset in ngram.offsets]
            yield [value for step in steps for value in _sanitize_field_tf_types(step)]

    def blocks() -> Iterator[Any]:
        nonlocal ahead
        for block in _blocks(rows(), most):
            ahead = len(block)
            columns = zip(*block, strict=True)
            yield _nested(
                schema, ngram, [_stacked(f.name, column) for (f, _), column in zip(fields, columns, strict=True)]
            )
        ahead = 0

    # Dtypes and shapes are nested like the rows: an output_signature, or a map() that names the fields, costs more than
    # reading a row. TensorFlow 1's class also has make_one_shot_iterator().
    generate = tf.compat.v1.data.Dataset.from_generator
    if not most:
        return generate(lambda: (_nested(schema, ngram, row) for row in rows()), dtypes, shapes)
    whole = [tf.TensorShape((None, *field.shape)) for field, _ in fields]
    return generate(blocks, dtypes, _nested(schema, ngram, whole)).unbatch()


def _block_rows(fields: list[tuple[UnischemaField, tf.DType]]) -> int:
    """Returns how many rows to pass to TensorFlow per Python call, because calls are expensive; 0 if impossible."""
    if any(None in field.shape for field, _ in fields):
        return 0
    row_bytes = sum(math.prod(axis or 0 for axis in field.shape) * dtype.size for field, dtype in fields)
    return int(min(max(_BLOCK_BYTES // max(row_bytes, 1), 1), _BLOCK_ROWS))


def _blocks(rows: Iterator[list[Any]], most: int) -> Iterator[list[list[Any]]]:
    """Yields blocks of rows. They grow from one row, so that the first comes early. Rows before an error come too."""
    size, failure = 1, None
    while failure is None:
        block: list[list[Any]] = []
        try:
            for row in itertools.islice(rows, size):
                block.append(row)
        except Exception as error:
            failure = error
        if block:
            yield block
        elif failure is None:
            return
        size = min(2 * size, most)
    raise failure


def _stacked(name: str, values: Sequence[Any]) -> np.ndarray:
    try:
        if np.ndim(values[0]):
            return np.stack(values)
        return object_array(values) if _is_text(values[0]) else np.array(values)
    except ValueError as error:
        shapes = sorted({np.shape(value) for value in values})
        raise PipelineError(f"field '{name}': expected the shape that the schema declares, got {shapes}.") from error


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def tf_tensors(reader: DescribedSamples, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> Any:
    """Returns a row (or window) as a named tuple of tensors. Each run in a TensorFlow 1 session reads the next one.

    Args:
        shuffling_queue_capacity: rows in a ``RandomShuffleQueue`` between the reader and the tensors; 0 = none.
        min_after_dequeue: rows that always stay in the queue.

    Raises:
        PipelineError: a shuffling queue with a batched reader, or outside a graph.
    """
    schema = _schema_of("tf_tensors", reader)
    if shuffling_queue_capacity > 0 and (reader.batched_output or tf.executing_eagerly()):
        raise PipelineError(
            "tf_tensors: expected shuffling_queue_capacity=0 for make_batch_reader and in eager mode, "
            f"got {shuffling_queue_capacity}. Shuffle with shuffle_rows=True, or with shuffle() of the dataset."
        )
    ngram = reader.ngram
    fields = _flat_fields(schema, ngram)
    dtypes = [dtype for _, dtype in fields]

    def sample(_: object) -> list[Any]:
        row = next(reader)
        return list(_sanitize_field_tf_types(row) if ngram is None else _sanitize_and_flatten(row))

    tensors = tf.compat.v1.py_func(sample, [tf.constant(1)], dtypes)
    if shuffling_queue_capacity > 0:
        tensors = _shuffled(tensors, dtypes, shuffling_queue_capacity, min_after_dequeue)
    tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
    for tensor, (field, _) in zip(tensors, fields, strict=True):
        tensor.set_shape(_shape(field, reader.batched_output))
    return _nested(schema, ngram, tensors)


def _schema_of(called: str, reader: DescribedSamples) -> Unischema:
    if not hasattr(reader, "schema"):
        raise PipelineError(f"{called}: expected a reader from make_reader or make_batch_reader, got {reader!r}.")
    return reader.schema


def _begin(reader: DescribedSamples) -> None:
    if reader.last_row_consumed:
        warnings.warn(_AGAIN, UserWarning, stacklevel=2)
        reader.reset()


def _shuffled(tensors: object, dtypes: list[Any], capacity: int, min_after_dequeue: int) -> Any:
    queue = tf.queue.RandomShuffleQueue(capacity, min_after_dequeue, dtypes)
    queue.size(name=RANDOM_SHUFFLING_QUEUE_SIZE)  # for code that looks it up by name
    runner = tf.compat.v1.train.QueueRunner(queue, [queue.enqueue(tensors)])
    tf.compat.v1.train.add_queue_runner(runner)
    return queue.dequeue()


def _flat_fields(schema: Unischema, ngram: NGram | None) -> list[tuple[UnischemaField, tf.DType]]:
    """Returns each field of an element in order, with its TensorFlow dtype; for windows, offset by offset."""
    schemas = [schema] if ngram is None else [ngram.get_schema_at_timestep(schema, offset) for offset in ngram.offsets]
    return [(field, _tf_dtype(field)) for part in schemas for field in part.fields.values()]


def _tf_dtype(field: UnischemaField) -> tf.DType:
    try:
        return _numpy_to_tf_dtypes(field.numpy_dtype)
    except ValueError as error:
        raise SchemaError(f"field '{field.name}': {error} Leave it out with schema_fields=.") from error


def _numpy_to_tf_dtypes(numpy_dtype: object) -> Any:
    """Returns the TensorFlow dtype for a numpy type. Raises `SchemaError` (a ``ValueError``) if there is none."""
    scalar_type = numpy_dtype.type if isinstance(numpy_dtype, np.dtype) else numpy_dtype
    if scalar_type not in _TF_DTYPES:
        raise SchemaError(f"numpy type {numpy_dtype}: expected one of {[item.__name__ for item in _TF_DTYPES]}.")
    return _TF_DTYPES[scalar_type]


def _schema_to_tf_dtypes(schema: Unischema) -> list[Any]:
    return [_tf_dtype(field) for field in schema.fields.values()]


def _schema_to_tf_dtypes_ngram(schema: Unischema, ngram: NGram) -> list[Any]:
    return [dtype for _, dtype in _flat_fields(schema, ngram)]


def _shape(field: UnischemaField, batched: bool) -> tuple[int | None, ...]:
    return (None, *field.shape) if batched else tuple(field.shape)


def _sanitize_field_tf_types(sample: Any) -> Any:
    """Returns a named tuple with values that TensorFlow accepts.

    Raises:
        NullValueError: a value is null. The error names the field.
    """
    values = {name: _tf_value(name, value) for name, value in sample._asdict().items()}
    return type(sample)(**values)


def _tf_value(name: str, value: object) -> Any:
    if value is None or value is np.ma.masked or isinstance(value, np.ma.MaskedArray):
        raise _null(name)
    if isinstance(value, decimal.Decimal):
        return str(_EXACT.normalize(value))
    if isinstance(value, np.datetime64) or (isinstance(value, np.ndarray) and value.dtype.kind == "M"):
        return _nanoseconds(name, np.asarray(value))
    if isinstance(value, datetime.date):
        return _nanoseconds(name, np.asarray(np.datetime64(value)))
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return _of_objects(name, value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        return value if not value.size else np.array(value.tolist(), dtype=object).reshape(value.shape)
    if isinstance(value, np.ndarray | np.generic) and value.dtype in _WIDER:
        return value.astype(_WIDER[value.dtype])
    return value


def _null(name: str) -> NullValueError:
    return NullValueError(
        f"field '{name}': expected a value, got null (None), which TensorFlow has no form for. Leave such rows out "
        "with a predicate, or fill them in a TransformSpec."
    )


def _nanoseconds(name: str, moments: np.ndarray) -> np.ndarray:
    if np.isnat(moments).any():
        result: np.ndarray = _tf_value(name, None)
        return result
    made = moments.astype("datetime64[ns]")
    wrong = made.astype(moments.dtype) != moments  # numpy wraps around
    if wrong.any():
        raise DecodeError(
            f"field '{name}': expected times that nanoseconds in 64 bits can hold (1677 to 2262), got "
            f"{moments[wrong].reshape(-1)[0]}. Leave such rows out with a predicate, or "
            "convert the field in a TransformSpec."
        )
    return made.astype(np.int64)


def _of_objects(name: str, values: np.ndarray) -> np.ndarray:
    if any(isinstance(value, np.ndarray | list) for value in values.flat):
        raise PipelineError(
            f"field '{name}': expected lists of one length in a row group, which make one tensor, got several lengths. "
            "Pad them in a TransformSpec, or read with make_reader."
        )
    made = [_tf_value(name, value) for value in values.flat]
    if made and all(isinstance(value, np.ndarray) for value in made):  # dates
        return np.array(made).reshape(values.shape)
    return object_array(made).reshape(values.shape)


def _flatten(ngram: Mapping[int, Any]) -> Any:
    """Returns a window as one named tuple. Names end in the number of the step: ``id_0``, ``id_1``, ..."""
    flat = {
        f"{name}_{number}": value
        for number, offset in enumerate(sorted(ngram))
        for name, value in ngram[offset]._asdict().items()
    }
    return namedtuple("flattened", list(flat))(**flat)


def _sanitize_and_flatten(ngram: Mapping[int, Any]) -> Any:
    return _flatten({offset: _sanitize_field_tf_types(step) for offset, step in ngram.items()})


def _ngrams_generator(reader: DescribedSamples) -> Iterator[Any]:
    _begin(reader)
    for sample in reader:
        yield _sanitize_and_flatten(sample)


def _unflatten_and_set_shape(schema: Unischema, ngram: NGram, fields_as_list: Sequence[Any]) -> dict[int, Any]:
    """Returns the flat tensors of a window as ``{offset: named tuple}``."""
    for tensor, (field, _) in zip(fields_as_list, _flat_fields(schema, ngram), strict=True):
        tensor.set_shape(tuple(field.shape))
    result: dict[int, Any] = _nested(schema, ngram, fields_as_list)
    return result


def _nested(schema: Unischema, ngram: NGram | None, flat: Sequence[Any]) -> Any:
    """Nests one value per field like a row, or like a window: ``{offset: named tuple}``."""
    if ngram is None:
        return schema.make_namedtuple_tf(*flat)
    values = iter(flat)
    parts = {offset: ngram.get_schema_at_timestep(schema, offset) for offset in ngram.offsets}
    return {
        offset: part.make_namedtuple_tf(*itertools.islice(values, len(part.fields))) for offset, part in parts.items()
    }
