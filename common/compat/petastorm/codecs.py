"""Petastorm's codecs, with its names and arguments. Each uses the parquetry codec that stores the same bytes.

They convert values of a `UnischemaField` to what Parquet stores, and back. Spark types are recognized by name, so only
`DataframeColumnCodec.spark_dtype` needs pyspark.
"""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from ...base.errors import DecodeError, EncodeError, SchemaError
from ...schema import codecs as core
from ...schema.checking import check_value
from ...schema.codec import Codec, fits_shape
from ...schema.dtypes import is_string_like
from ...schema.field import UnischemaField as CoreField
from ...schema.images import CompressedImageCodec as CoreImageCodec
from ...schema.spark_types import SPARK_TYPES, pyspark_types

Value: TypeAlias = Any
"""A value from a user's row or a stored column. It can be anything; the codec checks it."""


class EncodedField(Protocol):
    """What codecs need from a field of `petastorm.unischema`."""

    @property
    def name(self) -> str:
        """The column's name."""

    @property
    def numpy_dtype(self) -> Any:
        """dtype of the values."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of one value."""

    def to_parquetry(self, codec: Codec | None = None) -> CoreField:
        """Returns the field in the engine's form."""


_SPARK_ARROW = {
    **{name: arrow for arrow, name in SPARK_TYPES.items()},
    "VarcharType": pa.string(),
    "CharType": pa.string(),
}
_ARROW_SPARK = {
    **{str(arrow): name for arrow, name in SPARK_TYPES.items()},
    "uint8": "ShortType",
    "uint16": "IntegerType",
    "uint32": "LongType",
}


_WANTED = {"string": "string", "binary": "bytes"}


class DataframeColumnCodec:
    """Base class of the codecs."""

    def encode(self, unischema_field: EncodedField, value: Value) -> Value:
        """Encodes a value; raises ``ValueError`` or ``TypeError`` if the value does not fit the field."""
        raise NotImplementedError

    def decode(self, unischema_field: EncodedField, value: Value) -> Value:
        """Decodes a stored value."""
        raise NotImplementedError

    def spark_dtype(self) -> Any:
        """Returns the Spark type of the stored column (needs pyspark)."""
        return spark_type("BinaryType")

    def to_parquetry(self, field: EncodedField) -> Codec | None:
        """Returns the parquetry codec that stores the same bytes; ``None`` for the field's default."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{type(self).__name__}()"

    def __repr__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))


class StoredCodec(DataframeColumnCodec):
    """A parquetry codec with Petastorm's interface, even if Petastorm has no such codec."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, unischema_field: EncodedField, value: Value) -> bytearray:
        field = unischema_field.to_parquetry(codec=self._codec)
        _check_array(unischema_field, value)
        return bytearray(self._codec.encode(field, check_value(field, value)))

    def decode(self, unischema_field: EncodedField, value: Value) -> np.ndarray:
        return decode_array(unischema_field.to_parquetry(codec=self._codec), value)

    def to_parquetry(self, field: EncodedField) -> Codec | None:
        return self._codec


class NdarrayCodec(StoredCodec):
    """Stores an array as ``.npy`` bytes."""

    def __init__(self) -> None:
        super().__init__(core.NdarrayCodec())


class CompressedNdarrayCodec(StoredCodec):
    """Stores an array as a zip file that contains ``.npy`` bytes."""

    def __init__(self) -> None:
        super().__init__(core.CompressedNdarrayCodec())


class CompressedImageCodec(StoredCodec):
    """Stores an image as PNG or JPEG bytes, in RGB order.

    Args:
        image_codec: ``"png"`` or ``"jpeg"`` (or parquetry's ``"webp"``, which Petastorm cannot read).
        quality: JPEG quality, 1 to 100.
    """

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        super().__init__(CoreImageCodec(image_codec, quality))
        self._quality = quality

    @property
    def image_codec(self) -> str:
        """``"png"`` or ``"jpeg"``."""
        assert isinstance(self._codec, CoreImageCodec)
        return self._codec.image_codec

    def __str__(self) -> str:
        return f"CompressedImageCodec('{self.image_codec}', {self._quality})"


