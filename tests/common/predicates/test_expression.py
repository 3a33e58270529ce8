"""Predicates: the tree, the columns, DNF tuples, the stored forms, and the mask against plain Python."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
import os
import subprocess
import sys
import uuid
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.errors import FieldNotFoundError, PipelineError
from parquetry.common.predicates import expression as expressions
from parquetry.common.predicates.expression import (
    Call,
    FieldRef,
    Literal,
    Opaque,
    expression_from_json,
    expression_key,
    expression_text,
    expression_to_json,
    field_names,
    parse_expression,
)
from parquetry.common.predicates.filter_tuples import as_expression, from_tuples
from parquetry.common.predicates.row_mask import row_mask

a, b = pc.field("a"), pc.field("b")


def mask(table: pa.Table, expression: pc.Expression) -> list[bool]:
    result = row_mask(table, expression)
    assert result.dtype == np.bool_
    return result.tolist()


# The tree


def test_a_comparison_is_a_call_of_a_field_and_a_literal() -> None:
    assert parse_expression(a > 3) == Call("greater", (FieldRef(("a",)), Literal(pa.scalar(3))))


def test_repeated_kinds_of_nodes_all_survive() -> None:
    node = parse_expression((a == 1) & (b == 2))
    assert node == Call(
        "and_kleene",
        (
            Call("equal", (FieldRef(("a",)), Literal(pa.scalar(1)))),
            Call("equal", (FieldRef(("b",)), Literal(pa.scalar(2)))),
        ),
    )


def test_a_nested_reference_has_a_path_and_a_dotted_name() -> None:
    node = parse_expression(pc.field("a", "b").is_null())
    assert isinstance(node, Call)
    assert node.args == (FieldRef(("a", "b")),)
    assert node.args[0].name == "a.b"


def test_options_belong_to_their_own_call() -> None:
    node = parse_expression(a.isin([1, None]) & pc.is_null(b, nan_is_null=True))
    assert isinstance(node, Call)
    is_in, is_null = node.args
    assert isinstance(is_in, Call)
    assert isinstance(is_null, Call)
    assert is_in.option("value_set").as_py() == [1, None]
    assert is_in.option("null_matching_behavior").as_py() == 0
    assert is_in.option("nan_is_null") is None
    assert is_null.option("nan_is_null").as_py() is True


def test_the_target_of_a_cast_is_an_option() -> None:
    node = parse_expression(a.cast(pa.timestamp("us", "UTC")))
    assert isinstance(node, Call)
    assert node.option("to_type").type == pa.timestamp("us", "UTC")


def test_a_literal_alone_and_a_field_alone_are_trees() -> None:
    assert parse_expression(pc.scalar(True)) == Literal(pa.scalar(True))
    assert parse_expression(a) == FieldRef(("a",))


def test_a_long_chain_is_one_call_of_many_arguments() -> None:
    node = parse_expression(reduce(operator.or_, [value == a for value in range(2000)]))
    assert isinstance(node, Call)
    assert node.name == "or_kleene"
    assert [arg.args[1].value.as_py() for arg in node.args] == list(range(2000))


@pytest.mark.parametrize("expression", [pc.field(0) > 1, reduce(lambda e, _: ~e, range(400), a)])
def test_what_cannot_be_looked_into_is_opaque(expression: pc.Expression) -> None:
    node = parse_expression(expression)
    assert isinstance(node, Opaque)
    assert node.expression is expression


# The columns


def test_field_names_are_each_named_once_in_reading_order() -> None:
    expression = (b > 1) | ((a == 2) & (pc.field("n", "x") < b))
    assert field_names(expression, ["a", "b", "c", "n.x"]) == ("b", "a", "n.x")
    assert field_names(parse_expression(expression), ["a", "b", "c", "n.x"]) == ("b", "a", "n.x")
    assert field_names(pc.scalar(True), ["a"]) == ()


def test_an_unknown_column_is_refused_with_the_known_names() -> None:
    with pytest.raises(FieldNotFoundError, match=r"field 'n\.x'.*Fields are: a, n"):
        field_names(pc.field("n", "x") == 1, ["n", "a"])


def test_the_columns_of_an_opaque_expression_are_refused_with_a_remedy() -> None:
    with pytest.raises(PipelineError, match="Refer to columns by name"):
        field_names(pc.field(0) > 1, ["a"])


# DNF tuples


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (("a", "==", 1), a == 1),
        (["a", "==", 1], a == 1),
        ([("a", "=", 1)], a == 1),
        ([("a", "!=", 1), ("b", "<", "x")], (a != 1) & (b < "x")),
        ([[("a", ">", 1)], [("a", "<=", 0), ("b", ">=", 2)]], (a > 1) | ((a <= 0) & (b >= 2))),
        ([("a", "in", [1, 2])], a.isin([1, 2])),
        ([("a", "not in", (1, 2))], ~a.isin([1, 2])),
        ([("a", "in", [np.datetime64("2020-01-01")])], a.isin([dt.date(2020, 1, 1)])),
        ([("a", "in", np.array([1, 2]))], a.isin([1, 2])),
        ([("a", "in", pa.chunked_array([[1], [2]]))], a.isin([1, 2])),
        ([("a", "in", [1, 2**63])], a.isin(pa.array([1, 2**63], pa.uint64()))),
        ([("a", ">", 2**63)], a > pa.scalar(2**63, pa.uint64())),
        ([("a", "==", np.float32(1))], pa.scalar(1, pa.float32()) == a),
        ([("a", "==", np.datetime64("2020-01-01"))], dt.date(2020, 1, 1) == a),
    ],
)
def test_tuples_mean_what_pyarrow_says(filters: object, expected: pc.Expression) -> None:
    assert from_tuples(filters).equals(expected)


def test_a_set_gives_one_expression_in_every_process() -> None:
    script = (
        "from parquetry.common.predicates.expression import *;"
        "print(expression_to_json(from_tuples(('a', 'in', set('abcdefgh')))))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_thousands_of_groups_do_not_nest_deeply() -> None:
    expression = from_tuples([[("a", "==", value)] for value in range(2000)])
    assert mask(pa.table({"a": [1999, 2000, 0]}), expression) == [True, False, True]


@pytest.mark.parametrize(
    ("filters", "rule"),
    [
        (None, "expected an expression such as"),
        ("a", "expected an expression such as"),
        ([], "expected an expression such as"),
        ([[]], "expected an expression such as"),
        ([1], "expected an expression such as"),
        (("a",), "expected \\('field', op, value\\)"),
        (("a", "==", 1, 2), "expected \\('field', op, value\\)"),
        ([("a", "==", 1), [("b", "==", 1)]], "expected \\('field', op, value\\)"),
        (("a", "~", 1), "expected one of the operators"),
        (("a", ["=="], 1), "expected"),
        (("a", "in", "xyz"), "expected a list, tuple, set or array"),
        (("a", "==", None), "is_null"),
        (("a", "==", object()), "a value that Arrow can hold"),
        (("a", "==", 2**70), "a value that Arrow can hold"),
        (("a", "in", [1, "x"]), "a value that Arrow can hold"),
    ],
)
def test_malformed_tuples_are_refused_with_the_form(filters: object, rule: str) -> None:
    with pytest.raises(PipelineError, match=rule) as caught:
        from_tuples(filters)
    assert "Write ('field', op, value)" in str(caught.value)


def test_as_expression_takes_expressions_and_tuples() -> None:
    expression = a > 1
    assert as_expression(expression) is expression
    assert as_expression(("a", ">", 1)).equals(expression)
    with pytest.raises(PipelineError, match="or tuples, got 3"):
        as_expression(3)


# The stored forms

EXPRESSIONS = [
    a > 3,
    a > pa.scalar(3, pa.int8()),
    a > 3.0,
    a >= 3,
    pc.scalar(3) > a,
    b > 3,
    pc.field("a", "b") > 3,
    a == "3",
    a == b"3",
    a == float("nan"),
    a == dt.date(2020, 1, 1),
    a == dt.datetime(2020, 1, 1),
    a == pa.scalar(1_577_836_800_000_000_001, pa.timestamp("ns")),
    a == pa.scalar(1_577_836_800_000_000_001, pa.timestamp("ns", "UTC")),
    a == dt.timedelta(1),
    a == dt.time(1),
    a == decimal.Decimal("1.50"),
    pa.scalar([1, None]) == a,
    pa.scalar({"x": 1}) == a,
    pa.scalar("x").cast(pa.dictionary(pa.int8(), pa.string())) == a,
    a.isin([1, 2]),
    a.isin([1, 2, None]),
    pc.is_in(a, value_set=pa.array([1, 2]), skip_nulls=True),
    a.cast(pa.int8()) == 1,
    a.cast(pa.int16()) == 1,
    a.is_null(),
    a.is_null(nan_is_null=True),
    a.is_valid(),
    (a > 3) & (b > 3),
    (a > 3) | (b > 3),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_json_gives_the_same_expression_back(expression: pc.Expression) -> None:
    assert expression_from_json(expression_to_json(expression)).equals(expression)


def test_different_expressions_have_different_keys() -> None:
    keys = [expression_key(expression) for expression in EXPRESSIONS]
    assert len(set(keys)) == len(EXPRESSIONS)


def test_equal_expressions_have_equal_keys() -> None:
    again = [expression_from_json(expression_to_json(expression)) for expression in EXPRESSIONS]
    assert [expression_key(expression) for expression in again] == [expression_key(e) for e in EXPRESSIONS]
    assert expression_key((a > 1) & ((b > 1) & (a < 9))) == expression_key(((a > 1) & (b > 1)) & (a < 9))
    assert expression_key(a.isin([2, 1])) == expression_key(a.isin([1, 2]))
    assert expression_key(pc.field("a", "b") > 1) == expression_key(pc.field("a.b") > 1)


def test_an_expression_too_deep_to_read_still_has_a_json_form_and_a_key() -> None:
    deep = reduce(lambda e, _: ~e, range(400), a > 1)
    assert expression_from_json(expression_to_json(deep)).equals(deep)
    assert expression_key(deep) != expression_key(~deep)


@pytest.mark.parametrize("function", [expression_to_json, expression_key])
def test_an_expression_without_a_stored_form_is_refused(function: object) -> None:
    with pytest.raises(PipelineError, match="Refer to columns by name"):
        function(pc.field(0) > 1)  # type: ignore[operator]


@pytest.mark.parametrize("text", ["", "?", "AAAA", "\u00e9"])
def test_damaged_stored_text_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="reading a stored predicate"):
        expression_from_json(text)


# The mask


def test_a_null_is_not_true_and_neither_is_its_negation() -> None:
    table = pa.table({"a": [1, 5, None]})
    assert mask(table, a > 3) == [False, True, False]
    assert mask(table, ~(a > 3)) == [True, False, False]
    assert mask(table, a.is_null()) == [False, False, True]


def test_nested_references_read_dotted_columns() -> None:
    table = pa.table({"n.x": ["p", None, "q"], "n.y.z": [1, 2, 3], "unused": [0, 0, 0]})
    expression = (pc.field("n", "x") == "p") | (pc.field("n", "y", "z") == 3)
    assert mask(table, expression) == [True, False, True]
    assert mask(table, pc.field("n", "x").is_null() & (pc.field("n.y.z") == 2)) == [False, True, False]
    assert mask(table.slice(0, 0), expression) == []


def test_a_column_inside_another_is_refused() -> None:
    table = pa.table({"n": [1], "n.x": [2]})
    assert mask(table, (pc.field("n") == 1) & (pc.field("n.x") == 2)) == [True]
    for expression in (
        (pc.field("n") == 1) & (pc.field("n", "x") == 2),
        (pc.field("n", "x") == 2) & (pc.field("n") == 1),
    ):
        with pytest.raises(PipelineError, match=r"expected either a column or the struct around it.*pc\.field\('n"):
            row_mask(table, expression)


def test_chunks_of_different_length_keep_their_rows() -> None:
    table = pa.table(
        {
            "a": pa.chunked_array([[1, 2], [3], [], [4, 5, 6]], pa.int64()),
            "n.x": pa.chunked_array([[1], [2, 3, 4], [5, 6]]),
        }
    )
    assert mask(table, (a > 2) & (pc.field("n", "x") < 6)) == [False, False, True, True, True, False]


def test_dictionary_columns_compare_by_value_also_when_chunks_have_their_own_dictionaries() -> None:
    column = pa.chunked_array(
        [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "b", None]).dictionary_encode()]
    )
    table = pa.table({"a": column})
    assert mask(table, a == "b") == [False, True, False, True, False]
    assert mask(table, a.isin(["c"])) == [False, False, True, False, False]


def test_literals_are_cast_to_the_column_where_arrow_does() -> None:
    assert mask(pa.table({"a": pa.array([1, 2], pa.int8())}), a < 1.5) == [True, False]
    assert mask(pa.table({"a": pa.array([1, 2], pa.int8())}), a == 2**40) == [False, False]
    assert mask(pa.table({"a": pa.array([0], pa.timestamp("ns"))}), a == dt.date(1970, 1, 1)) == [True]


def test_an_expression_of_literals_alone_holds_for_all_rows_or_none() -> None:
    table = pa.table({"a": [1, 2]})
    assert mask(table, pc.scalar(True)) == [True, True]
    assert mask(table, pc.scalar(1) > 2) == [False, False]


def test_an_opaque_expression_is_evaluated_all_the_same() -> None:
    assert mask(pa.table({"a": [1, 2]}), pc.field(0) > 1) == [False, True]


def test_a_column_called_like_the_row_number_is_only_a_column() -> None:
    assert mask(pa.table({"#": [1, 0], "##": [1, 1]}), (pc.field("#") == 0) & (pc.field("##") == 1)) == [False, True]


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("expression", [a == "x", a, a + 1, pc.field("b") & (a > 1)], ids=str)
def test_a_predicate_that_does_not_fit_the_types_is_refused_with_them(expression: pc.Expression, rows: int) -> None:
    table = pa.table({"a": [1, 2], "b": [1, 2]}).slice(0, rows)
    with pytest.raises(PipelineError, match=r"^predicate '.*a.*' for columns .*a: int64.*cast the column"):
        row_mask(table, expression)


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(FieldNotFoundError, match=r"field 'b'.*Fields are: a"):
        row_mask(pa.table({"a": [1]}), b > 1)


# The mask against plain Python: a case is an expression and a function of a row with the values True, False and None.

ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-3, 3),
        "f": st.none() | st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 2.5, math.inf, math.nan]),
        "s": st.none() | st.sampled_from(["", "a", "ab", "b", "\u00e9"]),
        "b": st.none() | st.booleans(),
        "u": st.none() | st.sampled_from([0, 3, 2**63 - 1, 2**63, 2**64 - 1]),
    }
)
TYPES = pa.schema([("i", pa.int32()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_()), ("u", pa.uint64())])
SIGNS = {
    operator.eq: "=",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
OPERATORS = list(SIGNS)


def compare(name, apply, value):
    return apply(pc.field(name), value), lambda row: None if row[name] is None else apply(row[name], value)


def is_in(name, values):
    return pc.field(name).isin(pa.array(values, TYPES.field(name).type)), lambda row: row[name] in values


def from_tuple(name, apply, value):
    return from_tuples((name, SIGNS[apply], value)), lambda row: None if row[name] is None else apply(row[name], value)


def is_null(name):
    return pc.field(name).is_null(), lambda row: row[name] is None


def flag():
    return pc.field("b"), lambda row: row["b"]


def negation(case):
    expression, value = case
    return ~expression, lambda row: None if value(row) is None else not value(row)


def conjunction(cases):
    (a, left), (b, right) = cases

    def value(row):
        both = (left(row), right(row))
        return False if False in both else None if None in both else True

    return a & b, value


def disjunction(cases):
    (a, left), (b, right) = cases

    def value(row):
        both = (left(row), right(row))
        return True if True in both else None if None in both else False

    return a | b, value


LEAVES = st.one_of(
    st.builds(compare, st.just("i"), st.sampled_from(OPERATORS), st.integers(-3, 3) | st.sampled_from([-0.5, 2.5])),
    st.builds(compare, st.just("f"), st.sampled_from(OPERATORS), st.sampled_from([-1.0, 0.0, -0.0, 2.5, math.nan, 2])),
    st.builds(compare, st.just("s"), st.sampled_from(OPERATORS), st.sampled_from(["", "a", "aa", "b"])),
    st.builds(compare, st.just("b"), st.sampled_from(OPERATORS[:2]), st.booleans()),
    st.builds(is_in, st.just("i"), st.lists(st.none() | st.integers(-3, 3), max_size=3)),
    st.builds(is_in, st.just("s"), st.lists(st.none() | st.sampled_from(["", "a", "b"]), max_size=3)),
    st.builds(
        from_tuple, st.just("u"), st.sampled_from(OPERATORS), st.sampled_from([0, 2, 2**63 - 1, 2**63, 2**64 - 1])
    ),
    st.builds(is_in, st.just("u"), st.lists(st.none() | st.sampled_from([0, 3, 2**63]), max_size=3)),
    st.builds(is_null, st.sampled_from(TYPES.names)),
    st.builds(flag),
)
CASES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(negation), st.tuples(inner, inner).map(conjunction), st.tuples(inner, inner).map(disjunction)
    ),
    max_leaves=6,
)


@examples(150)
@given(rows=st.lists(ROWS, max_size=8), case=CASES)
def test_the_mask_is_what_a_list_comprehension_gives(rows, case) -> None:
    expression, value = case
    table = pa.Table.from_pylist(rows, schema=TYPES)
    assert mask(table, expression) == [value(row) is True for row in rows]


@pytest.mark.parametrize("count", [0, 1, 6, 7, 20])
def test_a_mask_made_in_parts_is_that_of_all_rows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None if number % 5 == 0 else number for number in range(count)]
    monkeypatch.setattr(expressions, "_ROWS_AT_ONCE", 3)
    found = row_mask(pa.table({"a": pa.array(values, pa.int64())}), pc.field("a") > 4)
    assert found.dtype == np.bool_
    assert found.tolist() == [value is not None and value > 4 for value in values]


@given(st.text(min_size=1, max_size=120), st.booleans())
def test_text_that_arrow_cuts_inside_a_character_is_shown(text: str, inside: bool) -> None:
    expression = pc.field("t").isin([text]) if inside else pc.field("t") == text
    assert "t" in expression_text(expression)
    long = pc.field("t").isin(["\u8a9e" * length for length in range(30, 60)])
    assert expression_text(long).startswith("is_in(")


_UUIDS = [uuid.UUID(int=number << 64 | 5) for number in range(3)]
_UUID_BYTES = pa.array([*(value.bytes for value in _UUIDS), None], pa.binary(16))
_EXTENDED = pa.table(
    {
        "u": pa.ExtensionArray.from_storage(pa.uuid(), _UUID_BYTES),
        "s.u": pa.ExtensionArray.from_storage(pa.uuid(), _UUID_BYTES),
        "b": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 1], pa.int8())),
        "o": pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "kind", "vendor"), pa.array(["1", "2", "1", None])),
        "n": [1, 2, 3, 4],
    }
)
_SECOND = pa.ExtensionArray.from_storage(pa.uuid(), _UUID_BYTES[1:2])


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        (pc.field("u") == _UUIDS[1].bytes, [1]),
        (pc.field("s", "u") == _UUIDS[1].bytes, [1]),
        (pc.field("u").isin(_SECOND), [1]),
        (pc.field("u").isin([_UUIDS[0].bytes, _UUIDS[2].bytes]), [0, 2]),
        (pc.field("u").is_null(), [3]),
        (from_tuples(("u", "==", _UUIDS[2].bytes)), [2]),
        (pc.field("b") == 1, [1, 3]),
        (pc.field("b") == True, [1, 3]),  # noqa: E712  # an expression
        (pc.field("b"), [1, 3]),
        (~pc.field("b"), [0]),
        (pc.field("b").isin([True]), [1, 3]),
        (pc.field("b").isin([2]), []),
        (pc.field("b").isin([1, 2]), [1, 3]),
        (from_tuples(("u", "==", _UUIDS[2])), [2]),
        (pc.field("b") & (pc.field("n") == 2), [1]),
        ((pc.field("o") == "1") & (pc.field("n") > 1), [2]),
    ],
)
def test_extension_columns_are_compared_by_what_they_store(expression: pc.Expression, rows: list[int]) -> None:
    assert np.flatnonzero(row_mask(_EXTENDED, expression)).tolist() == rows


def test_a_literal_of_an_extension_type_is_compared_or_refused_with_what_to_write() -> None:
    expression = pc.field("u") != _SECOND[0]
    if pa.__version__.startswith("18."):
        with pytest.raises(PipelineError, match="such as the bytes of a UUID"):
            expression_to_json(expression)
        return
    stored = expression_from_json(expression_to_json(expression))
    assert np.flatnonzero(row_mask(_EXTENDED, stored)).tolist() == [0, 2]


def test_a_literal_that_does_not_fit_an_extension_column_is_refused_with_the_stored_type() -> None:
    with pytest.raises(PipelineError, match=r"for columns u: fixed_size_binary\[16\]: expected literals"):
        row_mask(_EXTENDED, pc.field("u") == 3)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        (pc.starts_with(pc.field("d"), "ap"), [0, 3]),
        (pc.match_substring(pc.field("d"), "ea"), [2]),
        (pc.match_like(pc.field("d"), "%r"), [2]),
        (pc.utf8_length(pc.field("d")) > 4, [0, 3]),
        (pc.starts_with(pc.field("d"), "ap") & pc.field("d").isin(["apple"]) & (pc.field("d") != "b"), [0, 3]),
        (pc.starts_with(pc.field("s", "d"), "b"), [2]),
        (pc.field("d") == pa.scalar("bear", pa.string_view()), [2]),
    ],
)
def test_functions_without_a_form_for_dictionaries_see_their_values(
    kind: pa.DataType, expression: pc.Expression, rows: list[int]
) -> None:
    column = pa.chunked_array([["apple", None], [], ["bear", "apple"]], kind).dictionary_encode()
    assert np.flatnonzero(row_mask(pa.table({"d": column, "s.d": column}), expression)).tolist() == rows


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_literals_of_views_are_compared_with_plain_columns(kind: pa.DataType) -> None:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    view = pa.string_view() if is_text else pa.binary_view()
    first, second = pa.array(["a", "b"]).cast(pa.string() if is_text else pa.binary()).cast(view)
    table = pa.table({"x": pa.array(["a", None, "b"]).cast(pa.string() if is_text else pa.binary()).cast(kind)})
    for expression, rows in (
        (pc.field("x") == first, [0]),
        (pc.field("x") < second, [0]),
        (pc.field("x").isin(pa.array([second.as_py()], view)), [2]),
    ):
        stored = expression_from_json(expression_to_json(expression))
        assert np.flatnonzero(row_mask(table, stored)).tolist() == rows
