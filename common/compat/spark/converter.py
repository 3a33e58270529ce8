"""`spark_converter`: writes a DataFrame to a Parquet cache that TensorFlow, PyTorch and numpy read.

It takes a DataFrame and returns a `SparkConverter`, a small value that you can pickle, so executors
can train from it. DataFrames with equal logical plans share their files. The files are removed by
`delete`, or when the driver ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from ...base.errors import DatasetError, PipelineError
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...pipeline.constructors import Fields
from ...pipeline.pipeline import Pipeline
from ...plan.options import OptionArguments
from ...storage.filesystem import local_path, resolve
from .converter_cache import CACHE, CacheKey, new_directory, wait_for_files
from .encoding import FLOATS, vectors_to_arrays, with_floats
from .session import application_id, session_of, spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

_LOGGER = logging.getLogger(__name__)
PARENT_CONF = "parquetry.spark.converter.parentCacheDirUrl"
_ROW_GROUP_BYTES = 32 << 20
_SMALL_FILE_BYTES = 50 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConverter:
    """A DataFrame that was written to the cache.

    It holds no Spark session, so you can pickle it and read the rows anywhere.

    Attributes:
        url: the directory of the files. Every process that reads the rows must be able to read it.
        file_urls: the files, sorted by path.
        rows: the number of rows in the DataFrame; also ``len()``.
        row_groups: the number of row groups in all files.
        storage_options: arguments for fsspec.
    """

    url: str
    file_urls: tuple[str, ...]
    rows: int
    row_groups: int
    storage_options: tuple[tuple[str, Any], ...] = ()

    def __len__(self) -> int:
        return self.rows

    def pipeline(
        self,
        fields: Fields = None,
        *,
        num_shards: int | None = None,
        index: int | None = None,
        **options: Unpack[OptionArguments],
    ) -> Pipeline:
        """Returns a `Pipeline` over the rows, which yields numpy arrays. Add verbs to it.

        Args:
            fields: names or regexes; ``None`` = all.
            num_shards, index: the number of ranks and this rank's index. Every rank gets the same
                number of rows. If your launcher sets the environment, call ``.shard()`` instead.
            options: ``workers``, ``memory_limit`` and the other options of `Pipeline`.
        """
        storage_options = dict(self.storage_options) or None
        pipeline = Pipeline(self.url, fields, storage_options=storage_options, **options)
        if num_shards is None and index is None:
            return pipeline
        if num_shards is not None and num_shards > self.row_groups:
            _LOGGER.warning(
                "%s: %d row groups for %d ranks, so several ranks read the same row group. Write "
                "more row groups: use df.repartition(n) or a smaller row_group_size_mb.",
                self.url,
                self.row_groups,
                num_shards,
            )
        return pipeline.shard(num_shards, index)

    def tf_dataset(
        self,
        fields: Fields = None,
        *,
        num_shards: int | None = None,
        index: int | None = None,
        **options: Unpack[OptionArguments],
    ) -> Any:
        """Returns a `parquetry.tf_plugin.ParquetDataset`, which is a ``tf.data.Dataset``.

        The arguments are the same as for `pipeline`.
        """
        face = import_module("parquetry.tf_plugin").ParquetDataset
        return face.from_pipeline(self.pipeline(fields, num_shards=num_shards, index=index, **options))

    def torch_pipe(
        self,
        fields: Fields = None,
        *,
        num_shards: int | None = None,
        index: int | None = None,
        **options: Unpack[OptionArguments],
    ) -> Any:
        """Returns a `parquetry.torch_plugin.ParquetPipe` for a ``DataLoader``.

        The arguments are the same as for `pipeline`.
        """
        face = import_module("parquetry.torch_plugin").ParquetPipe
        return face.from_pipeline(self.pipeline(fields, num_shards=num_shards, index=index, **options))

    def delete(self) -> None:
        """Removes the files. You can call this more than once.

        If you convert an equal DataFrame later, its files are written again.
        """
        CACHE.forget(self.url)
        if CACHE.remove_directory is not None:
            CACHE.remove_directory(self.url)
            return
        filesystem, path = resolve(self.url, storage_options=dict(self.storage_options) or None)
        remove_directory(filesystem, path)


def spark_converter(
    df: object,
    parent_cache_dir: str | os.PathLike[str] | None = None,
    *,
    dtype: str | None = None,
    row_group_size_mb: float = _ROW_GROUP_BYTES >> 20,
    compression: str = "zstd",
    reuse: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    wait_s: float = 30.0,
) -> SparkConverter:
    """Writes a DataFrame to the cache, or finds it there. MLlib vectors become arrays.

    Args:
        parent_cache_dir: a directory that executors and readers can access, as a URL or a local
            path; ``None`` = the session's setting ``parquetry.spark.converter.parentCacheDirUrl``.
        dtype: ``"float32"`` or ``"float64"`` converts all floats to that type, including those in
            arrays. ``None`` keeps each type.
        row_group_size_mb: the size of the row groups that Spark writes.
        compression: the compression of Spark's Parquet writer.
        reuse: whether to use the files of an earlier call if its DataFrame has the same logical
            plan and these arguments are equal. A plan does not tell whether the files it reads have
            changed.
        storage_options: arguments for fsspec.
        wait_s: how many seconds to wait until all files that Spark wrote are visible. Object stores
            may show them late.

    Raises:
        PipelineError: there is no cache directory, or an argument is out of range.
        DatasetError: some files are still not visible after ``wait_s``, or the file system reports
            an error.
    """
    session = session_of(df, "spark_converter")
    parent = _parent(session, parent_cache_dir)
    if dtype is not None and dtype not in FLOATS:
        raise PipelineError(f"spark_converter: expected dtype to be one of {FLOATS} or None, got {dtype!r}.")
    if isinstance(row_group_size_mb, bool) or row_group_size_mb <= 0:
        raise PipelineError(f"spark_converter: expected row_group_size_mb above 0, got {row_group_size_mb!r}.")
    options = tuple(sorted((storage_options or {}).items()))
    key = CacheKey(
        parent=parent,
        dtype=dtype,
        row_group_bytes=int(row_group_size_mb * (1 << 20)),
        compression=compression,
        storage_options=options,
    )
    entry = CACHE.find(df, key, SparkConverter) if reuse else None
    if entry is not None and _is_there(entry):
        return entry
    converter = _write(df, key, wait_s)
    CACHE.keep(df, key, converter, remove=converter.delete)
    return converter


def _parent(session: SparkSession, given: str | os.PathLike[str] | None) -> str:
    parent = os.fspath(given) if given is not None else session.conf.get(PARENT_CONF, None)
    if not parent:
        raise PipelineError(
            "spark_converter: expected a cache directory that the driver, executors and readers "
            "can access, got none. "
            f"Pass parent_cache_dir=..., or call spark.conf.set({PARENT_CONF!r}, 'file:///...')."
        )
    return parent.rstrip("/") if "://" in parent else local_path(parent)


def _is_there(converter: SparkConverter) -> bool:
    """Returns whether the directory of the files still exists."""
    filesystem, path = resolve(converter.url, storage_options=dict(converter.storage_options) or None)
    return bool(filesystem.get_file_info(path).type == pafs.FileType.Directory)


def _write(df: DataFrame, key: CacheKey, wait_s: float) -> SparkConverter:
    session = df.sparkSession
    url = new_directory(key.parent, application_id(session))
    options = dict(key.storage_options) or None
    filesystem, path = resolve(url, storage_options=options)
    try:
        floats = with_floats(vectors_to_arrays(df, key.dtype), key.dtype)
        writer = floats.write.option("compression", key.compression)
        writer = writer.option("parquet.page.write-checksum.enabled", "true")
        writer.option("parquet.block.size", str(key.row_group_bytes)).parquet(spark_url(url))
        seen = session.read.parquet(spark_url(url)).inputFiles()
        paths = [resolve(file, storage_options=options)[1] for file in seen]
        infos = wait_for_files(filesystem, paths, timeout_s=wait_s)
        dataset = StoredDataset([url], storage_options=options)
        row_groups = dataset.row_groups
    except BaseException:
        remove_directory(filesystem, path)
        raise
    _warn_of_small_files(url, [info.size for info in infos])
    return SparkConverter(
        url=url,
        file_urls=tuple(sorted(seen)),
        rows=int(row_groups.rows.sum()),
        row_groups=len(row_groups),
        storage_options=key.storage_options,
    )


def _warn_of_small_files(url: str, sizes: list[int]) -> None:
    median = sorted(sizes)[len(sizes) // 2] if sizes else 0
    if len(sizes) > 1 and median < _SMALL_FILE_BYTES:
        _LOGGER.warning(
            "%s: %d files with a median size of %.1f MB; expected %d MB or more, because each file "
            "costs a request. Write fewer files: use df.coalesce(n).",
            url,
            len(sizes),
            median / (1 << 20),
            _SMALL_FILE_BYTES >> 20,
        )


def remove_directory(filesystem: pafs.FileSystem, path: str) -> None:
    """Removes a cache directory, if it exists.

    Raises:
        DatasetError: the file system cannot remove it.
    """
    try:
        if filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            filesystem.delete_dir(path)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"cache directory '{path}': cannot be removed: {error}. Remove it by hand.") from error
