"""Infers a `Unischema` from the Arrow schema of plain Parquet files (from pyarrow, Spark, or any other writer).

Structs are flattened to ``parent.child`` fields, and maps to ``field.key`` and ``field.value`` lists. Columns that
cannot become tensors are returned separately with the reason, so they raise only when they are selected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ..base.errors import SchemaError
from .arrow_types import infer_shape_and_dtype
from .codecs import ListCodec
from .field import Unischema, UnischemaField


def infer_fields(columns: Iterable[tuple[str, pa.Field]]) -> tuple[Unischema, dict[str, str]]:
    """Returns the fields of flattened Arrow columns, and the error text of every column that cannot become a field."""
    fields: list[UnischemaField] = []
    refused: dict[str, str] = {}
    for path, column in columns:
        try:
            fields.append(infer_field(path, column))
        except SchemaError as error:
            refused[path] = str(error)
    return Unischema("inferred", fields), refused


def flatten_fields(arrow: pa.Schema) -> Iterator[tuple[str, pa.Field]]:
    """Yields every leaf column as ``(dotted path, field)``. Structs are flattened, and the children of an optional
    parent are optional.
    """
    for column in arrow:
        yield from _flatten(column.name, column)


def _flatten(path: str, column: pa.Field) -> Iterator[tuple[str, pa.Field]]:
    if pa.types.is_struct(column.type) and column.type.num_fields:
        for child in column.type:
            yield from _flatten(f"{path}.{child.name}", child.with_nullable(child.nullable or column.nullable))
    elif pa.types.is_map(column.type):
        nullable = column.nullable
        yield f"{path}.key", pa.field("key", pa.list_(column.type.key_type), nullable)
        yield f"{path}.value", pa.field("value", pa.list_(column.type.item_type), nullable)
    else:
        yield path, column


def infer_field(path: str, column: pa.Field) -> UnischemaField:
    """Returns the field that one Arrow column becomes.

    Raises:
        SchemaError: the type cannot become a tensor, or the column has no name.
    """
    if not path:
        raise SchemaError(
            f"field '': expected every column to have a name, got a nameless column of type {column.type}. Name it "
            "where the data is written, or read only the others with select(...) or fields=[...]."
        )
    shape, dtype = infer_shape_and_dtype(column.type, field=path)
    return UnischemaField(path, dtype, shape, ListCodec() if shape else None, nullable=column.nullable)
