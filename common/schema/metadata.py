"""Reads and writes the schema in Parquet key-value metadata: JSON under one key, in every file and in
``_common_metadata``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import SchemaError
from .field import Unischema

SCHEMA_KEY = b"parquetry.unischema.v1"


def schema_to_metadata(schema: Unischema) -> dict[bytes, bytes]:
    """Returns the key-value metadata that stores the schema."""
    return {SCHEMA_KEY: json.dumps(schema.to_json(), separators=(",", ":")).encode("utf-8")}


def schema_from_metadata(metadata: Mapping[bytes, bytes] | None, *, where: str) -> Unischema | None:
    """Returns the schema in the key-value metadata, or ``None`` if there is none.

    Raises:
        SchemaError: the JSON is damaged, or a newer release wrote it. The message names the file.
    """
    text = (metadata or {}).get(SCHEMA_KEY)
    if text is None:
        return None
    try:
        return Unischema.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise SchemaError(f"schema stored in {where}: {error}") from error
