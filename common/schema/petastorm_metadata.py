"""Reads the metadata that Petastorm 0.4.0 to 0.13.1 wrote: schema, row-group counts, row-group indexes.

Takes the key-value metadata of ``_common_metadata`` and returns `Unischema`, plain dicts, and `PetastormIndex`. The
pickles are read as inert data (see `petastorm_pickle`), and anything unexpected raises `SchemaError`.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ..base.errors import SchemaError
from ..base.process.dataclass import dataclass
from .codec import Codec
from .codecs import CompressedNdarrayCodec, ListCodec, NdarrayCodec, ScalarCodec
from .field import Shape, Unischema, UnischemaField
from .images import CompressedImageCodec
from .petastorm_names import DTYPE, FIELD, SCHEMA, Global, InertObject, Stored, describe, dtype_of
from .petastorm_pickle import load_inert

SCHEMA_KEY = b"dataset-toolkit.unischema.v1"
ROW_GROUP_COUNTS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
ROW_GROUP_INDEXES_KEY = b"dataset-toolkit.rowgroups_index.v1"
INDEXES_KEY = b"parquetry.row_group_indexes.v1"
"""The key under which parquetry stores row-group indexes for Petastorm, as JSON."""

IndexValue = str | bytes | int | float | bool | None

_NUMPY_DTYPES: dict[str, Any] = {
    "str_": str,
    "unicode_": str,
    "bytes_": bytes,
    "string_": bytes,
    "bool_": np.bool_,
    "object_": np.object_,
}
_BUILTIN_DTYPES: dict[str, Any] = {
    "int": np.int64,
    "long": np.int64,
    "float": np.float64,
    "bool": np.bool_,
    "str": str,
    "unicode": str,
    "bytes": bytes,
}
_LIST_TYPE = Global("pyspark.sql.types", "ArrayType")


@dataclass(frozen=True, slots=True, kw_only=True)
class PetastormIndex:
    """Maps the values of one column to the row groups that hold them.

    Row-group ordinals count over all files of the dataset, sorted by full path and then by row group within the file.

    Args:
        name: the name of the index, often the column's name.
        column: the indexed field.
        ordinals: the row groups in which the column has any value that is not null.
        ordinals_by_value: the row groups that hold each value (for an array field, each element), or ``None`` if the
            index only separates null from not null.
    """

    name: str
    column: str
    ordinals: frozenset[int]
    ordinals_by_value: Mapping[IndexValue, frozenset[int]] | None = field(default=None, hash=False)


def schema_from_petastorm(metadata: Mapping[bytes, bytes] | None, *, where: str) -> Unischema | None:
    """Returns the schema that Petastorm stored in the key-value metadata, or ``None`` if there is none.

    The Spark type of a scalar is dropped: Petastorm stores uint8 as int16 and uint16 as int32, and the field's dtype
    decides.

    Raises:
        SchemaError: the pickle is damaged or hostile, a codec or dtype is not Petastorm's own, or a field cannot become
            a tensor.
    """
    data = (metadata or {}).get(SCHEMA_KEY)
    if data is None:
        return None
    stored = load_inert(data, where=where)
    attributes = _attributes(stored, where, SCHEMA)
    name, fields = attributes.get("_name"), attributes.get("_fields")
    if not isinstance(name, str) or not isinstance(fields, dict):
        raise SchemaError(
            f"Petastorm schema of {where}: expected a name and fields, got {describe(name)} and {describe(fields)}."
        )
    try:
        return Unischema(name, [_field(value) for value in fields.values()])
    except SchemaError as error:
        raise SchemaError(f"Petastorm schema of {where}: {error}") from error


def row_group_indexes_from_petastorm(
    metadata: Mapping[bytes, bytes] | None, *, where: str
) -> dict[str, PetastormIndex]:
    """Returns the row-group indexes by name; empty if there are none.

    Raises:
        SchemaError: the pickle is damaged or hostile, or an index is of a kind that Petastorm does not have.
    """
    data = (metadata or {}).get(ROW_GROUP_INDEXES_KEY)
    if data is None:
        return {}
    stored = load_inert(data, where=where)
    if not isinstance(stored, dict):
        raise SchemaError(f"Petastorm row-group indexes of {where}: expected a dict by name, got {describe(stored)}.")
    indexes = (_index(value, where) for value in stored.values())
    return {index.name: index for index in indexes}


def _attributes(value: object, where: str, *classes: Global) -> dict[Any, Any]:
    """Returns the attributes of an object, which must be an instance of one of the classes."""
    if not isinstance(value, InertObject) or value.cls not in classes:
        expected = " or ".join(cls.name for cls in classes)
        raise SchemaError(f"Petastorm metadata of {where}: expected a pickled {expected}, got {describe(value)}.")
    return value.attributes()


def _field(stored: object) -> UnischemaField:
    if not isinstance(stored, InertObject) or stored.cls != FIELD or not 3 <= len(stored.args) <= 5:
        raise SchemaError(f"a field: expected a UnischemaField of 3 to 5 values, got {describe(stored)}.")
    name, dtype, shape = stored.args[:3]
    codec = stored.args[3] if len(stored.args) > 3 else None
    nullable = stored.args[4] if len(stored.args) > 4 else False
    if not isinstance(name, str) or type(nullable) not in (bool, int, type(None)):
        raise SchemaError(f"field {describe(name)}: expected a name and nullable, got nullable={describe(nullable)}.")
    axes = _shape(shape, field=name)
    return UnischemaField(name, _dtype(dtype, field=name), axes, _codec(codec, axes, field=name), bool(nullable))


def _shape(stored: Stored, *, field: str) -> Shape:
    axes = () if stored is None else stored
    if type(axes) not in (tuple, list) or not all(axis is None or type(axis) is int for axis in axes):
        raise SchemaError(f"shape of field '{field}': expected a tuple of integers and None, got {describe(stored)}.")
    return tuple(axes)


def _dtype(stored: object, *, field: str) -> Any:
    """Returns the dtype of a name or a pickled ``numpy.dtype``. Maps numpy names that numpy 2 has removed."""
    if isinstance(stored, InertObject) and stored.cls == DTYPE:
        try:
            return dtype_of(stored)
        except ValueError as error:
            raise SchemaError(f"dtype of field '{field}': {error}.") from error
    if isinstance(stored, Global):
        if stored.module == "numpy":
            return _NUMPY_DTYPES.get(stored.name, stored.name)
        if stored == Global("decimal", "Decimal"):
            return decimal.Decimal
        if stored.module == "builtins" and stored.name in _BUILTIN_DTYPES:
            return _BUILTIN_DTYPES[stored.name]
    raise SchemaError(f"dtype of field '{field}': expected a numpy type or Decimal, got {describe(stored)}.")


def _codec(stored: Stored, shape: Shape, *, field: str) -> Codec | None:
    if stored is None:
        return ListCodec() if shape else None
    name = stored.cls.name if isinstance(stored, InertObject) and stored.cls.module == "petastorm.codecs" else None
    if name == "ScalarCodec":
        spark_type = stored.attributes().get("_spark_type")
        is_list = isinstance(spark_type, InertObject) and spark_type.cls == _LIST_TYPE
        return ListCodec() if shape and is_list else ScalarCodec()
    if name == "NdarrayCodec":
        return NdarrayCodec()
    if name == "CompressedNdarrayCodec":
        return CompressedNdarrayCodec()
    if name == "CompressedImageCodec":
        return _image_codec(stored.attributes(), field=field)
    raise SchemaError(f"codec of field '{field}': expected a Petastorm codec, got {describe(stored)}.")


def _image_codec(attributes: dict[Any, Any], *, field: str) -> Codec:
    name, quality = attributes.get("_image_codec", ".png"), attributes.get("_quality", 80)
    if not isinstance(name, str) or type(quality) is not int:
        raise SchemaError(
            f"codec of field '{field}': expected the name and quality of an image format, got {describe(name)} and "
            f"{describe(quality)}."
        )
    try:
        # quality does not affect reading; clamp it so that the schema can be stored again
        return CompressedImageCodec(name, min(max(quality, 1), 100))
    except SchemaError as error:
        raise SchemaError(f"codec of field '{field}': {error}") from error


def _index(stored: Stored, where: str) -> PetastormIndex:
    module = "petastorm.etl.rowgroup_indexers"
    single, not_null = Global(module, "SingleFieldIndexer"), Global(module, "FieldNotNullIndexer")
    attributes = _attributes(stored, where, single, not_null)
    name, column, data = (attributes.get(key) for key in ("_index_name", "_column_name", "_index_data"))
    if not isinstance(name, str) or not isinstance(column, str):
        raise SchemaError(f"Petastorm row-group index of {where}: expected a name and a column, got {describe(name)}.")
    if stored.cls == not_null:
        return PetastormIndex(name=name, column=column, ordinals=_ordinals(data, name, where))
    if not isinstance(data, dict):
        raise SchemaError(f"Petastorm row-group index '{name}' of {where}: expected a dict, got {describe(data)}.")
    by_value = {value: _ordinals(ordinals, name, where) for value, ordinals in data.items()}
    union: frozenset[int] = frozenset().union(*by_value.values())
    return PetastormIndex(name=name, column=column, ordinals=union, ordinals_by_value=by_value)


def _ordinals(stored: Stored, index: str, where: str) -> frozenset[int]:
    if type(stored) not in (set, frozenset) or not all(type(item) is int and item >= 0 for item in stored):
        raise SchemaError(
            f"Petastorm row-group index '{index}' of {where}: expected sets of row groups, got {describe(stored)}."
        )
    return frozenset(stored)
