"""The metadata of a dataset: its schema and its row groups."""

from __future__ import annotations

import importlib
import posixpath
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from ....base.errors import CodecUnavailableError, DatasetError, PipelineError, missing_package
from ....base.process.dataclass import dataclass
from ..dataset import PetastormDataset
from ..errors import PetastormMetadataError, PetastormMetadataGenerationError, SchemelessUrlError
from ..unischema import Unischema, from_parquetry

__all__ = [
    "PetastormMetadataError",
    "PetastormMetadataGenerationError",
    "RowGroupPiece",
    "get_schema",
    "get_schema_from_dataset_url",
    "infer_or_load_unischema",
    "load_row_groups",
    "materialize_dataset",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupPiece:
    """One row group: its file, its number in the file, and its number of rows."""

    path: str
    row_group: int
    num_rows: int


def get_schema(dataset: PetastormDataset) -> Unischema:
    """Returns the schema that a dataset declares.

    Raises:
        PetastormMetadataError: the dataset declares no schema.
    """
    if not dataset.is_petastorm:
        raise PetastormMetadataError(
            f"dataset {dataset.roots[0]}: Could not find the unischema in its metadata. Read it with "
            "make_batch_reader, or write one with generate_metadata()."
        )
    return from_parquetry(dataset.schema)


def get_schema_from_dataset_url(
    dataset_url_or_urls: str | Sequence[str],
    hdfs_driver: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: object = None,
) -> Unischema:
    """Returns the schema that the dataset at a URL declares; ``hdfs_driver`` is unused."""
    return get_schema(open_dataset(dataset_url_or_urls, storage_options=storage_options, filesystem=filesystem))


def infer_or_load_unischema(dataset: Any) -> Unischema:
    """Returns the declared schema, or one inferred from the Parquet columns.

    Args:
        dataset: the ``dataset`` of a reader, or a ``pyarrow.parquet.ParquetDataset``.
    """
    if isinstance(dataset, PetastormDataset):
        return from_parquetry(dataset.schema)
    parts = posixpath.commonpath([posixpath.dirname(path) for path in dataset.files]).split("/")
    root = "/".join(takewhile(lambda part: "=" not in part[1:], parts)) or "/"
    around = open_dataset(root, storage_options=None, filesystem=dataset.filesystem)
    return from_parquetry(around.schema) if around.is_petastorm else Unischema.from_arrow_schema(dataset)


def load_row_groups(dataset: PetastormDataset) -> list[RowGroupPiece]:
    """Returns all row groups, with files sorted by path. Indexes and shards count row groups in this order."""
    groups = dataset.row_groups
    columns = zip(groups.file.tolist(), groups.group.tolist(), groups.rows.tolist(), strict=True)
    return [RowGroupPiece(path=dataset.files[f].path, row_group=group, num_rows=rows) for f, group, rows in columns]


def open_dataset(
    dataset_url_or_urls: object,
    *,
    storage_options: Mapping[str, Any] | None,
    filesystem: object,
    physical: bool = False,
) -> PetastormDataset:
    """Opens the dataset at one URL, or the files at several.

    Raises:
        PipelineError: the argument is not a URL, a path, or a list of them.
        DatasetError: there is nothing at the URL; a `SchemelessUrlError`, if it is a path.
    """
    items = [dataset_url_or_urls] if not isinstance(dataset_url_or_urls, list | tuple) else list(dataset_url_or_urls)
    urls = [str(url) for url in items if isinstance(url, str) or hasattr(url, "__fspath__")]
    if not urls or len(urls) != len(items) or not all(urls):
        raise PipelineError(f"dataset_url: expected a URL string or a list of them, got {dataset_url_or_urls!r}.")
    try:
        return PetastormDataset(
            [url.rstrip("/") or url for url in urls],
            filesystem=filesystem,
            storage_options=None if filesystem is not None else storage_options,
            physical=physical,
            listed=isinstance(dataset_url_or_urls, list | tuple),
        )
    except DatasetError as error:
        if "://" in urls[0] or filesystem is not None:
            raise
        raise SchemelessUrlError(f"{error} A scheme-less dataset url is a path of this machine.") from error


def materialize_dataset(*args: object, **kwargs: object) -> Any:
    """Returns the context manager in which Spark writes a dataset; needs parquetry's Spark support.

    Raises:
        CodecUnavailableError: pyspark is not installed. `parquetry.common.write_dataset` writes without it.
    """
    try:
        module = importlib.import_module("parquetry.common.compat.spark")
    except ImportError as error:
        raise CodecUnavailableError(
            f"materialize_dataset: {missing_package(error, 'pyspark', 'spark')}; or write the rows with "
            "parquetry.common.write_dataset(url, schema, rows), which needs no Spark."
        ) from error
    return module.materialize_dataset(*args, **kwargs)
