"""`make_spark_converter` and `SparkDatasetConverter`: Petastorm's API for training from a DataFrame.

``parquetry.spark.spark_converter`` writes and caches the files; `make_batch_reader` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ....base.errors import PipelineError
from ....dataset.dataset import StoredDataset
from ...spark.converter import SparkConverter, spark_converter
from ...spark.converter_cache import CACHE
from ..reader import Reader, make_batch_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 1024 * 1024
_BATCH_SIZE = 32


class SparkDatasetConverter:
    """A DataFrame in the cache. It can be pickled, so executors can train from it."""

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(self, converter: SparkConverter, *, owned: bool = True) -> None:
        self._converter = converter
        self._owned = owned

    @property
    def cache_dir_url(self) -> str:
        """URL of the directory with the files."""
        return self._converter.url

    @property
    def file_urls(self) -> list[str]:
        """URLs of the files."""
        return list(self._converter.file_urls)

    @property
    def dataset_size(self) -> int:
        """Number of rows."""
        return self._converter.rows

    def __len__(self) -> int:
        return self.dataset_size

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: object,
    ) -> TFDatasetContextManager:
        """Returns a context manager that opens a ``tf.data.Dataset`` of batches (named tuples).

        Args:
            batch_size: rows per batch; ``None`` for 32.
            prefetch: batches that TensorFlow makes ahead; ``None`` to let it choose.
            num_epochs: passes over the data; ``None`` for an endless dataset.
            workers_count: number of workers; ``None`` for 4.
            shuffling_queue_capacity: rows in TensorFlow's shuffle buffer; ``None`` or 0 for no buffer.
            petastorm_reader_kwargs: further arguments for `make_batch_reader`.
        """
        options = _reader_options(num_epochs, workers_count, petastorm_reader_kwargs)
        return TFDatasetContextManager(self.cache_dir_url, batch_size, prefetch, options, shuffling_queue_capacity)

    def make_torch_dataloader(
        self,
        batch_size: int = _BATCH_SIZE,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: object,
    ) -> TorchDatasetContextManager:
        """Returns a context manager that opens a `DataLoader` of batches (dicts of tensors); see `make_tf_dataset`.

        Args:
            data_loader_fn: makes the loader from the reader, ``batch_size`` and ``shuffling_queue_capacity``;
                ``None`` for ``parquetry.petastorm.pytorch.DataLoader``.
        """
        options = _reader_options(num_epochs, workers_count, petastorm_reader_kwargs)
        return TorchDatasetContextManager(
            self.cache_dir_url, batch_size, options, shuffling_queue_capacity, data_loader_fn
        )

    def delete(self) -> None:
        """Removes the files if this converter wrote them."""
        if self._owned:
            self._converter.delete()


class _ReaderContext:
    """Opens a reader on enter and closes it on exit. Garbage collection does not close it."""

    reader: Reader
    """The reader; available after entering."""

    def __init__(
        self,
        parquet_file_url_list: str | Sequence[str],
        batch_size: int | None,
        petastorm_reader_kwargs: dict[str, Any],
    ) -> None:
        self.parquet_file_url_list = parquet_file_url_list
        self.batch_size = batch_size
        self.petastorm_reader_kwargs = petastorm_reader_kwargs

    def _open(self) -> Reader:
        self.reader = make_batch_reader(self.parquet_file_url_list, **self.petastorm_reader_kwargs)
        return self.reader

    def __exit__(self, *_: object) -> None:
        self.reader.stop()
        self.reader.join()


class TFDatasetContextManager(_ReaderContext):
    """The context manager of `SparkDatasetConverter.make_tf_dataset`."""

    def __init__(
        self,
        parquet_file_url_list: str | Sequence[str],
        batch_size: int | None,
        prefetch: int | None,
        petastorm_reader_kwargs: dict[str, Any],
        shuffling_queue_capacity: int | None,
    ) -> None:
        super().__init__(parquet_file_url_list, batch_size, petastorm_reader_kwargs)
        self.prefetch = prefetch
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def __enter__(self) -> Any:
        make = import_module("parquetry.petastorm.tf_utils").make_petastorm_dataset
        autotune = import_module("tensorflow").data.AUTOTUNE
        rows = make(self._open()).unbatch()
        if self.shuffling_queue_capacity:
            rows = rows.shuffle(self.shuffling_queue_capacity)
        return rows.batch(self.batch_size or _BATCH_SIZE).prefetch(autotune if self.prefetch is None else self.prefetch)


class TorchDatasetContextManager(_ReaderContext):
    """The context manager of `SparkDatasetConverter.make_torch_dataloader`."""

    loader: Any
    """The loader; available after entering."""

    def __init__(
        self,
        parquet_file_url_list: str | Sequence[str],
        batch_size: int,
        petastorm_reader_kwargs: dict[str, Any],
        shuffling_queue_capacity: int,
        data_loader_fn: Callable[..., Any] | None,
    ) -> None:
        super().__init__(parquet_file_url_list, batch_size, petastorm_reader_kwargs)
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.data_loader_fn = data_loader_fn

    def __enter__(self) -> Any:
        make = self.data_loader_fn or import_module("parquetry.petastorm.pytorch").DataLoader
        self.loader = make(
            self._open(), batch_size=self.batch_size, shuffling_queue_capacity=self.shuffling_queue_capacity
        )
        return self.loader


def _reader_options(num_epochs: int | None, workers_count: int | None, options: dict[str, Any]) -> dict[str, Any]:
    return {"num_epochs": num_epochs, "workers_count": 4 if workers_count is None else workers_count, **options}


def register_delete_dir_handler(handler: Callable[[str], Any] | None) -> None:
    """Sets the function that removes cached directories by URL, also at exit; ``None`` for the default."""
    CACHE.remove_directory = handler


def make_spark_converter(
    df: DataFrame,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
) -> SparkDatasetConverter:
    """Writes a DataFrame to the cache, unless it is already there.

    The cache directory is the session's ``petastorm.spark.converter.parentCacheDirUrl`` (or parquetry's own setting).

    Args:
        df: a DataFrame, or the URL of existing Parquet files, which are used unchanged.
        parquet_row_group_size_bytes: size of the row groups.
        compression_codec: ``None`` for no compression.
        dtype: dtype to convert floats to: ``"float32"``, as in Petastorm, ``"float64"``, or ``None`` to keep theirs.
    """
    if isinstance(df, str):
        dataset = StoredDataset([df])
        paths = tuple(file.path for file in dataset.files)
        rows = dataset.row_groups
        converter = SparkConverter(url=df, file_urls=paths, rows=int(rows.rows.sum()), row_groups=len(rows))
        return SparkDatasetConverter(converter, owned=False)
    if not hasattr(df, "sparkSession"):
        raise PipelineError(f"make_spark_converter: expected a Spark DataFrame or a URL, got {df!r}.")
    converter = spark_converter(
        df,
        df.sparkSession.conf.get(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, None),
        dtype=dtype,
        row_group_size_mb=parquet_row_group_size_bytes / (1 << 20),
        compression=compression_codec or "uncompressed",
    )
    return SparkDatasetConverter(converter)
