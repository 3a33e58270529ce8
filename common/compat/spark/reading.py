"""`dataset_as_rdd` and `dataset_as_dataframe`: read a dataset's rows in Spark.

Python on the executors reads and decodes the rows. The driver lists and plans once, and each task
gets some of the row groups. Partitions and their rows keep the storage order. The driver handles rows that
a table has deleted: it sends the executors the rows to read.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa

from ...apps.tools.copying import stored_schema, to_stored
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...dataset.row_groups import RowGroups
from ...engine.columns.arrow_columns import to_arrow
from ...engine.columns.batch import Column, rows_of
from ...engine.columns.null_elements import output_memory
from ...engine.read.column_reader import ReadContext
from ...engine.read.fetch import Fetcher
from ...engine.run.block_loader import BlockLoader
from ...parquet.nested import one_array, take_rows
from ...plan.block_reads import BlockRows
from ...plan.selection.rows import RowSet
from ...plan.selection.select import every_row
from ...schema.dtypes import delivered_dtype, is_string_like
from ...schema.element import output_of
from ...schema.field import Unischema, UnischemaField, match_names
from ...schema.spark_types import as_spark_takes_it, pyspark_types, spark_type, to_spark
from ...storage.files import FileListing
from .session import context_of, session_of, session_parallelism

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_CHUNK_BYTES = 32 << 20
_VARIABLE_BYTES = 1 << 20
_CONTEXT = ReadContext(room_bytes=1 << 30)  # a larger row group goes to temporary files
_TASKS_PER_CORE = 4


def dataset_as_rdd(
    url: str | os.PathLike[str] | Sequence[str],
    spark: object,
    fields: str | Sequence[str] | None = None,
    *,
    tasks: int | None = None,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Returns an RDD of decoded rows.

    Each row is a dict of numpy scalars and arrays, text and bytes, as `Pipeline` yields them.

    Args:
        fields: names or regexes, matched against the full name; ``None`` = all.
        tasks: the number of partitions; ``None`` = four for each core. Every partition has at least
            one row group, so there may be fewer.
        filesystem, storage_options: as for `Pipeline`.

    Raises:
        DatasetError: there is no dataset at the URL.
        FieldNotFoundError, SchemaError: a field does not exist or cannot become a tensor.
    """
    context = context_of(spark, "dataset_as_rdd")
    plan = ReadPlan.of(url, context, fields, tasks, filesystem, storage_options, "dataset_as_rdd")
    return plan.rdd(context, partial(_decode_rows, plan.fields))


