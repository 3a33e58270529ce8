"""Reads a Parquet file through every face and compares it with what Arrow reads: rows, nulls, and filters."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from faces import THREADS, Face

from parquetry.common import Pipeline
from parquetry.common.base.errors import EmptySelectionError, ParquetryError

LITERALS = 3  # of each column, taken from its values
NANOSECONDS = {"D": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass
class Comparison:
    """What was compared in a file.

    Attributes:
        rows: the rows that Arrow reads.
        columns: the columns that were compared.
        filters: the filters that were compared.
        differences: what a face gave other than Arrow, one sentence each.
        refusal: why parquetry does not read the file.
        unread: why Arrow does not read it, so that there is nothing to compare with.
    """

    rows: int = 0
    columns: int = 0
    filters: int = 0
    differences: list[str] = field(default_factory=list)
    refusal: str = ""
    unread: str = ""


def compare(path: Path, faces: Sequence[Face]) -> Comparison:
    """Compares one file; an error that is not parquetry's own is a difference."""
    result = Comparison()
    table = None
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        result.unread = str(error)
    try:
        pipeline = _with_nested_lists(Pipeline(path, executor="threads").select(".*"))
        if table is None:
            _rows(pipeline)
        else:
            _compare(pipeline, table, faces, result)
    except ParquetryError as error:
        result.refusal = "" if result.unread else f"{type(error).__name__}: {error}"
    except Exception as error:
        result.differences.append(f"{type(error).__name__}: {error}")
    return result


def _compare(pipeline: Pipeline, table: pa.Table, faces: Sequence[Face], result: Comparison) -> None:
    names = list(pipeline.schema.fields)
    expected = {name: [_plain(value) for value in _column(table, name).to_pylist()] for name in names}
    result.rows, result.columns = table.num_rows, len(names)
    lists = [name for name in names if pipeline.schema.fields[name].shape]
    scalars = [name for name in names if name not in lists]
    _hold(result, "rows", _rows(pipeline), expected)
    for condition, rows in _filters(table, [name for name in scalars if name in table.column_names]):
        result.filters += 1
        _hold(result, f"where({_line(condition)})", _rows(pipeline.where(condition)), _taken(expected, rows))
    flat = [name for name in lists if len(pipeline.schema.fields[name].shape) == 1]
    if scalars or flat:
        masked = pipeline.select(*scalars, *flat).nulls("mask").batch(16)
        expected_batches = _batches(THREADS, masked)
        for face in faces:
            try:
                given = _batches(face, masked)
            except Exception as error:  # TensorFlow raises its own
                result.differences.append(f"{face.name}: {type(error).__name__}: {error}")
                continue
            if given != expected_batches:
                result.differences.append(f"{face.name}: {_first_difference(given, expected_batches)}")


def _with_nested_lists(pipeline: Pipeline) -> Pipeline:
    """Reads lists of lists as they are stored, because most are no arrays."""
    nested = [name for name, each in pipeline.schema.fields.items() if len(each.shape) > 1 and each.codec is not None]
    return pipeline.nested(*nested) if nested else pipeline


def _rows(pipeline: Pipeline) -> dict[str, list[Any]]:
    try:
        rows = list(pipeline)
    except EmptySelectionError:
        rows = []
    return {
        name: [_plain(row[name], _exact(each.dtype)) for row in rows] for name, each in pipeline.schema.fields.items()
    }


def _exact(dtype: Any) -> Callable[[Any], decimal.Decimal] | None:
    """Returns what makes an exact number of a face's values: times are counts of their unit, decimals texts."""
    if dtype is decimal.Decimal:
        return decimal.Decimal
    if isinstance(dtype, np.dtype) and dtype.kind in "Mm":
        unit = NANOSECONDS[np.datetime_data(dtype)[0]]
        return lambda count: decimal.Decimal(count * unit)
    return None


def _batches(face: Face, pipeline: Pipeline) -> list[list[dict[str, Any]]]:
    return [
        [{name: _plain(value) for name, value in row.items()} for row in batch] for batch in face.elements(pipeline)
    ]


