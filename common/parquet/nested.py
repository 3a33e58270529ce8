"""Reshapes Arrow columns: struct members as columns, several chunks as one array, rows by number.

32-bit offsets never overflow here. A column chunk may hold more than 2 GiB of text, which Arrow reads as several
chunks; code that joins chunks uses types with 64-bit offsets (`wide`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..base.memory.arrow_views import as_arrow, as_numpy, is_list
from ..base.process.forks import pc


def child(column: pa.ChunkedArray, part: str) -> pa.ChunkedArray:
    """The member of a struct, null where the struct is null; or the keys or values of a map, as lists."""
    chunks = []
    for chunk in column.chunks:
        if pa.types.is_map(chunk.type):
            values = chunk.keys if part == "key" else chunk.items
            mask = chunk.is_null() if chunk.null_count else None
            offsets = as_arrow(as_numpy(chunk.offsets))  # Arrow accepts no mask with sliced offsets
            chunks.append(pa.ListArray.from_arrays(offsets, values, mask=mask))
        else:
            chunks.append(chunk.field(part) if chunk.null_count == 0 else _masked(chunk, part))
    return pa.chunked_array(chunks, chunks[0].type if chunks else column.type)


def _masked(chunk: pa.StructArray, part: str) -> pa.Array:
    return chunk.flatten()[chunk.type.get_field_index(part)]


def without_rare_types(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts string and binary views at any depth to large strings and binaries, and narrow decimals to 128 bits.

    Few of Arrow's kernels support views, or decimals of 32 and 64 bits.
    """
    kind = usual_type(column.type)
    return column if kind == column.type else column.cast(kind)


def usual_type(kind: pa.DataType) -> pa.DataType:
    """The type that `without_rare_types` gives a column of this type."""
    if kind in (pa.string_view(), pa.binary_view()):
        return wide(kind)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return _with_changed(kind, usual_type)


def stored_schema(arrow: pa.Schema) -> pa.Schema:
    """The schema of a file by what the file stores, whatever this process has imported; see `stored_type`."""
    for number, kind in _stored_types(arrow):
        arrow = arrow.set(number, arrow.field(number).with_type(kind))
    return arrow


def as_stored(table: pa.Table) -> pa.Table:
    """Returns a table that was read from a file with the types of its `stored_schema`."""
    for number, kind in _stored_types(table.schema):
        column = pa.chunked_array([_stored(chunk) for chunk in table.column(number).chunks], kind)
        table = table.set_column(number, table.schema.field(number).with_type(kind), column)
    return table


def _stored(array: pa.Array) -> pa.Array:
    """Returns an array in its `stored_type`. Arrow's own cast of a list view reads beyond the end of its offsets."""
    kind = array.type
    stored = stored_type(kind)
    if stored == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return _stored(array.storage)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        sizes = np.where(as_numpy(array.is_valid()), as_numpy(array.sizes), 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(
            np.int64 if pa.types.is_large_list(stored) else np.int32
        )
        made = pa.LargeListArray if pa.types.is_large_list(stored) else pa.ListArray
        missing = array.is_null() if array.null_count else None
        return made.from_arrays(as_arrow(offsets), _stored(array.flatten()), type=stored, mask=missing)
    return with_member_arrays(array, [_stored(member) for member in member_arrays(array)])


def members(kind: pa.DataType) -> list[pa.Field]:
    """The fields in a nested type: the members of a struct, the keys and values of a map, the values of a list."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)]


def with_members(kind: pa.DataType, types: Sequence[pa.DataType]) -> pa.DataType:
    """Returns a nested type with other types of its `members`."""
    inside = [member.with_type(other) for member, other in zip(members(kind), types, strict=True)]
    if pa.types.is_struct(kind):
        return pa.struct(inside)
    if pa.types.is_map(kind):
        return pa.map_(*inside, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inside[0], kind.list_size)
    large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return pa.large_list(inside[0]) if large else pa.list_(inside[0])


def _with_changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns a type with its `members` changed; the same type if none changes."""
    types = [member.type for member in members(kind)]
    others = [change(each) for each in types]
    return kind if others == types else with_members(kind, others)


def member_arrays(array: pa.Array) -> list[pa.Array]:
    """The values of the `members` of a nested array's type."""
    if pa.types.is_struct(array.type):
        return [array.field(number) for number in range(array.type.num_fields)]
    return [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]


def with_member_arrays(array: pa.Array, inside: Sequence[pa.Array]) -> pa.Array:
    """Returns a nested array with other `member_arrays`."""
    kind = with_members(array.type, [member.type for member in inside])
    if pa.types.is_struct(kind):
        missing = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(inside, fields=list(kind), mask=missing)
    own = 1 if pa.types.is_fixed_size_list(kind) else 2
    if pa.types.is_map(kind):
        inside = [pa.StructArray.from_arrays(inside, fields=[kind.key_field, kind.item_field])]
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:own], array.null_count, array.offset, inside)


