"""Parses a chain of verbs and applies it to a pipeline: ``where(field("a") > 3).shuffle(1000).batch(64)``.

The text is parsed, never evaluated. It may contain verbs, literals, ``field(...)`` expressions, functions of
``pyarrow.compute``, and the few constructors in `_MAKERS`.
"""

from __future__ import annotations

import ast
import datetime
import decimal
import inspect
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow.compute as pc

from ...base.errors import ParquetryError, PipelineError, SchemaError
from ...base.other_names import did_you_mean, instead_of
from ...pipeline.pipeline import Pipeline
from ...pipeline.verbs import Verbs
from ...schema import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    ListCodec,
    NdarrayCodec,
    ScalarCodec,
    TensorCodec,
    UnischemaField,
    VideoCodec,
    VideoReference,
)
from ...stages.predicates.column_predicates import ColumnPredicate, contains, hash_split
from ..tools.copying import conditions

VERBS = tuple(sorted({*(name for name in dir(Verbs) if not name.startswith("_")), "filter"} - {"transform"}))
"""The verbs that a chain may call."""
_FUNCTIONS = frozenset({"map", "transform"})
_MAKERS: Mapping[str, Callable[..., Any]] = {
    "CompressedImageCodec": CompressedImageCodec,
    "CompressedNdarrayCodec": CompressedNdarrayCodec,
    "Decimal": decimal.Decimal,
    "ListCodec": ListCodec,
    "NdarrayCodec": NdarrayCodec,
    "ScalarCodec": ScalarCodec,
    "TensorCodec": TensorCodec,
    "UnischemaField": UnischemaField,
    "VideoCodec": VideoCodec,
    "VideoReference": VideoReference,
    "contains": contains,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "field": pc.field,
    "hash_split": hash_split,
    "scalar": pc.scalar,
    "timedelta": datetime.timedelta,
}
_METHODS = frozenset({"cast", "is_nan", "is_null", "is_valid", "isin"})
"""The methods of expressions that a chain may call."""
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Div: operator.truediv,
    ast.Eq: operator.eq,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Invert: operator.invert,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Mult: operator.mul,
    ast.NotEq: operator.ne,
    ast.Sub: operator.sub,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_CONSTANTS = {"none": "None", "null": "None", "true": "True", "false": "False"}
_MOST_LETTERS = 100_000
Made = TypeVar("Made")
_FILES = (".parquet", ".parq", ".pq")


def apply_chain(pipeline: Pipeline, text: str) -> Pipeline:
    """Applies a chain of verbs, written as in Python, to a pipeline.

    >>> print(apply_chain(Pipeline("events.parquet"), 'where(field("a") > 3).batch(64)'))  # doctest: +SKIP

    Args:
        text: verbs joined by dots; empty for none. ``field("a")`` and ``pc.field("a")`` both name a field, and
            ``pc.`` has the functions of ``pyarrow.compute``. A chain cannot contain functions of your own.

    Raises:
        PipelineError: the text is not a valid chain, or a verb refuses its arguments. The message says what and where.
    """
    source = text.strip().lstrip(".")
    if not source:
        return pipeline
    verbs = 'verbs such as where(field("a") > 3).batch(64)'
    if source.endswith(_FILES):
        raise PipelineError(
            f"chain: expected {verbs}, got the path {source!r:.300}. Put a pattern in quotes; otherwise the shell "
            "replaces it with the files that match."
        )
    return _parsed(source, lambda reader, tree: reader.chain(tree, pipeline), verbs)


def parse_condition(text: str) -> Any:
    """Parses a row condition: an expression such as ``field("speed") > 3``, or DNF tuples as JSON.

    Raises:
        PipelineError: the text is neither.
    """
    if text.lstrip().startswith("["):
        try:
            return conditions(text)
        except (ValueError, TypeError, IndexError) as error:
            raise PipelineError(f'condition: expected JSON such as [["speed", ">", 3]], got {text!r}.') from error
    condition = _parsed(text.strip(), lambda reader, tree: reader.value(tree), 'a condition such as field("a") > 3')
    if not isinstance(condition, pc.Expression | ColumnPredicate):
        raise PipelineError(f'condition: expected an expression such as field("speed") > 3, got {text!r}.')
    return condition


