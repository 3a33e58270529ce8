"""`materialize_dataset`: a context manager around Spark's own writing; afterwards the dataset has a schema.

In: a schema, and a block that lets Spark write Parquet to a URL. Out: JSON metadata beside the files, so that every
reader knows codecs, shapes and nullability. Always holds: a block that fails leaves no new metadata, and Hadoop's
settings are as they were.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs

from ..errors import PipelineError
from ..layout.dataset import StoredDataset
from ..layout.filesystem import resolve
from ..schema.field import Unischema
from ..tools import generate_metadata
from ..tools.metadata_file import read_metadata, write_metadata
from ..write.petastorm import petastorm_metadata, petastorm_schema
from ..write.staging import storage_errors
from .encoding import core_schema
from .session import context_of

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOGGER = logging.getLogger(__name__)
_INDEX = "_row_groups.parquet"


@contextlib.contextmanager
def materialize_dataset(
    spark: object,
    url: str | os.PathLike[str],
    schema: Unischema,
    row_group_size_mb: int | None = None,
    use_summary_metadata: bool = False,
    filesystem_factory: Callable[[], Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    petastorm_compatible: bool = False,
) -> Iterator[None]:
    """Inside the block, write Parquet files to ``url``; when it ends well, their metadata are written.

    Args:
        spark: the session that writes.
        url: the directory that the block writes to.
        schema: what a row is, also a schema of ``parquetry.common.petastorm``; the block writes its stored columns, as
            `encode_dataframe` or `dict_to_spark_row` make them.
        row_group_size_mb: size of the row groups that Spark writes in the block; ``None`` = Hadoop's own setting.
        use_summary_metadata: lets Hadoop write its own ``_metadata`` too, with all footers; no reader here needs it.
        filesystem_factory: gives the ``pyarrow.fs`` or fsspec file system to write the metadata with.
        storage_options: arguments for fsspec.
        petastorm_compatible: writes the keys that Petastorm 0.8 to 0.13 reads, too.

    Raises:
        SchemaError: a schema that is none, or a field that the files do not have.
        DatasetError: the block wrote no Parquet files to ``url``.
        PipelineError: a row-group size that is none.
    """
    stored = core_schema(schema)
    stored = petastorm_schema(stored) if petastorm_compatible else stored
    with _hadoop_settings(context_of(spark, "materialize_dataset"), row_group_size_mb, use_summary_metadata):
        yield  # what it raises ends here, before anything is written
    given = None if filesystem_factory is None else filesystem_factory()
    _describe(url, stored, given, storage_options, petastorm_compatible)


def _describe(
    url: str | os.PathLike[str],
    schema: Unischema,
    given: object,
    storage_options: Mapping[str, Any] | None,
    petastorm_compatible: bool,
) -> None:
    filesystem, root = resolve(url, filesystem=given, storage_options=storage_options)
    _remove_stale_index(filesystem, root)
    generate_metadata(os.fspath(url), schema, overwrite=True, filesystem=given, storage_options=storage_options)
    if petastorm_compatible:
        dataset = StoredDataset([os.fspath(url)], filesystem=given, storage_options=storage_options)
        counts = {
            file.relative: footer.num_row_groups for file, footer in zip(dataset.files, dataset.footers, strict=True)
        }
        arrow = read_metadata(filesystem, root)
        assert arrow is not None  # it has just been written
        write_metadata(filesystem, root, arrow, {**(arrow.metadata or {}), **petastorm_metadata(schema, counts)})
    _LOGGER.info("materialize_dataset: wrote the schema '%s' of %d fields to %s.", schema.name, len(schema), root)


def _remove_stale_index(filesystem: pafs.FileSystem, root: str) -> None:
    """An index of other files would only be refused by each reader, with a warning."""
    path = f"{root}/{_INDEX}"
    with storage_errors("removing", path):
        if filesystem.get_file_info(path).type == pafs.FileType.File:
            filesystem.delete_file(path)


@contextlib.contextmanager
def _hadoop_settings(
    context: SparkContext, row_group_size_mb: int | None, use_summary_metadata: bool
) -> Iterator[None]:
    settings = {
        "parquet.summary.metadata.level": "ALL" if use_summary_metadata else "NONE",
        "parquet.page.write-checksum.enabled": "true",
    }
    if row_group_size_mb is not None:
        if isinstance(row_group_size_mb, bool) or row_group_size_mb <= 0:
            raise PipelineError(f"row_group_size_mb: expected a number above 0, got {row_group_size_mb!r}.")
        settings["parquet.block.size"] = str(int(row_group_size_mb * (1 << 20)))
        # Parquet's writer looks at the size only every 100 rows unless told; rows with images are large.
        settings["parquet.block.size.row.check.min"] = "3"
        settings["parquet.page.size.row.check.min"] = "3"
    hadoop = context._jsc.hadoopConfiguration()
    before = {key: hadoop.get(key) for key in settings}
    try:
        for key, value in settings.items():
            hadoop.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                hadoop.unset(key)
            else:
                hadoop.set(key, old)