class ScalarCodec(DataframeColumnCodec):
    """Stores a scalar as a plain Parquet value.

    Args:
        spark_type: the stored type: a type of ``pyspark.sql.types``, a pyarrow type, or a numpy dtype.
    """

    def __init__(self, spark_type: Any) -> None:
        self._spark_type = spark_type

    @property
    def arrow_type(self) -> pa.DataType | None:
        """The Arrow type that stores the value; ``None`` if the given type is unknown."""
        stored_type = self._spark_type
        if isinstance(stored_type, pa.DataType):
            return stored_type
        name = stored_type.__name__ if isinstance(stored_type, type) else type(stored_type).__name__
        if name == "DecimalType":
            return pa.decimal128(getattr(stored_type, "precision", 10), getattr(stored_type, "scale", 0))
        if name in _SPARK_ARROW:
            return _SPARK_ARROW[name]
        try:
            return pa.from_numpy_dtype(np.dtype(stored_type))
        except (TypeError, pa.ArrowNotImplementedError):
            return None

    def encode(self, unischema_field: EncodedField, value: Value) -> Value:
        """Returns the plain Python value that Spark writes to a column of the stored type.

        Raises:
            EncodeError: the value has another kind, or would read back as a different one. Floats may be rounded.
        """
        if isinstance(value, bytearray | memoryview):
            value = bytes(value)
        if np.ndim(value):
            raise TypeError(f"field '{unischema_field.name}': Expected a scalar, got {type(value).__name__}.")
        if unischema_field.shape:
            raise EncodeError(
                f"field '{unischema_field.name}': with ScalarCodec the shape must be an empty tuple, "
                f"got {unischema_field.shape}."
            )
        try:
            return _stored_scalar(self.arrow_type, unischema_field.numpy_dtype, _plain(value))
        except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
            expected = _WANTED.get(str(self.arrow_type), self.arrow_type)
            raise EncodeError(
                f"field '{unischema_field.name}': Expected a {expected} value that {self} gives back unchanged, got "
                f"{value!r} of type {type(value).__name__}. Convert it, or declare another type."
            ) from error

    def decode(self, unischema_field: EncodedField, value: Value) -> Value:
        return as_scalar(unischema_field.numpy_dtype, value)

    def spark_dtype(self) -> Any:
        if type(self._spark_type).__module__.startswith("pyspark"):
            return self._spark_type
        stored = self.arrow_type
        if stored is not None and pa.types.is_decimal(stored):
            return spark_type("DecimalType", stored.precision, stored.scale)
        if stored is not None and pa.types.is_timestamp(stored):
            return spark_type("TimestampType")
        if stored is None or str(stored) not in _ARROW_SPARK:
            raise SchemaError(f"ScalarCodec({self._spark_type}): Was not able to map type {stored} to a Spark type.")
        return spark_type(_ARROW_SPARK[str(stored)])

    def to_parquetry(self, field: EncodedField) -> Codec | None:
        if field.shape:
            return None
        stored = self.arrow_type
        try:
            codec = core.ScalarCodec(stored)
            field.to_parquetry(codec=codec)  # refuses types of another family, such as text for bytes
        except SchemaError:
            return None
        return codec

    def __str__(self) -> str:
        return f"ScalarCodec({self._spark_type})"


def spark_type(name: str, *args: object) -> Any:
    """Makes a type of ``pyspark.sql.types``. Raises `CodecUnavailableError` if pyspark is not installed."""
    return getattr(pyspark_types(f"Spark type {name}"), name)(*args)


def _plain(value: object) -> Value:
    """Converts a numpy scalar to a plain Python value; timestamps have microseconds, as in Spark."""
    if not isinstance(value, np.generic | np.ndarray):
        return value
    if value.dtype.kind != "M":
        return value.item()
    moment = value.astype("datetime64[us]")
    if np.isnat(moment) or moment.astype(value.dtype) != value:  # a comparison in one unit would wrap around
        raise ValueError("a time with a fraction of a microsecond")
    return moment.item()


