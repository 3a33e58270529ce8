"""The codecs: scalar, list, ndarray, compressed ndarray, and raw tensor. Image codecs are in `images`.

See `codec.Codec` for the contract and `docs/format.md` for the byte layout.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field as dataclass_field
from functools import lru_cache
from typing import IO, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from ..base.errors import SchemaError
from ..base.process.dataclass import dataclass
from .arrow_types import arrow_scalar_type, arrow_type_from_json, arrow_type_to_json, scalar_dtype
from .codec import Codec, CodedField
from .dtypes import FieldDtype, delivered_dtype, dtype_to_json, is_string_like
from .npy import NpyHeader, npy_array, npy_header

_ZIP_MEMBER = "arr.npy"
_NPY_HEAD_BYTES = (1 << 16) + 12  # longer than any header
_NO_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, LookupError, EOFError, NotImplementedError, RuntimeError)
_FAMILIES = {"b": "number", "i": "number", "u": "number", "f": "number", "m": "duration", "M": "time"}


def _family(dtype: FieldDtype) -> str:
    """Returns the family of a dtype. Dtypes of one family convert into each other, either exactly or with an error."""
    return _FAMILIES.get(dtype.kind, dtype.kind) if isinstance(dtype, np.dtype) else "decimal"


def _check_stored_type(arrow: pa.DataType | None, field: CodedField) -> None:
    if arrow is not None and _family(scalar_dtype(arrow, field=field.name)) != _family(field.dtype):
        raise SchemaError(
            f"codec of field '{field.name}': expected an Arrow type that can hold {dtype_to_json(field.dtype)}, "
            f"got {arrow}."
        )


def _stored_type_to_json(arrow: pa.DataType | None) -> dict[str, Any]:
    return {} if arrow is None else {"arrow_type": arrow_type_to_json(arrow)}


def _stored_type_from_json(parameters: Mapping[str, Any]) -> pa.DataType | None:
    stored = parameters.get("arrow_type")
    return None if stored is None else arrow_type_from_json(stored)


def default_codec(field: CodedField) -> Codec:
    """Returns the default codec: plain Parquet for up to one axis, raw or ``.npy`` bytes for more."""
    if len(field.shape) < 2:
        return _default(ListCodec if field.shape else ScalarCodec)
    return _default(TensorCodec if field.is_fixed and not is_string_like(field.dtype) else NdarrayCodec)


@lru_cache
def _default(kind: type[Codec]) -> Codec:
    return kind()  # one for all fields, which request it for each column of each row group


@dataclass(frozen=True)
class ScalarCodec(Codec):
    """One plain Parquet value per row.

    Args:
        arrow: the stored Arrow type, if it should differ from the dtype's default, such as
            ``pa.decimal128(9, 2)`` for a ``Decimal`` or ``pa.int16()`` for a ``uint8``.
    """

    kind: ClassVar[str] = "scalar"
    coded: ClassVar[bool] = False
    arrow: pa.DataType | None = None

    def check_field(self, field: CodedField) -> None:
        if field.shape != ():
            raise SchemaError(
                f"codec of field '{field.name}': ScalarCodec expected shape (), got {field.shape}. "
                "Use NdarrayCodec, TensorCodec, or no codec."
            )
        _check_stored_type(self.arrow, field)

    def arrow_type(self, field: CodedField) -> pa.DataType:
        return self.arrow if self.arrow is not None else arrow_scalar_type(field.dtype, field=field.name)

    def encode(self, field: CodedField, value: object) -> Any:
        return value

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **_stored_type_to_json(self.arrow)}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Codec:
        return cls(_stored_type_from_json(parameters))


@dataclass(frozen=True)
class ScaledDecimalCodec(ScalarCodec):
    """A decimal column that is read as int64: the value times ten to the power of the column's scale."""

    kind: ClassVar[str] = "scaled_decimal"


