"""`write_dataframe` and `write_rows`: write a DataFrame, or an RDD of rows, as a parquetry dataset.

Each task writes its rows with `DatasetWriter`, directly from Python on the executor, so encoded
bytes do not pass through Java. The files appear together when all tasks are done, as with
`write_dataset`. A job that fails leaves nothing behind.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...apps.tools.copy_job import CopyJob
from ...base.errors import ParquetryError
from ...schema.field import Unischema
from ...storage.filesystem import resolve
from ...write.file_format import arrow_schema, check_compression, core_schema
from ...write.part_files import checked_files
from ...write.partition import check_partition_fields
from ...write.petastorm import petastorm_schema
from ...write.row_groups import RowGroupLimit
from ...write.writer import DatasetWriter
from .encoding import checked_columns, encoded_tables
from .session import context_of, session_of, session_settings

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

_BATCH_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = 1024
Fill = Callable[[DatasetWriter, Any], None]


def write_dataframe(
    df: object,
    url: str | os.PathLike[str],
    schema: Unischema,
    *,
    row_group_rows: int | None = None,
    row_group_bytes: int | None = None,
    partition_by: str | Sequence[str] = (),
    files: int = 1,
    compression: str | None = "auto",
    overwrite: bool = False,
    petastorm_compatible: bool = False,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Writes the rows of a DataFrame.

    See `encode_dataframe` for the columns that ``df`` needs, and `DatasetWriter` for the arguments.

    Args:
        files: the number of files for each partition of the DataFrame. The rows of the dataset
            follow the order of the partitions.
        overwrite: replaces a dataset at the URL once all new files are written.

    Returns:
        The number of rows.

    Raises:
        DatasetError: something already exists at the URL, or the URL cannot be written to.
        SchemaError, PipelineError: columns or arguments do not fit.
        EncodeError: a value does not fit its field. Nothing of the dataset is left behind.
    """
    session = session_of(df, "write_dataframe")
    schema = core_schema(schema)
    columns = checked_columns(df, schema)
    layout = _layout(schema, row_group_rows, row_group_bytes, partition_by, files)
    target = _Target.of(url, schema, overwrite, compression, petastorm_compatible, filesystem, storage_options)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = target.write(layout, (batch for batch in batches if batch.num_rows), _write_batches)
        yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["outcome"])

    with target, session_settings(session, _small_batches(session), "write_dataframe"):
        outcomes = [row.outcome for row in columns.mapInArrow(write, "outcome binary").collect()]
        return target.finish(outcomes, layout)


