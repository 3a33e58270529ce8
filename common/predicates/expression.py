"""Predicates: turns a `pyarrow.compute.Expression` into a tree, text, or a mask over rows.

Takes an expression or DNF tuples over the schema's dotted names. Returns a frozen tree for pruning, the columns to
read, a JSON form, a cache key, and the rows for which the predicate is true. Null does not count as true.
"""

from __future__ import annotations

import base64
import ctypes
import operator
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import FieldNotFoundError, PipelineError
from ..layout.nested import wide, widened
from ..process.forks import arrow_to_numpy, pc
from ..schema.field import no_such_field
from .python_values import plain_storage

_COMPARE = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_ASSOCIATIVE = ("and_kleene", "or_kleene")
_MOST_SHOWN = 200
_ROWS_AT_ONCE = 1 << 20  # evaluation takes several times the memory of the columns
_MOST_INT64 = (1 << 63) - 1
_MAX_DEPTH = 200  # keeps recursion over the tree far below Python's limit
_DNF = (
    "Write ('field', op, value), a list of them (all must hold), or a list of such lists (any must hold); "
    "op is one of == != < > <= >= in, not in."
)


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A column. ``path`` has several parts if the expression reaches into a struct."""

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The dotted name, as in the schema."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an Arrow compute function. Chains of ``and_kleene`` or ``or_kleene`` are one call with many args."""

    name: str
    args: tuple[Node, ...]
    options: tuple[tuple[str, pa.Scalar], ...] = ()

    def option(self, name: str) -> pa.Scalar | None:
        """Returns one field of the call's options, or ``None`` if there is no such option."""
        return dict(self.options).get(name)


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """An expression that could not be parsed. It can be evaluated, but nothing else is known about it."""

    expression: pc.Expression


Node = Call | FieldRef | Literal | Opaque


def parse_expression(expression: pc.Expression) -> Node:
    """Returns the tree of an expression, or `Opaque` if pyarrow's serialized form cannot be parsed.

    pyarrow has no public introspection. A serialized expression is an Arrow IPC file whose schema metadata lists the
    nodes in prefix order, and whose only batch holds literals and options in its columns (Arrow C++, ``expression.cc``,
    ``Serialize``).
    """
    try:
        batch = pa.ipc.open_file(_serialize(expression)).get_batch(0)
        return _build_tree(_metadata_pairs(batch.schema), batch)
    except Exception:  # the form is private to pyarrow; a failure costs only the pruning
        return Opaque(expression)


