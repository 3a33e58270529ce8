"""Filters as tuples, such as `("speed", ">", 4)`, in disjunctive normal form; turned into an expression."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.process.forks import pc

_COMPARE = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_MOST_INT64 = (1 << 63) - 1

_DNF = (
    "Write ('field', op, value), a list of them (all must hold), or a list of such lists (any must hold); "
    "op is one of == != < > <= >= in, not in."
)


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
            is_member = pc.field(name).isin(_members(operand, refuse))
            return is_member if op == "in" else ~is_member
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
        elif exact := _nanosecond_type(operand):
            operand = pa.scalar(operand, exact)
        return _COMPARE[op](pc.field(name), pc.scalar(operand))
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as error:
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
    if isinstance(operand, pa.Array):
        return operand
    return pa.array(operand, next(filter(None, map(_nanosecond_type, operand)), None))


def _is_unsigned(value: object) -> bool:
    """Whether a value is an integer that only uint64 holds. Arrow takes integers for int64."""
    return isinstance(value, int) and value > _MOST_INT64


def _nanosecond_type(value: object) -> pa.DataType | None:
    """Returns the Arrow type of a time of pandas with nanoseconds, which Arrow would cut off; ``None`` for others."""
    if getattr(value, "nanosecond", 0):
        return pa.timestamp("ns", pa.scalar(value).type.tz)
    return pa.duration("ns") if getattr(value, "nanoseconds", 0) else None


def _fold(
    join: Callable[[pc.Expression, pc.Expression], pc.Expression], parts: Sequence[pc.Expression]
) -> pc.Expression:
    """Joins parts in a balanced tree. pyarrow recurses over expressions, and filters may have thousands of parts."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_fold(join, parts[:half]), _fold(join, parts[half:]))
