"""`decode_row`: one stored row to its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .codecs import as_scalar
from .errors import DecodeFieldError
from .unischema import Unischema

__all__ = ["DecodeFieldError", "decode_row"]


def decode_row(row: Mapping[str, Any], schema: Unischema) -> dict[str, Any]:
    """The values of a row of stored ones, such as one that Spark has read; names that the schema lacks are left out.

    Raises:
        DecodeFieldError: a value that does not decode, with the field's name.
    """
    return {name: _decoded(schema, name, value) for name, value in row.items() if name in schema.fields}


def _decoded(schema: Unischema, name: str, value: object) -> Any:
    field = schema.fields[name]
    if value is None:
        return None
    try:
        if field.codec is not None:
            return field.codec.decode(field, value)
        return value if field.shape else as_scalar(field.numpy_dtype, value)
    except Exception as error:
        raise DecodeFieldError(f'Decoding field "{name}" failed: {error}') from error
