"""`materialize_dataset`: a context manager that adds a schema to files that Spark writes itself.

It takes a schema, and Spark writes Parquet to a URL in its block. Then it writes JSON metadata next
to the files, which tells every reader the codecs, shapes and nullability. If the block fails, no
new metadata is written. The session's settings are always restored.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow.fs as pafs

from ...apps.tools import generate_metadata
from ...base.errors import PipelineError
from ...dataset.dataset import StoredDataset
from ...schema.field import Unischema
from ...storage.filesystem import resolve
from ...write.file_format import core_schema
from ...write.metadata_file import read_metadata, write_metadata
from ...write.petastorm import petastorm_metadata, petastorm_schema
from ...write.staging import storage_errors
from .session import session_of, session_settings

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
    """Writes the metadata of the Parquet files that you write to ``url`` inside the block.

    The metadata is written when the block ends without an error.

    Args:
        spark: the session that writes, classic or of Spark Connect.
        url: the directory that the block writes to.
        schema: the schema of a row, which may come from ``parquetry.petastorm``. The block
            writes its stored columns, as `encode_dataframe` or `dict_to_spark_row` create them.
        row_group_size_mb: the size of the row groups that Spark writes in the block; ``None`` =
            Hadoop's own setting.
        use_summary_metadata: lets Hadoop also write its own ``_metadata`` with all footers. No
            reader in parquetry needs it.
        filesystem_factory: returns the ``pyarrow.fs`` or fsspec file system used to write the
            metadata.
        storage_options: arguments for fsspec.
        petastorm_compatible: also writes the keys that Petastorm 0.8 to 0.13 reads.

    Raises:
        SchemaError: ``schema`` is not a schema, or the files lack one of its fields.
        DatasetError: the block wrote no Parquet files to ``url``.
        PipelineError: ``row_group_size_mb`` is not a number above 0.
    """
    stored = core_schema(schema)
    stored = petastorm_schema(stored) if petastorm_compatible else stored
    settings = _settings(row_group_size_mb, use_summary_metadata)
    with session_settings(session_of(spark, "materialize_dataset"), settings, "materialize_dataset"):
        yield  # if the block raises, no metadata is written
    filesystem = None if filesystem_factory is None else filesystem_factory()
    _describe(url, stored, filesystem, storage_options, petastorm_compatible)


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
        counts = dict(zip([file.relative for file in dataset.files], dataset.file_facts.counts.tolist(), strict=True))
        arrow = read_metadata(filesystem, root)
        assert arrow is not None  # generate_metadata has just written it
        write_metadata(filesystem, root, arrow, {**(arrow.metadata or {}), **petastorm_metadata(schema, counts)})
    _LOGGER.info("materialize_dataset: wrote schema '%s' with %d fields to %s.", schema.name, len(schema), root)


def _remove_stale_index(filesystem: pafs.FileSystem, root: str) -> None:
    """Removes an old index. It describes other files, so every reader would warn and ignore it."""
    path = f"{root}/{_INDEX}"
    with storage_errors("removing", path):
        if filesystem.get_file_info(path).type == pafs.FileType.File:
            filesystem.delete_file(path)


def _settings(row_group_size_mb: int | None, use_summary_metadata: bool) -> dict[str, str]:
    """Returns the settings of Parquet's writer."""
    settings = {
        "parquet.summary.metadata.level": "ALL" if use_summary_metadata else "NONE",
        "parquet.page.write-checksum.enabled": "true",
    }
    if row_group_size_mb is not None:
        if isinstance(row_group_size_mb, bool) or row_group_size_mb <= 0:
            raise PipelineError(f"row_group_size_mb: expected a number above 0, got {row_group_size_mb!r}.")
        settings["parquet.block.size"] = str(int(row_group_size_mb * (1 << 20)))
        # By default, Parquet's writer checks the size only every 100 rows. Rows with images are
        # large, so check more often.
        settings["parquet.block.size.row.check.min"] = "3"
        settings["parquet.page.size.row.check.min"] = "3"
    return settings
