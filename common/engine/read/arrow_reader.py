"""`ArrowReader`: reads any column with Arrow: whole or in slices, as stored or in canonical form.

It reads what no other reader can, and is the one that reports what is wrong with a file.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError, ParquetryError
from ...base.memory.arrow_views import as_arrow, as_numpy
from ...dataset.arrow_read import WHOLE, ReadSize
from ...dataset.dataset import StoredDataset
from ...parquet.conforming import conform, misfit, narrower_floats
from ...plan.selection.rows import RowNumbers
from ...schema.arrow_types import scalar_dtype
from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...schema.field import UnischemaField
from .canonical import number_type, to_canonical
from .column_reader import ReadRequest, ReadResult, some_rows
from .file_cells import Part
from .kept_tables import StoredTables
from .stored_columns import row_group_slices

_SLICES = 16  # that fit into the memory: Arrow takes several times the memory of a slice while it decodes it
_SLICE_BYTES = (1 << 19, 1 << 22)  # the fewest, the most
_KEPT = 0.25  # the share of the memory in slices after which Arrow's pool returns what they took
MOST_ROOM_BYTES = _SLICES * _SLICE_BYTES[1]
_NO_COLUMNS = pa.table({})


class ArrowReader:
    """Reads the columns of a dataset, and the values of its partitions. A `ColumnReader` that leaves nothing.

    Args:
        casts: fields that are cast from the type of each file; see `Plan.casts`.
        place: describes a row group, for error texts.
    """

    def __init__(
        self,
        dataset: StoredDataset,
        fields: Sequence[UnischemaField],
        tables: StoredTables,
        *,
        casts: Container[str],
        place: Callable[[int], str],
    ) -> None:
        self._dataset = dataset
        self._fields = fields
        self._stored = [field for field in fields if field.name not in dataset.partitions]
        types = {field.name: number_type(field) for field in self._stored}
        self._numbers = {name: kind for name, kind in types.items() if kind and kind == dataset.types.get(name)}
        self._tables = tables
        self._casts = casts
        self._place = place

    def read(self, request: ReadRequest) -> ReadResult:
        """Returns the values of all fields that are not done.

        Raises:
            DatasetError: a file cannot be read. The error names the file and row group.
            DecodeError, SchemaError: columns do not fit the schema.
            TooLargeError: the columns take more than their room.
        """
        row_group, done = request.row_group, request.done
        fields = [field for field in self._stored if field.name not in done]
        size = ReadSize(room_bytes=request.room_bytes, run=request.run)
        table, unread_bytes = self._tables.read(row_group, fields, size) if fields else (_NO_COLUMNS, 0)
        rows = range(int(self._dataset.row_groups.rows[row_group])) if request.rows is None else request.rows
        stored = some_rows(table, request.rows)
        values: dict[str, Part] = dict(self._canonical_numbers(stored))
        for field in self._fields:
            if field.name in done or field.name in values:
                continue
            if field.name in self._dataset.partitions:
                column = self._partition_value(field.name, row_group, len(rows))
            else:
                column = stored.column(field.name)
            values[field.name] = self.settled(row_group, field, column, rows)
        if request.room_bytes is not None and table.nbytes > _KEPT * request.room_bytes:
            pa.default_memory_pool().release_unused()
        return ReadResult(values, unread_bytes=unread_bytes)

    def stored(self, row_group: int, size: ReadSize = WHOLE) -> pa.Table:
        """Returns the columns of a row group with the types of the dataset, still encoded. Raises as `read`."""
        table, _ = self._tables.read(row_group, self._stored, size) if self._stored else (_NO_COLUMNS, 0)
        return self.typed(row_group, table, range(int(self._dataset.row_groups.rows[row_group])))

    def typed(self, row_group: int, table: pa.Table, rows: range) -> pa.Table:
        """Returns the stored columns of the given rows with the types of the dataset, and the partition columns."""
        columns = [
            self._partition_value(field.name, row_group, len(rows))
            if field.name in self._dataset.partitions
            else self._conformed(row_group, field, table.column(field.name), rows)
            for field in self._fields
        ]
        return pa.table(columns, names=[field.name for field in self._fields])

    def _conformed(
        self,
        row_group: int,
        field: UnischemaField,
        column: pa.ChunkedArray,
        rows: RowNumbers,
        expected: pa.DataType | None = None,
    ) -> pa.ChunkedArray:
        expected = expected or self._dataset.types[field.name]
        try:
            return conform(column, expected)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            what = misfit(field.name, column.type, expected, error, rows)
            raise DecodeError(f"{self._place(row_group)}: {what}") from error

    def _partition_value(self, name: str, row_group: int, count: int) -> pa.Array:
        return pa.repeat(self._dataset.partitions[name][int(self._dataset.row_groups.file[row_group])], count)

    def _canonical_numbers(self, stored: pa.Table) -> dict[str, pa.Array]:
        """Returns the columns of numbers that are stored in canonical form, most columns of a wide table."""
        if not self._numbers or not stored.num_columns:
            return {}
        batches = stored.to_batches()
        if len(batches) != 1:
            return {}
        named = zip(stored.column_names, batches[0].columns, strict=True)
        return {name: array for name, array in named if array.type == self._numbers.get(name)}

    def settled(
        self,
        row_group: int,
        field: UnischemaField,
        column: pa.ChunkedArray | pa.Array,
        rows: RowNumbers,
    ) -> pa.Array:
        """Returns a stored column of a row group, or its partition value, in canonical form."""
        is_cast = field.name in self._casts
        if field.name not in self._dataset.partitions and not is_cast:
            narrow = narrower_floats(column.type, self._dataset.types[field.name], field.dtype)
            column = column if narrow is None else self._conformed(row_group, field, column, rows, narrow)
            column = self._conformed(row_group, field, column, rows)
        try:
            return to_canonical(field, _cast_in_file(field, column, rows) if is_cast else column, rows)
        except ParquetryError as error:
            raise type(error)(f"{self._place(row_group)}: {error}") from error

    def slices(
        self, row_group: int, fields: Sequence[UnischemaField], room_bytes: int
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """Yields slices of a row group and their numbers of rows. Reading takes about ``room_bytes`` at most."""
        stored = [field for field in fields if field.name not in self._dataset.partitions]
        slice_bytes = int(np.clip(room_bytes // _SLICES, *_SLICE_BYTES))
        keeps = max(1, int(_KEPT * room_bytes) // slice_bytes)
        slices = row_group_slices(self._dataset, row_group, stored, ReadSize(slice_bytes=slice_bytes))
        try:
            for number, (rows, table) in enumerate(slices, 1):
                yield rows, self._with_partitions(row_group, fields, table, rows)
                del table
                if number % keeps == 0:
                    pa.default_memory_pool().release_unused()
        finally:
            pa.default_memory_pool().release_unused()

    def _with_partitions(
        self, row_group: int, fields: Sequence[UnischemaField], table: pa.Table, rows: int
    ) -> pa.Table:
        """Returns a slice of ``rows`` rows with the partition columns among the fields."""
        for field in fields:
            if field.name in self._dataset.partitions:
                value = pa.chunked_array([self._partition_value(field.name, row_group, rows)])
                table = table.append_column(field.name, value) if table.num_columns else pa.table({field.name: value})
        return table


def _cast_in_file(field: UnischemaField, column: pa.ChunkedArray, rows: RowNumbers) -> pa.Array:
    """Returns a file's column of numbers or times as values of the field's dtype; times are int64 counts of its unit.

    Args:
        rows: the number of each value's row.

    Raises:
        DecodeError: the dtype cannot hold a value; the message names its row.
    """
    dtype = np.dtype(field.dtype)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.int64())
    stored = scalar_dtype(column.type, field=field.name)
    array = to_canonical(field.replace(dtype=stored), column, rows)
    valid = as_numpy(array.is_valid())
    values = as_numpy(array.fill_null(False if pa.types.is_boolean(array.type) else 0))
    times = dtype.kind in "mM"
    wrong = counts_too_far(values, str(stored), str(dtype)) if times else numbers_outside(values, dtype)
    if wrong is not None and (wrong & valid).any():
        place = int(np.argmax(wrong & valid))
        raise DecodeError(
            f"cast: field '{field.name}', row {rows[place]}: expected a number that {dtype} can hold, got "
            f"{values[place]} ({column.type}). Cast to a wider dtype, or filter or transform such rows."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        made = convert_counts(values, str(stored), str(dtype)) if times else values.astype(dtype)
    if made.dtype == np.bool_:
        return pa.array(made, mask=~valid)
    return as_arrow(made, None if valid.all() else valid)
