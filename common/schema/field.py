"""`UnischemaField` and `Unischema` describe one row of a dataset.

Both are immutable values that can be compared, hashed, pickled, and converted to JSON and back. The schema is stored as
JSON in Parquet key-value metadata, under one key, in every file and in ``_common_metadata``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..base.errors import FieldNotFoundError, SchemaError
from ..base.other_names import did_you_mean
from ..base.process.dataclass import dataclass
from .codec import Codec, codec_from_json
from .codecs import default_codec
from .dtypes import canonical_dtype, dtype_from_json, dtype_to_json
from .plain import integer, is_iterable, is_utf_8, plain
from .spark_types import spark_schema

Shape = tuple[int | None, ...]
SCHEMA_KEY = b"parquetry.unischema.v1"


@dataclass(frozen=True)
class UnischemaField:
    """One field of a row.

        >>> UnischemaField("image", "uint8", (None, None, 3), CompressedImageCodec("jpeg"), dims=("H", "W", "C")).shape
        (None, None, 3)

    Args:
        name: the column's name in Parquet and the key in every row.
        dtype: a numpy dtype, ``str``, ``bytes`` or ``decimal.Decimal``.
        shape: the shape of one value; ``None`` marks an axis of variable length. ``()`` is a scalar.
        codec: how a value is stored; ``None`` stores scalars and 1-D arrays as plain Parquet values and lists, and
                arrays with more axes as raw tensors (fixed shape) or ``.npy`` bytes (variable shape).
        nullable: whether values may be missing.
        dims: optional axis names, such as ``("H", "W", "C")``.

    Raises:
        SchemaError: the dtype cannot become a tensor, an axis is negative, or the codec does not fit dtype or shape.
    """

    name: str
    dtype: Any
    shape: Shape = ()
    codec: Codec | None = None
    nullable: bool = False
    dims: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"name of a field: expected a non-empty string, got {self.name!r}.")
        if not is_utf_8(self.name):
            raise SchemaError(f"name of a field: expected text that UTF-8 can hold, got {self.name!r}.")
        object.__setattr__(self, "name", plain(self.name))
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype, field=self.name))
        object.__setattr__(self, "shape", _canonical_shape(self.shape, self.name))
        object.__setattr__(self, "nullable", bool(self.nullable))
        if self.dims is not None:
            unordered = isinstance(self.dims, set | frozenset)
            names = plain(tuple(self.dims)) if is_iterable(self.dims) and not unordered else (None,)
            if not all(isinstance(name, str) for name in names):
                raise SchemaError(f"dims of field '{self.name}': expected a list of names, got {self.dims!r}.")
            object.__setattr__(self, "dims", names)
            if len(self.dims) != len(self.shape):
                raise SchemaError(
                    f"dims of field '{self.name}': expected {len(self.shape)} names for shape {self.shape}, "
                    f"got {self.dims}."
                )
        if self.codec is not None and not isinstance(self.codec, Codec):
            raise SchemaError(
                f"codec of field '{self.name}': expected a parquetry codec such as ScalarCodec() or None, "
                f"got {self.codec!r}."
            )
        self.storage.check_field(self)

    @property
    def storage(self) -> Codec:
        """The codec in use: the given one, or the default for this dtype and shape."""
        return self.codec if self.codec is not None else default_codec(self)

    @property
    def is_list(self) -> bool:
        """Whether values are stored as Parquet lists."""
        return bool(self.shape) and not self.storage.coded

    @property
    def is_fixed(self) -> bool:
        """Whether every value has the same shape."""
        return None not in self.shape

    def replace(self, **changes: Any) -> UnischemaField:
        """Returns a copy with some attributes changed."""
        values = {key: getattr(self, key) for key in ("name", "dtype", "shape", "codec", "nullable", "dims")}
        return UnischemaField(**{**values, **changes})

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object; see `Unischema.to_json`."""
        return {
            "name": self.name,
            "dtype": dtype_to_json(self.dtype),
            "shape": list(self.shape),
            "codec": None if self.codec is None else self.codec.to_json(),
            "nullable": self.nullable,
            "dims": None if self.dims is None else list(self.dims),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UnischemaField:
        """The inverse of `to_json`. Ignores unknown keys, which newer versions may write."""
        codec, dims = value.get("codec"), value.get("dims")
        return cls(
            name=value["name"],
            dtype=dtype_from_json(value["dtype"], field=value["name"]),
            shape=tuple(value.get("shape", ())),
            codec=None if codec is None else codec_from_json(codec),
            nullable=value.get("nullable", False),
            dims=None if dims is None else tuple(dims),
        )


class Unischema:
    """An ordered set of fields that describes one row of a dataset.

        >>> schema = Unischema("cars", [UnischemaField("name", str), UnischemaField("box", "float32", (4,))])
        >>> schema.box.shape, [field.name for field in schema]
        ((4,), ['name', 'box'])

    Iterating yields the fields in order. ``schema["image"]`` and ``schema.image`` return one field.

    Raises:
        SchemaError: two fields have the same name, or something is not a field.
    """

    __slots__ = ("_fields", "name")
    name: str
    _fields: dict[str, UnischemaField]

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        by_name: dict[str, UnischemaField] = {}
        for field in fields if is_iterable(fields) else [fields]:
            if not isinstance(field, UnischemaField):
                raise SchemaError(f"schema '{name}': expected UnischemaField values, got {field!r}.")
            if field.name in by_name:
                raise SchemaError(f"schema '{name}': expected unique field names, got '{field.name}' twice.")
            by_name[field.name] = field
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "_fields", by_name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Unischema is immutable; build a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return Unischema, (self.name, tuple(self._fields.values()))

    @property
    def fields(self) -> dict[str, UnischemaField]:
        """The fields by name, in order (a copy)."""
        return dict(self._fields)

    def __iter__(self) -> Iterator[UnischemaField]:
        return iter(self._fields.values())

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> UnischemaField:
        try:
            return self._fields[name]
        except KeyError:
            raise FieldNotFoundError(no_such_field(name, self._fields)) from None

    def __getattr__(self, name: str) -> UnischemaField:
        if not name.startswith("_") and name in self._fields:
            return self._fields[name]
        raise AttributeError(f"schema '{self.name}' has no field '{name}'")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unischema) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        lines = "".join(f"\n  {field!r}," for field in self)
        return f"Unischema('{self.name}', [{lines}\n])"

    def match(self, patterns: Iterable[str | UnischemaField]) -> list[str]:
        """Returns the names that the patterns select, in schema order.

        A pattern is a field, a name, or a regular expression that must match the whole name.

        Raises:
            FieldNotFoundError: a pattern matches nothing.
        """
        matches: set[str] = set()
        for pattern in patterns:
            text = pattern.name if isinstance(pattern, UnischemaField) else pattern
            matches.update(match_names(text, self._fields))
        return [name for name in self._fields if name in matches]

    def view(self, patterns: Iterable[str | UnischemaField]) -> Unischema:
        """Returns a schema of the selected fields, in this schema's order."""
        return Unischema(self.name, (self._fields[name] for name in self.match(patterns)))

    def as_spark_schema(self) -> Any:
        """Returns the ``pyspark.sql.types.StructType`` of the stored columns. Needs pyspark.

        Raises:
            SchemaError: Spark has no type for a stored field.
        """
        return spark_schema(self)

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"version": 1, "name": ..., "fields": [...]}``, as stored under ``parquetry.unischema.v1``."""
        return {"version": 1, "name": self.name, "fields": [field.to_json() for field in self]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Unischema:
        """The inverse of `to_json`.

        Raises:
            SchemaError: this release does not know the version.
        """
        if value.get("version") != 1:
            raise SchemaError(
                f"stored schema: expected version 1, got {value.get('version')!r}. Update parquetry to read it."
            )
        return cls(value["name"], (UnischemaField.from_json(field) for field in value["fields"]))


def match_names(pattern: str, names: Collection[str]) -> list[str]:
    """Returns the names that a pattern selects: that very name, otherwise every name that the regex matches in full.

    For many patterns, pass the names as the keys of a dict.
    """
    if not isinstance(pattern, str):
        raise FieldNotFoundError(f"field pattern: expected a name, a regular expression or a field, got {pattern!r}.")
    if pattern in names:
        return [pattern]
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise FieldNotFoundError(
            f"field pattern '{pattern}': not a name, and not a regular expression ({error})."
        ) from error
    matches = [name for name in names if regex.fullmatch(name)]
    if not matches:
        raise FieldNotFoundError(no_such_field(pattern, names))
    return matches


def no_such_field(pattern: str, names: Iterable[str]) -> str:
    """Returns the error text for a name or pattern that matches nothing."""
    known = sorted(names)
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    members = [name for name in known if name.startswith(f"{pattern}.")]
    hint = f" Members of '{pattern}' are fields of their own." if members else did_you_mean(pattern, known)
    return (
        f"field '{pattern}': expected the name of a field or a regex that matches one in full. Fields are: {shown}."
        f"{hint}"
    )


def _canonical_shape(shape: object, name: str) -> Shape:
    value = () if shape is None else plain(shape)
    axes = value if isinstance(value, tuple) else (value,)
    if any(axis is not None and integer(axis, least=0) is None for axis in axes):
        hint = (
            " Write None for an axis of any length."
            if all(axis is None or integer(axis) is not None for axis in axes)
            else ""
        )
        raise SchemaError(f"shape of field '{name}': expected axes >= 0 or None, got {shape!r}.{hint}")
    return axes


def schema_to_metadata(schema: Unischema) -> dict[bytes, bytes]:
    """Returns the key-value metadata that stores the schema."""
    return {SCHEMA_KEY: json.dumps(schema.to_json(), separators=(",", ":")).encode("utf-8")}


def schema_from_metadata(metadata: Mapping[bytes, bytes] | None, *, where: str) -> Unischema | None:
    """Returns the schema in the key-value metadata, or ``None`` if there is none.

    Raises:
        SchemaError: the JSON is damaged, or a newer release wrote it. The message names the file.
    """
    text = (metadata or {}).get(SCHEMA_KEY)
    if text is None:
        return None
    try:
        return Unischema.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise SchemaError(f"schema stored in {where}: {error}") from error
