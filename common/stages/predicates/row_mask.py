"""`row_mask` finds the rows of a table for which an expression is true. Null does not count as true.

The table's columns have the schema's dotted names. Extension types, unsigned integers, dictionaries, half floats, texts
of different types and members of structs are compared by value, also where Arrow's functions do not take them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.memory.arrow_views import as_numpy
from ...base.process.forks import pc
from ...parquet.nested import wide, widened
from .expression import (
    Call,
    FieldRef,
    Literal,
    Node,
    Opaque,
    deserialized,
    expression_text,
    field_names,
    metadata_pairs,
    parse_expression,
    serialized,
    walk,
)
from .python_values import plain_storage

_ROWS_AT_ONCE = 1 << 20  # evaluation takes several times the memory of the columns


def row_mask(table: pa.Table, expression: pc.Expression) -> np.ndarray:
    """Returns the rows for which the expression is true: bool ``(rows,)``. The table's columns have dotted names.

    Types are checked even if the table has no rows.

    Raises:
        FieldNotFoundError: the table lacks a column.
        PipelineError: Arrow refuses the expression for these column types, or the expression is not a condition.
    """
    at_once = _ROWS_AT_ONCE
    if table.num_rows > at_once and not isinstance(parse_expression(expression), Opaque):
        at_once = max(at_once, serialized(expression).size // 2)  # each part builds the expression's sets again
    parts = [table.slice(first, at_once) for first in range(0, max(table.num_rows, 1), at_once)]
    masks = (row_values(part, expression, condition=True).fill_null(False) for part in parts)
    return np.concatenate([np.asarray(as_numpy(values), dtype=np.bool_) for values in masks])


def row_values(table: pa.Table, expression: pc.Expression, *, condition: bool = False) -> pa.ChunkedArray:
    """Returns the value of the expression for each row; see `row_mask`. With ``condition``, it must be a bool."""
    extended = any(isinstance(kind, pa.BaseExtensionType) for kind in table.schema.types)
    expression = _with_stored_literals(expression)
    if not extended:
        return _row_values(table, expression, condition)
    flags = [field.name for field in table.schema if _is_bool8(field.type)]
    numbers = _compared_with_numbers(parse_expression(expression))
    return _row_values(_as_stored(table, flags={*flags} - numbers), expression, condition)


def _row_values(table: pa.Table, expression: pc.Expression, condition: bool) -> pa.ChunkedArray:
    node = parse_expression(expression)
    source = table if isinstance(node, Opaque) else _nested_columns(table, node)
    try:
        try:
            values = _evaluate_unsigned(source, expression)
        except pa.ArrowNotImplementedError:  # comparisons take dictionaries, but few other functions do
            usual, other = _with_usual_types(table), _with_literals(expression, _usual_type)
            if usual is table and other is expression:
                raise
            source = usual if isinstance(node, Opaque) else _nested_columns(usual, node)
            values = _evaluate_unsigned(source, other)
        if condition and not pa.types.is_boolean(values.type):
            raise pa.ArrowTypeError(f"a value of type {values.type}, not a condition")
        return values
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        types = ", ".join(f"{column.name}: {column.type}" for column in source.schema)
        what = "predicate" if condition else "expression"
        raise PipelineError(
            f"{what} '{expression_text(expression)}' for columns {types}: expected literals and functions that fit the "
            f"column types, got: {error}. Write the literal in the column's type, or cast the column in the expression."
        ) from error


def _with_usual_types(table: pa.Table) -> pa.Table:
    """Returns the table with columns of the `_usual_type`, which more functions take, and take beside each other."""
    for number, field in enumerate(table.schema):
        kind = _usual_type(field.type)
        if kind != field.type:
            chunks = [widened(chunk).cast(kind) for chunk in table.column(number).chunks]
            table = table.set_column(number, field.name, pa.chunked_array(chunks, kind))
    return table


def _usual_type(kind: pa.DataType) -> pa.DataType:
    """The type for the same values that most functions take: no dictionary, no half floats, 64-bit offsets of text."""
    if pa.types.is_dictionary(kind):
        return _usual_type(kind.value_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_list(kind):  # a set of values
        return pa.list_(_usual_type(kind.value_type))
    return wide(kind) if pa.types.is_string(kind) or pa.types.is_binary(kind) else kind


def _is_bool8(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.bool8"


def _as_stored(table: pa.Table, *, flags: set[str]) -> pa.Table:
    """Returns the table with what its extension columns store, because Arrow compares no extension types.

    Bool8 is stored as int8. The columns ``flags`` are converted to bool.
    """
    columns = [
        plain_storage(column).cast(pa.bool_()) if name in flags else plain_storage(column)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(columns, names=table.column_names)


def _compared_with_numbers(node: Node) -> set[str]:
    """Returns the columns that an expression compares with numbers, also in sets of values."""
    names = set[str]()
    for each in walk(node):
        if isinstance(each, Call):
            members = each.option("value_set")
            kinds = [arg.value.type for arg in each.args if isinstance(arg, Literal)]
            kinds += [] if members is None else [members.type.value_type]
            if any(map(pa.types.is_integer, kinds)) or any(map(pa.types.is_floating, kinds)):
                names.update(arg.name for arg in each.args if isinstance(arg, FieldRef))
    return names


def _with_stored_literals(expression: pc.Expression) -> pc.Expression:
    """Replaces literals of extension types, also in sets of values, with what those types store.

    Literals of string and binary views become plain ones, as few of Arrow's functions take views.
    """
    return _with_literals(expression, _stored_type)


def _with_literals(expression: pc.Expression, type_of: Callable[[pa.DataType], pa.DataType]) -> pc.Expression:
    """Returns the expression with its literals and sets of values in other types."""
    if isinstance(parse_expression(expression), Opaque):
        return expression
    batch = pa.ipc.open_file(serialized(expression)).get_batch(0)
    pairs = metadata_pairs(batch.schema)
    literals = {int(value) for kind, value in pairs if kind == "literal"}
    types = [
        type_of(kind) if number in literals else _options_type(kind, type_of)
        for number, kind in enumerate(batch.schema.types)
    ]
    if types == batch.schema.types:
        return expression
    columns = [column.cast(kind) for column, kind in zip(batch.columns, types, strict=True)]
    return deserialized(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), pairs)


def _options_type(kind: pa.DataType, type_of: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type of a function's options with another type for its set of values."""
    members = [(member.name, type_of(member.type) if member.name == "value_set" else member.type) for member in kind]
    return pa.struct(members)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _stored_type(kind.storage_type)
    if kind in (pa.string_view(), pa.binary_view()):
        return pa.string() if kind == pa.string_view() else pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    return pa.struct([(field.name, _stored_type(field.type)) for field in kind]) if pa.types.is_struct(kind) else kind


