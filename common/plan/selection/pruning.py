"""Finds the row groups that can hold a row that matches a predicate, from their statistics alone.

Takes a predicate's tree and, for each column, the bounds and null counts of all row groups as arrays. Returns two flags
per row group: whether some row may match, and whether all rows match. Both are sound: a row group that is ruled out has
no matching row, and one that is proven has no other rows. There is no Python loop over row groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.memory.arrow_views import as_arrow, as_numpy
from ...base.process.dataclass import dataclass
from ...base.process.forks import pc
from ...parquet.conforming import keeps_order
from ...stages.predicates.expression import Call, FieldRef, Literal, Node, walk

_SWAPPED = {"greater": "less", "greater_equal": "less_equal"}
_OPPOSITE = {"less": "greater_equal", "less_equal": "greater"}
_COMPARISONS = {"equal", "not_equal", *_SWAPPED, *_OPPOSITE}
_MATCH, _SKIP, _EMIT_NULL, _INCONCLUSIVE = range(4)  # Arrow C++, SetLookupOptions::NullMatchingBehavior


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnStatistics:
    """The statistics of one flat column. All arrays have the shape ``(row groups,)``.

    Attributes:
        minimum: lower bounds of the values in the column's own type, null where unknown; ``None`` if all are unknown.
        maximum: upper bounds, likewise.
        null_count: the number of nulls, negative where unknown.
        exact: whether equal bounds are a value that the column really holds. True for integers, dates and partition
            values; false for strings and binaries, whose bounds may be truncated. Floats are never exact, because their
            statistics leave out NaN.
    """

    minimum: pa.Array | None
    maximum: pa.Array | None
    null_count: np.ndarray
    num_rows: np.ndarray
    exact: bool

    def __post_init__(self) -> None:
        lengths = {
            len(array) for array in (self.minimum, self.maximum, self.null_count, self.num_rows) if array is not None
        }
        if len(lengths) > 1:
            raise PipelineError(f"column statistics: expected arrays of one length, got lengths {sorted(lengths)}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """Flags per row group, bool ``(row groups,)``: some row may match; every row matches (False without rows)."""

    may_match: np.ndarray
    all_match: np.ndarray


def prune(node: Node, statistics: Mapping[str, ColumnStatistics], num_row_groups: int) -> Verdict:
    """Evaluates the predicate on the statistics of each row group. A column without statistics may hold anything.

    Raises:
        PipelineError: the statistics are for a different number of row groups.
    """
    has_rows = np.ones(num_row_groups, dtype=np.bool_)
    for name, column in statistics.items():
        if len(column.num_rows) != num_row_groups:
            raise PipelineError(
                f"statistics of field '{name}': expected {num_row_groups} row groups, got {len(column.num_rows)}."
            )
        has_rows &= np.asarray(column.num_rows) > 0
    names = {ref.name for ref in walk(node) if isinstance(ref, FieldRef)}
    intervals = {name: _column_interval(statistics[name]) for name in names if name in statistics}
    truth = _truth(node, intervals, num_row_groups)
    return Verdict(
        may_match=truth.true & has_rows,
        all_match=truth.true & ~truth.false & ~truth.null & has_rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Truth:
    """The outcomes that rows of each row group may have: over-approximations, bool ``(row groups,)``."""

    true: np.ndarray
    false: np.ndarray
    null: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Interval:
    """The values that rows of each row group may have. A bound is a scalar for a literal, or ``None`` if unbounded."""

    low: pa.Array | pa.Scalar | None
    high: pa.Array | pa.Scalar | None
    may_value: np.ndarray
    may_null: np.ndarray
    may_nan: bool
    exact: bool


def _truth(node: Node, columns: Mapping[str, _Interval], size: int) -> _Truth:
    if isinstance(node, Call):
        args = node.args
        if node.name in ("and_kleene", "and", "or_kleene", "or"):
            parts = [_truth(arg, columns, size) for arg in args]
            join = _and_kleene if node.name.endswith("_kleene") else _and
            if node.name.startswith("and"):
                return reduce(join, parts)
            return _invert(reduce(join, map(_invert, parts)))
        if node.name == "invert":
            return _invert(_truth(args[0], columns, size))
        if node.name in ("is_null", "is_valid"):
            return _null_test(node, columns, size)
        if node.name in _COMPARISONS:
            left, right = (_interval(arg, columns, size) for arg in args)
            if left is not None and right is not None:
                return _compare(node.name, left, right, size)
        if node.name == "is_in":
            values = _interval(args[0], columns, size)
            if values is not None:
                return _is_in(node, values, size)
        return _unknown(size)
    values = _interval(node, columns, size)
    return _unknown(size) if values is None else _as_condition(values, size)


def _unknown(size: int) -> _Truth:
    anything = np.ones(size, dtype=np.bool_)
    return _Truth(true=anything, false=anything, null=anything)


def _invert(a: _Truth) -> _Truth:
    return _Truth(true=a.false, false=a.true, null=a.null)


def _and_kleene(a: _Truth, b: _Truth) -> _Truth:
    null = (a.null & (b.null | b.true)) | (b.null & a.true)
    return _Truth(true=a.true & b.true, false=a.false | b.false, null=null)


def _and(a: _Truth, b: _Truth) -> _Truth:
    false = (a.false & (b.false | b.true)) | (b.false & a.true)
    return _Truth(true=a.true & b.true, false=false, null=a.null | b.null)


def _as_condition(values: _Interval, size: int) -> _Truth:
    """Evaluates a boolean column or literal as a condition."""
    bounds = [bound for bound in (values.low, values.high) if bound is not None]
    if any(not pa.types.is_boolean(bound.type) for bound in bounds):
        return _Truth(true=values.may_value, false=values.may_value, null=values.may_null)
    return _Truth(
        true=values.may_value & _holds("equal", values.high, pa.scalar(True), size),
        false=values.may_value & _holds("equal", values.low, pa.scalar(False), size),
        null=values.may_null,
    )


def _null_test(node: Call, columns: Mapping[str, _Interval], size: int) -> _Truth:
    values = _interval(node.args[0], columns, size)
    if values is not None:
        option = node.option("nan_is_null")
        counts_nan = values.may_nan and (option is None or option.as_py()) and node.name == "is_null"
        null, value = values.may_null | (values.may_value & counts_nan), values.may_value
    else:
        inner = _truth(node.args[0], columns, size)
        null, value = inner.null, inner.true | inner.false
    never = np.zeros(size, dtype=np.bool_)
    truth = _Truth(true=null, false=value, null=never)
    return truth if node.name == "is_null" else _invert(truth)


def _compare(name: str, a: _Interval, b: _Interval, size: int) -> _Truth:
    if name in _SWAPPED:
        name, a, b = _SWAPPED[name], b, a
    if name in _OPPOSITE:
        true = _holds(name, a.low, b.high, size)
        false = _holds(_OPPOSITE[name], a.high, b.low, size)
    else:
        true = _holds("less_equal", a.low, b.high, size) & _holds("less_equal", b.low, a.high, size)
        pairs = ((a.low, b.low), (a.low, a.high), (b.low, b.high))
        false = reduce(np.logical_or, [_holds("not_equal", *pair, size) for pair in pairs])
        false = false | (not (a.exact and b.exact))
    may_value = a.may_value & b.may_value
    truth = _Truth(
        true=true & may_value,
        false=(false | a.may_nan | b.may_nan) & may_value,  # NaN compares false with everything
        null=a.may_null | b.may_null,
    )
    return _invert(truth) if name == "not_equal" else truth


def _is_in(node: Call, values: _Interval, size: int) -> _Truth:
    option, behavior = node.option("value_set"), node.option("null_matching_behavior")
    if option is None or behavior is None or isinstance(values.low, pa.Scalar) or isinstance(values.high, pa.Scalar):
        return _unknown(size)
    members = option.values
    hit, miss = _membership(values, members, size)
    hit, miss = hit & values.may_value, miss & values.may_value
    null, never = values.may_null, np.zeros(size, dtype=np.bool_)
    has_null, mode = members.null_count > 0, behavior.as_py()
    if mode == _MATCH and has_null:
        return _Truth(true=hit | null, false=miss, null=never)
    if mode in (_MATCH, _SKIP):
        return _Truth(true=hit, false=miss | null, null=never)
    if mode == _INCONCLUSIVE and has_null:
        return _Truth(true=hit, false=never, null=miss | null)
    return _Truth(true=hit, false=miss, null=null) if mode in (_EMIT_NULL, _INCONCLUSIVE) else _unknown(size)


def _membership(values: _Interval, members: pa.Array, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns where some value may be a member, and where some value may not be one."""
    anything = np.ones(size, dtype=np.bool_)
    bound = values.low if values.low is not None else values.high
    if bound is None:
        return anything, anything
    try:
        members = _plain(members).drop_null().cast(bound.type)  # the kernel tries this first
        has_nan = False
        if pa.types.is_floating(members.type):
            has_nan = bool(pc.any(pc.is_nan(members)).as_py())
            members = members.filter(pc.invert(pc.is_nan(members)))
        members = members.take(pc.array_sort_indices(members))
        hit = _some_member_between(members, values.low, values.high, size) | (has_nan and values.may_nan)
        if not values.exact or values.low is None:
            return hit, anything
        outside = ~as_numpy(pc.fill_null(pc.is_in(values.low, value_set=members), False))
        return hit, outside | _holds("not_equal", values.low, values.high, size)
    except (pa.ArrowException, TypeError):
        return anything, anything


