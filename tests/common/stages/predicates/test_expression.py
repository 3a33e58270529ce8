"""Predicates: the tree, the columns, and the stored forms."""

from __future__ import annotations

import datetime as dt
import decimal
import operator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.base.errors import FieldNotFoundError, PipelineError
from parquetry.common.stages.predicates.expression import (
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

pytestmark = pytest.mark.versions

a, b = pc.field("a"), pc.field("b")


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
def test_expressions_that_cannot_be_inspected_are_opaque(expression: pc.Expression) -> None:
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


@given(st.text(min_size=1, max_size=120), st.booleans())
def test_text_that_arrow_cuts_inside_a_character_is_shown(text: str, inside: bool) -> None:
    expression = pc.field("t").isin([text]) if inside else pc.field("t") == text
    assert "t" in expression_text(expression)
    long = pc.field("t").isin(["\u8a9e" * length for length in range(30, 60)])
    assert expression_text(long).startswith("is_in(")