def walk(node: Node) -> Iterator[Node]:
    """Yields the node and all its descendants, in reading order."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, Call):
            pending.extend(reversed(current.args))


def field_names(expression: pc.Expression | Node, schema_names: Collection[str]) -> tuple[str, ...]:
    """Returns the dotted names of the columns that the expression reads, without duplicates, in reading order.

    Raises:
        FieldNotFoundError: a column is not in ``schema_names``.
        PipelineError: the expression cannot be parsed.
    """
    names: dict[str, None] = {}
    for node in walk(_as_node(expression)):
        if isinstance(node, Opaque):
            raise _opaque(node.expression)
        if isinstance(node, FieldRef):
            if node.name not in schema_names:
                raise FieldNotFoundError(no_such_field(node.name, schema_names))
            names[node.name] = None
    return tuple(names)


def as_expression(where: object) -> pc.Expression:
    """Returns an expression unchanged, or builds one from DNF tuples.

    Raises:
        PipelineError: the value is neither of the two.
    """
    return where if isinstance(where, pc.Expression) else from_tuples(where)


def from_tuples(filters: object) -> pc.Expression:
    """Builds an expression from filters in the form of ``pyarrow.parquet``, with the same meaning.

    Raises:
        PipelineError: the filters have another form.
    """
    if _is_predicate(filters):
        return _predicate(filters)
    groups = _non_empty_list(filters)
    if all(_is_predicate(group) for group in groups):
        groups = [groups]
    return _fold(operator.or_, [_fold(operator.and_, [_predicate(p) for p in _non_empty_list(g)]) for g in groups])


def expression_to_json(expression: pc.Expression) -> str:
    """Serializes the expression as base64 text.

    Raises:
        PipelineError: the expression cannot be serialized.
    """
    try:
        return base64.b64encode(_serialize(expression)).decode("ascii")
    except pa.ArrowException as error:
        if "extension<" in str(error):  # pyarrow 18, which ends the process if such an expression is shown
            raise PipelineError(
                f"serializing a predicate: expected literals that this pyarrow can store, got: {error}. Write a "
                "literal of an extension type as what the type stores, such as the bytes of a UUID."
            ) from error
        raise PipelineError(
            f"serializing predicate '{expression_text(expression)}': expected columns by name and Arrow functions, "
            f"got: {error}. Refer to columns by name, or use where(fn, fields=[...])."
        ) from error


def expression_from_json(text: str) -> pc.Expression:
    """The inverse of `expression_to_json`.

    Raises:
        PipelineError: the text is damaged, or this pyarrow does not know the expression.
    """
    try:
        return pc.Expression._deserialize(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException) as error:
        raise PipelineError(
            f"reading a stored predicate: expected an expression of pyarrow {pa.__version__}, got: {error}. "
            "State the predicate again."
        ) from error


def expression_key(expression: pc.Expression) -> str:
    """Returns canonical text for hashing: equal expressions have equal keys, in every process.

    Raises:
        PipelineError: the expression cannot be serialized.
    """
    node = parse_expression(expression)
    return f"opaque:{expression_to_json(expression)}" if isinstance(node, Opaque) else _node_text(node)


def expression_text(expression: pc.Expression) -> str:
    """Returns the expression as people write it. Long values are shortened."""
    try:
        return str(expression)
    except UnicodeDecodeError:  # Arrow cuts a long value anywhere, even in the middle of a character
        text = expression_key(expression)
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def with_other_names(expression: pc.Expression, name_of: Callable[[str], str]) -> pc.Expression:
    """Returns the same expression with other (dotted) field names.

    Raises:
        PipelineError: the expression cannot be parsed.
    """
    if isinstance(parse_expression(expression), Opaque):
        raise _opaque(expression)
    batch = pa.ipc.open_file(_serialize(expression)).get_batch(0)
    pairs: list[tuple[str, str]] = []
    entries = iter(_metadata_pairs(batch.schema))
    for kind, value in entries:
        if kind not in ("field_ref", "nested_field_ref"):
            pairs.append((kind, value))
            continue
        path = [value] if kind == "field_ref" else [next(entries)[1] for _ in range(int(value))]
        name = name_of(".".join(path))
        nested = name == ".".join(path) and kind == "nested_field_ref"
        pairs += [(kind, value), *(("field_ref", part) for part in path)] if nested else [("field_ref", name)]
    return _deserialized(batch, pairs)


def _deserialized(batch: pa.RecordBatch, pairs: list[tuple[str, str]]) -> pc.Expression:
    named = batch.replace_schema_metadata(pa.KeyValueMetadata(pairs))  # a dict would lose repeated keys
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, named.schema) as file:
        file.write_batch(named)
    return pc.Expression._deserialize(sink.getvalue())


def row_mask(table: pa.Table, expression: pc.Expression) -> np.ndarray:
    """Returns the rows for which the expression is true: bool ``(rows,)``. The table's columns have dotted names.

    Types are checked even if the table has no rows.

    Raises:
        FieldNotFoundError: the table lacks a column.
        PipelineError: Arrow refuses the expression for these column types, or the expression is not a condition.
    """
    parts = [table.slice(first, _ROWS_AT_ONCE) for first in range(0, max(table.num_rows, 1), _ROWS_AT_ONCE)]
    found = (row_values(part, expression, condition=True).fill_null(False) for part in parts)
    return np.concatenate([np.asarray(arrow_to_numpy(values), dtype=np.bool_) for values in found])


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
            found = _evaluate_unsigned(source, expression)
        except pa.ArrowNotImplementedError:  # comparisons take dictionaries, but few other functions do
            decoded = _without_dictionaries(table)
            if decoded is table:
                raise
            source = decoded if isinstance(node, Opaque) else _nested_columns(decoded, node)
            found = _evaluate_unsigned(source, expression)
        if condition and not pa.types.is_boolean(found.type):
            raise pa.ArrowTypeError(f"a value of type {found.type}, not a condition")
        return found
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        types = ", ".join(f"{column.name}: {column.type}" for column in source.schema)
        what = "predicate" if condition else "expression"
        raise PipelineError(
            f"{what} '{expression_text(expression)}' for columns {types}: expected literals and functions that fit the "
            f"column types, got: {error}. Write the literal in the column's type, or cast the column in the expression."
        ) from error


def _without_dictionaries(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [widened(chunk) for chunk in table.column(number).chunks]
            table = table.set_column(number, field.name, pa.chunked_array(chunks, wide(field.type)))
    return table


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
    found = set[str]()
    for each in walk(node):
        if isinstance(each, Call):
            members = each.option("value_set")
            kinds = [arg.value.type for arg in each.args if isinstance(arg, Literal)]
            kinds += [] if members is None else [members.type.value_type]
            if any(map(pa.types.is_integer, kinds)) or any(map(pa.types.is_floating, kinds)):
                found.update(arg.name for arg in each.args if isinstance(arg, FieldRef))
    return found


def _with_stored_literals(expression: pc.Expression) -> pc.Expression:
    """Returns the expression with literals of extension types, also in sets of values, as what those types store.

    Literals of string and binary views become plain ones, as few of Arrow's functions take views.
    """
    if isinstance(parse_expression(expression), Opaque):
        return expression
    batch = pa.ipc.open_file(_serialize(expression)).get_batch(0)
    if all(_stored_type(kind) == kind for kind in batch.schema.types):
        return expression
    columns = [column.cast(_stored_type(column.type)) for column in batch.columns]
    return _deserialized(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), _metadata_pairs(batch.schema))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _stored_type(kind.storage_type)
    if kind in (pa.string_view(), pa.binary_view()):
        return pa.string() if kind == pa.string_view() else pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    return pa.struct([(field.name, _stored_type(field.type)) for field in kind]) if pa.types.is_struct(kind) else kind


def _opaque(expression: pc.Expression) -> PipelineError:
    return PipelineError(
        f"columns of predicate '{expression_text(expression)}': expected an expression over column names, got one "
        "that cannot be read. Refer to columns by name, or use where(fn, fields=[...])."
    )


def _as_node(expression: pc.Expression | Node) -> Node:
    return parse_expression(expression) if isinstance(expression, pc.Expression) else expression


def _serialize(expression: pc.Expression) -> pa.Buffer:
    return expression.__reduce__()[1][0]


class _ArrowSchema(ctypes.Structure):
    # The first members of ArrowSchema in the Arrow C data interface.
    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _metadata_pairs(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns the key-value metadata in order. ``Schema.metadata`` is a dict and would lose repeated keys."""
    capsule = schema.__arrow_c_schema__()
    address = _ArrowSchema.from_address(_capsule_pointer(capsule, b"arrow_schema")).metadata

    def take_int() -> int:
        nonlocal address
        address += 4
        return ctypes.c_int32.from_address(address - 4).value

    def take_text() -> str:
        nonlocal address
        length = take_int()
        address += length
        return ctypes.string_at(address - length, length).decode()

    return [(take_text(), take_text()) for _ in range(take_int())]


