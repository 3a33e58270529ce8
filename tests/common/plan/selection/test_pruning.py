"""Pruning: sound against brute force for random tables and predicates, and sharp where statistics decide."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.base.errors import PipelineError
from parquetry.common.plan.selection.pruning import ColumnStatistics, prune
from parquetry.common.stages.predicates.expression import Call, FieldRef, Literal, Opaque, parse_expression
from parquetry.common.stages.predicates.row_mask import row_mask

pytestmark = pytest.mark.versions

NAN = math.nan
x, y, flag = pc.field("x"), pc.field("y"), pc.field("flag")


def stats(minimum, maximum, arrow=None, *, nulls=0, rows=10, exact=True) -> ColumnStatistics:
    """Returns the statistics of one column; counts are one number or one per row group."""
    return ColumnStatistics(
        minimum=None if minimum is None else pa.array(minimum, arrow),
        maximum=None if maximum is None else pa.array(maximum, arrow),
        null_count=np.broadcast_to(np.array(nulls, np.int64), len(minimum or maximum)),
        num_rows=np.broadcast_to(np.array(rows, np.int64), len(minimum or maximum)),
        exact=exact,
    )


def verdict(predicate, **columns: ColumnStatistics) -> str:
    """Returns one letter per row group: ``-`` ruled out, ``?`` undecided, ``A`` all rows proven."""
    node = parse_expression(predicate) if isinstance(predicate, pc.Expression) else predicate
    found = prune(node, columns, len(next(iter(columns.values())).num_rows))
    assert found.may_match.dtype == found.all_match.dtype == np.bool_
    assert not (found.all_match & ~found.may_match).any()
    return "".join("A" if proven else "?" if may else "-" for may, proven in zip(*_columns(found), strict=True))


def _columns(found):
    return found.may_match.tolist(), found.all_match.tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (x > 5, "-?A?"),
        (x > 6, "-??-"),
        (x >= 6, "-?A?"),
        (x < 5, "A?-?"),
        (x <= 4, "A?-?"),
        (x < 1, "----"),
        (x == 3, "??-?"),
        (x == 7, "-??-"),
        (x != 7, "A??A"),
        (x != 30, "AAAA"),
        (x < 3.5, "??-?"),
        (x > 2**40, "----"),
        (pc.scalar(5) > x, "A?-?"),
        (pc.scalar(6) <= x, "-?A?"),
        (pc.scalar(7) == x, "-??-"),
        (~(x > 5), "A?-?"),
        ((x > 0) & (x < 5), "A?-?"),
        ((x > 5) | (x < 5), "A?A?"),
        (x.isin([0, 30]), "----"),
        (x.isin([5, 30]), "-?-?"),
        (x.isin([]), "----"),
        (~x.isin([0, 30]), "AAAA"),
        (x.is_valid(), "AAAA"),
        (x.is_null(), "----"),
        (pc.is_null(x > 3), "----"),
        (x == x, "????"),
        (x.cast(pa.float64()) > 5.0, "-?A?"),
        (x.cast(pa.int8()) > 5, "-?A?"),
        (pc.scalar(True), "AAAA"),
        (pc.scalar(False), "----"),
        (pc.scalar(1) > 2, "----"),
        (pc.scalar(1) < 2, "AAAA"),
        (x == pa.scalar(None, pa.int64()), "----"),
        (pc.scalar(None), "----"),
    ],
    ids=str,
)
def test_bounds_of_integers_decide(expression: pc.Expression, expected: str) -> None:
    assert verdict(expression, x=stats([1, 2, 6, 1], [4, 8, 9, 6])) == expected


@pytest.mark.parametrize(
    "expression",
    [
        x + 1 > 100,
        pc.field("other") > 1,
        pc.field("other").is_null(),
        pc.field("other").isin([1]),
        x == "text",
        x.isin(["text"]),
        x,
        x.cast(pa.string()) == "text",
        (x + 1).isin([100]),
        pc.scalar(1).isin([2]),
        pc.is_null(x + 1),
        pc.is_nan(x),
    ],
    ids=str,
)
def test_opaque_parts_are_undecided(expression: pc.Expression) -> None:
    assert verdict(expression, x=stats([1, 6], [4, 9])) == "??"


def test_opaque_parts_do_not_hide_the_others() -> None:
    assert verdict((x + 1 > 100) & (x > 5), x=stats([1, 6], [4, 9])) == "-?"
    assert verdict((x + 1 > 100) | (x > 5), x=stats([1, 6], [4, 9])) == "?A"
    assert verdict((pc.field(0) > 100), x=stats([1, 6], [4, 9])) == "??"
    assert isinstance(parse_expression(pc.field(0) > 100), Opaque)


def test_two_columns_are_compared_by_their_bounds() -> None:
    left, right = stats([1, 1, 8], [4, 4, 9]), stats([5, 3, 2], [9, 9, 7])
    assert verdict(x < y, x=left, y=right) == "A?-"
    assert verdict(x != y, x=left, y=right) == "A?A"


def test_nulls_keep_a_row_group_from_being_proven() -> None:
    columns = stats([6, 6, 6, None], [9, 9, 9, None], pa.int64(), nulls=[0, 1, -1, 10])
    assert verdict(x > 5, x=columns) == "A??-"
    assert verdict(~(x < 5), x=columns) == "A??-"
    assert verdict(x.is_null(), x=columns) == "-??A"
    assert verdict(x.is_valid(), x=columns) == "A??-"
    assert verdict((x > 5) | x.is_null(), x=columns) == "A??A"
    assert verdict(pc.is_null(x > 5), x=columns) == "-??A"
    assert verdict((x > 5) | pc.scalar(True), x=columns) == "AAAA"


def test_a_null_count_beyond_the_rows_is_not_believed() -> None:
    assert verdict(x > 5, x=stats([6], [9], nulls=11)) == "?"


def test_unknown_bounds_are_undecided_one_by_one() -> None:
    columns = stats([1, None, 6, None], [None, 4, None, None], pa.int64())
    assert verdict(x > 5, x=columns) == "?-A?"
    assert verdict(x == 5, x=columns) == "?--?"
    assert verdict(x.isin([5]), x=columns) == "?--?"
    assert verdict(x > 5, x=stats([1, 6], None)) == "?A"
    assert verdict(x.isin([5]), x=stats([1, 6], None)) == "?-"
    assert verdict(x.isin([5]), x=stats(None, [4, 6])) == "-?"


def test_equal_bounds_prove_equality_only_where_they_are_exact() -> None:
    for exact, expected in ((True, "A-"), (False, "?-")):
        columns = stats(["a", "b"], ["a", "b"], exact=exact)
        assert verdict(x == "a", x=columns) == expected
        assert verdict(x.isin(["a", "c"]), x=columns) == expected
    assert verdict(x != "a", x=stats(["a", "b"], ["a", "b"])) == "-A"
    assert verdict(x != "a", x=stats(["a", "b"], ["a", "b"], exact=False)) == "?A"


def test_truncated_strings_are_bounds() -> None:
    assert verdict(x > "b", x=stats(["a", "b", "c"], ["b", "c", "d"], exact=False)) == "-?A"
    assert verdict(x.isin(["abc", "bc"]), x=stats(["a", "b", "c"], ["b", "c", "d"], exact=False)) == "??-"


def test_a_partition_value_decides_everything() -> None:
    columns = stats(["a", "b", None], ["a", "b", None], nulls=[0, 0, 10])
    assert verdict(x == "a", x=columns) == "A--"
    assert verdict(x != "a", x=columns) == "-A-"
    assert verdict(x.isin(["a", None]), x=columns) == "A-A"
    assert verdict(~x.isin(["a"]), x=columns) == "-AA"
    assert verdict(x.is_null() | (x == "b"), x=columns) == "-AA"


def test_dictionary_bounds_are_their_values() -> None:
    plain = pa.array(["a", "b"])
    columns = stats(plain.dictionary_encode(), plain.dictionary_encode())
    assert verdict(x == "a", x=columns) == "A-"
    assert verdict(x.isin(["b"]), x=columns) == "-A"
    assert verdict(x.isin(pa.array(["b"]).dictionary_encode()), x=columns) == "-A"
    assert verdict(x == pa.scalar("b").cast(pa.dictionary(pa.int32(), pa.string())), x=columns) == "-A"


def test_a_nan_may_hide_in_any_float_column() -> None:
    columns = stats([1.0, 6.0], [4.0, 9.0])
    assert verdict(x > 5, x=columns) == "-?"
    assert verdict(x == 6, x=stats([6.0], [6.0])) == "?"
    assert verdict(x.isin([6.0]), x=stats([6.0], [6.0])) == "?"
    assert verdict(x.isin([NAN]), x=columns) == "??"
    assert verdict(~(x > 5), x=columns) == "A?"  # NaN > 5 is false, so its negation holds
    assert verdict(~(x < 5), x=columns) == "?A"
    assert verdict(x != 30, x=columns) == "AA"
    assert verdict(pc.is_null(x, nan_is_null=True), x=columns) == "??"
    assert verdict(x.is_null(), x=columns) == "--"
    assert verdict(x.is_valid(), x=columns) == "AA"
    assert verdict(x.cast(pa.float32()) > 5, x=columns) == "-?"


def test_bounds_and_literals_that_are_nan_say_nothing() -> None:
    columns = stats([NAN, 1.0, NAN], [NAN, NAN, 4.0])
    assert verdict(x > 5, x=columns) == "??-"
    assert verdict(x < 1, x=columns) == "?-?"
    assert verdict(x == 5, x=columns) == "??-"
    assert verdict(x > NAN, x=stats([1.0], [4.0])) == "?"
    assert verdict(x == NAN, x=stats([1], [4])) == "?"


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (-0.0, -0.0), (0.0, 4.0), (-4.0, -0.0)])
def test_a_zero_bound_stands_for_both_zeros(low: float, high: float) -> None:
    columns = stats([low], [high])
    for zero in (0.0, -0.0):
        assert verdict(x == zero, x=columns) == "?"
        assert verdict(x.isin([zero]), x=columns) == "?"
        assert verdict(x != zero, x=columns) == "?"
    assert verdict(x < -0.0, x=stats([0.0], [4.0])) == "-"
    assert verdict(x > 0.0, x=stats([-4.0], [-0.0])) == "-"


def test_half_floats_say_nothing() -> None:
    columns = stats(pa.array(np.array([1], np.float16)), pa.array(np.array([4], np.float16)))
    assert verdict(x > 5, x=columns) == "?"
    assert verdict(x.is_valid(), x=columns) == "A"


def test_a_boolean_column_is_a_condition() -> None:
    columns = stats([False, False, True, None], [False, True, True, None], nulls=[0, 0, 0, 10])
    assert verdict(flag, flag=columns) == "-?A-"
    assert verdict(~flag, flag=columns) == "A?--"
    assert verdict(flag == True, flag=columns) == "-?A-"  # noqa: E712 - an expression, not a comparison
    assert verdict(flag.isin([True]), flag=columns) == "-?A-"


def test_a_condition_is_null_where_its_column_is() -> None:
    columns = stats([True], [True], nulls=1)
    assert verdict(flag, flag=columns) == "?"
    assert verdict(flag | pc.scalar(True), flag=columns) == "A"
    assert verdict(flag & pc.scalar(False), flag=columns) == "-"


@pytest.mark.parametrize(
    ("low", "high", "below", "inside"),
    [
        (dt.date(2020, 1, 2), dt.date(2020, 1, 9), dt.date(2020, 1, 1), dt.date(2020, 1, 5)),
        (dt.date(2020, 1, 2), dt.date(2020, 1, 9), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 5, 12)),
        (dt.datetime(2020, 1, 2), dt.datetime(2020, 1, 9), dt.date(2020, 1, 1), dt.date(2020, 1, 5)),
        (decimal.Decimal("1.50"), decimal.Decimal("2.50"), decimal.Decimal("1.25"), decimal.Decimal("2.00")),
        (b"b", b"d", b"a", b"c"),
        (dt.time(2), dt.time(9), dt.time(1), dt.time(5)),
        (dt.timedelta(2), dt.timedelta(9), dt.timedelta(1), dt.timedelta(5)),
    ],
    ids=str,
)
def test_other_types_have_bounds_too(low: object, high: object, below: object, inside: object) -> None:
    columns = stats([low], [high])
    assert verdict(x == pc.scalar(below), x=columns) == "-"
    assert verdict(x > pc.scalar(below), x=columns) == "A"
    assert verdict(x == pc.scalar(inside), x=columns) == "?"
    assert verdict(x > pc.scalar(inside), x=columns) == "?"


def test_members_of_other_types_have_bounds_too() -> None:
    days = stats([dt.date(2020, 1, 2)], [dt.date(2020, 1, 9)])
    assert verdict(x.isin([dt.date(2020, 1, 1)]), x=days) == "-"
    assert verdict(x.isin([dt.date(2020, 1, 5), dt.date(2020, 1, 1)]), x=days) == "?"
    prices = stats([decimal.Decimal("1.50")], [decimal.Decimal("2.50")])
    assert verdict(x.isin([decimal.Decimal("1.25"), decimal.Decimal("2.75")]), x=prices) == "-"
    stamps = stats([0], [9], pa.timestamp("us", "UTC"))
    assert verdict(x.isin(pa.array([10], pa.timestamp("us", "UTC"))), x=stamps) == "-"


def test_casts_that_keep_the_order_keep_the_bounds() -> None:
    days = stats([dt.date(2020, 1, 2)], [dt.date(2020, 1, 9)])
    assert verdict(x.cast(pa.timestamp("us")) > dt.datetime(2020, 1, 1), x=days) == "A"
    stamps = stats([0], [9], pa.timestamp("ms"))
    assert verdict(x.cast(pa.timestamp("ns")) > pa.scalar(9_000_001, pa.timestamp("ns")), x=stamps) == "-"
    assert verdict(x.cast(pa.large_string()) > "d", x=stats(["a"], ["c"])) == "-"
    assert verdict(x.cast(pa.decimal128(20, 1)) == decimal.Decimal(1), x=stats([1, 6], [4, 9])) == "?-"


def test_casts_that_may_fail_or_change_the_order_are_undecided() -> None:
    assert verdict(x.cast(pa.int8()) > 0, x=stats([100], [300])) == "?"
    assert verdict(x.cast(pa.int8(), safe=False) > 0, x=stats([100], [300])) == "?"
    assert verdict(x.cast(pa.string()) < "5", x=stats([10], [60])) == "?"
    assert verdict(x.cast(pa.int64(), safe=False) == 1, x=stats([1.5], [1.7])) == "?"
    assert (
        verdict(
            x.cast(pa.timestamp("us", "UTC")) > pa.scalar(0, pa.timestamp("us", "UTC")),
            x=stats([dt.date(2020, 1, 2)], [dt.date(2020, 1, 9)]),
        )
        == "?"
    )
    assert (
        verdict(
            x.cast(pa.float64()) > 5.0,
            x=ColumnStatistics(
                minimum=None, maximum=None, null_count=np.zeros(1, np.int64), num_rows=np.ones(1, np.int64), exact=True
            ),
        )
        == "?"
    )


def lookup(members: pa.Array, behavior: int) -> Call:
    options = (
        ("value_set", pa.scalar(members.to_pylist(), pa.list_(members.type))),
        ("null_matching_behavior", pa.scalar(behavior, pa.uint32())),
    )
    return Call("is_in", (FieldRef(("x",)),), options)


@pytest.mark.parametrize(
    ("members", "behavior", "expected", "negated"),
    [
        ([1, None], 0, "A-A", "-A-"),  # match
        ([1], 0, "A--", "-AA"),
        ([1, None], 1, "A--", "-AA"),  # skip
        ([1, None], 2, "A--", "-A-"),  # emit null
        ([1, None], 3, "A--", "---"),  # inconclusive
        ([1], 3, "A--", "-A-"),
        ([1], 9, "???", "???"),
    ],
)
def test_nulls_in_a_lookup_follow_its_option(members: list, behavior: int, expected: str, negated: str) -> None:
    column, found = stats([1, 2, None], [1, 2, None], nulls=[0, 0, 10]), lookup(pa.array(members), behavior)
    assert verdict(found, x=column) == expected
    assert verdict(Call("invert", (found,)), x=column) == negated


def test_a_lookup_without_options_is_undecided() -> None:
    assert verdict(Call("is_in", (FieldRef(("x",)),)), x=stats([1], [1])) == "?"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("and", "A-- --- ---"), ("and_kleene", "A-- --- ---"), ("or", "AA- A-- ---"), ("or_kleene", "AAA A-- A--")],
)
@pytest.mark.parametrize("negated", [False, True])
def test_connectives_have_the_truth_tables_of_arrow(name: str, expected: str, negated: bool) -> None:
    outcomes = [True, False, None]
    for left, row in zip(outcomes, expected.split(), strict=True):
        for right, letter in zip(outcomes, row, strict=True):
            node = Call(name, tuple(Literal(pa.scalar(value, pa.bool_())) for value in (left, right)))
            plain = pc.call_function(name, [pa.scalar(left, pa.bool_()), pa.scalar(right, pa.bool_())]).as_py()
            if negated:
                assert verdict(Call("invert", (node,)), x=stats([1], [1])) == ("A" if plain is False else "-")
            else:
                assert letter == ("A" if plain else "-")
                assert verdict(node, x=stats([1], [1])) == letter


@pytest.mark.parametrize(("name", "expected"), [("and", "?"), ("or", "?"), ("and_kleene", "?"), ("or_kleene", "A")])
def test_a_possible_null_counts_in_a_connective(name: str, expected: str) -> None:
    node = Call(name, (FieldRef(("flag",)), Literal(pa.scalar(True))))
    assert verdict(node, flag=stats([True], [True], nulls=1)) == expected


def test_a_row_group_without_rows_never_matches() -> None:
    assert verdict(pc.scalar(True), x=stats([1, 1], [4, 4], rows=[0, 10])) == "-A"
    assert verdict(x > 0, x=stats([1, 1], [4, 4], rows=[0, 10])) == "-A"
    assert verdict(x.is_null(), x=stats([None], [None], pa.int64(), nulls=0, rows=0)) == "-"


def test_no_row_groups_give_an_empty_verdict() -> None:
    empty = ColumnStatistics(
        minimum=pa.array([], pa.int64()),
        maximum=pa.array([], pa.int64()),
        null_count=np.zeros(0, np.int64),
        num_rows=np.zeros(0, np.int64),
        exact=True,
    )
    for expression in (x > 1, x.isin([1]), x.is_null(), pc.scalar(True), x.cast(pa.int8()) > 1):
        assert verdict(expression, x=empty) == ""


def test_many_members_are_searched_by_bounds() -> None:
    numbers = stats([0, 101, 150, 9_999], [99, 101, 250, 20_000])
    assert verdict(x.isin(list(range(100, 10_000, 100))), x=numbers) == "--?-"
    names = stats(["0", "101", "150", "x"], ["0", "101", "250", "z"], exact=False)
    assert verdict(x.isin([str(value) for value in range(100, 10_000, 100)]), x=names) == "--?-"


def test_statistics_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(PipelineError, match="statistics of field 'x': expected 3 row groups, got 2"):
        prune(parse_expression(x > 1), {"x": stats([1, 1], [4, 4])}, 3)
    with pytest.raises(PipelineError, match=r"expected arrays of one length, got lengths \[1, 2\]"):
        stats([1, 2], [4])


# Against brute force. The domains are small, so bounds and literals often meet.

DOMAINS = {
    "i": (pa.int32(), st.integers(-3, 3)),
    "j": (pa.int64(), st.integers(-3, 3)),
    "f": (pa.float64(), st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 2.5, math.inf, NAN])),
    "g": (pa.float32(), st.sampled_from([-1.0, -0.0, 0.0, 0.1, NAN])),
    "s": (pa.string(), st.sampled_from(["", "a", "aa", "ab", "b", "ba", "\u00e9"])),
    "c": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "ab", "b"])),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.date32(), st.integers(1, 4).map(lambda day: dt.date(2020, 1, day))),
    "t": (pa.timestamp("us"), st.integers(1, 4).map(lambda day: dt.datetime(2020, 1, day))),
}
SCHEMA = pa.schema([(name, arrow) for name, (arrow, _) in DOMAINS.items()])
PLAIN = {name: arrow.value_type if name == "c" else arrow for name, (arrow, _) in DOMAINS.items()}
OPERATORS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def _comparison(name):
    literals = {"d": DOMAINS["d"][1] | DOMAINS["t"][1], "i": DOMAINS["i"][1] | st.sampled_from([-0.5, 0.0, 2.5, 2**40])}
    value = literals.get(name, DOMAINS[name][1])
    compare = st.sampled_from(OPERATORS)
    forward = st.builds(lambda op, literal: op(pc.field(name), pc.scalar(literal)), compare, value)
    backward = st.builds(lambda op, literal: op(pc.scalar(literal), pc.field(name)), compare, value)
    null = st.builds(lambda op: op(pc.field(name), pa.scalar(None, PLAIN[name])), compare)
    return st.one_of(forward, forward, backward, null)


def _lookup(name):
    def build(members, skip_nulls):
        return pc.is_in(pc.field(name), value_set=pa.array(members, PLAIN[name]), skip_nulls=skip_nulls)

    return st.builds(build, st.lists(st.none() | DOMAINS[name][1], max_size=4), st.booleans())


def _null_test(name):
    return st.sampled_from([pc.field(name).is_null(), pc.field(name).is_valid()])


CASTS = st.builds(
    lambda column, op: op(column[0], column[1]),
    st.sampled_from(
        [
            (pc.field("i").cast(pa.int8()), pc.scalar(1)),
            (pc.field("i").cast(pa.float64()), pc.scalar(1.5)),
            (pc.field("f").cast(pa.float32()), pc.scalar(2.5)),
            (pc.field("g").cast(pa.float64()), pc.scalar(0.1)),
            (pc.field("d").cast(pa.timestamp("ms")), pc.scalar(dt.datetime(2020, 1, 2))),
            (pc.field("t").cast(pa.timestamp("s")), pc.scalar(dt.datetime(2020, 1, 2, 12))),
            (pc.field("c").cast(pa.string()), pc.scalar("ab")),
            (pc.field("i").cast(pa.string()), pc.scalar("1")),
        ]
    ),
    st.sampled_from(OPERATORS),
)
PAIRS = st.builds(
    lambda pair, op: op(pc.field(pair[0]), pc.field(pair[1])),
    st.sampled_from([("i", "j"), ("j", "i"), ("i", "f"), ("f", "g"), ("s", "c"), ("d", "t"), ("b", "b"), ("i", "i")]),
    st.sampled_from(OPERATORS),
)
OTHERS = st.sampled_from(
    [
        pc.field("b"),
        pc.scalar(True),
        pc.scalar(False),
        pc.scalar(pa.scalar(None, pa.bool_())),
        pc.is_nan(pc.field("f")),
        pc.is_null(pc.field("f"), nan_is_null=True),
        pc.field("i") + 1 > 1,
        pc.starts_with(pc.field("s"), pattern="a"),
        pc.is_null(pc.field("i") > 0),
        pc.is_valid(pc.field("b") & (pc.field("i") > 0)),
    ]
)


def _trees(leaves, max_leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(operator.inv), st.builds(operator.and_, inner, inner), st.builds(operator.or_, inner, inner)
        ),
        max_leaves=max_leaves,
    )


def _leaves(names):
    each = [leaf(name) for name in names for leaf in (_comparison, _comparison, _lookup, _null_test)]
    return st.one_of(each)


def _bounds(name, values, noise):
    """Returns a row group's bounds as in real files: no NaN, zeros of either sign, truncated strings, some missing."""
    known = [value for value in values if value is not None and value == value]
    if not known or noise.random() < 0.1:
        empty = NAN if name in "fg" and noise.random() < 0.5 else None
        return empty, empty
    low, high = min(known), max(known)
    if name in "fg":
        low, high = (noise.choice([0.0, -0.0]) if bound == 0 else bound for bound in (low, high))
    if name in "sc" and noise.random() < 0.5:
        low = low[:1]
        high = chr(ord(high[0]) + 1) if high else high
    return low, high


