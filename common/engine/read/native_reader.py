"""`NativeColumnReader`: reads columns of local files with the compiled core, straight into canonical form.

It returns the same values that `ArrowReader` would. Fields that are missing from the result must be read with Arrow. It
reports no errors: if a file or its values are damaged, Arrow reports that.

Fetching threads hold the interpreter lock for everything except decoding, and all other threads wait meanwhile. So the
preparations for a row group are kept (`CoreColumns`), and a single call of the core opens the file, decodes, and checks
that the file is still the listed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.errors import ParquetryError
from ...base.memory.arrow_views import is_number
from ...parquet.native_decode import CoreColumns, OrderedNumbers, core_columns, core_compressions, read_numbers
from ...parquet.nested import wide
from ...schema.codecs import ReadListCodec
from ...schema.dtypes import is_bytes, is_text
from ...schema.field import UnischemaField
from ...storage.file_versions import local_version
from ...storage.retries import is_local
from ...storage.stores import without_subtrees
from .canonical import number_type, to_canonical
from .column_reader import NOTHING, ReadRequest, ReadResult, some_rows
from .file_cells import Part

if TYPE_CHECKING:
    from ...dataset.dataset import StoredDataset

_TEXT, _BYTES = pa.large_string(), pa.large_binary()


class NativeColumnReader:
    """Reads columns of a dataset. Thread-safe.

    Args:
        fields: the fields that have their own columns in the files.

    Attributes:
        reads_numbers: whether it may read numbers.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField]) -> None:
        self._dataset = dataset
        here = dataset.table is None and is_local(dataset.filesystem) and dataset.verify != "always"
        by_name = {field.name: (field, _type_of(dataset, field)) for field in fields} if here else {}
        self._fields = {name: field for name, (field, kind) in by_name.items() if kind is not None}
        self._types = {name: kind for name, (_, kind) in by_name.items() if kind is not None}
        self._names = tuple(self._fields)
        self._chosen = frozenset(self._names)
        self._all_types = list(self._types.values())
        self._types_key = "\0".join(map(str, self._all_types))
        self._files: dict[int, tuple[str, str]] = {}
        self.reads_numbers = bool(core_compressions()) and any(map(is_number, self._all_types))

    def read(self, request: ReadRequest) -> ReadResult:
        """Returns the values of the columns that the core can read and that fit into their room."""
        rows, order, room = request.rows, request.order, request.room_bytes
        names = tuple(name for name in self._names if name not in request.done) if request.done else self._names
        columns = (
            self._columns(request.row_group, names, frozenset() if order is None else order.names) if names else None
        )
        if columns is None:
            return NOTHING
        ordered_bytes = 0 if order is None else order.bytes_of(columns)
        if room is not None and columns.needed_bytes + ordered_bytes > room:
            return NOTHING
        file = int(self._dataset.row_groups.file[request.row_group])
        version, (path, _) = self._dataset.files[file].version, self._place(file)
        try:
            stacked, targets = ([], []) if order is None else order.memory(columns)
            read = columns.read(
                path,
                checked=self._dataset.verify != "never",
                room_bytes=None if room is None else room - ordered_bytes,
                items=order.stored_rows(rows) if order is not None and targets else None,
                targets=targets,
                wanted=rows,
            )
        except (OSError, MemoryError):
            return NOTHING
        if version.became(local_version(version.store, version.path, read.status)):
            return NOTHING
        by_name: dict[str, Part] = {}
        for column, each in zip(columns.columns, read.values, strict=True):
            if each is None:
                continue
            if isinstance(each, OrderedNumbers):
                by_name[column.name] = each if rows is None else replace(each, rows=len(rows))
                continue
            some = some_rows(each, rows)
            if isinstance(some, np.ndarray):
                by_name[column.name] = some
                continue
            with suppress(ParquetryError):
                by_name[column.name] = to_canonical(self._fields[column.name], some)
        return ReadResult(by_name, columns.needed_bytes + ordered_bytes, stacked, read.unread_bytes)

    def read_together(self, row_groups: Sequence[int], most_bytes: int) -> list[dict[str, np.ndarray]]:
        """Returns the numbers of row groups of one file (ascending), all read by one call of the core.

        Columns with nulls, and those that it cannot read, are missing. All are if they take more than their room.
        """
        file = int(self._dataset.row_groups.file[row_groups[0]])
        version, (path, _) = self._dataset.files[file].version, self._place(file)
        nothing: list[dict[str, np.ndarray]] = [{} for _ in row_groups]
        described = self._dataset.group_footers(row_groups, self._chosen)
        if [each.rows for each in described] != self._dataset.row_groups.rows[row_groups].tolist():
            return nothing
        kinds = described[0].columns.kinds(self._names, self._all_types, self._types_key)
        checked = self._dataset.verify != "never"
        try:
            values, status = read_numbers(path, described, kinds, checked=checked, most_bytes=most_bytes)
        except (OSError, MemoryError):
            return nothing
        return nothing if version.became(local_version(version.store, version.path, status)) else values

    def _place(self, file: int) -> tuple[str, str]:
        """Returns where a file is, and the key of its version."""
        if file not in self._files:
            version = self._dataset.files[file].version
            self._files[file] = without_subtrees(self._dataset.filesystem, version.path)[1], version.key
        return self._files[file]

    def _columns(self, row_group: int, names: tuple[str, ...], ordered: frozenset[str]) -> CoreColumns | None:
        """Returns the columns that the core may read, some of them put in order; ``None`` if there are none."""
        groups = self._dataset.row_groups
        file_key = self._place(int(groups.file[row_group]))[1]
        types, text = self._all_types, self._types_key
        if names is not self._names:
            types = [self._types[name] for name in names]
            text = "\0".join(map(str, types))
        columns = core_columns(
            lambda: self._dataset.group_footer(row_group, self._chosen),
            names,
            f"{file_key}\0{groups.group[row_group]}",
            types=types,
            types_key=text,
            ordered=ordered,
        )
        return columns if columns.columns and columns.rows == groups.rows[row_group] else None


def _type_of(dataset: StoredDataset, field: UnischemaField) -> pa.DataType | None:
    """Returns the type, with 64-bit offsets, in which a column must be decoded for a field; ``None`` if it cannot be.

    Other types of the same values need a conversion.
    """
    kind = dataset.types.get(field.name)
    if kind is None or field.name in dataset.image_bytes or field.name in dataset.partitions:
        return None
    number, codec, stored = number_type(field), field.storage, wide(kind)
    if codec.coded:
        return stored if stored == _BYTES else None
    if field.shape == ():
        if is_text(field.dtype) or is_bytes(field.dtype):
            return stored if stored == (_TEXT if is_text(field.dtype) else _BYTES) else None
        return number if number == kind else None
    plain = isinstance(field.dtype, np.dtype) and field.dtype.kind in "iuf" and len(field.shape) == 1
    if not plain or not pa.types.is_large_list(stored) or (isinstance(codec, ReadListCodec) and codec.levels):
        return None
    inside = stored.value_type
    return stored if is_number(inside) and inside == pa.from_numpy_dtype(field.dtype) else None
