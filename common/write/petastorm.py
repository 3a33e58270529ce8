"""Writes the metadata that Petastorm 0.8 to 0.13 needs in ``_common_metadata`` to read a parquetry dataset.

It converts a schema, the row groups of each file, and row-group indexes to key-value metadata. The pickles (protocol 4)
are assembled opcode by opcode, so neither Petastorm nor pyspark is imported, and no object is pickled. Fields that
Petastorm cannot read raise `SchemaError`.
"""

from __future__ import annotations

import decimal
import json
import pickle
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from ..base.errors import SchemaError
from ..schema.codecs import CompressedNdarrayCodec, ListCodec, NdarrayCodec, ScalarCodec
from ..schema.dtypes import dtype_to_json, is_string_like
from ..schema.field import Unischema, UnischemaField
from ..schema.images import CompressedImageCodec
from ..schema.petastorm_metadata import (
    ROW_GROUP_COUNTS_KEY,
    SCHEMA_KEY,
    IndexValue,
    PetastormIndex,
)

_ADVICE = "Store it with another codec, or write without petastorm_compatible=True."


def petastorm_schema(schema: Unischema) -> Unischema:
    """Returns the schema with codecs that Petastorm reads: arrays without a codec become ``.npy`` bytes.

    Raises:
        SchemaError: Petastorm cannot read a field.
    """
    return Unischema(schema.name, [_readable(field) for field in schema])


def petastorm_metadata(schema: Unischema, row_group_counts: Mapping[str, int]) -> dict[bytes, bytes]:
    """The schema and the row groups of each file (by relative path) under Petastorm's keys."""
    return {
        SCHEMA_KEY: schema_to_pickle(schema),
        ROW_GROUP_COUNTS_KEY: json.dumps(dict(sorted(row_group_counts.items()))).encode(),
    }


def schema_to_pickle(schema: Unischema) -> bytes:
    """The pickle of a ``petastorm.unischema.Unischema``."""
    fields = {field.name: _field(field) for field in schema}
    state = {"_name": _text(schema.name), "_fields": _ordered_dict(fields), **fields}
    return _finished(_instance("petastorm.unischema", "Unischema", state))


def indexes_to_pickle(indexes: Mapping[str, PetastormIndex]) -> bytes:
    """The pickle of ``{name: indexer}``."""
    return _finished(_dict({_text(name): _indexer(index) for name, index in indexes.items()}))


def _readable(field: UnischemaField) -> UnischemaField:
    codec, name = field.storage, field.name
    if field.codec is None and codec.kind == "tensor":
        return field.replace(codec=NdarrayCodec())
    dtype = dtype_to_json(field.dtype)
    if dtype.startswith("timedelta"):
        raise SchemaError(f"field '{name}': Petastorm does not support time differences. Store it as an integer.")
    if dtype == "float16" and not codec.coded:
        raise SchemaError(f"field '{name}': Petastorm's pyarrow cannot read float16 columns. Store it as float32.")
    if isinstance(codec, CompressedImageCodec) and codec.image_codec == "webp":
        raise SchemaError(f"field '{name}': Petastorm reads PNG and JPEG images, got webp. {_ADVICE}")
    if isinstance(codec, ListCodec) and (len(field.shape) > 1 or is_string_like(field.dtype)):
        raise SchemaError(f"field '{name}': Petastorm reads lists of numbers, got {dtype} {field.shape}. {_ADVICE}")
    if type(codec) not in _CODECS:
        raise SchemaError(f"field '{name}': Petastorm has no {type(codec).__name__}. {_ADVICE}")
    return field


# --- opcodes -------------------------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _name(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _bool(value: bool) -> bytes:
    return pickle.NEWTRUE if value else pickle.NEWFALSE


def _int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return pickle.BININT + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return pickle.LONG1 + bytes([len(data)]) + data


