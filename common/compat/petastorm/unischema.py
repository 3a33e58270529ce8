"""Petastorm's `UnischemaField` and `Unischema`: loosely typed descriptions that users write and compare.

They accept any values. `to_parquetry` converts them to parquetry's own, checked fields and schemas, which are used for
reading and writing; `from_parquetry` converts back.
"""

from __future__ import annotations

import decimal
import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Sequence
from functools import lru_cache
from keyword import iskeyword
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...base.errors import SchemaError
from ...base.memory.arrow_views import is_list
from ...parquet.nested import stored_schema
from ...schema import codecs as core_codecs
from ...schema.arrow_types import scalar_dtype
from ...schema.codec import Codec
from ...schema.codecs import ListCodec
from ...schema.field import Unischema as CoreUnischema
from ...schema.field import UnischemaField as CoreField
from ...schema.images import CompressedImageCodec as CoreImageCodec
from .codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
    StoredCodec,
    spark_type,
)
from .errors import NoFieldsError, NotAUnischemaError

_UNISCHEMA_FIELD_ORDER = "preserve_input_order"
"""Petastorm's switch: with ``"alphabetical"``, schemas made from then on sort their fields."""


class UnischemaField(NamedTuple):
    """One field: name, numpy type (or ``Decimal``), shape (``None`` for a variable axis), codec, nullable.

    Comparing two fields ignores their codecs.
    """

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...] = ()
    codec: Any = None
    nullable: bool | None = False

    def __eq__(self, other: object) -> bool:
        return bool(_identity(self) == _identity(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_identity(self))

    def to_parquetry(self, codec: Codec | None = None) -> CoreField:
        """Converts the field to parquetry's form; ``codec`` replaces its codec.

        Raises:
            SchemaError: the dtype, shape or codec cannot be stored.
        """
        if codec is None:
            codec = self.codec.to_parquetry(self) if isinstance(self.codec, DataframeColumnCodec) else self.codec
        return CoreField(self.name, self.numpy_dtype, tuple(self.shape), codec, bool(self.nullable))


def _identity(field: object) -> Any:
    if not isinstance(field, tuple) or len(field) != 5:
        return field
    dtype = (
        field[1].type if isinstance(field[1], np.dtype) else {str: np.str_, bytes: np.bytes_}.get(field[1], field[1])
    )
    return field[0], dtype, tuple(field[2]), bool(field[4])


class Unischema:
    """An ordered set of fields. Each field is also an attribute: ``schema.image``."""

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        self._name = name
        ordered = list(fields)
        if _UNISCHEMA_FIELD_ORDER == "alphabetical":
            ordered.sort(key=lambda field: field.name)
        self._fields: OrderedDict[str, UnischemaField] = OrderedDict((field.name, field) for field in ordered)
        for field in ordered:
            if hasattr(Unischema, field.name) or field.name in ("_name", "_fields"):
                warnings.warn(
                    f"Can not create dynamic property {field.name} of schema '{name}': Unischema has one of that name. "
                    f"Use schema.fields['{field.name}'].",
                    UserWarning,
                    stacklevel=2,
                )
            else:
                setattr(self, field.name, field)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"schema '{self.__dict__.get('_name')}' has no field '{name}'")

    @property
    def fields(self) -> OrderedDict[str, UnischemaField]:
        """The fields by name, in order."""
        return self._fields

    def create_schema_view(self, fields: Iterable[str | UnischemaField]) -> Unischema:
        """Returns a schema of some of the fields.

        Fields given as objects come first, in their given order. Fields whose whole name matches a regex follow, in
        schema order.

        Raises:
            SchemaError: a field object is not in the schema, or an item is neither a field nor a regex.
        """
        items = list(fields)
        patterns = [item for item in items if isinstance(item, str)]
        objects = [item for item in items if isinstance(item, tuple)]
        if len(patterns) + len(objects) != len(items):
            raise SchemaError(
                f"fields of a schema view: each must be either a string (regular expression) or a UnischemaField, "
                f"got {items!r}."
            )
        unknown = [item.name for item in objects if item.name not in self._fields]
        if unknown:
            raise SchemaError(f"fields {unknown}: does not belong to the schema {self}")
        chosen = dict.fromkeys([item.name for item in objects])
        chosen.update(dict.fromkeys(field.name for field in match_unischema_fields(self, patterns)))
        # The stored fields, not the given ones, know how values are encoded.
        return Unischema(f"{self._name}_view", [self._fields[name] for name in chosen])

    def make_namedtuple(self, **values: object) -> Any:
        """Makes a row of this schema, as a named tuple."""
        return self._get_namedtuple()(**values)

    def make_namedtuple_tf(self, *args: object, **values: object) -> Any:
        """Makes a row as a named tuple; values can also be positional."""
        return self._get_namedtuple()(*args, **values)

    def _get_namedtuple(self) -> Any:
        return _row_class(self._name, tuple(self._fields))

    def as_spark_schema(self) -> Any:
        """Converts the schema to a Spark ``StructType`` (needs pyspark).

        Raises:
            SchemaError: the Spark type of a field is unknown.
        """
        entries = [spark_type("StructField", f.name, _spark_dtype(f), bool(f.nullable)) for f in self._fields.values()]
        return spark_type("StructType", entries)

    @classmethod
    def from_arrow_schema(cls, arrow: object, omit_unsupported_fields: bool = True) -> Unischema:
        """Infers a schema from plain Parquet columns.

        Args:
            arrow: a ``pyarrow.Schema`` or a ``pyarrow.parquet.ParquetDataset``. In old releases of pyarrow, the latter
                has its schema in its ``pieces``.
            omit_unsupported_fields: leave unsupported columns out, with a warning, instead of raising.
        """
        columns = arrow if isinstance(arrow, pa.Schema) else _schema_of(arrow)
        return cls("inferred_schema", fields_from_arrow(columns, omit_unsupported_fields=omit_unsupported_fields))

    def to_parquetry(self) -> CoreUnischema:
        """Converts the schema to parquetry's form; raises `SchemaError` if a field cannot be stored."""
        return CoreUnischema(self._name, [field.to_parquetry() for field in self._fields.values()])

    def __str__(self) -> str:
        lines = "".join(
            f"  UnischemaField('{f.name}', {getattr(f.numpy_dtype, '__name__', f.numpy_dtype)}, {f.shape}, {f.codec}, "
            f"{f.nullable}),\n"
            for f in self._fields.values()
        )
        return f"Unischema({self._name}, [\n{lines}])"

    def __reduce__(self) -> tuple[Any, ...]:
        return Unischema, (self._name, list(self._fields.values()))


