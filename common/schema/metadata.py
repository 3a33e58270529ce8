"""Where a schema is kept: JSON under one key of the Parquet key-value metadata, in every file and in
``_common_metadata``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import SchemaError
from .field import Unischema

SCHEMA_KEY = b"parquetry.unischema.v1"


def schema_to_metadata(schema: Unischema) -> dict[bytes, bytes]:
    """The key-value metadata that describes the schema."""
    return {SCHEMA_KEY: json.dumps(schema.to_json(), separators=(",", ":")).encode("utf-8")}


def schema_from_metadata(metadata: Mapping[bytes, bytes] | None, *, where: str) -> Unischema | None:
    """The schema in some key-value metadata, or ``None`` if it has none.

    Raises:
        SchemaError: damaged JSON, or a version of a newer release; says in which file.
    """
    text = (metadata or {}).get(SCHEMA_KEY)
    if text is None:
        return None
    try:
        return Unischema.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise SchemaError(f"schema stored in {where}: {error}") from error
