"""Predicates: turns a `pyarrow.compute.Expression` into a frozen tree for pruning, into text, JSON, and a cache key.

The expression's fields have the schema's dotted names. `row_mask` finds the rows for which it is true.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from ...base.errors import FieldNotFoundError, PipelineError
from ...base.process.dataclass import dataclass
from ...base.process.forks import pc
from ...schema.field import no_such_field

_ASSOCIATIVE = ("and_kleene", "or_kleene")
_MOST_SHOWN = 200
_MAX_DEPTH = 200  # keeps recursion over the tree far below Python's limit


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
        batch = pa.ipc.open_file(serialized(expression)).get_batch(0)
        return _build_tree(metadata_pairs(batch.schema), batch)
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
    for node in walk(parse_expression(expression) if isinstance(expression, pc.Expression) else expression):
        if isinstance(node, Opaque):
            raise _opaque(node.expression)
        if isinstance(node, FieldRef):
            if node.name not in schema_names:
                raise FieldNotFoundError(no_such_field(node.name, schema_names))
            names[node.name] = None
    return tuple(names)


def expression_to_json(expression: pc.Expression) -> str:
    """Serializes the expression as base64 text.

    Raises:
        PipelineError: the expression cannot be serialized.
    """
    try:
        return base64.b64encode(serialized(expression)).decode("ascii")
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
    batch = pa.ipc.open_file(serialized(expression)).get_batch(0)
    pairs: list[tuple[str, str]] = []
    entries = iter(metadata_pairs(batch.schema))
    for kind, value in entries:
        if kind not in ("field_ref", "nested_field_ref"):
            pairs.append((kind, value))
            continue
        path = [value] if kind == "field_ref" else [next(entries)[1] for _ in range(int(value))]
        name = name_of(".".join(path))
        nested = name == ".".join(path) and kind == "nested_field_ref"
        pairs += [(kind, value), *(("field_ref", part) for part in path)] if nested else [("field_ref", name)]
    return deserialized(batch, pairs)


def deserialized(batch: pa.RecordBatch, pairs: list[tuple[str, str]]) -> pc.Expression:
    named = batch.replace_schema_metadata(pa.KeyValueMetadata(pairs))  # a dict would lose repeated keys
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, named.schema) as file:
        file.write_batch(named)
    return pc.Expression._deserialize(sink.getvalue())


def _opaque(expression: pc.Expression) -> PipelineError:
    return PipelineError(
        f"columns of predicate '{expression_text(expression)}': expected an expression over column names, got one "
        "that cannot be read. Refer to columns by name, or use where(fn, fields=[...])."
    )


def serialized(expression: pc.Expression) -> pa.Buffer:
    return expression.__reduce__()[1][0]


class _ArrowSchema(ctypes.Structure):
    # The first members of ArrowSchema in the Arrow C data interface.
    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def metadata_pairs(schema: pa.Schema) -> list[tuple[str, str]]:
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
