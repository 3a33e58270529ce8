"""Unifies the schemas of files that were written over time.

Columns that some files lack become nullable, and types widen where that is exact. The input is the Arrow schema of each
file; the output is one field per column path. A column that cannot be widened safely is refused, with a reason that
names both files. `conform` casts a file's column to its type in the dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ..schema.infer import flatten_fields
from .int96 import footer_schema
from .nested import is_bytes, is_list, wide, widened

_ARROW_KEY = b"ARROW:schema"


class DistinctSchemas:
    """Tells the schemas of files apart.

    Arrow stores its own schema beside that of Parquet, which has no durations, tensors, or fixed-size lists.

    Attributes:
        schemas: the distinct Arrow schemas, in order of first occurrence.
    """

    def __init__(self) -> None:
        self._stored: list[pq.ParquetSchema] = []
        self._known: dict[tuple[int, bytes | None], int] = {}
        self.schemas: list[pa.Schema] = []

    def add(self, footer: pq.FileMetaData) -> int:
        """Returns the number of a file's schema among `schemas`, after adding it if it is new.

        Raises:
            pa.ArrowException, OSError: Arrow cannot represent the columns.
        """
        stored = footer.schema
        place = next((n for n, other in enumerate(self._stored) if stored.equals(other)), len(self._stored))
        key = place, (footer.metadata or {}).get(_ARROW_KEY)
        if key in self._known:
            return self._known[key]
        schema = footer_schema(footer)
        if place == len(self._stored):
            self._stored.append(stored)
        number = next((n for n, other in enumerate(self.schemas) if schema.equals(other)), len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
        self._known[key] = number
        return number


def hides_from_parquet(schema: pa.Schema) -> bool:
    """Whether a schema has columns that Parquet's own schema cannot tell from others."""
    return any(_is_hidden(column.type) for _, column in flatten_fields(schema))


