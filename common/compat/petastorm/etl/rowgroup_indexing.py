"""Reads the stored row-group indexes of a dataset, and builds new ones without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow.fs as pafs

from ....base.errors import DatasetError
from ....engine.read.fetch import Fetcher
from ....engine.run.row_group_loop import tables_ahead
from ....plan.selection.rows import all_rows
from ....schema.petastorm_metadata import (
    ROW_GROUP_INDEXES_KEY,
    SCHEMA_KEY,
    PetastormIndex,
    row_group_indexes_from_petastorm,
)
from ....write.metadata_file import indexes_from_metadata, indexes_to_metadata, read_metadata, write_metadata
from ....write.petastorm import indexes_to_pickle
from ..dataset import PetastormDataset
from ..errors import PetastormMetadataError
from ..values import row_tuples
from .rowgroup_indexers import RowGroupIndexerBase, indexer_of


def get_row_group_indexes(dataset: PetastormDataset) -> dict[str, RowGroupIndexerBase]:
    """Returns the stored indexes by name.

    Raises:
        PetastormMetadataError: the dataset has no indexes.
    """
    indexes = stored_indexes(dataset)
    if not indexes:
        raise PetastormMetadataError(
            f"dataset {dataset.roots[0]}: Row groups index is not available in its metadata. "
            "Make one with build_rowgroup_index()."
        )
    return {name: indexer_of(index) for name, index in indexes.items()}


def stored_indexes(dataset: PetastormDataset) -> dict[str, PetastormIndex]:
    """Returns the indexes in their stored form; empty if there are none."""
    metadata, where = dataset.key_values, dataset.roots[0]
    indexes = indexes_from_metadata(metadata, where=where)
    return indexes if indexes is not None else row_group_indexes_from_petastorm(metadata, where=where)


def build_rowgroup_index(
    dataset_url: str,
    spark_context: object,
    indexers: Sequence[RowGroupIndexerBase],
    hdfs_driver: str | None = None,
    *,
    filesystem: pafs.FileSystem = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Builds indexes over a dataset and stores them in addition to existing ones.

    Args:
        dataset_url: URL or path of the dataset.
        spark_context: unused, may be ``None``: threads of this process read the indexed columns.
        indexers: the indexes to build.
        hdfs_driver: unused.
        filesystem, storage_options: how to reach the files; see `Pipeline`.

    Raises:
        DatasetError: the dataset has no ``_common_metadata``, or has several directories.
    """
    dataset = PetastormDataset([dataset_url], filesystem=filesystem, storage_options=storage_options)
    root = dataset.directory("row-group indexes")
    arrow = read_metadata(dataset.filesystem, root)
    if arrow is None:
        raise DatasetError(
            f"dataset {dataset_url!r}: expected a directory with _common_metadata, found none. "
            "Make one with generate_metadata()."
        )
    names = list(dict.fromkeys(name for indexer in indexers for name in indexer.column_names))
    fields = [dataset.schema[name] for name in names]
    tables = tables_ahead(Fetcher(dataset, fields), all_rows(dataset.row_groups.rows), range(len(dataset.row_groups)))
    with closing(tables):
        for row_group, table in enumerate(tables):
            rows = [dict(zip(names, row, strict=True)) for row in row_tuples(fields, table)]
            for indexer in indexers:
                indexer.build_index(rows, row_group)
    indexes = {**stored_indexes(dataset), **{indexer.index_name: indexer.to_value() for indexer in indexers}}
    metadata = {**(arrow.metadata or {}), **indexes_to_metadata(indexes)}
    if SCHEMA_KEY in metadata:  # Petastorm can read this dataset too
        metadata[ROW_GROUP_INDEXES_KEY] = indexes_to_pickle(indexes)
    write_metadata(dataset.filesystem, root, arrow, metadata)
