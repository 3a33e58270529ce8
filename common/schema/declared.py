"""A stored column read as a user's own field says, instead of the dataset's schema."""

from __future__ import annotations

import pyarrow as pa

from ..errors import SchemaError
from .field import UnischemaField


def declared_as(stored: UnischemaField, arrow: pa.DataType, given: UnischemaField) -> UnischemaField:
    """The field that reads a column: ``given``, nullable where the column is.

    Args:
        stored: the field in the dataset's schema.
        arrow: the type of the column.

    Raises:
        SchemaError: a codec that cannot have stored this column.
    """
    if given.storage.coded:
        fits = pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow)
        rule = "a binary column"
    else:
        fits = given.storage == stored.storage or given.storage.arrow_type(given) == arrow
        rule = f"a column of {given.storage.arrow_type(given)}"
    if not fits:
        raise SchemaError(
            f"field '{given.name}': expected {rule} for {given.codec}, got {arrow}. "
            "Give the codec that the column was stored with, or the name alone."
        )
    return given.replace(nullable=given.nullable or stored.nullable)
