"""Stores row-group indexes, which Petastorm pickled, as JSON.

The format is ``{"version": 1, "indexes": [...]}``. Each index is either ``{"name", "column", "row_groups"}`` or
``{"name", "column", "values": [[value, row groups], ...]}``. A byte string is ``{"bytes": latin-1 text}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...base.errors import SchemaError
from ...schema.petastorm_metadata import IndexValue, PetastormIndex

INDEXES_KEY = b"parquetry.row_group_indexes.v1"


def indexes_to_metadata(indexes: Mapping[str, PetastormIndex]) -> dict[bytes, bytes]:
    """Encodes indexes as key-value metadata. Empty if there are no indexes."""
    if not indexes:
        return {}
    value = {"version": 1, "indexes": [_to_json(index) for index in indexes.values()]}
    return {INDEXES_KEY: json.dumps(value, separators=(",", ":")).encode()}


def indexes_from_metadata(metadata: Mapping[bytes, bytes] | None, *, where: str) -> dict[str, PetastormIndex] | None:
    """Decodes indexes by name. Returns ``None`` if the metadata has none in this format.

    Raises:
        SchemaError: the JSON is damaged, or was written by a newer release.
    """
    text = (metadata or {}).get(INDEXES_KEY)
    if text is None:
        return None
    try:
        value = json.loads(text)
        if value["version"] != 1:
            raise SchemaError(f"version: expected 1, got {value['version']!r}. Update parquetry.")
        indexes = [_from_json(item) for item in value["indexes"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"row-group indexes of {where}: {error}") from error
    return {index.name: index for index in indexes}


def _to_json(index: PetastormIndex) -> dict[str, Any]:
    result: dict[str, Any] = {"name": index.name, "column": index.column}
    if index.ordinals_by_value is None:
        return {**result, "row_groups": sorted(index.ordinals)}
    values = [
        [{"bytes": value.decode("latin1")} if isinstance(value, bytes) else value, sorted(ordinals)]
        for value, ordinals in index.ordinals_by_value.items()
    ]
    return {**result, "values": values}


def _from_json(value: Mapping[str, Any]) -> PetastormIndex:
    if "values" not in value:
        return PetastormIndex(name=value["name"], column=value["column"], ordinals=frozenset(value["row_groups"]))
    by_value: dict[IndexValue, frozenset[int]] = {
        key["bytes"].encode("latin1") if isinstance(key, dict) else key: frozenset(ordinals)
        for key, ordinals in value["values"]
    }
    union: frozenset[int] = frozenset().union(*by_value.values())
    return PetastormIndex(name=value["name"], column=value["column"], ordinals=union, ordinals_by_value=by_value)
