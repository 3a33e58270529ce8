"""Reads columns of a row group as they are stored, named by field: whole (`read_row_group`) or in slices.

Members of structs are taken apart, and missing columns of nullable fields are null. `fetch.Fetcher` caches the result
and brings it into canonical form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from ...base.errors import DecodeError, SchemaError
from ...base.memory.arrow_views import is_number
from ...dataset.arrow_read import WHOLE, ReadSize, read_parts
from ...dataset.dataset import StoredDataset
from ...dataset.row_groups import describe_row_group
from ...dataset.table_read import column_slices
from ...parquet.nested import child, without_rare_types
from ...parquet.writers import refuse_old_calendar
from ...schema.field import UnischemaField
from .external_images import is_listed, listed_column

_LARGE_CHUNK_BYTES = 1 << 17
_ADVICE = "The file is damaged or was replaced since it was opened: write it again."


def read_row_group(
    dataset: StoredDataset, row_group: int, fields: Sequence[UnischemaField], size: ReadSize = WHOLE
) -> pa.Table:
    """Returns the columns of a row group as stored, named by field. Missing columns of nullable fields are null.

    The columns of a table format (such as Delta) already have the table's types.
    """
    ((_, table),) = row_group_slices(dataset, row_group, fields, size)
    return table


def row_group_slices(
    dataset: StoredDataset, row_group: int, fields: Sequence[UnischemaField], size: ReadSize
) -> Iterator[tuple[int, pa.Table]]:
    """Yields what `read_row_group` returns, whole or in slices, with the number of rows of each."""
    rows = int(dataset.row_groups.rows[row_group])
    if dataset.table is not None:
        inside = [dataset.columns[field.name] for field in fields if not is_listed(dataset, field)]
        held: Iterable[tuple[int, pa.Table]] = [(rows, pa.table({}))]
        if inside:
            held = column_slices(dataset, row_group, inside, size)
        for count, table in held:
            columns = [
                listed_column(dataset, row_group) if is_listed(dataset, field) else table.column(field.name)
                for field in fields
            ]
            yield count, pa.table(columns, names=[field.name for field in fields])
        return
    paths = [dataset.image_bytes.get(field.name, field.name) for field in fields]

    def choose(arrow: pa.Schema) -> list[str]:
        return sorted({path for path in (_top(path, arrow) for path in paths) if path is not None})

    names = frozenset(paths)
    described = dataset.group_footer(row_group, names)
    # Small columns are read together. Large ones are read one by one, which saves a copy.
    chunk_bytes = int(described.facts["unpacked_bytes"].sum()) // max(len(described.columns), 1)
    together = chunk_bytes < _LARGE_CHUNK_BYTES
    place = describe_row_group(dataset, row_group)
    for count, table in read_parts(dataset, row_group, choose, size, names=names, pre_buffer=together, advice=_ADVICE):
        if _is_plain(table, paths):
            yield count, table.select(paths)  # in one call, as there may be thousands of columns
            continue
        stored = dict(zip(table.column_names, table.columns, strict=True))  # Arrow creates them at each access
        try:
            for name, column in stored.items():
                if not is_number(column.type):
                    refuse_old_calendar(described.head, column, name)
        except DecodeError as error:
            raise DecodeError(f"{place}: {error}") from error
        schema = table.schema
        columns = [_column(stored, schema, *each, count, place) for each in zip(paths, fields, strict=True)]
        yield count, pa.table(columns, names=[field.name for field in fields])


def _is_plain(table: pa.Table, names: Sequence[str]) -> bool:
    """Returns whether a table holds the columns with these names and nothing but numbers."""
    return all(map(is_number, table.schema.types)) and {*names} == {*table.column_names}


def _top(name: str, arrow: pa.Schema) -> str | None:
    """Returns the column to select for a field: its own name, or the dotted path of a struct's child or of a map."""
    if arrow.get_all_field_indices(name):  # at once, however many columns there are
        return name
    tops = {
        number for end, letter in enumerate(name) if letter == "." for number in arrow.get_all_field_indices(name[:end])
    }
    parts, kind = list[str](), pa.struct([arrow.field(number) for number in sorted(tops)])
    for part in _path(name, kind):
        if pa.types.is_map(kind):
            break
        parts.append(part)
        kind = kind.field(part).type
    return ".".join(parts) if parts else None


def _column(
    stored: Mapping[str, pa.ChunkedArray],
    schema: pa.Schema,
    name: str,
    field: UnischemaField,
    rows: int,
    place: str,
) -> pa.ChunkedArray:
    if name in stored:
        return without_rare_types(stored[name])
    path = _path(name, pa.struct(list(schema)))
    if path:
        column = stored[path[0]]
        for part in path[1:]:
            column = child(column, part)
        return without_rare_types(column)
    if not field.nullable:
        raise SchemaError(
            f"{place}: expected a column for field '{field.name}', which is not nullable, found none. "
            "Deselect the field, or declare it nullable=True."
        )
    return pa.chunked_array([pa.nulls(rows)])


def _path(name: str, kind: pa.DataType) -> list[str]:
    """Returns the path of members to ``name`` (a member's name may contain dots), or an empty list if there is none."""
    if pa.types.is_map(kind):
        return [name] if name in ("key", "value") else []
    if not pa.types.is_struct(kind):
        return []
    for member in kind:
        if name == member.name:
            return [name]
        if name.startswith(member.name + "."):
            rest = _path(name[len(member.name) + 1 :], member.type)
            if rest:
                return [member.name, *rest]
    return []
