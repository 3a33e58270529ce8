"""Reads a table's columns from its files, located by field id or by the name in the file, in the table's own types.

It takes a row group and `TableColumn` values, and returns an Arrow table with one column for each, under its name in
the table. A column that the file lacks gets the table's value for it. A value that does not fit its type is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ..base.errors import DatasetError, DecodeError, SchemaError
from ..base.memory.arrow_views import is_bytes, texts_as_arrow
from ..base.process.forks import pc
from ..parquet.conforming import MisfitError, conform
from ..parquet.nested import child, wide, without_rare_types
from ..parquet.writers import refuse_old_calendar
from .arrow_read import WHOLE, ReadSize, read_parts
from .row_groups import StoredFiles, describe_row_group
from .table import TableColumn

_FIELD_ID = b"PARQUET:field_id"


def locate(arrow: pa.Schema, column: TableColumn, *, where: str = "") -> tuple[str, ...] | None:
    """The path of names to a column in a file with this schema; ``None`` if the file lacks the column.

    Raises:
        DatasetError: the column can be found only by field ids, and the file has none.
    """
    levels, complete = _levels(arrow, column, where=where)
    if not complete:
        return None
    path = [level.name for level in levels]
    if levels and pa.types.is_map(levels[-1].type):
        path.append(column.name.rpartition(".")[2])  # 'key' or 'value'
    return tuple(path)


def _levels(arrow: pa.Schema, column: TableColumn, *, where: str) -> tuple[list[pa.Field], bool]:
    """Returns the fields that a file has on the path to a column, and whether it has all. Raises as `locate`."""
    members: Iterable[pa.Field] = arrow
    by_id = bool(column.ids) and any(_id_of(member) is not None for member in arrow)
    if not by_id and not column.names:
        raise DatasetError(
            f"{where}: expected a Parquet file with field ids, which column '{column.name}' requires, got none. "
            "Write the table again, or give it a name mapping."
        )
    levels: list[pa.Field] = []
    for level in range(len(column.ids) if by_id else len(column.names)):
        member = next((member for member in members if _is_meant(member, column, level, by_id)), None)
        if member is None:
            return levels, False
        levels.append(member)
        members = list(member.type) if pa.types.is_struct(member.type) else []
    return levels, True


def _around(arrow: pa.Schema, column: TableColumn, *, where: str) -> tuple[str, ...] | None:
    """The path to the struct in a file whose nulls are also nulls of a column that the file lacks.

    It is empty if that struct is never null, and ``None`` if the file lacks a struct that is null there.
    """
    levels, _ = _levels(arrow, column, where=where)
    if len(levels) < column.default_depth:
        return None
    return tuple(level.name for level in levels) if any(level.nullable for level in levels) else ()


def _any_leaf(path: tuple[str, ...], arrow: pa.Schema) -> tuple[str, ...]:
    """The path to the first column beneath a struct."""
    kind: pa.DataType = pa.struct(list(arrow))
    for part in path:
        kind = kind.field(part).type
    while pa.types.is_struct(kind) and kind.num_fields:
        path, kind = (*path, kind.field(0).name), kind.field(0).type
    return path


def _is_meant(member: pa.Field, column: TableColumn, level: int, by_id: bool) -> bool:
    return _id_of(member) == column.ids[level] if by_id else member.name in column.names[level]


def _id_of(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)


def read_columns(dataset: StoredFiles, row_group: int, columns: Sequence[TableColumn]) -> pa.Table:
    """Reads some columns of one row group. Raises as `column_slices`."""
    ((_, table),) = column_slices(dataset, row_group, columns, WHOLE)
    return table


def column_slices(
    dataset: StoredFiles,
    row_group: int,
    columns: Sequence[TableColumn],
    size: ReadSize,
) -> Iterator[tuple[int, pa.Table]]:
    """Reads some columns of one row group, and yields slices and their numbers of rows.

    Raises:
        DatasetError: a file cannot be read or contradicts the table. The message names the file and row group.
        SchemaError: a file lacks a required column.
    """
    groups = dataset.row_groups
    number = int(groups.file[row_group])
    place = describe_row_group(dataset, row_group)
    paths: list[tuple[str, ...] | None] = []
    parents: dict[str, tuple[str, ...] | None] = {}
    beside: dict[str, tuple[str, ...]] = {}
    first_row = 0

    def choose(arrow: pa.Schema) -> list[str]:
        paths[:] = [None if column.partition else locate(arrow, column, where=place) for column in columns]
        chosen = {_selected(path, arrow) for path in paths if path is not None}
        for column, path in zip(columns, paths, strict=True):
            if path is not None and column.is_image_struct and _has_path(arrow, path):
                beside[column.name] = (*path[:-1], "path")
                chosen.add(beside[column.name])
            if path is None and column.default is not None:
                parents[column.name] = around = _around(arrow, column, where=place)
                if around and not any(each[: len(around)] == around for each in chosen):
                    chosen.add(_any_leaf(around, arrow))
        return sorted(map(".".join, chosen))

    advice = "The file is damaged. Write it again, or use another version of the table."
    for rows, held in read_parts(dataset, row_group, choose, size, pre_buffer=True, advice=advice):
        for name, path in beside.items():
            _check_embedded(held, name, path, first_row, place)
        yield rows, _typed(dataset, number, columns, paths, parents, held, range(first_row, first_row + rows), place)
        first_row += rows


def _has_path(arrow: pa.Schema, path: tuple[str, ...]) -> bool:
    """Whether the struct around a column has a ``path``."""
    kind: pa.DataType = pa.struct(list(arrow))
    for part in path[:-1]:
        kind = kind.field(part).type
    return bool(pa.types.is_struct(kind) and kind.get_field_index("path") >= 0)


def _check_embedded(held: pa.Table, name: str, path: tuple[str, ...], first_row: int, place: str) -> None:
    """Refuses images that are only a path to a file elsewhere. They would read as null."""
    stored = _member(held, (*path[:-1], "bytes"))
    if not stored.null_count:
        return
    named = _member(held, path)
    elsewhere = pc.and_(pc.is_null(stored), pc.greater(pc.coalesce(pc.binary_length(named), 0), 0))
    row = pc.index(elsewhere, True).as_py()
    if row >= 0:
        raise DatasetError(
            f"{place}, row {first_row + row}: expected the bytes of image '{name}', got only its path "
            f"'{named[row].as_py()}'. Embed the images when you write the Parquet file (push_to_hub() does), or read "
            "the files themselves with from_image_folder()."
        )


def _typed(
    dataset: StoredFiles,
    file: int,
    columns: Sequence[TableColumn],
    paths: Sequence[tuple[str, ...] | None],
    parents: Mapping[str, tuple[str, ...] | None],
    held: pa.Table,
    rows: range,
    place: str,
) -> pa.Table:
    """Returns the table's columns, given what was read from some rows of a file, in the table's types."""
    try:
        head = dataset.head(file)
        for name in held.column_names:
            refuse_old_calendar(head, held.column(name), name)
    except DecodeError as error:
        raise DecodeError(f"{place}: {error}") from error
    constants = dataset.values_of(file)
    made = []
    for column, path in zip(columns, paths, strict=True):
        if path is not None and column.texts:
            made.append(_as_texts(_member(held, path), column, rows, place))
        elif path is not None:
            made.append(_in_type(_member(held, path), column, rows, place))
        elif column.name in constants:
            made.append(_repeated(constants[column.name], column, len(rows)))
        elif column.default is not None and (around := parents.get(column.name, ())) is not None:
            values = _repeated(column.default, column, len(rows))
            made.append(_null_where(_member(held, around), values) if around else values)
        elif column.nullable:
            made.append(pa.nulls(len(rows), wide(column.arrow)))
        else:
            raise SchemaError(
                f"{place}: expected column '{column.name}', which the table says is never null, found none. "
                "Deselect the field, or make it optional in the table."
            )
    return pa.table(made, names=[column.name for column in columns])


def _as_texts(numbers: pa.ChunkedArray, column: TableColumn, rows: range, place: str) -> pa.ChunkedArray:
    """Returns the texts that numbers stand for."""
    numbers = _in_type(numbers, replace(column, arrow=pa.int64()), rows, place)
    outside = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(column.texts)))
    row = pc.index(outside, True).as_py()
    if row >= 0:
        raise DatasetError(
            f"{place}, row {rows[row]}: expected a number of column '{column.name}' from 0 to "
            f"{len(column.texts) - 1}, as the table says, got {numbers[row]}. Deselect the field, or write the file "
            "again."
        )
    return pa.chunked_array([texts_as_arrow(column.texts).take(chunk) for chunk in numbers.chunks], pa.string()).cast(
        wide(column.arrow)
    )


def _repeated(text: str | None, column: TableColumn, rows: int) -> pa.Array:
    return pa.repeat(parse_value(text, column).cast(wide(column.arrow)), rows)


def _null_where(parent: pa.ChunkedArray, values: pa.Array) -> pa.Array:
    """Returns the values, null in the rows where the struct around them is null."""
    if parent.null_count == 0:
        return values
    return pc.if_else(parent.is_valid().combine_chunks(), values, pa.nulls(1, values.type)[0])


def _selected(path: tuple[str, ...], arrow: pa.Schema) -> tuple[str, ...]:
    """The part of a path that selects columns. Maps are always read whole."""
    kind: pa.DataType = pa.struct(list(arrow))
    for depth, part in enumerate(path):
        if pa.types.is_map(kind):
            return path[:depth]
        kind = kind.field(part).type
    return path


def _member(table: pa.Table, path: tuple[str, ...]) -> pa.ChunkedArray:
    column = table.column(path[0])
    for part in path[1:]:
        column = child(column, part)
    return without_rare_types(column)


def _in_type(column: pa.ChunkedArray, wanted: TableColumn, rows: range, place: str) -> pa.ChunkedArray:
    try:
        return conform(column, wide(wanted.arrow))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        row = f", row {rows[error.place]}" if isinstance(error, MisfitError) else ""
        raise DatasetError(
            f"{place}{row}: expected column '{wanted.name}' to hold {wanted.arrow}, as the table says, got "
            f"{column.type}: {error}. Deselect the field, or write the file again."
        ) from error


def parse_value(text: str | None, column: TableColumn) -> pa.Scalar:
    """Casts a value of the file list to its column's type.

    Raises:
        DatasetError: the text does not cast to the type.
    """
    return parse_values([text], column)[0]


def parse_values(texts: Sequence[str | None], column: TableColumn) -> pa.Array:
    """Casts values of the file list to their column's type. Bytes are written as Latin-1 text."""
    try:
        if is_bytes(column.arrow):
            return pa.array([None if text is None else text.encode("latin-1") for text in texts], column.arrow)
        values = pa.array(texts, pa.string())
        if pa.types.is_boolean(column.arrow):
            wrong = {text for text in texts if text is not None} - {"true", "false"}
            if wrong:
                raise pa.ArrowInvalid(f"expected 'true' or 'false', got {sorted(wrong)[:5]}")
            return pc.equal(values, "true")
        if pa.types.is_timestamp(column.arrow):
            return _instants(values, column.arrow)
        if pa.types.is_time(column.arrow):  # Arrow parses times of day only as part of a timestamp
            moments = pc.binary_join_element_wise("1970-01-01", values, " ")
            return moments.cast(pa.timestamp(column.arrow.unit)).cast(column.arrow)
        return values.cast(column.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as error:
        raise DatasetError(
            f"column '{column.name}': expected values of type {column.arrow} in the table's file list: {error}. "
            "Deselect the field, or repair the table."
        ) from error


def _instants(texts: pa.Array, wanted: pa.TimestampType) -> pa.Array:
    """Parses timestamps; those without an offset are UTC."""
    plain = pc.replace_substring_regex(texts, r"(Z|[+-]00:?00)$", "")
    naive = plain.cast(pa.timestamp(wanted.unit))
    return naive if wanted.tz is None else pc.assume_timezone(naive, "UTC").cast(wanted)