def _some_member_between(members: pa.Array, low: pa.Array | None, high: pa.Array | None, size: int) -> np.ndarray:
    """Returns where one of the sorted members lies between the bounds. Only the first member >= ``low`` matters."""
    if len(members) == 0:
        return np.zeros(size, dtype=np.bool_)
    first = np.zeros(size, dtype=np.int64)
    if low is not None:
        distinct = pc.fill_null(low, members[0]).dictionary_encode()  # bounds repeat, and sorting takes time
        first = _places(members, distinct.dictionary)[as_numpy(distinct.indices)]
    candidates = members.take(as_arrow(np.minimum(first, len(members) - 1)))
    result: np.ndarray = (first < len(members)) & _holds("less_equal", candidates, high, size)
    return result


def _places(members: pa.Array, bounds: pa.Array) -> np.ndarray:
    """Returns how many members are less than each bound, by Arrow's order: in numpy's, the smallest time is NaT."""
    order = as_numpy(pc.array_sort_indices(pa.concat_arrays([bounds, members])))  # stable, so bounds precede equals
    is_member = order >= len(bounds)
    result = np.empty(len(bounds), dtype=np.int64)
    result[order[~is_member]] = np.cumsum(is_member)[~is_member]
    return result


def _interval(node: Node, columns: Mapping[str, _Interval], size: int) -> _Interval | None:
    """Returns the possible values of a column, a literal, or a cast of either, and ``None`` for anything else."""
    if isinstance(node, FieldRef):
        return columns.get(node.name)
    if isinstance(node, Literal):
        return _literal_interval(node.value, size)
    if isinstance(node, Call) and node.name == "cast":
        values, target = _interval(node.args[0], columns, size), node.option("to_type")
        return None if values is None or target is None else _cast(values, target.type)
    return None