def dataset_as_dataframe(
    url: str | os.PathLike[str] | Sequence[str],
    spark: SparkSession,
    fields: str | Sequence[str] | None = None,
    *,
    decode: bool | str | Sequence[str] = True,
    tasks: int | None = None,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Returns a DataFrame of a dataset's rows.

    Scalars have the types that `Unischema.as_spark_schema` returns. Decoded arrays become nested
    Spark arrays, which need a lot of memory in Java. Leave images encoded unless your job needs
    their pixels.

    Args:
        fields: names or regexes, matched against the full name; ``None`` = all.
        decode: whether to decode columns that an image or array codec stores, or the names or
            regexes of the columns to decode. The other columns contain the stored bytes.
        tasks: the number of partitions; ``None`` = four for each core. Every partition has at least
            one row group, so there may be fewer.
        filesystem, storage_options: as for `Pipeline`.

    Raises:
        DatasetError: there is no dataset at the URL.
        FieldNotFoundError, SchemaError: a field does not exist, or Spark has no type for it.
    """
    plan = ReadPlan.of(url, spark, fields, tasks, filesystem, storage_options, "dataset_as_dataframe")
    decoded = _chosen(decode, [field.name for field in plan.fields if field.storage.coded])
    types = pyspark_types("dataset_as_dataframe")
    columns = [_SparkColumn(field=field, decode=field.name in decoded) for field in plan.stored]
    struct = types.StructType(
        [types.StructField(c.field.name, spark_type(c.spark_arrow_type, types), c.field.nullable) for c in columns]
    )
    payloads = plan.payloads()
    numbers = session_of(spark, "dataset_as_dataframe").range(0, len(payloads), 1, max(len(payloads), 1))
    return numbers.mapInArrow(partial(_read_batches, tuple(columns), payloads), struct)


def _chosen(decode: bool | str | Sequence[str], coded: list[str]) -> set[str]:
    if isinstance(decode, bool):
        return set(coded) if decode else set()
    patterns = [decode] if isinstance(decode, str) else decode
    return {name for pattern in patterns for name in match_names(pattern, coded)}


class ReadPlan:
    """The fields to read, and the row groups that each task reads.

    Args:
        tasks: the maximum number of partitions.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField], tasks: int) -> None:
        self.dataset = dataset
        self.fields = tuple(fields)
        row_groups = np.arange(len(dataset.row_groups))
        self._parts = [part for part in np.array_split(row_groups, max(tasks, 1)) if len(part)]

    @classmethod
    def of(
        cls,
        url: str | os.PathLike[str] | Sequence[str],
        spark: object,
        fields: str | Sequence[str] | None,
        tasks: int | None,
        filesystem: object,
        storage_options: Mapping[str, Any] | None,
        what: str,
    ) -> ReadPlan:
        """Lists the dataset and creates the plan."""
        session = session_of(spark, what)
        urls = [os.fspath(url)] if isinstance(url, str | os.PathLike) else list(url)
        dataset = StoredDataset(urls, filesystem=filesystem, storage_options=storage_options)
        chosen = [dataset.schema[name] for name in dataset.match([fields] if isinstance(fields, str) else fields)]
        return cls(dataset, chosen, _TASKS_PER_CORE * session_parallelism(session) if tasks is None else tasks)

    @property
    def stored(self) -> Unischema:
        """The fields, with codecs that keep the full precision of stored decimals and times."""
        return stored_schema(self.dataset, self.fields)

    def payloads(self) -> list[bytes]:
        """Returns a pickled `ReadTask` for each partition."""
        rows = every_row(self.dataset).rows
        return [
            cloudpickle.dumps(ReadTask(part=DatasetPart(self.dataset, row_groups), rows=rows.row_groups(row_groups)))
            for row_groups in self._parts
        ]

    def rdd(self, context: SparkContext, decode: Callable[[bytes], Iterator[Any]]) -> Any:
        """Returns an RDD of what ``decode`` yields for each partition's `ReadTask`."""
        payloads = self.payloads()
        return context.parallelize(payloads, max(len(payloads), 1)).flatMap(decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Some row groups, and the rows to read from them."""

    part: DatasetPart
    rows: RowSet


@dataclass(frozen=True, slots=True, kw_only=True)
class _SparkColumn:
    """A DataFrame column: a field, and whether to decode its stored bytes."""

    field: UnischemaField
    decode: bool

    @property
    def spark_arrow_type(self) -> pa.DataType:
        """The Arrow type of the column that Spark receives."""
        if not self.decode:
            return as_spark_takes_it(self.field.storage.arrow_type(self.field), field=self.field.name)
        if is_string_like(self.field.dtype):
            kind = pa.string() if self.field.dtype.kind == "U" else pa.binary()
        else:
            kind = pa.from_numpy_dtype(delivered_dtype(self.field.dtype))
        for _ in self.field.shape:
            kind = pa.list_(kind)
        return as_spark_takes_it(kind, field=self.field.name)


def _decode_rows(fields: Sequence[UnischemaField], payload: bytes) -> Iterator[dict[str, Any]]:
    task: ReadTask = pickle.loads(payload)
    outputs = [output_of(field) for field in fields]
    names = [field.name for field in fields]
    for row_group in range(len(task.part.row_groups)):
        for _, columns in _decode_row_group(task, fields, row_group):
            values = [rows_of(c, text=o.kind == "text") for c, o in zip(columns, outputs, strict=True)]
            for row in zip(*values, strict=True):
                yield dict(zip(names, row, strict=True))


def _read_batches(
    columns: Sequence[_SparkColumn], payloads: Sequence[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    names = [column.field.name for column in columns]
    for batch in batches:
        for number in batch.column(0).to_pylist():
            task: ReadTask = pickle.loads(payloads[number])
            for row_group in range(len(task.part.row_groups)):
                for arrays in _arrays(task, columns, row_group):
                    yield pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)


def _arrays(task: ReadTask, columns: Sequence[_SparkColumn], row_group: int) -> Iterator[dict[str, pa.Array]]:
    """Yields the columns of one row group in Spark's types, some rows at a time."""
    plain = [column.field for column in columns if not column.decode]
    coded = [column.field for column in columns if column.decode]
    stored = to_stored(Unischema("stored", plain), Fetcher(task.part, plain).stored(row_group))
    for rows, decoded in _decode_row_group(task, coded, row_group, more_bytes=stored.nbytes // max(stored.num_rows, 1)):
        chosen = take_rows(stored, pa.array(rows))
        arrays = {field.name: to_spark(one_array(chosen.column(field.name)), field=field.name) for field in plain}
        for field, column in zip(coded, decoded, strict=True):
            arrays[field.name] = to_spark(to_arrow(output_of(field), column), field=field.name)
        yield arrays


def _decode_row_group(
    task: ReadTask, fields: Sequence[UnischemaField], row_group: int, *, more_bytes: int = 0
) -> Iterator[tuple[np.ndarray, list[Column]]]:
    """Yields the rows to read from a row group, some at a time, with their decoded columns.

    Args:
        more_bytes: the bytes that a row needs in addition to these fields.
    """
    rows = task.rows.of(row_group)
    item_rows = np.arange(len(rows))
    loader = BlockLoader(Fetcher(task.part, fields, _CONTEXT))
    block = loader.load(BlockRows(row_groups=(row_group,), rows=(rows,), item_rows=item_rows[:, None]))
    step = max(1, _CHUNK_BYTES // sum((_row_bytes(field) for field in fields), start=256 + more_bytes))
    for first in range(0, len(rows), step):
        chosen = item_rows[first : first + step]
        yield (
            rows[chosen],
            [block.column(n).gather(chosen, output_memory(field, len(chosen))) for n, field in enumerate(fields)],
        )


def _row_bytes(field: UnischemaField) -> int:
    if not field.is_fixed or is_string_like(field.dtype):
        return _VARIABLE_BYTES if field.shape else 64
    return delivered_dtype(field.dtype).itemsize * math.prod(axis or 0 for axis in field.shape)


class DatasetPart(StoredDataset):
    """The part of ``dataset`` with the given ``row_groups`` (ascending), which go to one executor.

    It can be pickled, so the executor does not list or plan again. Its files and row groups are numbered from 0.
    """

    def __init__(self, dataset: StoredDataset, row_groups: np.ndarray) -> None:
        groups = dataset.row_groups
        files, file = np.unique(groups.file[row_groups], return_inverse=True)
        self._listing = FileListing(
            filesystem=dataset.filesystem,
            roots=dataset.roots,
            files=tuple(dataset.files[number] for number in files.tolist()),
            metadata_files=(),
        )
        self._planned, self._heads, self._located = {}, {}, {}
        self._lists = False
        self._folder = dataset._folder
        self.verify = dataset.verify
        self.max_value_bytes = dataset.max_value_bytes
        self.table = dataset.table
        if self.table is not None:
            self.table = replace(self.table, files=tuple(self.table.files[number] for number in files.tolist()))
        partitions = {name: values.take(pa.array(files)) for name, values in dataset.partitions.items()}
        self.__dict__.update(
            index=None,
            deleted={},
            row_groups=RowGroups(
                file=file.astype(np.int64), group=groups.group[row_groups], rows=groups.rows[row_groups]
            ),
            _described=(dataset.schema, {}, partitions),
            types=dataset.types,
        )