def _parsed(source: str, read: Callable[[_ChainInterpreter, ast.expr], Made], expected: str) -> Made:
    """Parses the text and passes its syntax tree to ``read``. All errors in the text become `PipelineError`."""
    if len(source) > _MOST_LETTERS:
        raise PipelineError(f"chain: expected at most {_MOST_LETTERS:,} characters, got {len(source):,}.")
    try:
        return read(_ChainInterpreter(source), ast.parse(f"({source})", mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ParquetryError):
            raise
        place = _column(error, source) if isinstance(error, SyntaxError) else None
        column = f" at column {place}" if place else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise PipelineError(f"chain: expected {expected}, got {source!r:.300} ({reason}{column}).") from error


def _column(error: SyntaxError, source: str) -> int | None:
    """The column of an error in the text, which was parsed with parentheses around it."""
    offset = error.offset or 0
    if 1 < offset <= len(source) + 1:
        return offset - 1
    try:  # one of the outer parentheses is blamed for one inside
        ast.parse(source, mode="eval")
    except SyntaxError as own:
        return own.offset
    return None


class _ChainInterpreter:
    """Executes the syntax tree of one chain."""

    def __init__(self, source: str) -> None:
        self._source = f"({source})"

    def chain(self, node: ast.expr, pipeline: Pipeline) -> Pipeline:
        """Applies the calls of a chain. Returns the resulting pipeline."""
        calls: list[tuple[str, ast.Call]] = []
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            calls.append((node.func.attr, node))
            node = node.func.value
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise self._refused(node, "a verb with its arguments in parentheses", "batch(64)")
        calls.append((node.func.id, node))
        for verb, call in reversed(calls):
            pipeline = self._applied(pipeline, verb, call)
        return pipeline

    def _applied(self, pipeline: Pipeline, verb: str, call: ast.Call) -> Pipeline:
        if verb in _FUNCTIONS:
            raise PipelineError(f"chain: {verb}() needs a Python function, which a chain cannot contain. Use Pipeline.")
        if verb not in VERBS:
            raise PipelineError(
                f"chain: there is no verb '{verb}'.{instead_of(verb) or did_you_mean(verb, VERBS)} Verbs are: "
                f"{', '.join(VERBS)}."
            )
        method = getattr(pipeline, verb)
        arguments, named = self._arguments(call)
        self._check_call(verb, method, arguments, named)
        try:
            made: Pipeline = method(*arguments, **named)
        except ParquetryError:
            raise
        except (TypeError, ValueError, NotImplementedError) as error:  # pyarrow errors are of these classes too
            raise PipelineError(f"chain: {self._text(call, verb)}: {error}") from error
        return made

    def _check_call(self, verb: str, method: Any, arguments: list[Any], named: dict[str, Any]) -> None:
        signature = inspect.signature(method)
        names = list(signature.parameters)
        wrong = [name for name in named if name not in names]
        if wrong:
            raise PipelineError(
                f"chain: {verb}() has no argument '{wrong[0]}'.{did_you_mean(wrong[0], names)} "
                f"It takes: {', '.join(names)}."
            )
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            raise PipelineError(f"chain: {verb}(): {error}. It takes: {', '.join(names)}.") from error

    def _arguments(self, call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        named: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise self._refused(keyword.value, "arguments by name", "seed=7")
            named[keyword.arg] = self.value(keyword.value)
        return [self.value(argument) for argument in call.args], named

    def value(self, node: ast.expr) -> Any:
        """Evaluates an argument."""
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple() | ast.Set():
                kinds: dict[type[ast.expr], Any] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
                return kinds[type(node)](self.value(each) for each in node.elts)
            case ast.Dict():
                return self._dict(node)
            case ast.UnaryOp() | ast.BinOp():
                return self._calculated(node)
            case ast.Compare():
                return self._compared(node)
            case ast.Call():
                return self._called(node)
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr=name):
                return self._dtype(node, name)
            case ast.BoolOp():
                sign = "&" if isinstance(node.op, ast.And) else "|"
                raise self._refused(node, f"'{sign}' with parentheses around both sides", f"(...) {sign} (...)")
            case ast.Lambda():
                raise PipelineError("chain: a chain cannot contain a Python function. Use Pipeline.")
            case ast.Name(id=name) if name in _CONSTANTS:
                raise PipelineError(f"chain: there is no '{name}' in Python. Did you mean '{_CONSTANTS[name]}'?")
            case ast.Name(id=name):
                raise PipelineError(
                    f'chain: \'{name}\' is not a value. Write "{name}" for a string, or field("{name}") for a field.'
                )
            case _:
                raise self._refused(
                    node, "a number, a string, a list, a dict, or a field() expression", 'field("a") > 3'
                )

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        if None in node.keys:
            raise self._refused(node, "a dict with keys", '{"a": 1}')
        return {self.value(key): self.value(each) for key, each in zip(node.keys, node.values, strict=True) if key}

    def _calculated(self, node: ast.UnaryOp | ast.BinOp) -> Any:
        if isinstance(node.op, ast.Not):
            raise self._refused(node, "'~' with parentheses", '~(field("a") > 3)')
        function = _OPERATORS.get(type(node.op))
        if function is None:
            raise self._refused(node, "one of + - * / & | ~", 'field("a") * 2')
        nodes = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        operands = [self.value(each) for each in nodes]
        inverts = isinstance(node.op, ast.Invert) and isinstance(operands[0], ColumnPredicate)
        if not (inverts or any(isinstance(each, pc.Expression) for each in operands) or all(map(_is_number, operands))):
            raise self._refused(node, "numbers, or a field() expression", 'field("a") * 2')
        return self._computed(node, function, operands)

    def _compared(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            raise self._refused(node, "one comparison per pair of parentheses", '(field("a") > 3) & (field("a") < 9)')
        function = _OPERATORS.get(type(node.ops[0]))
        if function is None:
            raise self._refused(node, "isin() of a field", 'field("a").isin([1, 2])')
        return self._computed(node, function, [self.value(node.left), self.value(node.comparators[0])])

    def _called(self, node: ast.Call) -> Any:
        arguments, named = self._arguments(node)
        match node.func:
            case ast.Name(id=name) if name in _MAKERS:
                return self._computed(node, _MAKERS[name], arguments, named)
            case ast.Name(id=name):
                raise PipelineError(f"chain: there is no function '{name}'.{did_you_mean(name, _MAKERS)}")
            case ast.Attribute(value=ast.Name(id="pc"), attr=name):
                known = [*filter(partial(hasattr, pc), pc.list_functions()), "field", "scalar"]
                if name not in known:
                    raise PipelineError(f"chain: pyarrow.compute has no function '{name}'.{did_you_mean(name, known)}")
                if name not in _MAKERS and not any(isinstance(each, pc.Expression) for each in arguments):
                    raise self._refused(node, "a function of a field", 'pc.starts_with(field("a"), "b")')
                return self._computed(node, getattr(pc, name), arguments, named)
            case ast.Attribute(value=inner, attr=name):
                value = self.value(inner)
                if not isinstance(value, pc.Expression) or name not in _METHODS:
                    raise PipelineError(f"chain: an expression has no '{name}()'.{did_you_mean(name, _METHODS)}")
                return self._computed(node, getattr(value, name), arguments, named)
        raise self._refused(node, "a function by its name", 'field("a")')

    def _computed(
        self, node: ast.expr, function: Callable[..., Any], arguments: list[Any], named: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return function(*arguments, **(named or {}))
        except ParquetryError:
            raise
        except (TypeError, ValueError, ArithmeticError, NotImplementedError, AttributeError) as error:
            raise PipelineError(f"chain: {self._text(node)}: {error}") from error

    def _dtype(self, node: ast.expr, name: str) -> Any:
        dtype = getattr(np, name, None)
        if not (isinstance(dtype, type) and issubclass(dtype, np.generic)):
            raise self._refused(node, "a numpy dtype", "np.float32")
        return dtype

    def _text(self, node: ast.expr, verb: str | None = None) -> str:
        segment = ast.get_source_segment(self._source, node) or ""
        return f"{verb}({segment.rpartition(f'{verb}(')[2]}" if verb and f"{verb}(" in segment else segment

    def _refused(self, node: ast.expr, expected: str, example: str) -> PipelineError:
        column = getattr(node, "col_offset", 1)
        return PipelineError(
            f"chain: expected {expected}, such as {example}, got '{self._text(node)}' at column {column}."
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | decimal.Decimal | datetime.timedelta)


_CODECS: Mapping[str, Callable[[], Any]] = {
    "ndarray": NdarrayCodec,
    "npz": CompressedNdarrayCodec,
    "tensor": TensorCodec,
}


def parse_codec(text: str) -> Any:
    """Parses a codec: ``jpeg:90`` (with its quality), ``png``, ``webp:80``, ``ndarray``, ``npz`` or ``tensor``.

    Raises:
        PipelineError: there is no such codec, or the quality is out of range.
    """
    name, colon, quality = text.partition(":")
    if name in _CODECS and not colon:
        return _CODECS[name]()
    if name not in ("jpeg", "png", "webp") or (colon and not quality.isdigit()):
        known = ["jpeg", "png", "webp", *_CODECS]
        raise PipelineError(f"codec: expected one of {', '.join(known)}, got '{text}'.{did_you_mean(name, known)}")
    try:
        return CompressedImageCodec(name, int(quality)) if colon else CompressedImageCodec(name)
    except SchemaError as error:
        raise PipelineError(str(error)) from None