def match_unischema_fields(schema: Unischema, field_regex: Sequence[str]) -> list[UnischemaField]:
    """Returns the fields whose whole name matches one of the regexes, in schema order."""
    names = list(schema.fields)
    full = {name for pattern in field_regex or () for name in names if _fullmatch(pattern, name)}
    regexes = [pattern for pattern in field_regex or () if pattern not in names]  # exact field names need no warning
    prefix = {name for pattern in regexes for name in names if re.match(pattern, name)}
    if prefix - full:
        warnings.warn(
            "schema_fields behavior has changed in Petastorm 0.5: a pattern must match the entire field name. This "
            f"affects the following fields: {', '.join(sorted(prefix - full))}",
            UserWarning,
            stacklevel=2,
        )
    return [field for name, field in schema.fields.items() if name in full]


def _fullmatch(pattern: str, text: str, flags: int = 0) -> Any:
    return re.fullmatch(pattern, text, flags)


def insert_explicit_nulls(unischema: Unischema, row_dict: dict[str, Any]) -> None:
    """Adds ``None`` for missing nullable fields; raises `SchemaError` if any other field is missing."""
    for name, field in unischema.fields.items():
        if name in row_dict:
            continue
        if not field.nullable:
            raise SchemaError(f"row: expected a value for field '{name}', which is not nullable, got none.")
        row_dict[name] = None


def dict_to_spark_row(unischema: Unischema, row_dict: dict[str, Any]) -> Any:
    """Encodes a row of plain values as a Spark ``Row`` (needs pyspark)."""
    if not isinstance(unischema, Unischema):
        raise NotAUnischemaError(f"dict_to_spark_row: expected a Unischema, got {type(unischema).__name__}.")
    spark_type("StringType")  # if pyspark is missing, the error says how to install it
    from pyspark import Row

    row = dict(row_dict)
    insert_explicit_nulls(unischema, row)
    if set(row) != set(unischema.fields):
        raise SchemaError(f"row: expected the fields {sorted(unischema.fields)}, got {sorted(row)}.")
    encoded = {}
    for name, field in unischema.fields.items():
        value = row[name]
        if value is None and not field.nullable:
            raise SchemaError(f"field '{name}': expected a value, got None. Declare the field nullable.")
        codec = field.codec if field.codec is not None else ScalarCodec(field.numpy_dtype)
        encoded[name] = None if value is None else codec.encode(field, value)
    return Row(*encoded)(*encoded.values())


def _schema_of(dataset: Any) -> pa.Schema:
    if isinstance(dataset.schema, pa.Schema):
        return dataset.schema
    columns = list(dataset.pieces[0].get_metadata().schema.to_arrow_schema())
    keys = [pa.field(item.name, item.dictionary.type, False) for item in dataset.partitions or ()]
    return pa.schema([*columns, *keys])


