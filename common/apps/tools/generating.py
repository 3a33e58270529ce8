"""`generate_metadata` writes ``_common_metadata`` for plain Parquet files, or for a dataset that lost it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...base.errors import DatasetError, SchemaError
from ...dataset.dataset import StoredDataset, first_schema
from ...schema.field import Unischema, schema_to_metadata
from .metadata_file import read_metadata, write_metadata


def generate_metadata(
    url: str | os.PathLike[str],
    schema: Unischema | None = None,
    *,
    overwrite: bool = False,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Unischema:
    """Writes the schema of a directory of Parquet files as JSON, atomically. Returns the schema.

    With the schema in place, readers know names, types and nullability without opening the data files, and files that
    are added later must match it.

    Args:
        schema: the schema of a row, which may come from ``parquetry.petastorm``; ``None`` = infer it from the
            Parquet columns. Codecs cannot be inferred.
        overwrite: replaces an existing schema. Other metadata is kept.

    Raises:
        DatasetError: there is already a schema, or nothing exists at the URL.
        SchemaError: the files lack a field of the given schema, or a column cannot become a tensor.
    """
    dataset = StoredDataset([os.fspath(url)], filesystem=filesystem, storage_options=storage_options)
    root = dataset.directory("metadata")
    stored = read_metadata(dataset.filesystem, root)
    metadata = dict(stored.metadata or {}) if stored is not None else {}
    if any(key.endswith(b"unischema.v1") for key in metadata) and not overwrite:
        raise DatasetError(
            f"dataset {root}: expected none, but _common_metadata already has a schema. Pass overwrite=True to replace "
            "it, or use migrate for a Petastorm schema."
        )
    arrow = first_schema(dataset)[1]
    if schema is None:
        dataset.match(None)
        schema = dataset.schema
    else:
        convert: Any = getattr(type(schema), "to_parquetry", None)  # schemas of parquetry.petastorm have it
        schema = schema if convert is None else convert(schema)
    stored = dataset.stored_names
    missing = [name for name in schema.fields if name not in dataset.partitions and name.split(".")[0] not in stored]
    lost = [name for name in missing if not schema[name].nullable]
    if lost:
        raise SchemaError(f"dataset {root}: expected columns for the fields {lost}, found {sorted(stored)}.")
    write_metadata(dataset.filesystem, root, arrow.remove_metadata(), {**metadata, **schema_to_metadata(schema)})
    return schema
