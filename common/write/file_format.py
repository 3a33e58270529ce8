"""How the columns of a schema are stored in a Parquet file: Arrow schema and writer options.

All functions are pure. Encoded columns (images, arrays) get no dictionary and no statistics, because neither helps if
all values differ. Data that is already compressed is not compressed again, and by default raw arrays are compressed
only if a sample shrinks by a third: uncompressed values are read at least twice as fast, and in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from ..base.errors import PipelineError, SchemaError
from ..base.memory.arrow_views import is_list
from ..schema.field import Unischema, UnischemaField, schema_to_metadata
from ..schema.video import VideoCodec

_COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd", "auto")
_PAGE_BYTES = 1 << 20
_ALONE_BYTES = 16 << 10  # a value of this size is read no more slowly than one that shares its page
_MAX_BATCH_ROWS = 1024
_SAMPLE_BYTES = 1 << 18
_SAMPLE_VALUE_BYTES = 1 << 14


def core_schema(schema: object) -> Unischema:
    """Returns the schema as a parquetry `Unischema`.

    A schema from ``parquetry.petastorm`` is converted.

    Raises:
        SchemaError: ``schema`` is not a schema, or has no fields, or two of the same column.
    """
    convert = getattr(type(schema), "to_parquetry", None)
    if convert is not None:
        schema = convert(schema)
    if not isinstance(schema, Unischema) or not len(schema):
        raise SchemaError(
            f"schema: expected a Unischema with at least one field, got {schema!r}. "
            "Write Unischema('name', [UnischemaField(...), ...])."
        )
    for name, count in Counter(column.name for field in schema for column in _columns_of(field)).items():
        if count > 1:
            raise SchemaError(
                f"field '{name}': expected a name that no other column has, got that of a column which VideoCodec "
                "writes to say where frames are. Give the field another name."
            )
    return schema


def arrow_schema(schema: Unischema, *, without: Collection[str] = ()) -> pa.Schema:
    """The schema of the files: every field except ``without``, and the JSON of all fields as metadata."""
    columns = [column for field in schema if field.name not in without for column in _columns_of(field)]
    return pa.schema(columns, metadata=schema_to_metadata(schema))


def _columns_of(field: UnischemaField) -> list[pa.Field]:
    if field.storage.in_column:
        return [pa.field(field.name, field.storage.arrow_type(field), field.nullable)]
    if not isinstance(field.storage, VideoCodec):
        return []  # fields of their own say where its values are
    file, frame = field.storage.columns(field)
    return [pa.field(file, pa.string(), field.nullable), pa.field(frame, pa.int64(), field.nullable)]


def values_schema(schema: Unischema) -> tuple[Unischema, pa.Schema]:
    """The fields that rows give values for, and the Arrow types of these values before they are put into files.

    Other fields are frames of videos that are there already.
    """
    given = Unischema(
        schema.name, [each for each in schema if each.storage.in_column or isinstance(each.storage, VideoCodec)]
    )
    return given, pa.schema([pa.field(each.name, each.storage.arrow_type(each), each.nullable) for each in given])


def check_compression(compression: str | None) -> str:
    """Returns the name of the compression in lower case; ``None`` becomes ``"none"``.

    Raises:
        PipelineError: Parquet has no such compression, or this build of pyarrow cannot write it.
    """
    name = "none" if compression is None else str(compression).lower()
    codec = "zstd" if name == "auto" else name
    if name not in _COMPRESSIONS or (name != "none" and not pa.Codec.is_available(codec)):
        raise PipelineError(f"compression: expected one of {', '.join(_COMPRESSIONS)}, got {compression!r}.")
    return name


def writer_options(schema: Unischema, stored: pa.Schema, compression: str, first: pa.Table) -> dict[str, Any]:
    """The keyword arguments of ``pyarrow.parquet.ParquetWriter``.

    Args:
        stored: the file's Arrow schema.
        first: the first row group of the file; the size of its values determines how many are written at once, and
            a sample of them whether raw arrays are compressed.
    """
    fields = {column.name: schema.fields.get(column.name) for column in stored}  # None for the places of frames
    coded = {name for name, field in fields.items() if field is not None and field.storage.coded}
    plain = [path for column in stored if column.name not in coded for path in _leaf_paths(column)]
    return {
        "compression": {
            path: codec
            for column in stored
            for codec in [_compression_of(fields[column.name], compression, first.column(column.name))]
            for path in _leaf_paths(column)
        },
        "use_dictionary": plain or False,
        "write_statistics": plain or False,
        "write_page_index": True,
        "write_page_checksum": True,
        **_page_sizes(first),
    }


def _compression_of(field: UnischemaField | None, compression: str, values: pa.ChunkedArray) -> str:
    is_coded = field is not None and field.storage.coded
    if field is not None and is_coded and field.storage.costly:
        return "NONE"
    if compression != "auto":
        return compression.upper()
    return "ZSTD" if not is_coded or _shrinks(values) else "NONE"


def _shrinks(values: pa.ChunkedArray) -> bool:
    """Whether a sample of the first values, cut from their middles, shrinks by at least a third."""
    sample = bytearray()
    for value in values.slice(0, _MAX_BATCH_ROWS):
        if len(sample) >= _SAMPLE_BYTES:
            break
        if value.is_valid:
            data = memoryview(value.as_buffer())
            start = max(0, len(data) - _SAMPLE_VALUE_BYTES) // 2
            sample += data[start : start + _SAMPLE_VALUE_BYTES]
    return 3 * len(pa.compress(bytes(sample), "zstd", asbytes=True)) <= 2 * len(sample)


def _leaf_paths(column: pa.Field) -> list[str]:
    """The Parquet path of the column's values. Each list adds two levels (Parquet's rules for LIST)."""
    path, arrow = column.name, column.type
    while is_list(arrow):
        path, arrow = f"{path}.list.element", arrow.value_type
    return [path]


def _page_sizes(first: pa.Table) -> dict[str, int]:
    """How many bytes a page holds, and after how many rows it may end.

    A large value stands alone in its page: readers check whole pages, so they read no others for a row that a filter
    leaves. Small values share pages, even if they vary in size.
    """
    largest = max((column.nbytes for column in first.columns), default=0) // max(1, first.num_rows)
    page_bytes = _ALONE_BYTES if largest >= _ALONE_BYTES else _PAGE_BYTES
    return {
        "data_page_size": page_bytes,
        "write_batch_size": max(1, min(_MAX_BATCH_ROWS, page_bytes // max(1, largest))),
    }
