"""Arrow columns in other shapes: members of structs as columns, several chunks as one array, rows by number.

Always holds: 32-bit offsets never overflow. A column chunk may hold more than 2 GiB of text, which Arrow reads in
several chunks; what puts chunks together uses the types with 64-bit offsets (`wide`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def child(column: pa.ChunkedArray, part: str) -> pa.ChunkedArray:
    """The member of a struct, null where the struct is; or the keys or values of a map, as lists."""
    chunks = []
    for chunk in column.chunks:
        if pa.types.is_map(chunk.type):
            values = chunk.keys if part == "key" else chunk.items
            mask = chunk.is_null() if chunk.null_count else None
            offsets = pa.array(chunk.offsets.to_numpy())  # a mask goes only beside offsets that are no slice themselves
            chunks.append(pa.ListArray.from_arrays(offsets, values, mask=mask))
        else:
            chunks.append(chunk.field(part) if chunk.null_count == 0 else _masked(chunk, part))
    return pa.chunked_array(chunks, chunks[0].type if chunks else column.type)


def _masked(chunk: pa.StructArray, part: str) -> pa.Array:
    return chunk.flatten()[chunk.type.get_field_index(part)]


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow can hardly compute with string views: they become large strings, with the same values."""
    views = column.type in (pa.string_view(), pa.binary_view())
    return column.cast(wide(column.type)) if views else column


def wide(kind: pa.DataType) -> pa.DataType:
    """The type of the same values with 64-bit offsets, which hold more than 2 GiB; without a dictionary."""
    if pa.types.is_dictionary(kind):
        return wide(kind.value_type)
    if pa.types.is_string(kind) or kind == pa.string_view():
        return pa.large_string()
    if pa.types.is_binary(kind) or kind == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(wide(kind.value_type))
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether the values are lists, of any of Arrow's kinds."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def without_nulls(column: pa.ChunkedArray) -> np.ndarray:
    """Which values are not null and, where they are lists, hold no null at any depth; bool."""
    parts = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        array = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        whole = np.array(array.is_valid())
        owner = np.arange(len(array))
        while is_list(array.type):
            owner = np.repeat(owner, np.asarray(pc.list_value_length(array).fill_null(0)))
            array = array.flatten()  # without what is hidden beneath null lists
            if array.null_count:
                whole[owner[np.asarray(array.is_null())]] = False
        parts.append(whole)
    return np.concatenate(parts)


def widened(array: pa.Array) -> pa.Array:
    """An array in its `wide` type; a dictionary may stand for more text than 32-bit offsets reach."""
    if not pa.types.is_dictionary(array.type):
        return array if array.type == wide(array.type) else array.cast(wide(array.type))
    return pa.DictionaryArray.from_arrays(array.indices, widened(array.dictionary)).dictionary_decode()


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array; several chunks in their `wide` type, because together they may need it."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    chunks = [widened(chunk) for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def take_rows(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Rows by number (int64); Arrow itself would put chunks of strings together in a type that may not hold them.

    Rows that do not ascend come in the `wide` type where a column has several chunks.
    """
    columns = [
        column.take(rows) if column.num_chunks == 1 or column.type == wide(column.type) else _taken(column, rows)
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def _taken(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    numbers = rows.to_numpy()
    if (numbers[1:] < numbers[:-1]).any():
        return pa.chunked_array([one_array(column).take(rows)])
    ends = np.cumsum([0, *map(len, column.chunks)])
    places = np.searchsorted(numbers, ends)
    taken = [
        chunk.take(pa.array(numbers[places[n] : places[n + 1]] - ends[n])) for n, chunk in enumerate(column.chunks)
    ]
    return pa.chunked_array(taken, column.type)
