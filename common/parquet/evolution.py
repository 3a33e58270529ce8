"""Unifies the schemas of files that were written over time.

Columns that some files lack become nullable, and types widen where no value is lost. The input is the Arrow schema of
each file; the output is one field per column path. A column that cannot be widened is refused, with a reason that names
two files. `conforming.conform` casts a file's column to its type in the dataset.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.memory.arrow_views import is_bytes, is_list, is_text, value_type
from ..schema.infer import flatten_fields
from .conforming import UNITS, always_fits, converts, declaration
from .int96 import footer_schema
from .nested import plain

_ARROW_KEY = b"ARROW:schema"
_DIGITS_128, _MOST_DIGITS = 38, 76  # of decimals in Arrow


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


def unify_schemas(
    schemas: Sequence[tuple[str, pa.Schema]],
    declared: Mapping[str, pa.DataType] | None = None,
    cast: Container[str] = (),
) -> tuple[list[tuple[str, pa.Field]], dict[str, str]]:
    """Returns the columns of all files by dotted path, in order of first occurrence.

    Args:
        schemas: ``(file, schema)`` for each distinct schema.
        declared: the types to read columns in whose files differ, by dotted path. A type that some file's values cannot
            be converted to is not used.
        cast: paths of columns that the user casts to numbers or times, which says what their values mean.

    Returns:
        The columns, and the reason for each refused path: its types cannot be widened to one type, it is a struct in
        only some of the files, or a file has it more than once.
    """
    refused = _mixed_kinds(schemas)
    by_path: dict[str, pa.Field] = {}
    kinds: dict[str, dict[pa.DataType, str]] = {}  # the types of each column, with the first file that has each
    count: dict[str, int] = {}
    for file, schema in schemas:
        columns = list(flatten_fields(schema))
        names = Counter(path for path, _ in columns)
        for path, column in columns:
            if names[path] > 1:
                refused[path] = (
                    f"field '{path}': expected one column of this name in {file}, got {names[path]}, so the name is "
                    "ambiguous. Rename them where the data are written, or deselect the field with "
                    "select(...) or fields=[...]."
                )
            count[path] = count.get(path, 0) + 1
            before = by_path.setdefault(path, column)
            if column.nullable and not before.nullable:
                by_path[path] = before.with_nullable(True)
            kinds.setdefault(path, {}).setdefault(column.type, file)
    for path, types in kinds.items():
        kind = _in_zone((declared or {}).get(path), types)
        if path in refused or (len(types) == 1 and not _overrules(kind, *types)):
            continue
        if kind is None or not all(converts(each, kind) for each in types):
            kind = widest(types)
        target = _declarable(types) if kind is None and path in cast else None
        if target is not None and not is_text(value_type(target)):
            kind = _in_zone(target, types)
        if kind is None:
            refused[path] = _not_one_type(path, types)
        else:
            by_path[path] = by_path[path].with_type(kind)
    parents = {path[:place] for path in by_path for place, letter in enumerate(path) if letter == "."}
    unified = [
        (path, column if count[path] == len(schemas) else column.with_nullable(True))
        for path, column in by_path.items()
        if path not in refused and not (path in parents and pa.types.is_null(column.type))
    ]
    return unified, refused


def _in_zone(kind: pa.DataType | None, types: Collection[pa.DataType]) -> pa.DataType | None:
    """Returns a declared type, which names no time zone, with that of the files. If they name several, it is UTC."""
    if kind is not None and is_list(kind):
        return pa.large_list(_in_zone(kind.value_type, [each.value_type for each in types if is_list(each)]))
    if kind is None or not pa.types.is_timestamp(kind):
        return kind
    zones = {each.tz for each in types if pa.types.is_timestamp(each) and each.tz is not None}
    return pa.timestamp(kind.unit, zones.pop() if len(zones) == 1 else "UTC" if zones else None)


def _overrules(declared: pa.DataType | None, stored: pa.DataType) -> bool:
    """Whether a declared type replaces one that all files share: that of nulls alone, or times in another unit.

    INT96 may have more digits than its type.
    """
    if declared is None:
        return False
    kind, other = value_type(declared), value_type(stored)
    return pa.types.is_null(other) or bool(
        pa.types.is_timestamp(kind) and pa.types.is_timestamp(other) and kind.unit != other.unit
    )


def strained(schemas: Sequence[tuple[str, pa.Schema]], unified: Sequence[tuple[str, pa.Field]]) -> frozenset[str]:
    """Returns the columns that have values in some file which their unified type may not represent."""
    types = {path: column.type for path, column in unified}
    return frozenset(
        path
        for _, schema in schemas
        for path, column in flatten_fields(schema)
        if path in types and not always_fits(column.type, types[path])
    )


def widest(types: Collection[pa.DataType]) -> pa.DataType | None:
    """Returns the type for the values of all types; see `widen`."""
    kinds = iter(types)
    kind: pa.DataType | None = next(kinds)
    for other in kinds:
        kind = None if kind is None else widen(kind, other)
    return kind


def _not_one_type(path: str, types: Mapping[pa.DataType, str]) -> str:
    """Returns the reason to refuse a column, with the files of two types that do not widen, and what to do."""
    (first, first_file), *others = types.items()
    other, file = next((pair for pair in others if widen(first, pair[0]) is None), others[-1])
    target = _declarable(types)
    advice = f"leave the field out with select(r'(?!{re.escape(path)}$).*')"
    if target is not None:
        zone = ", with times without a zone as UTC" if pa.types.is_timestamp(value_type(target)) else ""
        advice = f"read all as one type{zone}: {declaration(path, target)}"
    return (
        f"field '{path}': expected one type in all files, got {first} in {first_file} and {other} in {file}, which do "
        f"not widen to one without loss. Rewrite one of the files, or {advice}."
    )


def _declarable(types: Collection[pa.DataType]) -> pa.DataType | None:
    """Returns a type whose values mean something else in some of the files, so that the user has to ask for it."""
    kinds = [plain(kind) for kind in types]
    if all(map(is_list, kinds)):
        inner = _declarable([kind.value_type for kind in kinds])
        return None if inner is None else pa.large_list(inner)
    finest = max((kind.unit for kind in kinds if pa.types.is_timestamp(kind)), key=UNITS.index, default="us")
    number = pa.float64() if any(map(pa.types.is_floating, kinds)) else pa.int64()
    targets = pa.timestamp(finest), pa.large_string(), number
    return next((target for target in targets if all(converts(kind, target) for kind in kinds)), None)


def _mixed_kinds(schemas: Sequence[tuple[str, pa.Schema]]) -> dict[str, str]:
    """The reasons to refuse columns that are structs in some files but values, lists or maps in others."""
    kinds: dict[str, tuple[pa.DataType, str]] = {}
    refused: dict[str, str] = {}
    for file, schema in schemas:
        for path, kind in _levels(pa.struct(list(schema)), None):
            first, first_file = kinds.setdefault(path, (kind, file))
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


def widen(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The narrowest type for the values of both types; ``None`` if there is none.

    It represents every value exactly, or all but extreme ones, as ``float64`` does for ``int64``; `conform` checks.
    """
    if first == second:
        return first
    first, second = plain(first), plain(second)
    if first == second:
        return first
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
    if is_text(first) and is_text(second):
        return pa.large_string()
    if is_bytes(first) and is_bytes(second):
        return pa.large_binary()
    if all(pa.types.is_decimal(kind) or pa.types.is_integer(kind) for kind in (first, second)):
        return _wider_decimal(first, second)
    if pa.types.is_date(first) and pa.types.is_date(second):
        return pa.date64()
    if all(pa.types.is_timestamp(kind) or pa.types.is_date(kind) for kind in (first, second)):
        zones = [kind.tz if pa.types.is_timestamp(kind) else None for kind in (first, second)]
        if (zones[0] is None) != (zones[1] is None):
            return None  # a time without a zone may be local
        zone = zones[0] if zones[0] == zones[1] else "UTC"  # the instants are the same in every zone
        return pa.timestamp(_finer_unit(first, second), zone)
    if pa.types.is_duration(first) and pa.types.is_duration(second):
        return pa.duration(_finer_unit(first, second))
    if pa.types.is_time(first) and pa.types.is_time(second):
        unit = _finer_unit(first, second)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if is_list(first) and is_list(second):
        inner = widen(first.value_type, second.value_type)
        return None if inner is None else pa.large_list(inner)
    return None


