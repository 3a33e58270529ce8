"""`encode_dataframe`: encodes plain DataFrame columns into the columns that a schema stores.

It takes numbers, text, bytes, (nested) arrays and MLlib vectors, and returns what the codecs of the
fields store, in Spark types. Executors encode the rows in batches and keep their order.

If a field has an image or array codec and its column is binary, the values are taken as already
encoded (JPEG files, for example). Their bytes are checked, but never become Python objects. All
values go through the same checks as in every other writer, see `schema.checking`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.errors import DecodeError, EncodeError, PipelineError, SchemaError
from ...base.memory.arrow_views import value_type
from ...engine.columns.batch import rows_of
from ...engine.columns.block_column import block_column
from ...engine.columns.protocols import DecodeContext
from ...engine.read.canonical import to_canonical
from ...schema.codecs import ListCodec
from ...schema.dtypes import is_string_like
from ...schema.encoding import encode_columns, encode_rows
from ...schema.field import Unischema, UnischemaField
from ...schema.spark_types import require_pyspark, spark_arrow_type, spark_schema, to_spark
from ...write.file_format import core_schema
from .session import session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_STEP_BYTES = 64 << 20


def encode_dataframe(df: object, schema: Unischema) -> Any:
    """Returns a DataFrame of the stored columns in schema order, ready for ``df.write.parquet``.

    Args:
        df: a DataFrame with a column for each field. Columns of nullable fields may be missing.

    Raises:
        SchemaError: a column has no field, or a field has no column. Values are checked later, when
            Spark computes the DataFrame: if one does not fit, the executor raises `EncodeError`,
            and Spark reports it as its own error.
    """
    session_of(df, "encode_dataframe")
    schema = core_schema(schema)
    columns = checked_columns(df, schema)

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in encoded_tables(schema, batches):
            arrays = [to_spark(table.column(f.name).combine_chunks(), field=f.name) for f in schema]
            yield pa.RecordBatch.from_arrays(arrays, names=list(schema.fields))

    return columns.mapInArrow(encode, spark_schema(schema))


def checked_columns(df: DataFrame, schema: Unischema) -> Any:
    """Checks the columns, and returns the DataFrame with vectors converted to arrays.

    Raises the same errors as `encode_dataframe`.
    """
    unknown = [name for name in df.columns if name not in schema]
    missing = [field.name for field in schema if field.name not in df.columns and not field.nullable]
    if unknown or missing:
        raise SchemaError(
            f"DataFrame: expected the columns of schema '{schema.name}' ({', '.join(schema.fields)}), got "
            f"{', '.join(df.columns)}. Drop {unknown or 'none'}, add {missing or 'none'}."
        )
    return vectors_to_arrays(df)


def encoded_tables(schema: Unischema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields tables of stored columns. Each table has a bounded size.

    Error messages count rows from the first batch.

    Raises:
        EncodeError: a value does not fit its field. The message names the row and field.
    """
    row = 0
    for batch in batches:
        step = max(1, batch.num_rows * _STEP_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step)
            arrays = {field.name: _encode(field, part, row + first) for field in schema}
            yield pa.table(arrays)
        row += batch.num_rows


def _encode(field: UnischemaField, batch: pa.RecordBatch, first_row: int) -> pa.Array:
    if field.name not in batch.schema.names:
        column = pa.nulls(batch.num_rows, field.storage.arrow_type(field))
    else:
        column = batch.column(field.name)
    if column.null_count and not field.nullable:
        row = first_row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise EncodeError(f"row {row}, field '{field.name}': expected a value, got None. Declare it nullable=True.")
    if field.storage.coded:
        is_stored = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        return _checked(field, column, first_row) if is_stored else _encode_arrays(field, column, first_row)
    fast = _cast(field, column)
    return fast if fast is not None else _encode_values(field, column, first_row)


def _cast(field: UnischemaField, column: pa.Array) -> pa.Array | None:
    """Casts a column to the stored type, if Arrow's cast either is exact or fails.

    Returns ``None`` if the values must be checked one by one.
    """
    stored = field.storage.arrow_type(field)
    if column.null_count == len(column):
        return pa.nulls(len(column), stored)
    inner, expected = value_type(column.type), value_type(stored)
    narrows = pa.types.is_floating(expected) and inner != expected  # no unchecked double to float
    as_spark_stores_it = inner == value_type(spark_arrow_type(field))
    if narrows or not (as_spark_stores_it or _kind(inner) == _kind(expected)):
        return None
    if field.shape and _has_null_inside(column):
        return None
    if pa.types.is_timestamp(inner) and inner.tz is not None and expected.tz is None:
        if field.shape:
            return None
        column = column.cast(pa.timestamp(inner.unit, "UTC")).cast(pa.timestamp(inner.unit))
    try:
        return column.cast(stored)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _encode_values(field: UnischemaField, column: pa.Array, first_row: int) -> pa.Array:
    schema = Unischema("column", [field])
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    return encode_columns(schema, {field.name: column.to_pylist()}, first_row=first_row)[field.name]


