"""`generate_metadata`: a ``_common_metadata`` for plain Parquet files, or for a dataset that has lost its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import DatasetError, SchemaError
from ..layout.dataset import StoredDataset, _arrow_schema
from ..schema.field import Unischema
from ..schema.metadata import schema_to_metadata
from .metadata_file import read_metadata, write_metadata


def generate_metadata(
    url: str | os.PathLike[str],
    schema: Unischema | None = None,
    *,
    overwrite: bool = False,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Unischema:
    """Writes the schema of a directory of Parquet files as JSON, atomically; returns it.

    With the schema in place every reader knows names, types and nullability without looking into the files, and files
    that are added later are held to it.

    Args:
        schema: what a row is, also a schema of ``parquetry.common.petastorm``; ``None`` = what the Parquet columns say.
            Codecs are only known to a schema that is given.
        overwrite: replaces a schema that is there already; the other metadata is kept.

    Raises:
        DatasetError: there is a schema already, or nothing is at the URL.
        SchemaError: a field of the given schema that the files do not have; a column that cannot become a tensor.
    """
    dataset = StoredDataset([os.fspath(url)], filesystem=filesystem, storage_options=storage_options)
    root = dataset.roots[0]
    stored = read_metadata(dataset.filesystem, root)
    metadata = dict(stored.metadata or {}) if stored is not None else {}
    if any(key.endswith(b"unischema.v1") for key in metadata) and not overwrite:
        raise DatasetError(
            f"dataset {root}: expected none, but _common_metadata has a schema already. Pass overwrite=True to replace "
            "it, or use migrate for Petastorm's."
        )
    arrow = _arrow_schema(dataset, 0)[1]
    if schema is None:
        dataset.match(None)
        schema = dataset.schema
    else:
        convert: Any = getattr(type(schema), "to_parquetry", None)  # a schema of parquetry.common.petastorm
        schema = schema if convert is None else convert(schema)
    missing = [
        name for name in schema.fields if name not in dataset.partitions and name.split(".")[0] not in arrow.names
    ]
    lost = [name for name in missing if not schema[name].nullable]
    if lost:
        raise SchemaError(f"dataset {root}: expected columns for the fields {lost}, found {arrow.names}.")
    write_metadata(dataset.filesystem, root, arrow.remove_metadata(), {**metadata, **schema_to_metadata(schema)})
    return schema
