"""Maps stored columns to Spark types, and converts a column to exactly the Arrow type that Spark expects.

Spark has no unsigned integers, no half-precision floats, no fixed-size lists, and no time unit other than microseconds.
A column that goes through Spark is therefore stored in the next wider type. Readers get the field's own dtype back.
Only `require_pyspark` imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

import pyarrow as pa

from ..base.errors import CodecUnavailableError, EncodeError, SchemaError, missing_package
from ..base.memory.arrow_views import as_arrow, as_numpy, is_list
from .codec import CodedField

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
SPARK_TYPES = {
    pa.bool_(): "BooleanType",
    pa.int8(): "ByteType",
    pa.int16(): "ShortType",
    pa.int32(): "IntegerType",
    pa.int64(): "LongType",
    pa.float32(): "FloatType",
    pa.float64(): "DoubleType",
    pa.string(): "StringType",
    pa.binary(): "BinaryType",
    pa.date32(): "DateType",
    pa.timestamp("us"): "TimestampNTZType",
    pa.timestamp("us", "UTC"): "TimestampType",
}


def require_pyspark(what: str, module: str = "pyspark") -> Any:
    """Imports ``pyspark``, or a module of it.

    Raises:
        CodecUnavailableError: pyspark is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise CodecUnavailableError(f"{what}: {missing_package(error, 'pyspark', 'spark')}") from error


def pyspark_types(what: str) -> Any:
    """Imports the module ``pyspark.sql.types``. Raises like `require_pyspark`."""
    return require_pyspark(what, "pyspark.sql.types")


def spark_schema(schema: Iterable[CodedField]) -> Any:
    """Returns the ``StructType`` of the stored columns.

    Raises:
        SchemaError: Spark has no type for a field.
        CodecUnavailableError: pyspark is not installed.
    """
    types = pyspark_types("as_spark_schema")
    return types.StructType(
        [types.StructField(f.name, spark_type(spark_arrow_type(f), types), bool(f.nullable)) for f in schema]
    )


def spark_arrow_type(field: CodedField) -> pa.DataType:
    """Returns the Arrow type in which Spark accepts a field's stored column.

    Raises:
        SchemaError: Spark has no such type.
    """
    if not field.storage.in_column:
        raise SchemaError(
            f"field '{field.name}': Spark writes no videos, got {type(field.storage).__name__}. Write such a field "
            "with write_dataset(), or store each frame with CompressedImageCodec()."
        )
    return as_spark_takes_it(field.storage.arrow_type(field), field=field.name)


def as_spark_takes_it(kind: pa.DataType, *, field: str) -> pa.DataType:
    """Returns the narrowest Arrow type that Spark supports and that holds every value of ``kind``."""
    if is_list(kind):
        return pa.list_(pa.field("element", as_spark_takes_it(kind.value_type, field=field), nullable=False))
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()  # counts of the field's own unit
    if pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    wider = _WIDER.get(kind, kind)
    if wider not in SPARK_TYPES and not pa.types.is_decimal(wider):
        raise SchemaError(
            f"field '{field}': expected a type that Spark supports, got {kind}. Choose another dtype or codec."
        )
    return wider


def spark_type(kind: pa.DataType, types: ModuleType) -> Any:
    """Returns the Spark type for an Arrow type that came from `as_spark_takes_it`."""
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type, types), containsNull=False)
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    return getattr(types, SPARK_TYPES[kind])()


def to_spark(array: pa.Array, *, field: str) -> pa.Array:
    """Converts a stored column to the type that Spark expects.

    Raises:
        EncodeError: that type cannot hold a value, such as a timestamp with nanoseconds.
    """
    target = as_spark_takes_it(array.type, field=field)
    try:
        return _convert(array, target)
    except pa.ArrowInvalid as error:
        raise EncodeError(f"field '{field}': expected values that fit Spark's {target}: {error}.") from error


def _convert(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    kind = array.type
    if kind == wanted:
        return array
    if pa.types.is_list(wanted):
        plain = array.cast(pa.list_(kind.value_type)) if not pa.types.is_list(kind) else array
        offsets = as_arrow(as_numpy(plain.offsets))  # from_arrays refuses a mask with sliced offsets
        mask = plain.is_null() if plain.null_count else None
        return pa.ListArray.from_arrays(offsets, _convert(plain.values, wanted.value_type), type=wanted, mask=mask)
    if pa.types.is_duration(kind):
        return array.view(pa.int64())
    if pa.types.is_time(kind):
        return array.cast(pa.int32()).cast(pa.int64()) if pa.types.is_time32(kind) else array.view(pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    return array.cast(wanted)