def _checked(field: UnischemaField, column: pa.Array, first_row: int) -> pa.Array:
    """Returns stored bytes unchanged, after checking that each header matches the field's shape."""
    for number, value in enumerate(column, first_row):
        if not value.is_valid:
            continue
        data = memoryview(value.as_buffer())
        try:
            field.storage.check_stored(field, data)
        except (ValueError, OSError) as error:
            raise EncodeError(
                f"row {number}, field '{field.name}': expected bytes that "
                f"{type(field.storage).__name__} stores, with shape {field.shape}, got: {error}."
            ) from error
    return column.cast(field.storage.arrow_type(field))


def _encode_arrays(field: UnischemaField, column: pa.Array, first_row: int) -> pa.Array:
    """Encodes nested lists with the codec, through numpy arrays and not Python numbers."""
    schema = Unischema("column", [field])
    if is_string_like(field.dtype) or field.dtype.kind in "mM" or not field.shape:
        return _encode_values(field, column, first_row)
    plain = UnischemaField(field.name, field.dtype, field.shape, ListCodec(), nullable=True)
    try:
        if pa.types.is_floating(value_type(column.type)) and field.dtype.kind in "iub":
            raise DecodeError(f"expected {field.dtype}, got {value_type(column.type)}")
        part = to_canonical(plain, column)
        out = None
        if plain.is_fixed:
            out = np.empty((len(part), *(axis or 0 for axis in plain.shape)), field.dtype)
        context = DecodeContext(describe=lambda row: f"row {first_row + row}")
        gathered = block_column(plain, [part], context).gather(np.arange(len(part)), out)
    except DecodeError as error:
        raise EncodeError(f"rows from {first_row} on, field '{field.name}': {error}") from error
    values: np.ndarray | list[Any] | None = out
    if out is None or column.null_count:
        values = rows_of(gathered, text=False)
    return encode_columns(schema, {field.name: values}, first_row=first_row)[field.name]


def _kind(kind: pa.DataType) -> str:
    for name in ("boolean", "integer", "floating", "string", "binary", "decimal", "timestamp", "date"):
        if getattr(pa.types, f"is_{name}")(kind):
            return name
    return "other"


def _has_null_inside(column: pa.Array) -> bool:
    values = column.drop_null() if column.null_count else column
    while pa.types.is_nested(values.type):
        values = pc.list_flatten(values)
        if values.null_count:
            return True
    return False


def dict_to_spark_row(schema: Unischema, row: Mapping[str, Any]) -> Any:
    """Returns a row for ``spark.createDataFrame(rows, schema.as_spark_schema())``.

    If you have many rows, `encode_dataframe` or `write_rows` are faster, because they do not turn
    bytes into Spark's Python objects.

    Args:
        row: a value for each field. Nullable fields may be missing.

    Raises:
        EncodeError: a value does not fit its field, or the row has an unknown field.
    """
    require_pyspark("dict_to_spark_row")
    from pyspark.sql import Row

    schema = core_schema(schema)
    arrays = encode_rows(schema, [row])
    values = [_python(to_spark(arrays[name], field=name)[0]) for name in schema.fields]
    return Row(*schema.fields)(*values)


def _python(value: pa.Scalar) -> Any:
    if isinstance(value, pa.TimestampScalar) and value.is_valid:
        # Avoids pandas, which Arrow would use for nanoseconds.
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=value.value)
    return value.as_py()


FLOATS = ("float32", "float64")


def vectors_to_arrays(df: DataFrame, dtype: str | None = None) -> Any:
    """Returns the DataFrame with every dense or sparse vector converted to an array.

    ``dtype=None`` keeps the doubles of the vectors.
    """
    from pyspark.sql import functions

    names = vector_columns(df)
    if not names:
        return df
    from pyspark.ml.functions import vector_to_array

    converted = {name: vector_to_array(functions.col(_quoted(name)), dtype or "float64") for name in names}
    return df.withColumns(converted)


def vector_columns(df: DataFrame) -> list[str]:
    """Returns the names of columns with ``pyspark.ml`` or older ``pyspark.mllib`` vectors."""
    return [field.name for field in df.schema if type(field.dataType).__name__ == "VectorUDT"]


def with_floats(df: DataFrame, dtype: str | None) -> Any:
    """Returns the DataFrame with all floats cast to one type, including those in arrays.

    ``None`` changes nothing.

    Raises:
        PipelineError: ``dtype`` is another type.
    """
    if dtype is None:
        return df
    if dtype not in FLOATS:
        raise PipelineError(f"spark_converter: expected dtype to be one of {FLOATS} or None, got {dtype!r}.")
    from pyspark.sql import functions, types

    float_type = types.FloatType() if dtype == "float32" else types.DoubleType()
    changed = {}
    for field in df.schema:
        target = _with_float(field.dataType, float_type, types)
        if target != field.dataType:
            changed[field.name] = functions.col(_quoted(field.name)).cast(target)
    return df.withColumns(changed) if changed else df


def _with_float(kind: DataType, float_type: DataType, types: ModuleType) -> Any:
    if isinstance(kind, types.FloatType | types.DoubleType):
        return float_type
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_with_float(kind.elementType, float_type, types), kind.containsNull)
    return kind


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
