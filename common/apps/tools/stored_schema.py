"""Writes the schema of a dataset to its metadata. Data files are not changed.

`generate_metadata` writes ``_common_metadata`` for plain Parquet files, or for a dataset that lost it. `migrate`
converts a Petastorm dataset's pickled metadata to JSON, in place.

Petastorm stores a pickled schema, pickled indexes and row-group counts in ``_common_metadata``. Some datasets lack that
file and store the schema in the metadata of a data file or in the summary file ``_metadata``. `migrate` stores the same
information as JSON under parquetry's keys, and removes the pickles from both files. The change is atomic for readers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...base.errors import DatasetError, SchemaError
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset, first_schema
from ...schema.field import SCHEMA_KEY, Unischema, schema_from_metadata, schema_to_metadata
from ...schema.petastorm_metadata import (
    ROW_GROUP_COUNTS_KEY,
    ROW_GROUP_INDEXES_KEY,
    row_group_indexes_from_petastorm,
    schema_from_petastorm,
)
from ...schema.petastorm_metadata import SCHEMA_KEY as PETASTORM_SCHEMA_KEY
from ...write.metadata_file import indexes_to_metadata, read_metadata, write_metadata
from .summary_file import apply_change, read_summary, summary_keys, without_keys

_OLD_KEYS = (PETASTORM_SCHEMA_KEY, ROW_GROUP_INDEXES_KEY, ROW_GROUP_COUNTS_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The result of `migrate`, or of a dry run.

    Attributes:
        path: the metadata file.
        schema: the dataset's schema.
        indexes: names of the row-group indexes that were converted to JSON.
        removed: metadata keys that were removed.
        changed: whether there was anything to do.
        summary: what happened to the summary file ``_metadata``: ``"rewritten"`` without its pickles, ``"removed"`` if
            Arrow cannot rewrite it, or empty if it held no pickles.
    """

    path: str
    schema: Unischema
    indexes: tuple[str, ...]
    removed: tuple[str, ...]
    changed: bool
    summary: str = ""

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.path}: nothing to do; the schema of {len(self.schema)} fields is already JSON."
        indexes = f", row-group indexes {', '.join(self.indexes)}" if self.indexes else ""
        return (
            f"{self.path}: schema '{self.schema.name}' of {len(self.schema)} fields{indexes} as JSON; "
            f"removed keys: {', '.join(self.removed) or 'none'}."
            + (f" The summary file _metadata, which also holds pickles: {self.summary}." if self.summary else "")
        )


def migrate(
    url: str | os.PathLike[str],
    dry_run: bool = False,
    *,
    keep_petastorm: bool = False,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Migration:
    """Converts the metadata of a Petastorm dataset to JSON, atomically.

    Args:
        url: the dataset's directory.
        dry_run: only reports what would change.
        keep_petastorm: keeps Petastorm's keys beside the new ones, so Petastorm can still read the dataset.

    Raises:
        SchemaError: the dataset has no Petastorm schema, or a pickle is damaged or malicious.
        DatasetError: nothing exists at the URL, or the file system refused. The old metadata is unchanged.
    """
    dataset = StoredDataset([os.fspath(url)], filesystem=filesystem, storage_options=storage_options)
    root = dataset.directory("metadata")
    stored = read_metadata(dataset.filesystem, root)
    metadata: dict[bytes, bytes] = dict(stored.metadata or {}) if stored is not None else {}
    where = f"{root}/_common_metadata"
    summary = read_summary(dataset.filesystem, root)
    change = None if summary is None or keep_petastorm else without_keys(root, summary, _OLD_KEYS)
    if summary is not None:  # use keys that only the summary has
        key_values = summary_keys(summary)
        metadata = {**{key: key_values[key] for key in _OLD_KEYS if key in key_values}, **metadata}
    schema = schema_from_metadata(metadata, where=where)
    old = [key for key in _OLD_KEYS if key in metadata]
    if schema is not None and change is None and (keep_petastorm or not old):
        return Migration(path=where, schema=schema, indexes=(), removed=(), changed=False)
    if schema is None:
        schema = schema_from_petastorm(metadata, where=where) or _schema_of_files(dataset)
    indexes = row_group_indexes_from_petastorm(metadata, where=where)
    removed = () if keep_petastorm else tuple(key.decode() for key in old)
    kept = {key: value for key, value in metadata.items() if keep_petastorm or key not in _OLD_KEYS}
    new = {**kept, **schema_to_metadata(schema), **indexes_to_metadata(indexes)}
    if not dry_run:
        write_metadata(dataset.filesystem, root, _columns(stored, dataset), new)
        if change is not None:  # only after its content is stored as JSON
            apply_change(dataset.filesystem, change)
    return Migration(
        path=where,
        schema=schema,
        indexes=tuple(indexes),
        removed=removed,
        changed=True,
        summary="" if change is None else change.action,
    )


def _schema_of_files(dataset: StoredDataset) -> Unischema:
    """Returns the schema in the metadata of the first data file. Raises `SchemaError` if there is none."""
    footer = dataset.footer(0)
    for metadata in (footer.metadata, footer.schema.to_arrow_schema().metadata):
        if metadata and (PETASTORM_SCHEMA_KEY in metadata or SCHEMA_KEY in metadata):
            return dataset.schema
    raise SchemaError(
        f"dataset {dataset.roots[0]}: expected Petastorm's metadata, found none. "
        "For plain Parquet, or if the metadata was lost, use generate-metadata."
    )


def _columns(stored: pa.Schema | None, dataset: StoredDataset) -> pa.Schema:
    return stored if stored is not None else dataset.footer(0).schema.to_arrow_schema()


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