def _build_tree(pairs: list[tuple[str, str]], batch: pa.RecordBatch) -> Node:
    root: list[Node] = []
    open_calls: list[tuple[list[Node], tuple[tuple[str, pa.Scalar], ...]]] = [(root, ())]
    entries = iter(pairs)
    for kind, value in entries:
        args = open_calls[-1][0]
        if kind == "call":
            open_calls.append(([], ()))
        elif kind == "field_ref":
            args.append(FieldRef((value,)))
        elif kind == "nested_field_ref":
            args.append(FieldRef(tuple(next(entries)[1] for _ in range(int(value)))))
        elif kind == "literal":
            args.append(Literal(batch.column(int(value))[0]))
        elif kind == "options":
            open_calls[-1] = (args, tuple(batch.column(int(value))[0].items()))
        elif kind == "end":
            closed, options = open_calls.pop()
            open_calls[-1][0].append(Call(value, _flat(value, closed), options))
        else:
            raise ValueError(kind)
    (node,) = root
    if _depth(node) > _MAX_DEPTH:
        raise ValueError("too deep")
    return node


def _flat(name: str, args: list[Node]) -> tuple[Node, ...]:
    if name not in _ASSOCIATIVE:
        return tuple(args)
    nested = [arg.args if isinstance(arg, Call) and arg.name == name else (arg,) for arg in args]
    return tuple(arg for part in nested for arg in part)


def _depth(node: Node) -> int:
    level: list[Node] = [node]
    depth = 0
    while level:
        depth += 1
        level = [arg for current in level if isinstance(current, Call) for arg in current.args]
    return depth


def _is_predicate(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) > 0 and isinstance(value[0], str)


def _non_empty_list(value: object) -> list[Any]:
    if not isinstance(value, (tuple, list)) or len(value) == 0:
        raise PipelineError(
            f"where: expected an expression such as pc.field('id') > 3, or tuples, got {value!r}. {_DNF}"
        )
    return list(value)


def _predicate(value: Any) -> pc.Expression:
    refuse = partial(_refuse_predicate, value)
    if not _is_predicate(value) or len(value) != 3:
        raise refuse("expected ('field', op, value)")
    name, op, operand = value
    try:
        if op in ("in", "not in"):
            found = pc.field(name).isin(_members(operand, refuse))
            return found if op == "in" else ~found
        if op not in _COMPARE:
            raise refuse("expected one of the operators == != < > <= >= in, not in")
        if operand is None:
            raise refuse("expected a value to compare with (nothing equals null; use pc.field(...).is_null())")
        if isinstance(operand, np.generic):
            operand = pa.array(np.asarray([operand]))[0]  # pc.scalar() refuses datetime64[D]
        elif _is_unsigned(operand):
            operand = pa.scalar(operand, pa.uint64())
        elif isinstance(operand, uuid.UUID):
            operand = operand.bytes
        return _COMPARE[op](pc.field(name), pc.scalar(operand))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise refuse(f"expected a value that Arrow can hold ({error})") from error