@dataclass(frozen=True)
class ListCodec(Codec):
    """Plain Parquet lists with one level per axis. The default for 1-D fields.

    Args:
        arrow: the stored type of decimals, timestamps or dates inside the lists, if it should differ from the dtype's
            default, such as ``pa.decimal128(9, 2)``.
    """

    kind: ClassVar[str] = "list"
    coded: ClassVar[bool] = False
    arrow: pa.DataType | None = dataclass_field(default=None, kw_only=True)

    def check_field(self, field: CodedField) -> None:
        if len(field.shape) == 0:
            raise SchemaError(f"codec of field '{field.name}': ListCodec expected at least one axis, got shape ().")
        kind = self.arrow
        if kind is None:
            return
        if not (pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise SchemaError(
                f"codec of field '{field.name}': ListCodec expected arrow= to be a type of decimals, timestamps or "
                f"dates, got {kind}."
            )
        _check_stored_type(kind, field)

    def arrow_type(self, field: CodedField) -> pa.DataType:
        result = self.arrow if self.arrow is not None else arrow_scalar_type(field.dtype, field=field.name)
        for axis, length in reversed(list(enumerate(field.shape))):
            # Fixed-size lists of length 0 cannot be read back from Parquet, and older pyarrow cannot write null ones.
            variable = not length or (axis == 0 and field.nullable)
            result = pa.list_(result) if variable else pa.list_(result, length)
        return result

    def encode(self, field: CodedField, value: Any) -> Any:
        kind = value.dtype.kind
        if kind in "mM" and np.isnat(value).any():
            raise ValueError("expected no NaT inside a list, got one. NdarrayCodec can store it")
        if kind == "O" or value.dtype == "datetime64[D]":  # Arrow accepts days only as dates
            return value.tolist()
        return _lists_of_rows(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **_stored_type_to_json(self.arrow)}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Codec:
        others = {name: value for name, value in parameters.items() if name != "arrow_type"}
        return cls(**others, arrow=_stored_type_from_json(parameters))


@dataclass(frozen=True)
class ReadListCodec(ListCodec):
    """Lists as a pipeline reads them.

    Args:
        nulls: how nulls inside the lists are handled. ``"error"`` raises, ``"fill"`` replaces them with ``value``,
            ``"flag"`` replaces them with 0 and adds flags beside the values, and ``"keep"`` returns Python lists with
            ``None`` for the rows that hold nulls.
        value: the value for ``"fill"``.
        levels: the number of list levels that may differ in length; 0 if values are arrays.
    """

    kind: ClassVar[str] = "read_list"
    nulls: Literal["error", "fill", "flag", "keep"] = "error"
    value: Any = None
    levels: int = 0

    @property
    def compound(self) -> bool:
        return self.nulls in ("flag", "keep") or self.levels > 0


def _lists_of_rows(array: np.ndarray) -> Any:
    """Returns nested lists of 1-D arrays, which Arrow converts without a Python object per element."""
    return array if array.ndim == 1 else [_lists_of_rows(part) for part in array]


@dataclass(frozen=True)
class NdarrayCodec(Codec):
    """An array stored as ``.npy`` bytes (NPY 1.0). Supports any shape, even a variable one, and arrays of strings."""

    kind: ClassVar[str] = "ndarray"

    def encode(self, field: CodedField, value: Any) -> bytes:
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        return stream.getvalue()

    def npy_bytes(self, data: memoryview) -> memoryview:
        """Returns the ``.npy`` bytes inside the stored value."""
        return data

    def header_of(self, data: memoryview) -> NpyHeader:
        """Parses the header of a stored value.

        Raises:
            ValueError: there is no valid header.
        """
        return npy_header(data)

    def shape_of(self, field: CodedField, data: memoryview) -> tuple[int, ...]:
        return self.header_of(data).shape

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        array = npy_array(self.npy_bytes(data))
        if array.shape != out.shape:
            raise ValueError(f"expected shape {out.shape}, got {array.shape}")
        if array.dtype.kind in "mM":
            if array.dtype.newbyteorder("=") != field.dtype:
                raise ValueError(f"expected dtype {field.dtype}, got {array.dtype}")
            array = array.view(np.int64) if array.dtype.isnative else array.astype(np.int64)
        if array.dtype.newbyteorder("=") != out.dtype:
            raise ValueError(f"expected dtype {out.dtype}, got {array.dtype}")
        out[...] = array

    def decode_strings(self, field: CodedField, data: memoryview) -> np.ndarray:
        """Returns the array of a string field: dtype ``S`` or ``U``, in the stored shape."""
        array = npy_array(self.npy_bytes(data))
        if array.dtype.kind not in "SU":
            raise ValueError(f"expected an array of strings, got {array.dtype}")
        return array


@dataclass(frozen=True)
class CompressedNdarrayCodec(NdarrayCodec):
    """An array stored as a zip file with one deflated member ``arr.npy``, as ``numpy.savez_compressed`` writes it."""

    kind: ClassVar[str] = "compressed_ndarray"
    costly: ClassVar[bool] = True

    def encode(self, field: CodedField, value: object) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            # The date is fixed so that equal arrays give equal bytes.
            member = zipfile.ZipInfo(_ZIP_MEMBER, date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(member, super().encode(field, value), zipfile.ZIP_DEFLATED)
        return stream.getvalue()

    def header_of(self, data: memoryview) -> NpyHeader:
        with _npy_in_zip(data) as stream:
            return _npy_head(stream)[1]

    def npy_bytes(self, data: memoryview) -> memoryview:
        with _npy_in_zip(data) as stream:
            return _whole_npy(stream, *_npy_head(stream))

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        with _npy_in_zip(data) as stream:  # checks the header before it decompresses the array
            head, header = _npy_head(stream)
            if header.shape != out.shape or header.dtype.itemsize != out.itemsize:
                raise ValueError(f"expected {out.dtype} {out.shape}, got {header.dtype} {header.shape}")
            array = _whole_npy(stream, head, header)
        NdarrayCodec().decode_into(field, array, out)


@contextmanager
def _npy_in_zip(data: memoryview) -> Iterator[IO[bytes]]:
    """Opens the member of a stored zip file.

    Raises:
        ValueError: the bytes are not a zip file, or the file is damaged.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            member = archive.getinfo(_ZIP_MEMBER)
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"expected a stored or deflated member, got compression {member.compress_type}")
            with archive.open(member) as stream:
                yield stream
    except _NO_ZIP as error:
        raise ValueError(f"expected a zip file with the member {_ZIP_MEMBER}: {error}") from error


def _npy_head(stream: IO[bytes]) -> tuple[bytes, NpyHeader]:
    """Reads the first bytes of an ``.npy`` stream and returns them with the header that they hold."""
    head = stream.read(_NPY_HEAD_BYTES)
    return head, npy_header(memoryview(head), sys.maxsize)


def _whole_npy(stream: IO[bytes], head: bytes, header: NpyHeader) -> memoryview:
    rest = max(header.data_offset + header.data_bytes - len(head), 0)
    content = head + stream.read(rest)
    if stream.read(1):  # reading to the end also verifies the member's checksum
        raise ValueError(f"expected {header.data_bytes} bytes of {header.dtype} {header.shape}, got more")
    return memoryview(content)


@dataclass(frozen=True)
class TensorCodec(Codec):
    """Raw little-endian bytes in C order, for one fixed shape. Decoding is a single copy into the batch."""

    kind: ClassVar[str] = "tensor"

    def check_field(self, field: CodedField) -> None:
        if not field.is_fixed or is_string_like(field.dtype):
            raise SchemaError(
                f"codec of field '{field.name}': TensorCodec expected a fixed shape of numbers, got {field.dtype} "
                f"{field.shape}. Use NdarrayCodec for variable shapes and strings."
            )

    def value_bytes(self, field: CodedField) -> int:
        """Returns the stored size of every value in bytes."""
        return delivered_dtype(field.dtype).itemsize * math.prod(axis or 0 for axis in field.shape)

    def arrow_type(self, field: CodedField) -> pa.DataType:
        size = self.value_bytes(field)
        return pa.binary(size) if size else pa.binary()

    def encode(self, field: CodedField, value: object) -> bytes:
        return np.ascontiguousarray(value, dtype=np.dtype(field.dtype).newbyteorder("<")).tobytes()

    def shape_of(self, field: CodedField, data: memoryview) -> tuple[int, ...]:
        return field.shape  # type: ignore[return-value]  # check_field refuses None

    def check_stored(self, field: CodedField, data: memoryview) -> None:
        if len(data) != self.value_bytes(field):
            raise ValueError(f"{len(data)} bytes")

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        if len(data) != out.nbytes:
            raise ValueError(f"expected {out.nbytes} bytes of {out.dtype} {out.shape}, got {len(data)}")
        out[...] = np.frombuffer(data, dtype=out.dtype.newbyteorder("<")).reshape(out.shape)