def _statistics(groups, name, noise):
    bounds = [_bounds(name, [row[name] for row in rows], noise) for rows in groups]
    nulls = [-1 if noise.random() < 0.1 else sum(row[name] is None for row in rows) for rows in groups]
    arrow = PLAIN[name]
    return ColumnStatistics(
        minimum=pa.array([low for low, _ in bounds], arrow),
        maximum=pa.array([high for _, high in bounds], arrow),
        null_count=np.array(nulls, np.int64),
        num_rows=np.array([len(rows) for rows in groups], np.int64),
        exact=name not in "fgsc",
    )


ROWS = st.fixed_dictionaries({name: st.none() | value for name, (_, value) in DOMAINS.items()})
# A group is a few rows, often with one value, where verdicts are decided.
GROUPS = st.lists(
    st.one_of(
        st.lists(ROWS, max_size=4),
        st.builds(lambda row, times: [row] * times, ROWS, st.integers(1, 3)),
        st.builds(lambda row, other: [row, {**other, **{k: v for k, v in row.items() if v is not None}}], ROWS, ROWS),
    ),
    min_size=1,
    max_size=6,
)


@examples(150)
@given(
    groups=GROUPS,
    expression=_trees(st.one_of(_leaves(DOMAINS), CASTS, PAIRS, OTHERS), max_leaves=6),
    noise=st.randoms(use_true_random=False),
)
def test_no_match_is_ruled_out_and_nothing_false_is_proven(groups, expression, noise) -> None:
    statistics = {name: _statistics(groups, name, noise) for name in DOMAINS if noise.random() < 0.95}
    found = prune(parse_expression(expression), statistics, len(groups))
    for rows, may_match, all_match in zip(groups, *_columns(found), strict=True):
        mask = row_mask(pa.Table.from_pylist(rows, schema=SCHEMA), expression)
        assert may_match or not mask.any()
        assert not all_match or (len(rows) > 0 and mask.all())


@examples(80)
@given(rows=st.lists(ROWS, min_size=1, max_size=6), expression=_trees(_leaves("ijbdt"), max_leaves=6))
def test_a_row_group_of_one_exact_value_is_always_decided(rows, expression) -> None:
    statistics = {
        name: stats(
            [row[name] for row in rows],
            [row[name] for row in rows],
            PLAIN[name],
            nulls=[int(row[name] is None) for row in rows],
            rows=1,
        )
        for name in "ijbdt"
    }
    found = prune(parse_expression(expression), statistics, len(rows))
    mask = row_mask(pa.Table.from_pylist(rows, schema=SCHEMA), expression)
    assert found.may_match.tolist() == found.all_match.tolist() == mask.tolist()