def _nested_columns(table: pa.Table, node: Node) -> pa.Table:
    """Returns the columns that the expression reads. Rebuilds a struct if the expression reaches into it."""
    field_names(node, table.column_names)
    tree: dict[str, Any] = {}
    for ref in (ref for ref in walk(node) if isinstance(ref, FieldRef)):
        branch = tree
        for parent in ref.path[:-1]:
            branch = branch.setdefault(parent, {})
            if not isinstance(branch, dict):
                raise ambiguous(ref)
        if isinstance(branch.setdefault(ref.path[-1], table.column(ref.name)), dict):
            raise ambiguous(ref)
    # A table without columns has no rows, so an expression of literals needs a column to have a row count.
    columns = {name: _column(branch) for name, branch in tree.items()}
    return pa.table(columns) if columns else pa.table({"": pa.nulls(table.num_rows)})


def ambiguous(ref: FieldRef) -> PipelineError:
    return PipelineError(
        f"predicate on field '{ref.name}': expected either a column or the struct around it, got both. "
        f"Write pc.field('{ref.name}')."
    )


def _column(branch: pa.ChunkedArray | dict[str, Any]) -> pa.ChunkedArray:
    if not isinstance(branch, dict):
        return branch
    members = pa.table({name: _column(member) for name, member in branch.items()})
    fields = list(members.schema)
    chunks = [pa.StructArray.from_arrays(batch.columns, fields=fields) for batch in members.to_batches()]
    return pa.chunked_array(chunks, type=pa.struct(fields))


def _evaluate_unsigned(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    """Evaluates an expression, also if it compares a plain number with a column of uint64 that int64 does not hold."""
    try:
        return _evaluate(table, expression)
    except pa.ArrowInvalid:
        if pa.uint64() not in table.schema.types or isinstance(parse_expression(expression), Opaque):
            raise
    return _evaluate(table, _with_unsigned_literals(expression))


def _with_unsigned_literals(expression: pc.Expression) -> pc.Expression:
    """Converts int64 literals to uint64 if they fit. Otherwise, Arrow would cast the columns."""
    batch = pa.ipc.open_file(serialized(expression)).get_batch(0)
    pairs = metadata_pairs(batch.schema)
    literals = {int(value) for kind, value in pairs if kind == "literal"}
    columns = [
        column.cast(pa.uint64())
        if number in literals and column.type == pa.int64() and column[0].is_valid and column[0].as_py() >= 0
        else column
        for number, column in enumerate(batch.columns)
    ]
    return deserialized(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), pairs)


def _evaluate(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    from pyarrow import acero  # imports pandas if installed, so only import it when needed

    rows = "#"
    while rows in table.column_names:
        rows += "#"
    numbered = table.append_column(rows, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(numbered)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression, pc.field(rows)], ["value", "row"])),
        ]
    )
    result = plan.to_table(use_threads=False)  # callers already use several threads
    row = as_numpy(result.column("row"))  # acero promises no order
    return result.column("value") if (np.diff(row) == 1).all() else result.sort_by("row").column("value")