def _tuple(items: Sequence[bytes]) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def _dict(items: Mapping[bytes, bytes]) -> bytes:
    pairs = b"".join(key + value for key, value in items.items())
    return pickle.EMPTY_DICT + (pickle.MARK + pairs + pickle.SETITEMS if items else b"")


def _ordered_dict(items: Mapping[str, bytes]) -> bytes:
    pairs = b"".join(_text(name) + value for name, value in items.items())
    made = _name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    return made + pickle.MARK + pairs + pickle.SETITEMS


def _set(items: Sequence[int]) -> bytes:
    return pickle.EMPTY_SET + (pickle.MARK + b"".join(map(_int, items)) + pickle.ADDITEMS if items else b"")


def _instance(module: str, name: str, state: Mapping[str, bytes] | None = None) -> bytes:
    made = _name(module, name) + pickle.EMPTY_TUPLE + pickle.NEWOBJ
    if not state:
        return made
    return made + _dict({_text(key): value for key, value in state.items()}) + pickle.BUILD


def _finished(value: bytes) -> bytes:
    return pickle.PROTO + b"\x04" + value + pickle.STOP


# --- Petastorm's objects -------------------------------------------------------------------------------------------


def _field(field: UnischemaField) -> bytes:
    shape = _tuple([pickle.NONE if axis is None else _int(axis) for axis in field.shape])
    values = [_text(field.name), _dtype(field), shape, _CODECS[type(field.storage)](field), _bool(field.nullable)]
    return _name("petastorm.unischema", "UnischemaField") + _tuple(values) + pickle.NEWOBJ


def _dtype(field: UnischemaField) -> bytes:
    if field.dtype is decimal.Decimal:
        return _name("decimal", "Decimal")
    dtype = np.dtype(field.dtype)
    names = {"U": "str_", "S": "bytes_", "b": "bool_", "M": "datetime64"}
    return _name("numpy", names.get(dtype.kind, dtype.name))


def _no_codec(field: UnischemaField) -> bytes:
    return pickle.NONE


def _ndarray(field: UnischemaField) -> bytes:
    return _instance("petastorm.codecs", "NdarrayCodec")


def _compressed_ndarray(field: UnischemaField) -> bytes:
    return _instance("petastorm.codecs", "CompressedNdarrayCodec")


def _image(field: UnischemaField) -> bytes:
    codec = field.storage
    assert isinstance(codec, CompressedImageCodec)
    state = {"_image_codec": _text(f".{codec.image_codec}"), "_quality": _int(codec.quality)}
    return _instance("petastorm.codecs", "CompressedImageCodec", state)


_CODECS = {
    ScalarCodec: _no_codec,
    ListCodec: _no_codec,
    NdarrayCodec: _ndarray,
    CompressedNdarrayCodec: _compressed_ndarray,
    CompressedImageCodec: _image,
}


def _indexer(index: PetastormIndex) -> bytes:
    state = {"_index_name": _text(index.name), "_column_name": _text(index.column)}
    module = "petastorm.etl.rowgroup_indexers"
    if index.ordinals_by_value is None:
        return _instance(module, "FieldNotNullIndexer", {**state, "_index_data": _set(sorted(index.ordinals))})
    data = {_key(value): _set(sorted(ordinals)) for value, ordinals in index.ordinals_by_value.items()}
    return _instance(module, "SingleFieldIndexer", {**state, "_index_data": _default_dict(data)})


def _default_dict(items: Mapping[bytes, bytes]) -> bytes:
    made = _name("collections", "defaultdict") + _name("builtins", "set") + pickle.TUPLE1 + pickle.REDUCE
    pairs = b"".join(key + value for key, value in items.items())
    return made + (pickle.MARK + pairs + pickle.SETITEMS if items else b"")


def _key(value: IndexValue) -> bytes:
    if isinstance(value, bool):
        return _bool(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes):
        return pickle.BINBYTES + struct.pack("<I", len(value)) + value
    if isinstance(value, float):
        return pickle.BINFLOAT + struct.pack(">d", value)
    return pickle.NONE if value is None else _int(value)
