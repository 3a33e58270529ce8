"""`decode_row`: decodes one stored row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .codecs import as_scalar
from .errors import DecodeFieldError
from .unischema import Unischema

__all__ = ["DecodeFieldError", "decode_row"]


def decode_row(row: Mapping[str, Any], schema: Unischema) -> dict[str, Any]:
    """Decodes the values of a stored row, such as one read by Spark. Names that are not in the schema are dropped.

    Raises:
        DecodeFieldError: a value cannot be decoded; the text names the field.
    """
    return {name: _decode_value(schema, name, value) for name, value in row.items() if name in schema.fields}


def _decode_value(schema: Unischema, name: str, value: object) -> Any:
    field = schema.fields[name]
    if value is None:
        return None
    try:
        if field.codec is not None:
            return field.codec.decode(field, value)
        return value if field.shape else as_scalar(field.numpy_dtype, value)
    except Exception as error:
        raise DecodeFieldError(f'Decoding field "{name}" failed: {error}') from error