def _stored_types(arrow: pa.Schema) -> list[tuple[int, pa.DataType]]:
    """The columns whose `stored_type` differs (numbers never do), as pairs of column number and stored type."""
    nested = [
        (number, kind)
        for number, kind in enumerate(arrow.types)
        if kind.num_fields or isinstance(kind, pa.ExtensionType)
    ]
    return [(number, stored) for number, kind in nested if (stored := stored_type(kind)) != kind]


def has_extensions(field: pa.Field) -> bool:
    """Whether a field has an extension type, registered or not, or holds one."""
    named = field.metadata is not None and b"ARROW:extension:name" in field.metadata
    if named or isinstance(field.type, pa.BaseExtensionType):
        return True
    return any(has_extensions(field.type.field(number)) for number in range(field.type.num_fields))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type without extension types that Python packages define, and with lists instead of list views.

    Arrow knows such an extension type only if the package has registered it. Otherwise, the type is what it stores.
    Arrow's own extension types are always known, and remain.
    """
    if isinstance(kind, pa.ExtensionType):
        return stored_type(kind.storage_type)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return with_members(kind, [stored_type(kind.value_type)])
    return _with_changed(kind, stored_type)


def extension_paths(arrow: pa.Schema) -> list[str]:
    """Returns the dotted paths to the columns of a file with another `stored_type`, but not those inside them."""
    odd = [arrow.field(number) for number, _ in _stored_types(arrow)]
    return [path for column in odd for path in _extensions(column.name, column.type)]


def with_whole_extensions(columns: Sequence[str], extensions: Sequence[str]) -> list[str]:
    """Returns the dotted columns to read from a file, given the wanted columns of its `stored_schema`.

    Arrow cannot read only some members of a struct with an extension type.

    Args:
        extensions: the `extension_paths` of the file.
    """
    if not extensions:
        return list(columns)
    paths = (next((path for path in extensions if column.startswith(f"{path}.")), column) for column in columns)
    return list(dict.fromkeys(paths))


def _extensions(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yields the paths to the columns with another `stored_type` inside a column, but not those inside them."""
    if pa.types.is_struct(kind):
        for member in kind:
            yield from _extensions(f"{path}.{member.name}", member.type)
    elif stored_type(kind) != kind:
        yield path


def wide(kind: pa.DataType) -> pa.DataType:
    """The same type with 64-bit offsets, for more than 2 GiB of values, and without a dictionary."""
    if pa.types.is_dictionary(kind):
        return wide(kind.value_type)
    if pa.types.is_string(kind) or kind == pa.string_view():
        return pa.large_string()
    if pa.types.is_binary(kind) or kind == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(wide(kind.value_type))
    return kind


def variable(kind: pa.DataType) -> pa.DataType:
    """The same type with lists that may differ in length, with 64-bit offsets."""
    if pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(variable(kind.value_type))
    return kind


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, without a dictionary or an extension type. A tensor is not the list that stores it."""
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type
    return wide(kind) if pa.types.is_dictionary(kind) else kind


def not_null_mask(column: pa.ChunkedArray) -> np.ndarray:
    """Which values are not null and, if they are lists, contain no null at any depth; bool."""
    parts = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        array = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        whole = np.array(array.is_valid())
        owner = np.arange(len(array))
        while is_list(array.type):
            owner = np.repeat(owner, np.asarray(pc.list_value_length(array).fill_null(0)))
            array = array.flatten()  # leaves out values hidden beneath null lists
            if array.null_count:
                whole[owner[np.asarray(array.is_null())]] = False
        parts.append(whole)
    return np.concatenate(parts)


def widened(array: pa.Array) -> pa.Array:
    """Casts an array to its `wide` type. A dictionary may expand to more text than 32-bit offsets can address."""
    if not pa.types.is_dictionary(array.type):
        return array if array.type == wide(array.type) else array.cast(wide(array.type))
    return pa.DictionaryArray.from_arrays(array.indices, widened(array.dictionary)).dictionary_decode()


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array. Several chunks are joined in their `wide` type, because they may need it."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    chunks = [widened(chunk) for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)


def take_rows(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Selects rows by number (int64). Arrow's own ``take`` may join chunks of strings in a type that overflows.

    If the numbers do not ascend, columns of several chunks are returned in their `wide` type.
    """
    columns = [
        column.take(rows) if column.num_chunks == 1 or column.type == wide(column.type) else _taken(column, rows)
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _taken(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    numbers = as_numpy(rows)
    if (numbers[1:] < numbers[:-1]).any():
        return pa.chunked_array([one_array(column).take(rows)])
    ends = np.cumsum([0, *map(len, column.chunks)])
    places = np.searchsorted(numbers, ends)
    taken = [
        chunk.take(as_arrow(numbers[places[n] : places[n + 1]] - ends[n])) for n, chunk in enumerate(column.chunks)
    ]
    return pa.chunked_array(taken, column.type)