def _literal_interval(value: pa.Scalar, size: int) -> _Interval:
    if isinstance(value, pa.DictionaryScalar):
        value = value.value
    valid = np.full(size, value.is_valid)
    is_nan = value.is_valid and pa.types.is_floating(value.type) and bool(np.isnan(value.as_py()))
    bound = value if value.is_valid and not is_nan else None
    return _Interval(low=bound, high=bound, may_value=valid, may_null=~valid, may_nan=is_nan, exact=not is_nan)


def _column_interval(column: ColumnStatistics) -> _Interval:
    low, high = _column_bound(column.minimum), _column_bound(column.maximum)
    null_count, num_rows = np.asarray(column.null_count), np.asarray(column.num_rows)
    unknown = null_count < 0
    for bound in (low, high):  # a row group of nulls alone has none
        unknown = unknown if bound is None else unknown | as_numpy(bound.is_valid())
    types = [array.type for array in (column.minimum, column.maximum) if array is not None]
    may_nan = not types or any(pa.types.is_floating(_value_type(arrow)) for arrow in types)
    return _Interval(
        low=low,
        high=high,
        may_value=unknown | (null_count < num_rows),
        may_null=(null_count < 0) | (null_count > 0),
        may_nan=may_nan,
        exact=column.exact and not may_nan,
    )


def _column_bound(array: pa.Array | None) -> pa.Array | None:
    if array is None or pa.types.is_null(array.type) or pa.types.is_float16(_value_type(array.type)):
        return None  # Arrow cannot compare float16
    array = _plain(array)
    if pa.types.is_floating(array.type):
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    return array


def _value_type(arrow: pa.DataType) -> pa.DataType:
    return arrow.value_type if isinstance(arrow, pa.DictionaryType) else arrow


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _cast(values: _Interval, target: pa.DataType) -> _Interval | None:
    """Returns the interval after a cast, or ``None`` if the cast can change the order of values or create nulls."""
    bounds = []
    for bound in (values.low, values.high):
        if bound is None or not keeps_order(bound.type, target):
            return None
        try:
            bounds.append(bound.cast(target))  # a safe cast: if both bounds fit, so do all values in between
        except pa.ArrowException:
            return None
    return _Interval(
        low=bounds[0],
        high=bounds[1],
        may_value=values.may_value,
        may_null=values.may_null,
        may_nan=values.may_nan,
        exact=values.exact,
    )


def _holds(name: str, a: pa.Array | pa.Scalar | None, b: pa.Array | pa.Scalar | None, size: int) -> np.ndarray:
    """Returns where the comparison of two bounds holds. It counts as true if it cannot be made, to rule nothing out."""
    if a is None or b is None:
        return np.ones(size, dtype=np.bool_)
    try:
        result = pc.call_function(name, [a, b])
    except (pa.ArrowException, TypeError):
        return np.ones(size, dtype=np.bool_)
    if isinstance(result, pa.Scalar):
        return np.full(size, result.as_py() is not False)
    return np.asarray(pc.fill_null(result, True))