def fields_from_arrow(arrow: pa.Schema, *, omit_unsupported_fields: bool) -> list[UnischemaField]:
    """Infers the fields of plain Parquet columns. Structs, maps and nested lists are unsupported."""
    fields = []
    for column in stored_schema(arrow):
        holds_lists = is_list(column.type)
        dtype = _numpy_type(column.type.value_type if holds_lists else column.type)
        if dtype is None:
            if not omit_unsupported_fields:
                raise SchemaError(
                    f"field '{column.name}': Cannot auto-create unischema due to unsupported column type {column.type}."
                )
            text = f"field '{column.name}': ignoring a column of unsupported type {column.type}."
            warnings.warn(text, UserWarning, stacklevel=3)
            continue
        fields.append(UnischemaField(column.name, dtype, (None,) if holds_lists else (), None, column.nullable))
    return fields


def _numpy_type(arrow: pa.DataType) -> Any:
    """Returns Petastorm's type for the values of a column; ``None`` if it has none."""
    if arrow == pa.float16() or pa.types.is_time(arrow) or pa.types.is_duration(arrow):
        return None
    try:
        dtype = scalar_dtype(arrow, field="column")
    except SchemaError:
        return None
    return dtype.type if isinstance(dtype, np.dtype) else dtype


def _spark_dtype(field: UnischemaField) -> Any:
    if isinstance(field.codec, DataframeColumnCodec):
        return field.codec.spark_dtype()
    if field.shape:
        raise SchemaError(
            f"field '{field.name}' of shape {field.shape} has codec set to None: expected a codec, which determines "
            "the Spark type. Use NdarrayCodec()."
        )
    if field.numpy_dtype is np.bytes_:
        return spark_type("StringType")
    if field.numpy_dtype is decimal.Decimal:
        return spark_type("DecimalType", 38, 18)
    if field.numpy_dtype is np.datetime64:
        return spark_type("TimestampType")
    return ScalarCodec(field.numpy_dtype).spark_dtype()


def _new_gt_255_compatible_namedtuple(typename: str, field_names: Sequence[str], **options: Any) -> Any:
    return namedtuple(typename, field_names, **options)


@lru_cache(maxsize=4096)
def _row_class(schema_name: str, names: tuple[str, ...]) -> Any:
    """Returns the named tuple class of a schema's rows; equal schemas share one class."""
    typename = re.sub(r"\W", "_", schema_name)
    typename = typename if typename.isidentifier() else f"schema_{typename}"
    try:
        made = _new_gt_255_compatible_namedtuple(typename, names)
        made.__reduce__ = lambda row: (_row_of, (schema_name, names, tuple(row)))  # the class has no importable name
        return made
    except ValueError as error:
        wrong = [name for name in names if not name.isidentifier() or iskeyword(name) or name.startswith("_")]
        raise NoFieldsError(
            f"fields {wrong or list(names)} of schema '{schema_name}': expected names that can be attributes of a row: "
            f"{error}. Leave them out with schema_fields=[...], rename the columns in the files, or read them with "
            "parquetry.Pipeline(url), whose rows are dicts, and its rename({old: new})."
        ) from error


def _row_of(schema_name: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Makes a row when it is unpickled."""
    return _row_class(schema_name, names)(*values)


def from_parquetry(schema: CoreUnischema) -> Unischema:
    """Converts a stored schema to Petastorm's form."""
    return Unischema(schema.name, [field_from_parquetry(field) for field in schema])


def field_from_parquetry(field: CoreField) -> UnischemaField:
    """Converts a stored field to Petastorm's form."""
    dtype = field.dtype.type if isinstance(field.dtype, np.dtype) else field.dtype
    return UnischemaField(field.name, dtype, field.shape, _codec_from_parquetry(field), field.nullable)


def _codec_from_parquetry(field: CoreField) -> DataframeColumnCodec | None:
    codec = field.codec
    if codec is None or isinstance(codec, ListCodec):
        return None if not field.storage.coded else StoredCodec(field.storage)
    if isinstance(codec, core_codecs.ScalarCodec):
        return ScalarCodec(codec.arrow_type(field))
    if type(codec) is core_codecs.CompressedNdarrayCodec:
        return CompressedNdarrayCodec()
    if type(codec) is core_codecs.NdarrayCodec:
        return NdarrayCodec()
    if isinstance(codec, CoreImageCodec):
        return CompressedImageCodec(codec.image_codec, codec.quality)
    return StoredCodec(codec)
