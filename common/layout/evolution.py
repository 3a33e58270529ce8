"""One schema out of files that were written over time: missing columns become nullable, types widen where that is
exact.

In: the Arrow schema of each file. Out: one field per column path; a column that would need anything but safe widening
is refused, with a reason that names both files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from ..schema.infer import flatten_fields


def unify_schemas(
    schemas: Sequence[tuple[str, pa.Schema]],
) -> tuple[list[tuple[str, pa.Field]], dict[str, str]]:
    """The columns of all files, by dotted path, in the order in which they first occur.

    Args:
        schemas: ``(file, schema)`` for each distinct schema.

    Returns:
        The columns, and by path the reason why one is refused: its types cannot be widened to one, or a file has it
        more than once.
    """
    refused: dict[str, str] = {}
    found: dict[str, tuple[pa.Field, str]] = {}
    count: dict[str, int] = {}
    for file, schema in schemas:
        names = Counter(path for path, _ in flatten_fields(schema))
        for path, column in flatten_fields(schema):
            if names[path] > 1:
                refused[path] = (
                    f"field '{path}': expected one column of this name in {file}, got {names[path]}, and nothing tells "
                    "which one is meant. Rename them where the data are written, or deselect the field with "
                    "select(...) or fields=[...]."
                )
            count[path] = count.get(path, 0) + 1
            if path not in found:
                found[path] = (column, file)
                continue
            before, first_file = found[path]
            widened = widen(before.type, column.type)
            if widened is None:
                refused[path] = (
                    f"field '{path}': expected one type in all files, got {before.type} in {first_file} and "
                    f"{column.type} in {file}, which do not widen to one without loss. Write one of the files again, "
                    "or deselect the field with select(...) or fields=[...]."
                )
                continue
            found[path] = (pa.field(path, widened, before.nullable or column.nullable), first_file)
    columns = [
        (path, column if count[path] == len(schemas) else column.with_nullable(True))
        for path, (column, _) in found.items()
        if path not in refused
    ]
    return columns, refused


def widen(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly; ``None`` if there is none."""
    if first == second:
        return first
    if pa.types.is_dictionary(first) or pa.types.is_dictionary(second):
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
    if _is_bytes(first) and _is_bytes(second):
        return pa.large_binary()
    if pa.types.is_decimal(first) and pa.types.is_decimal(second):
        return _wider_decimal(first, second)
    if _is_list(first) and _is_list(second):
        inner = widen(first.value_type, second.value_type)
        return None if inner is None else pa.large_list(inner)
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


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
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    )


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