def _refuse_predicate(value: object, rule: str) -> PipelineError:
    return PipelineError(f"filter {value!r}: {rule}, got {value!r}. {_DNF}")


def _members(operand: object, refuse: Callable[[str], PipelineError]) -> pa.Array:
    if isinstance(operand, (set, frozenset)):
        operand = sorted(operand, key=lambda member: (str(type(member)), repr(member)))  # same order in every process
    if not isinstance(operand, (list, tuple, range, np.ndarray, pa.Array, pa.ChunkedArray)):
        raise refuse("expected a list, tuple, set or array after 'in' and 'not in'")
    if isinstance(operand, pa.ChunkedArray):
        return operand.combine_chunks()
    if isinstance(operand, (list, tuple)) and operand and all(isinstance(member, np.generic) for member in operand):
        operand = np.asarray(operand)  # pa.array() refuses a list of datetime64[D]
    if isinstance(operand, (list, tuple)) and any(map(_is_unsigned, operand)):
        return pa.array(operand, pa.uint64())
    return operand if isinstance(operand, pa.Array) else pa.array(operand)


def _is_unsigned(value: object) -> bool:
    """Whether a value is an integer that only uint64 holds. Arrow takes integers for int64."""
    return isinstance(value, int) and value > _MOST_INT64


def _fold(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: Sequence[pc.Expression]
) -> pc.Expression:
    """Joins parts in a balanced tree. pyarrow recurses over expressions, and filters may have thousands of parts."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_fold(join, parts[:half]), _fold(join, parts[half:]))


def _node_text(node: Node) -> str:
    if isinstance(node, FieldRef):
        return f"field({node.name!r})"
    if isinstance(node, Literal):
        return f"{node.value.type}:{_scalar_text(node.value)}"
    assert isinstance(node, Call)
    parts = [_node_text(arg) for arg in node.args]
    for name, value in node.options:
        ordered = node.name == "is_in" and name == "value_set"  # a set, so the order of members does not matter
        parts.append(f"{name}={value.type}:{_scalar_text(value, as_set=ordered)}")
    return f"{node.name}({', '.join(parts)})"


def _scalar_text(value: pa.Scalar, *, as_set: bool = False) -> str:
    if not value.is_valid:
        return "null"
    if isinstance(value, pa.StructScalar):
        return "{" + ", ".join(f"{key}: {_scalar_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value.type, (pa.DictionaryType, pa.BaseExtensionType)):
        return _scalar_text(value.value)
    if hasattr(value, "values"):
        members = [_scalar_text(member) for member in value.values]
        return "[" + ", ".join(sorted(members) if as_set else members) + "]"
    if pa.types.is_temporal(value.type) and hasattr(value, "value"):
        return str(value.value)  # as_py() of nanoseconds needs pandas
    return repr(float(value.as_py()) if pa.types.is_floating(value.type) else value.as_py())


def _nested_columns(table: pa.Table, node: Node) -> pa.Table:
    """Returns the columns that the expression reads. Rebuilds a struct if the expression reaches into it."""
    field_names(node, table.column_names)
    tree: dict[str, Any] = {}
    for ref in (ref for ref in walk(node) if isinstance(ref, FieldRef)):
        branch = tree
        for parent in ref.path[:-1]:
            branch = branch.setdefault(parent, {})
            if not isinstance(branch, dict):
                raise _ambiguous(ref)
        if isinstance(branch.setdefault(ref.path[-1], table.column(ref.name)), dict):
            raise _ambiguous(ref)
    # A table without columns has no rows, so an expression of literals needs a column to have a row count.
    columns = {name: _column(branch) for name, branch in tree.items()}
    return pa.table(columns) if columns else pa.table({"": pa.nulls(table.num_rows)})


def _ambiguous(ref: FieldRef) -> PipelineError:
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
    """Returns the expression with literals of int64 as uint64 where that holds them. Else, Arrow casts the columns."""
    batch = pa.ipc.open_file(_serialize(expression)).get_batch(0)
    pairs = _metadata_pairs(batch.schema)
    literals = {int(value) for kind, value in pairs if kind == "literal"}
    columns = [
        column.cast(pa.uint64())
        if number in literals and column.type == pa.int64() and column[0].is_valid and column[0].as_py() >= 0
        else column
        for number, column in enumerate(batch.columns)
    ]
    return _deserialized(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), pairs)


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
    row = arrow_to_numpy(result.column("row"))  # acero promises no order
    return result.column("value") if (np.diff(row) == 1).all() else result.sort_by("row").column("value")