def _hold(result: Comparison, what: str, given: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    for name, values in expected.items():
        if given[name] != values:
            result.differences.append(f"{what}, column {name!r}: {_first_difference(given[name], values)}")
            return


def _line(condition: pc.Expression) -> str:
    return " ".join(str(condition).split())


def _first_difference(given: Any, expected: Any) -> str:
    if not isinstance(given, list) or not isinstance(expected, list):
        return f"expected {str(expected)[:200]}, got {str(given)[:200]}"
    for row, (one, other) in enumerate(zip(given, expected, strict=False)):
        if one != other:
            return f"row {row}: expected {str(other)[:200]}, got {str(one)[:200]}"
    return f"expected {len(expected)} rows, got {len(given)}"


def _taken(columns: dict[str, list[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def _column(table: pa.Table, name: str) -> pa.Array:
    """Returns what a field such as ``a.b`` of a struct, or ``m.key`` of a map, holds in Arrow's reading."""
    head, rest = name, ""
    while head not in table.column_names:
        head, _, part = head.rpartition(".")
        rest = f"{part}.{rest}" if rest else part
    array = table.column(head).combine_chunks()
    return _part(array, rest)


def _part(array: pa.Array, path: str) -> pa.Array:
    if not path:
        return _counted(array)
    kind = array.type
    if pa.types.is_map(kind):
        entries = pa.ListArray.from_arrays(
            array.offsets, pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"]), mask=array.is_null()
        )
        return _part(entries, path)
    if pa.types.is_struct(kind):
        head = next(f.name for f in kind if path == f.name or path.startswith(f.name + "."))
        return _part(pc.struct_field(array, [kind.get_field_index(head)]), path[len(head) + 1 :])
    offsets = array.offsets
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, _part(array.values, path), mask=mask)


def _counted(array: pa.Array) -> pa.Array:
    """Returns times as decimal numbers of nanoseconds, which Python's own types do not hold."""
    kind = array.type
    if pa.types.is_temporal(kind):
        unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        numbers = array.cast(width).cast(pa.decimal256(20))
        return pc.multiply(numbers, pa.scalar(NANOSECONDS[unit], pa.decimal256(18)))
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode()
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and pa.types.is_temporal(kind.value_type):
        flat = array.cast(pa.list_(kind.value_type))
        return pa.ListArray.from_arrays(flat.offsets, _counted(flat.values), mask=flat.is_null())
    return array


def _plain(value: Any, exact: Callable[[Any], decimal.Decimal] | None = None) -> Any:
    """Returns a value in a form that is equal where Arrow's and a face's values are the same."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each, exact) for each in value]
    if isinstance(value, float):
        return "nan" if value != value else value.hex()
    return value if exact is None or value is None else exact(value)


def _filters(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[pc.Expression, list[int]]]:
    """Yields filters by values of the columns, with the rows that Arrow keeps."""
    numbers = pa.array(range(table.num_rows), pa.int64())
    for name in names:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        for condition in _conditions(pc.field(name), column.combine_chunks()):
            try:
                kept = pa.table({name: column, "": numbers}).filter(condition).column("").to_pylist()
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
                continue
            yield condition, kept


def _conditions(column: pc.Expression, values: pa.Array) -> Iterator[pc.Expression]:
    yield column.is_null()
    yield column.is_valid()
    try:
        distinct = pc.unique(values.drop_null())
    except pa.ArrowNotImplementedError:
        return
    places = [place for place, value in enumerate(distinct) if not _is_nan(value)] if _is_plain(values.type) else []
    places = places[:: max(1, len(places) // LITERALS)][:LITERALS]
    literals = distinct.take(pa.array(places, pa.int64()))
    for literal in literals:
        yield column == literal
        yield column != literal
        if not pa.types.is_boolean(values.type):
            yield column < literal
            yield column >= literal
    if places:
        among = column.isin(literals)
        yield among
        yield ~among


def _is_nan(value: pa.Scalar) -> bool:
    return pa.types.is_floating(value.type) and value.as_py() != value.as_py()


def _is_plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind))
