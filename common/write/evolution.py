"""`evolved` says which schema a dataset has once rows of another schema are added to it. It is a pure function.

New fields must be nullable, because the rows that are there have no values. Everything else stays as it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.errors import SchemaError
from ..schema.dtypes import dtype_to_json
from ..schema.field import Unischema, UnischemaField

_ADVICE = "Write the rows as they are stored, or write a new dataset."


def evolved(
    stored: Unischema, added: Unischema, *, keys: Sequence[str], partition_by: Sequence[str], where: str
) -> Unischema:
    """The fields that are stored, then the new ones.

    >>> stored = Unischema("s", [UnischemaField("x", "int64")])
    >>> added = Unischema("s", [UnischemaField("x", "int64"), UnischemaField("y", "float32", nullable=True)])
    >>> list(evolved(stored, added, keys=(), partition_by=(), where="data").fields)
    ['x', 'y']

    Args:
        stored, added: the schema of the dataset, and that of the rows to add.
        keys, partition_by: the partition keys of the dataset, and those to write with.
        where: the dataset, for messages.

    Raises:
        SchemaError: a field is stored in another way, or a field that only one of the two has is not nullable.
    """
    if tuple(keys) != tuple(partition_by):
        raise SchemaError(
            f"dataset '{where}': expected partition_by={tuple(keys)}, as it is stored, got {tuple(partition_by)}."
        )
    for field in added:
        if field.name in stored:
            _check_same(stored[field.name], field, where)
        elif not field.nullable:
            raise SchemaError(
                f"dataset '{where}': field '{field.name}' is new, and the stored rows have no value for it: expected "
                f"nullable=True, got {_described(field)}."
            )
    for field in stored:
        if field.name not in added and (field.name in keys or not field.nullable):
            raise SchemaError(
                f"dataset '{where}': field '{field.name}' is stored as {_described(field)}: expected it in the schema "
                f"of the new rows, got {', '.join(added.fields)}."
            )
    new = [field for field in added if field.name not in stored]
    return Unischema(stored.name, [*stored, *new]) if new else stored


def _check_same(stored: UnischemaField, added: UnischemaField, where: str) -> None:
    """Raises `SchemaError` if values of the new field would not be stored as those that are there."""
    is_like = (
        dtype_to_json(stored.dtype) == dtype_to_json(added.dtype)
        and stored.shape == added.shape
        and _codec_of(stored) == _codec_of(added)
        and (stored.dims == added.dims or None in (stored.dims, added.dims))
        and (stored.nullable or not added.nullable)
    )
    if not is_like:
        raise SchemaError(
            f"dataset '{where}': field '{added.name}' is stored as {_described(stored)}, and the new rows have "
            f"{_described(added)}. {_ADVICE}"
        )


def _codec_of(field: UnischemaField) -> object:
    """What tells whether two fields are stored alike, whether or not a codec was named."""
    codec = field.storage
    return codec.to_json() if codec.coded else (codec.kind, codec.arrow_type(field))


def _described(field: UnischemaField) -> str:
    codec = field.storage
    stored = f"codec {codec.to_json()}" if codec.coded else f"column {codec.arrow_type(field)}"
    dims = f", dims {field.dims}" if field.dims else ""
    nullable = "nullable" if field.nullable else "not nullable"
    return f"{dtype_to_json(field.dtype)} {field.shape}{dims}, {stored}, {nullable}"
