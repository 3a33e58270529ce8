"""The schema under which stored columns are copied as they are, and the columns in exactly its Arrow types."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..errors import DecodeError
from ..layout.dataset import StoredDataset
from ..schema.codecs import ScalarCodec
from ..schema.field import Unischema, UnischemaField


def stored_schema(dataset: StoredDataset, fields: Sequence[UnischemaField]) -> Unischema:
    """The fields, with codecs that keep the precision of stored decimals and times."""
    kinds = {n: t for n, t in dataset.types.items() if n not in dataset.partitions}
    return Unischema(dataset.schema.name, [_keeping(field, kinds.get(field.name)) for field in fields])


def to_stored(schema: Unischema, table: pa.Table) -> pa.Table:
    """The columns in the Arrow types that the schema stores.

    Raises:
        DecodeError: a value that does not fit its field.
    """
    columns = [_cast(schema[name], table.column(name)) for name in table.column_names]
    return pa.table(columns, names=table.column_names)


def _keeping(field: UnischemaField, kind: pa.DataType | None) -> UnischemaField:
    if field.storage.coded:
        return field.replace(codec=field.storage)  # the bytes stay, so must their codec, whatever a default becomes
    if kind is None or field.shape:
        return field
    precise = pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return field.replace(codec=ScalarCodec(kind)) if precise else field


def _cast(field: UnischemaField, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = field.storage.arrow_type(field)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DecodeError(f"field '{field.name}': expected values that {kind} can hold: {error}") from error
