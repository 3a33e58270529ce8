"""Columns of an Iceberg schema: leaves with their field ids, and the names that older files may use for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from ..base.memory.arrow_views import is_bytes
from ..dataset.table import TableColumn

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import MappedField, NameMapping
    from pyiceberg.types import IcebergType, NestedField


def table_columns(schema: Schema, mapping: NameMapping | None) -> tuple[list[TableColumn], list[tuple[str, str]]]:
    """Returns the columns, and the columns that cannot be read with the reason."""
    names = None if mapping is None else dict(_names_by_id(mapping))
    refused: list[tuple[str, str]] = []
    return list(_flatten(schema.fields, names, refused)), refused


def _names_by_id(mapping: NameMapping | Sequence[MappedField]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for item in getattr(mapping, "root", mapping):
        if item.field_id is not None:
            yield item.field_id, tuple(item.names)
        yield from _names_by_id(item.fields)


def _flatten(
    fields: Sequence[NestedField],
    names: Mapping[int, tuple[str, ...]] | None,
    refused: list[tuple[str, str]],
    above: TableColumn | None = None,
) -> Iterator[TableColumn]:
    from pyiceberg.types import MapType, StructType

    for field in fields:
        path = () if above is None else above.names
        column = TableColumn(
            name=field.name if above is None else f"{above.name}.{field.name}",
            arrow=pa.null(),
            nullable=not field.required or (above is not None and above.nullable),
            ids=(*(() if above is None else above.ids), field.field_id),
            default_depth=0 if above is None else above.default_depth,
            names=() if names is None else (*path, names.get(field.field_id, ())),  # no names: no file has the column
        )
        kind = field.field_type
        if isinstance(kind, StructType):
            if not field.required and getattr(field, "initial_default", None) is None:
                column = replace(column, default_depth=len(column.ids))  # older files have null instead of the struct
            yield from _flatten(kind.fields, names, refused, column)
            continue
        try:
            if isinstance(kind, MapType):
                for part, member in (("key", kind.key_type), ("value", kind.value_type)):
                    yield replace(column, name=f"{column.name}.{part}", arrow=pa.list_(_arrow_type(member)))
            else:
                column = replace(column, arrow=_arrow_type(kind))
                yield replace(column, default=value_text(column, getattr(field, "initial_default", None)))
        except (ValueError, TypeError, NotImplementedError) as error:
            reason = (
                f"field '{column.name}': Iceberg type {kind} cannot become a tensor here ({error}). "
                "Deselect it with select(...) or fields=[...]."
            )
            refused.append((column.name, reason))


def _arrow_type(kind: IcebergType) -> pa.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    arrow = schema_to_pyarrow(kind, include_field_ids=False)
    return arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow


def value_text(column: TableColumn, value: Any) -> str | None:
    """Formats a partition value or a default for `dataset.table_read.parse_values`.

    Args:
        value: as pyiceberg gives it: a Python value, or an integer count for types of time.
    """
    arrow = column.arrow
    if value is None:
        return None
    if is_bytes(arrow):
        return (value.bytes if isinstance(value, UUID) else bytes(value)).decode("latin-1")
    if pa.types.is_boolean(arrow):
        return "true" if value else "false"
    if pa.types.is_temporal(arrow):
        plain = pa.timestamp(arrow.unit) if pa.types.is_timestamp(arrow) else arrow
        count = pa.int32() if arrow.bit_width == 32 else pa.int64()
        moment = pa.scalar(value, count if isinstance(value, int) else arrow)
        text: str = moment.cast(plain).cast(pa.string()).as_py()
        return text
    return str(value)