def _finer_unit(first: pa.DataType, second: pa.DataType) -> str:
    """The finer of two units of time. Days become the coarsest, and dates in milliseconds keep those."""
    days = {pa.date32(): "s", pa.date64(): "ms"}
    return max((days.get(kind) or kind.unit for kind in (first, second)), key=UNITS.index)


def _wider_integer(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    signed = pa.types.is_signed_integer(first), pa.types.is_signed_integer(second)
    if signed[0] == signed[1]:
        return max(first, second, key=lambda kind: kind.bit_width)
    unsigned = second if signed[0] else first
    other = first if signed[0] else second
    bits = max(other.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32()}.get(bits, pa.int64())


def _float_for(integer: pa.DataType, floating: pa.DataType) -> pa.DataType:
    for kind, digits in ((pa.float16(), 11), (pa.float32(), 24), (pa.float64(), 53)):
        if kind.bit_width >= floating.bit_width and integer.bit_width <= digits:
            return kind
    return pa.float64()


def _wider_decimal(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    parts = [_digits(kind) for kind in (first, second)]
    scale = max(scale for _, scale in parts)
    digits = max(whole for whole, _ in parts) + scale
    if digits > _MOST_DIGITS:
        return None
    return pa.decimal128(digits, scale) if digits <= _DIGITS_128 else pa.decimal256(digits, scale)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """The digits before and after the point of integers or decimals."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return len(str((1 << kind.bit_width) - 1)), 0