def _is_hidden(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_duration(kind) or pa.types.is_fixed_size_list(kind):
        return True
    return is_list(kind) and _is_hidden(kind.value_type)


def unify_schemas(
    schemas: Sequence[tuple[str, pa.Schema]],
) -> tuple[list[tuple[str, pa.Field]], dict[str, str]]:
    """Returns the columns of all files by dotted path, in order of first occurrence.

    Args:
        schemas: ``(file, schema)`` for each distinct schema.

    Returns:
        The columns, and the reason for each refused path: its types cannot be widened to one type, it is a struct in
        only some of the files, or a file has it more than once.
    """
    refused = _mixed_kinds(schemas)
    ambiguous: set[str] = set()
    found: dict[str, tuple[pa.Field, str]] = {}
    count: dict[str, int] = {}
    for file, schema in schemas:
        columns = list(flatten_fields(schema))
        names = Counter(path for path, _ in columns)
        for path, column in columns:
            if names[path] > 1:
                ambiguous.add(path)
                refused[path] = (
                    f"field '{path}': expected one column of this name in {file}, got {names[path]}, so the name is "
                    "ambiguous. Rename them where the data are written, or deselect the field with "
                    "select(...) or fields=[...]."
                )
            count[path] = count.get(path, 0) + 1
            if path not in found:
                found[path] = (column, file)
                continue
            before, first_file = found[path]
            widened = widen(before.type, column.type)
            if widened is None and path in ambiguous:
                continue
            if widened is None:
                refused[path] = (
                    f"field '{path}': expected one type in all files, got {before.type} in {first_file} and "
                    f"{column.type} in {file}, which do not widen to one without loss. Rewrite one of the files, "
                    "or deselect the field with select(...) or fields=[...]."
                )
                continue
            found[path] = (pa.field(path, widened, before.nullable or column.nullable), first_file)
    parents = {path[:place] for path in found for place, letter in enumerate(path) if letter == "."}
    unified = [
        (path, column if count[path] == len(schemas) else column.with_nullable(True))
        for path, (column, _) in found.items()
        if path not in refused and not (path in parents and pa.types.is_null(column.type))
    ]
    return unified, refused


def _mixed_kinds(schemas: Sequence[tuple[str, pa.Schema]]) -> dict[str, str]:
    """The reasons to refuse columns that are structs in some files but values, lists or maps in others."""
    found: dict[str, tuple[pa.DataType, str]] = {}
    refused: dict[str, str] = {}
    for file, schema in schemas:
        for path, kind in _levels(pa.struct(list(schema)), None):
            first, first_file = found.setdefault(path, (kind, file))
            if _kind(first) != _kind(kind):
                reason = (
                    f"field '{path}': expected one kind of column in all files, got {first} in {first_file} and {kind} "
                    f"in {file}. Write one of the files again, or deselect the field with select(...) or fields=[...]."
                )
                leaves = [leaf for _, other in schemas for leaf, _ in flatten_fields(other)]
                refused |= {leaf: reason for leaf in leaves if leaf == path or leaf.startswith(f"{path}.")}
    return refused


def _levels(kind: pa.DataType, path: str | None) -> Iterator[tuple[str, pa.DataType]]:
    """Yields every column and every enclosing struct with its dotted path. Skips columns of the null type."""
    if path is not None and not pa.types.is_null(kind):
        yield path, kind
    if pa.types.is_struct(kind):
        for member in kind:
            yield from _levels(member.type, member.name if path is None else f"{path}.{member.name}")


def _kind(kind: pa.DataType) -> str:
    return next((name for name in ("struct", "map") if getattr(pa.types, f"is_{name}")(kind)), "values")


def conform(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Casts a file's column to its type in the dataset.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError: the type cannot represent the values.
    """
    if column.type == wanted:
        return column
    if column.num_chunks == 0 or pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), wanted)])
    return pa.chunked_array([_cast(chunk, wanted) for chunk in column.chunks])


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = widened(array)
    if pa.types.is_float16(wanted) and pa.types.is_integer(array.type):
        array = array.cast(pa.float32())  # older releases of Arrow reinterpret the bits
    return array.cast(wanted)


def keeps_order(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a checked cast preserves the order of all values."""
    types = pa.types
    if source == target:
        return True
    if types.is_integer(source):
        return bool(
            types.is_integer(target) or types.is_float32(target) or types.is_float64(target) or types.is_decimal(target)
        )
    if types.is_floating(source):
        return bool(types.is_float32(target) or types.is_float64(target))
    if types.is_decimal(source):
        return bool(types.is_decimal(target) and target.scale >= source.scale)
    if types.is_timestamp(source):
        return bool(types.is_timestamp(target) and source.tz == target.tz)
    if types.is_date32(source):
        return types.is_timestamp(target) and target.tz is None
    return any(is_kind(source) and is_kind(target) for is_kind in (_is_text, is_bytes))


def widen(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The narrowest type that represents every value of both types exactly; ``None`` if there is none."""
    if first == second:
        return first
    if _plain(first) != first or _plain(second) != second:
        return widen(_plain(first), _plain(second))
    if pa.types.is_null(first) or pa.types.is_null(second):
        return second if pa.types.is_null(first) else first
    if pa.types.is_integer(first) and pa.types.is_integer(second):
        return _wider_integer(first, second)
    if pa.types.is_floating(first) and pa.types.is_floating(second):
        return max(first, second, key=lambda kind: kind.bit_width)
    if pa.types.is_floating(first) and pa.types.is_integer(second):
        return _float_for(second, first)
    if pa.types.is_integer(first) and pa.types.is_floating(second):
        return _float_for(first, second)
    if _is_text(first) and _is_text(second):
        return pa.large_string()
    if is_bytes(first) and is_bytes(second):
        return pa.large_binary()
    if pa.types.is_decimal(first) and pa.types.is_decimal(second):
        return _wider_decimal(first, second)
    if pa.types.is_date(first) and pa.types.is_date(second):
        return pa.date64()
    if pa.types.is_timestamp(first) and pa.types.is_timestamp(second) and (first.tz is None) == (second.tz is None):
        unit = _wider_unit(first, second)  # the instants are the same in every zone
        return None if unit is None else pa.timestamp(unit, first.tz)
    if pa.types.is_time32(first) and pa.types.is_time32(second):
        return pa.time32("ms")
    if is_list(first) and is_list(second):
        inner = widen(first.value_type, second.value_type)
        return None if inner is None else pa.large_list(inner)
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, without a dictionary or an extension type. A tensor is not the list that stores it."""
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type
    return wide(kind) if pa.types.is_dictionary(kind) else kind


def _wider_unit(first: pa.DataType, second: pa.DataType) -> str | None:
    """The unit of both timestamps. Parquet stores those in seconds as milliseconds, so these do not overflow."""
    if first.unit == second.unit:
        return str(first.unit)
    return "ms" if {first.unit, second.unit} == {"s", "ms"} else None


def _wider_integer(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    signed = pa.types.is_signed_integer(first), pa.types.is_signed_integer(second)
    if signed[0] == signed[1]:
        return max(first, second, key=lambda kind: kind.bit_width)
    unsigned = second if signed[0] else first
    other = first if signed[0] else second
    bits = max(other.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def _float_for(integer: pa.DataType, floating: pa.DataType) -> pa.DataType | None:
    for kind, digits in ((pa.float16(), 11), (pa.float32(), 24), (pa.float64(), 53)):
        if kind.bit_width >= floating.bit_width and integer.bit_width <= digits:
            return kind
    return None


def _wider_decimal(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    scale = max(first.scale, second.scale)
    digits = max(first.precision - first.scale, second.precision - second.scale) + scale
    return pa.decimal128(digits, scale) if digits <= 38 else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())