def write_rows(
    rdd: RDD[Any],
    url: str | os.PathLike[str],
    schema: Unischema,
    *,
    row_group_rows: int | None = None,
    row_group_bytes: int | None = None,
    partition_by: str | Sequence[str] = (),
    files: int = 1,
    compression: str | None = "auto",
    overwrite: bool = False,
    petastorm_compatible: bool = False,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Writes an RDD of row dicts, which may contain numpy arrays, as `write_dataset` does.

    See `write_dataframe` for the arguments.
    """
    context_of(getattr(rdd, "context", rdd), "write_rows")
    schema = core_schema(schema)
    layout = _layout(schema, row_group_rows, row_group_bytes, partition_by, files)
    target = _Target.of(url, schema, overwrite, compression, petastorm_compatible, filesystem, storage_options)

    def write(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
        yield target.write(layout, iter(rows), DatasetWriter.write_rows)

    with target:
        return target.finish(rdd.mapPartitions(write).collect(), layout)


def _layout(
    schema: Unischema,
    row_group_rows: int | None,
    row_group_bytes: int | None,
    partition_by: str | Sequence[str],
    files: int,
) -> dict[str, Any]:
    """Returns arguments for `DatasetWriter`, and checks them before any task begins."""
    RowGroupLimit.of(rows=row_group_rows, size_bytes=row_group_bytes)
    return {
        "row_group_rows": row_group_rows,
        "row_group_bytes": row_group_bytes,
        "partition_by": check_partition_fields(schema, partition_by),
        "files": checked_files(files),
    }


def _small_batches(session: SparkSession) -> dict[str, str]:
    """Returns a setting that lowers the batch size. Spark's default, 10,000 rows, would be gigabytes of images."""
    rows = int(session.conf.get(_BATCH_CONF, "10000"))
    return {_BATCH_CONF: str(min(rows, _BATCH_ROWS) if rows > 0 else _BATCH_ROWS)}


def _write_batches(writer: DatasetWriter, batches: Iterable[pa.RecordBatch]) -> None:
    for table in encoded_tables(writer.schema, batches):
        writer.write_stored(table)


class _Target:
    """A dataset that the tasks of one job write. Each task writes its own stripe.

    Spark may start a task several times, also at once. Each attempt writes to a directory of its
    own, and the driver takes the one whose outcome Spark returned. On the driver, use it as a
    context manager.
    """

    def __init__(self, job: CopyJob, schema: Unischema, compression: str, petastorm_compatible: bool) -> None:
        self._job = job
        self.schema = schema
        self._compression = compression
        self._petastorm_compatible = petastorm_compatible
        self._finished = False

    @classmethod
    def of(
        cls,
        url: str | os.PathLike[str],
        schema: Unischema,
        overwrite: bool,
        compression: str | None,
        petastorm_compatible: bool,
        filesystem: object,
        storage_options: Mapping[str, Any] | None,
    ) -> _Target:
        """Begins the job. Raises `DatasetError` if something already exists at the URL."""
        schema = petastorm_schema(schema) if petastorm_compatible else schema
        checked = check_compression(compression)
        target, root = resolve(url, filesystem=filesystem, storage_options=storage_options)
        job = CopyJob(target, root, f"spark-{uuid.uuid4().hex}", sources=(), overwrite=overwrite)
        return cls(job, schema, checked, petastorm_compatible)

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._finished:
            self._job.discard()

    def write(self, layout: Mapping[str, Any], items: Iterator[Any], fill: Fill) -> bytes:
        """Writes a task's stripe, in that task.

        Returns the pickled outcome for `finish`. If a parquetry error occurs, the outcome is the
        error.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        stripe = context.partitionId() if context is not None else 0
        try:
            first = next(items, None)
            if first is None:
                return pickle.dumps((None, "", 0))
            attempt = self._job.attempt(stripe)
            rows = self._write(attempt, layout, chain([first], items), fill)
            self._job.check_current(attempt)
            return pickle.dumps((stripe, attempt, rows))
        except ParquetryError as error:
            return pickle.dumps(type(error)(f"task {stripe}: {error}"))

    def _write(self, place: str, layout: Mapping[str, Any], items: Iterable[Any], fill: Fill) -> int:
        counting = _Counting(
            place,
            self.schema,
            filesystem=self._job.filesystem,
            compression=self._compression,
            petastorm_compatible=self._petastorm_compatible,
            **layout,
        )
        with counting as writer:
            fill(writer, items)
        return counting.rows

    def finish(self, outcomes: Iterable[bytes], layout: Mapping[str, Any]) -> int:
        """Makes the dataset visible and returns the number of rows.

        If a task raised a parquetry error, this raises it again.
        """
        total, attempts = 0, dict[int, str]()
        for outcome in map(pickle.loads, outcomes):
            if isinstance(outcome, ParquetryError):
                raise outcome
            stripe, attempt, rows = outcome
            if stripe is not None:
                attempts[stripe], total = attempt, total + rows
        if not attempts:  # no rows at all: write one empty file that has the columns
            attempts[0] = self._job.attempt(0)
            self._write(attempts[0], layout, (), DatasetWriter.write_rows)
        stored = arrow_schema(self.schema, without=layout["partition_by"])
        compatible = self._petastorm_compatible
        self._job.complete(max(attempts) + 1, self.schema, stored, petastorm_compatible=compatible, attempts=attempts)
        self._finished = True
        return total


class _Counting(DatasetWriter):
    """A writer that counts the rows it has written."""

    @property
    def rows(self) -> int:
        """The number of rows written so far."""
        return self._rows