def _stored_scalar(stored: pa.DataType | None, dtype: DTypeLike, value: Value) -> Value:
    """Converts a plain value for storage; raises ``ValueError``, ``TypeError`` or ``ArithmeticError`` if it cannot."""
    if stored is None:
        return value
    if pa.types.is_decimal(stored):
        return value if isinstance(value, decimal.Decimal) else decimal.Decimal(value)
    if pa.types.is_integer(stored) or pa.types.is_floating(stored) or pa.types.is_boolean(stored):
        return _stored_number(stored, dtype, value)
    if pa.types.is_date(stored) and isinstance(value, datetime.datetime):
        if value.time() != datetime.time.min:
            raise ValueError("a time of day in a column of dates")
        return value.date()
    kinds = str if pa.types.is_string(stored) else bytes if pa.types.is_binary(stored) else object
    if not isinstance(value, kinds):
        raise TypeError(f"expected {kinds.__name__}")
    return value


def _stored_number(stored: pa.DataType, dtype: DTypeLike, value: Value) -> bool | int | float:
    if isinstance(value, str | bytes):
        raise TypeError("text is not a number")
    made = (bool if pa.types.is_boolean(stored) else int if pa.types.is_integer(stored) else float)(value)
    numeric = isinstance(dtype, type) and issubclass(dtype, np.number | np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        forms = [made, np.asarray(made).astype(dtype).item() if numeric else made]
        if not _is_unsigned_form(stored, dtype):
            forms.append(pa.scalar(made, stored).as_py())
    if not all(_reads_back(value, form) for form in forms):
        raise ValueError("the value would change")
    return made


def _is_unsigned_form(stored: pa.DataType, dtype: DTypeLike) -> bool:
    """Whether an unsigned dtype is stored in as many bits with a sign. Spark itself then judges large values."""
    if not pa.types.is_signed_integer(stored) or not isinstance(dtype, type):
        return False
    return issubclass(dtype, np.unsignedinteger) and 8 * np.dtype(dtype).itemsize == stored.bit_width


def _reads_back(value: object, form: object) -> bool:
    if isinstance(value, float) and isinstance(form, float):  # floats are rounded to the precision of the column
        return math.isnan(form) if math.isnan(value) else math.isinf(form) == math.isinf(value)
    return bool(form == value)


def as_scalar(dtype: DTypeLike, value: Value) -> Value:
    """Converts a stored scalar to the field's type: numpy scalars, ``numpy.str_``, ``numpy.bytes_``, ``Decimal``."""
    if value is None or dtype is None or not isinstance(dtype, type):
        return value
    if dtype is decimal.Decimal:
        return decimal.Decimal(value)
    if issubclass(dtype, np.bytes_):
        return np.bytes_(value.encode() if isinstance(value, str) else value)
    if issubclass(dtype, np.generic):
        if isinstance(value, list | tuple | np.ndarray):
            raise TypeError(f"expected a scalar of {dtype.__name__}, got {type(value).__name__}")
        return dtype(value)
    return value


def decode_array(field: CoreField, data: bytes | bytearray | memoryview | pa.Buffer) -> np.ndarray:
    """Decodes an array from stored bytes, into memory of its own.

    Args:
        field: a parquetry field.
        data: the stored bytes.

    Raises:
        DecodeError: the bytes are not a valid array of this field.
    """
    codec: Any = field.storage  # codecs of text have decode_strings
    try:
        view = memoryview(data)
        if is_string_like(field.dtype):
            result: np.ndarray = codec.decode_strings(field, view).copy()
            return result
        shape = codec.shape_of(field, view)
        dtype = np.dtype(np.int64) if field.dtype.kind in "mM" else field.dtype
        out = np.empty(shape, dtype)
        codec.decode_into(field, view, out)
        return out.view(field.dtype) if field.dtype.kind in "mM" else out
    except (ValueError, TypeError) as error:
        raise DecodeError(f"field '{field.name}': {type(codec).__name__} failed: {error}") from error


def _check_array(field: EncodedField, value: Value) -> None:
    """Runs Petastorm's two checks; the errors also name the field."""
    dtype = np.dtype(field.numpy_dtype) if field.numpy_dtype is not decimal.Decimal else None
    if isinstance(value, np.ndarray) and dtype is not None and dtype.kind not in "SUM" and value.dtype != dtype:
        raise EncodeError(f"field '{field.name}': Unexpected type {value.dtype}, expected {dtype}.")
    shape = np.shape(value)
    if not fits_shape(shape, field.shape):
        raise EncodeError(f"field '{field.name}': Unexpected dimensions {shape}, expected {field.shape}.")
