"""`DatasetWriter` and `write_dataset` write rows or columns as a self-describing Parquet dataset.

Rows are encoded in chunks, cut into row groups, and written to hidden files that become visible together when the
writer closes. An error before that leaves nothing behind. Memory use is bounded by the row groups being filled (256 MiB
over all partitions, or one row group if that is larger), not by the size of the dataset.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError, EncodeError, PipelineError
from ..base.tracebacks import public_methods_shorten, shortens
from ..pipeline.pipeline import Pipeline
from ..schema.encoding import column_length, columns_of_rows, encode_columns, encode_rows
from ..schema.field import Unischema
from ..schema.plain import data_frame_kind
from ..storage.filesystem import resolve
from .appending import Appending
from .chunks import WHOLE_CHUNK_ROWS, RowBuffer, batches_of, column_chunks, pipeline_of
from .file_format import arrow_schema, check_compression, core_schema, values_schema
from .part_files import FileFormat, OpenParts, Partition, checked_files
from .partition import check_partition_fields, null_directory, split_by_partition
from .petastorm import petastorm_metadata, petastorm_schema
from .row_groups import RowGroupLimit
from .staging import COMMON_METADATA, Staging, storage_errors

MAX_OPEN_FILES = 64
MAX_WAITING_BYTES = 256 << 20
_NO_ROWS: Any = object()
Mode = Literal["error", "append"]


@public_methods_shorten
class DatasetWriter:
    """Writes one dataset. Use it as a context manager. Not thread-safe.

        >>> schema = Unischema("cars", [UnischemaField("name", str), UnischemaField("box", "float32", (4,))])
        >>> with DatasetWriter(directory, schema) as writer:
        ...     writer.write({"name": "a", "box": [0, 0, 2, 1.5]})
        ...     writer.write_columns({"name": ["b", "c"], "box": np.zeros((2, 4), np.float32)})
        >>> [str(row["name"]) for row in Pipeline(directory)]
        ['a', 'b', 'c']

    The dataset appears when the writer closes. An exception inside the ``with`` block, a failed write, or `abort`
    removes everything that was written and restores the directory.

    Args:
        url: a directory that is empty or does not exist; see `storage.filesystem.resolve`. With ``mode="append"``, it
            may hold a dataset.
        schema: the schema of the rows.
        row_group_rows: rows in each row group; the last one of a file may have fewer.
        row_group_bytes: a row group ends with the row that brings its encoded size to this. If neither limit is given,
            32 MiB or 65,536 rows, whichever comes first.
        partition_by: fields (text, integer, bool, ``datetime64[D]``) that become ``key=value`` directories. Sort the
            rows by these fields to get the fewest files.
        files: how many files to write (in each partition). If the number of rows is known, from `write_dataset` or
            `expect_rows`, each file holds one contiguous part, and path order is row order. Otherwise row groups are
            assigned to files round-robin. There are never more files than row groups.
        compression: for columns that are not already compressed: ``"zstd"``, ``"snappy"``, ``"gzip"``, ``"lz4"``,
            ``"brotli"`` or ``None``. ``"auto"`` is zstd, except that the arrays of `NdarrayCodec` and `TensorCodec`
            are stored as they are, unless a sample of the first rows of a file shrinks by a third.
        filesystem: a pyarrow or fsspec file system to write to.
        storage_options: arguments for fsspec.
        petastorm_compatible: also writes Petastorm's keys, so that Petastorm 0.8 to 0.13 can read the dataset. Arrays
            without a codec are then stored as ``.npy`` bytes.
        mode: ``"error"`` refuses a directory that holds something. ``"append"`` adds the rows to the dataset there, if
            there is one, as files that come after those that are there. New fields must be nullable; the rows that are
            there have null. Nullable fields may be left out of the schema.

    Raises:
        DatasetError: the directory already holds a dataset, or cannot be written.
        SchemaError: a field cannot be a partition key, Petastorm cannot read it if ``petastorm_compatible``, or the
            dataset to append to stores it in another way.
        PipelineError: an argument is out of range.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        schema: Unischema,
        *,
        row_group_rows: int | None = None,
        row_group_bytes: int | None = None,
        partition_by: str | Sequence[str] = (),
        files: int = 1,
        compression: str | None = "auto",
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        petastorm_compatible: bool = False,
        mode: Mode = "error",
    ) -> None:
        schema = core_schema(schema)
        files = checked_files(files)
        if mode not in get_args(Mode):
            raise PipelineError(f"mode: expected one of {', '.join(get_args(Mode))}, got {mode!r}.")
        resolved, path = resolve(url, filesystem=filesystem, storage_options=storage_options)
        self._petastorm_compatible = petastorm_compatible
        schema = petastorm_schema(schema) if petastorm_compatible else schema
        self._keys = check_partition_fields(schema, partition_by)
        self._appending: Appending | None = None
        if mode == "append":
            self._appending = Appending(resolved, path, schema, self._keys, petastorm_compatible=petastorm_compatible)
            schema = self._appending.schema
        self._schema = schema
        self._values, self._all_columns = values_schema(schema)
        self._format = FileFormat(
            schema=schema,
            stored=arrow_schema(schema, without=self._keys),
            compression=check_compression(compression),
            limit=RowGroupLimit.of(rows=row_group_rows, size_bytes=row_group_bytes),
        )
        self._deal = files
        self._cuts: list[int] = []
        self._partitions: dict[str, Partition] = {}
        self._open_parts = OpenParts(max(MAX_OPEN_FILES, files))
        self._waiting = RowBuffer()
        self._rows = 0
        self._closed = False
        self._failure: str | None = None
        self._staging = Staging(resolved, path, appends=mode == "append")

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @property
    def schema(self) -> Unischema:
        """The schema of the dataset."""
        return self._schema

    def expect_rows(self, total: int) -> None:
        """Announces the total number of rows, so that each of the ``files`` holds one contiguous part of them.

        Call it before the first row. Rows beyond ``total`` go to the last file.

        Raises:
            PipelineError: rows were already written.
        """
        self._check_open()
        if self._rows or self._waiting.rows:
            raise PipelineError("expect_rows() must come before the first row: call it right after creation.")
        total = operator.index(total)
        self._cuts = sorted({total * number // self._deal for number in range(1, self._deal)} - {0})
        self._deal = 1

    def write(self, row: Mapping[str, Any]) -> None:
        """Writes one row. Values are copied, so the caller may reuse its arrays.

        Raises:
            EncodeError: a value does not fit its field. It may belong to an earlier row; the message names the row.
                The writer is then aborted.
        """
        self._check_open()
        if self._waiting.fill((row,)):
            self._encode_waiting()

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes rows, holding at most one chunk of them in memory. Raises like `write`.

        Those of a list or tuple are not copied first, so they take half to two thirds as long as those of an iterator.
        """
        self._check_open()
        with self._aborting():
            _refuse_data_frame(rows, "write_rows: expected rows as dicts")
        if not isinstance(rows, list | tuple):
            iterator = iter(rows)
            while self._waiting.fill(iterator):
                self._encode_waiting()
            self._check_open()  # the iterator may have closed this writer
            return
        self._encode_waiting()
        with self._aborting():  # the caller cannot change values between the rows, so none is copied
            for start in range(0, len(rows), WHOLE_CHUNK_ROWS):
                chunk = rows[start : start + WHOLE_CHUNK_ROWS]
                self._write_columns(columns_of_rows(self._values, chunk, first_row=self._rows))

    def write_columns(self, columns: Mapping[str, Any] | pa.Table) -> None:
        """Writes columns: arrays with a leading row axis, sequences, or Arrow arrays, all of one length.

        Args:
            columns: a mapping, or a ``pyarrow.Table``.

        Raises:
            PipelineError: the columns are a pandas or polars data frame.
            EncodeError: columns are unknown or differ in length, or a value does not fit its field.
        """
        self._encode_waiting()
        with self._aborting():
            if isinstance(columns, pa.Table | pa.RecordBatch):
                columns = _columns_of(columns)
            _refuse_data_frame(columns, "write_columns: expected a mapping of columns")
            self._write_columns(columns)

    def write_stored(self, table: pa.Table) -> None:
        """Writes columns that are already encoded: one per field, in the Arrow type that its codec stores.

        Raises:
            EncodeError: columns are missing, unknown or of another type, a field that is not nullable has nulls, or the
                value of a partition key cannot be a directory name.
        """
        self._encode_waiting()
        with self._aborting():
            table = self._as_stored(table)
            for batch in table.combine_chunks().to_batches():
                self._store({name: batch.column(name) for name in table.column_names})

    def flush(self) -> None:
        """Encodes the buffered rows, so that an error in one of them is raised here. Does not affect row groups.

        Raises:
            EncodeError: a value does not fit its field.
        """
        self._encode_waiting()

    def close(self) -> None:
        """Finishes the files and makes the dataset, or the rows that are added to it, visible. Idempotent.

        Raises:
            EncodeError: a value of the last rows does not fit its field.
            SchemaError: others have added rows meanwhile, and these no longer fit.
            DatasetError: an earlier write failed, or the file system refused.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise DatasetError(
                f"dataset '{self._staging.root}': nothing was written, because an earlier write failed ({failure})"
            )
        if self._closed:
            return
        self._encode_waiting()
        with contextlib.ExitStack() as stack:
            with self._aborting():
                if not self._partitions:
                    self._partition(null_directory(self._keys)).write_row_group(self._no_rows())
                self._finish_files()
                if self._appending is None:
                    self._write_common_metadata()
                    self._staging.commit()
                else:
                    stack.enter_context(self._staging.alone())
                    self._appending.publish(self._staging, rows=self._rows)
            self._closed = True
            if self._appending is not None:
                self._appending.describe(self._row_group_counts())

    def abort(self) -> None:
        """Removes everything that this writer wrote. Has no effect on a closed writer. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._waiting.take()
        self._partitions.clear()
        self._open_parts.abandon()
        self._staging.discard()

    def _check_open(self) -> None:
        if self._closed:
            raise DatasetError(
                f"dataset writer for '{self._staging.root}': expected an open writer, got one that was closed, "
                "aborted, or failed. Create a new writer, for an empty directory."
            )

    @contextlib.contextmanager
    def _aborting(self) -> Iterator[None]:
        """Aborts the whole dataset if a write fails, so that no caller can keep a dataset with missing rows."""
        try:
            yield
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            self.abort()
            raise

    def _encode_waiting(self) -> None:
        self._check_open()
        rows = self._waiting.take()
        if rows:
            with self._aborting():
                self._store(encode_rows(self._values, rows, first_row=self._rows))

    def _write_columns(self, columns: Mapping[str, Any]) -> None:
        for chunk in column_chunks(self._values, columns, column_length(self._values, columns)):
            self._store(encode_columns(self._values, chunk, first_row=self._rows))

    def _as_stored(self, table: object) -> pa.Table:
        """Returns the columns of all fields, in the types that are stored."""
        if not isinstance(table, pa.Table):
            raise EncodeError(f"write_stored: expected a pyarrow.Table, got {type(table).__name__}.")
        fields, names = self._all_columns.names, table.column_names
        if sorted(names) != sorted(fields):
            raise EncodeError(f"write_stored: expected one column for each of the fields {fields}, got {names}.")
        columns = []
        for field in self._all_columns:
            column = table.column(field.name)
            if column.null_count and not field.nullable:
                raise EncodeError(f"field '{field.name}': expected no nulls, got {column.null_count}.")
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise EncodeError(
                    f"field '{field.name}': expected a column of {field.type}, got {column.type}: {error}"
                ) from error
        return pa.table(columns, schema=self._all_columns)

    def _store(self, arrays: Mapping[str, pa.Array]) -> None:
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in self._all_columns.names], schema=self._all_columns)
        start = 0
        while start < batch.num_rows:
            if self._cuts and self._cuts[0] == self._rows:
                self._cuts.pop(0)
                self._finish_files()
            count = batch.num_rows - start
            if self._cuts:
                count = min(count, self._cuts[0] - self._rows)
            for directory, rows in split_by_partition(batch.slice(start, count), self._keys, first_row=self._rows):
                self._partition(directory).add(rows)
            start += count
            self._rows += count
        self._bound_memory()

    def _partition(self, directory: str) -> Partition:
        if directory not in self._partitions:
            self._partitions[directory] = Partition(
                directory, self._staging, self._format, self._open_parts, deal=self._deal
            )
        return self._partitions[directory]

    def _bound_memory(self) -> None:
        """Writes the largest unfinished row groups early if many partitions together buffer too much."""
        waiting = sum(partition.waiting_bytes for partition in self._partitions.values())
        while len(self._partitions) > 1 and waiting > MAX_WAITING_BYTES:
            largest = max(self._partitions.values(), key=lambda partition: partition.waiting_bytes)
            waiting -= largest.waiting_bytes
            largest.finish_files()

    def _no_rows(self) -> pa.Table:
        columns = [column for column in self._all_columns if column.name not in self._keys]
        return pa.schema(columns).empty_table()

    def _finish_files(self) -> None:
        for partition in self._partitions.values():
            partition.finish_files()

    def _row_group_counts(self) -> dict[str, int]:
        return {file: n for part in self._partitions.values() for file, n in part.row_group_counts.items()}

    def _write_common_metadata(self) -> None:
        path = f"{self._staging.root}/{COMMON_METADATA}"
        stored = self._format.stored
        if self._petastorm_compatible:
            values = petastorm_metadata(self._schema, self._row_group_counts())
            stored = stored.with_metadata({**stored.metadata, **values})
        with storage_errors("writing", path), self._staging.open(COMMON_METADATA) as stream:
            pq.write_metadata(stored, stream)


@shortens
def write_dataset(
    url: str | os.PathLike[str],
    schema: Unischema,
    rows: Iterable[Mapping[str, Any]] | Mapping[str, Any] | Pipeline[Any] = _NO_ROWS,
    *,
    row_group_rows: int | None = None,
    row_group_bytes: int | None = None,
    partition_by: str | Sequence[str] = (),
    files: int = 1,
    compression: str | None = "auto",
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
    petastorm_compatible: bool = False,
    mode: Mode = "error",
) -> None:
    """Writes a whole dataset, or adds rows to one. See `DatasetWriter` for the other arguments and errors.

        >>> schema = Unischema("numbers", [UnischemaField("x", "int64")])
        >>> write_dataset(directory, schema, ({"x": number} for number in range(1000)), row_group_rows=100)
        >>> len(Pipeline(directory))
        1000
        >>> write_dataset(directory, schema, [{"x": 1000}, {"x": 1001}], mode="append")
        >>> len(Pipeline(directory))
        1002

    Args:
        rows: an iterable of dicts, which is streamed, a mapping of columns, or a pipeline (or a dataset that wraps
            one), which is read in batches. With ``files=n``, a sequence, columns or a pipeline of known length are
            split into ``n`` contiguous parts; the row groups of an iterator, whose length is unknown, are assigned to
            the files round-robin.

    Raises:
        PipelineError: rows are a data frame or cannot be iterated, or an argument is out of range.
        TypeError: no rows were given.
    """
    for given in (schema, rows):
        _refuse_data_frame(given, "write_dataset: expected a URL, a schema, and rows as dicts or a mapping of columns")
    if rows is _NO_ROWS:
        raise TypeError("write_dataset: expected a URL, a schema and rows, got no rows.")
    if not isinstance(rows, Iterable):
        raise PipelineError(f"write_dataset: expected rows as dicts or a mapping of columns, got {rows!r}.")
    with DatasetWriter(
        url,
        schema,
        row_group_rows=row_group_rows,
        row_group_bytes=row_group_bytes,
        partition_by=partition_by,
        files=files,
        compression=compression,
        filesystem=filesystem,
        storage_options=storage_options,
        petastorm_compatible=petastorm_compatible,
        mode=mode,
    ) as writer:
        pipeline = pipeline_of(rows)
        if pipeline is not None:
            batches, count = batches_of(pipeline, writer.schema)
            if count is not None:
                writer.expect_rows(count)
            for batch in batches:
                writer.write_columns(batch)
            return
        if isinstance(rows, Mapping):
            writer.expect_rows(column_length(writer.schema, rows))
            writer.write_columns(rows)
            return
        if isinstance(rows, Sequence):
            writer.expect_rows(len(rows))
        writer.write_rows(rows)


def _columns_of(table: pa.Table | pa.RecordBatch) -> dict[str, pa.ChunkedArray]:
    names = table.schema.names
    if len(set(names)) < len(names):
        raise EncodeError(f"columns: expected each name once, got {names}.")
    return dict(zip(names, table.columns, strict=True))


def _refuse_data_frame(given: object, expected: str) -> None:
    kind = data_frame_kind(given)
    if kind is None:
        return
    columns = "column_names" if kind == "pyarrow" else "columns"
    reads = f", and Pipeline.from_{kind}(frame) reads the frame itself" if kind != "pyarrow" else ""
    method = {"pandas": "frame.to_parquet(path)", "polars": "frame.write_parquet(path)"}
    saves = method.get(kind, "pyarrow.parquet.write_table(frame, path)")
    raise PipelineError(
        f"{expected}, got a {kind} {type(given).__name__}. Pass "
        f"{{name: frame[name].to_numpy() for name in frame.{columns}}} as a mapping. "
        f"You may not need write_dataset: {saves} writes a file that Pipeline(path) reads{reads}."
    )
