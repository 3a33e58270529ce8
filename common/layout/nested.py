"""Members of nested Arrow columns as columns of their own."""

from __future__ import annotations

import pyarrow as pa


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
    if column.type == pa.string_view():
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if column.type == pa.binary_view() else column
