"""The rows for which an expression is true."""

from __future__ import annotations

import datetime as dt
import math
import operator
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cases import every_case
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.base.errors import PipelineError
from parquetry.common.stages.predicates import row_mask as row_masks
from parquetry.common.stages.predicates.expression import (
    expression_from_json,
    expression_to_json,
)
from parquetry.common.stages.predicates.filter_tuples import from_tuples
from parquetry.common.stages.predicates.row_mask import row_mask

pytestmark = pytest.mark.versions

a, b = pc.field("a"), pc.field("b")


def mask(table: pa.Table, expression: pc.Expression) -> list[bool]:
    result = row_mask(table, expression)
    assert result.dtype == np.bool_
    return result.tolist()


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


@every_case("rows", [0, 2])
@every_case("expression", [a == "x", a, a + 1, pc.field("b") & (a > 1)], ids=str)
def test_a_predicate_that_does_not_fit_the_types_is_refused_with_them(expression: pc.Expression, rows: int) -> None:
    table = pa.table({"a": [1, 2], "b": [1, 2]}).slice(0, rows)
    with pytest.raises(PipelineError, match=r"^predicate '.*a.*' for columns .*a: int64.*cast the column"):
        row_mask(table, expression)


# The mask against plain Python: a case is an expression and a function of a row with the values True, False and None.


def half(value: float) -> float:
    """Rounds a number to float16."""
    return float(np.float16(value))


ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-3, 3),
        "f": st.none() | st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 2.5, math.inf, math.nan]),
        "s": st.none() | st.sampled_from(["", "a", "ab", "b", "\u00e9"]),
        "b": st.none() | st.booleans(),
        "u": st.none() | st.sampled_from([0, 3, 2**63 - 1, 2**63, 2**64 - 1]),
        "h": st.none() | st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 2**-24, 0.1, 2.5, 65504.0, math.nan]).map(half),
    }
)


TYPES = pa.schema(
    [
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("u", pa.uint64()),
        ("h", pa.float16()),
    ]
)


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
    members = stored(values) if name == "h" else pa.array(values, TYPES.field(name).type)
    return pc.field(name).isin(members), lambda row: row[name] in values


def stored(halves):
    """Returns an array of float16. Older releases of pyarrow take no plain floats for it."""
    return pa.array([None if value is None else np.float16(value) for value in halves], pa.float16())


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
    st.builds(compare, st.just("h"), st.sampled_from(OPERATORS), st.sampled_from([0.1, 1, 2.5, -1.5, 2**-24, 70_000])),
    st.builds(from_tuple, st.just("h"), st.sampled_from(OPERATORS), st.sampled_from([0.1, 1, np.float16(2.5)])),
    st.builds(is_in, st.just("h"), st.lists(st.none() | st.sampled_from([0.0, 2.5, -1.5]), max_size=3)),
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
def test_the_mask_equals_a_list_comprehension(rows, case) -> None:
    expression, value = case
    *others, _ = TYPES
    table = pa.Table.from_pylist(rows, schema=pa.schema(others))
    table = table.append_column("h", stored([row["h"] for row in rows]))
    assert mask(table, expression) == [value(row) is True for row in rows]


@every_case("count", [0, 1, 6, 7, 20])
def test_a_mask_made_in_parts_equals_the_mask_of_all_rows(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None if number % 5 == 0 else number for number in range(count)]
    monkeypatch.setattr(row_masks, "_ROWS_AT_ONCE", 3)
    found = row_mask(pa.table({"a": pa.array(values, pa.int64())}), pc.field("a") > 4)
    assert found.dtype == np.bool_
    assert found.tolist() == [value is not None and value > 4 for value in values]


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


@every_case(
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


@every_case("kind", [pa.string(), pa.large_string()])
@every_case(
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


@every_case("first", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@every_case("second", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.large_string())])
def test_texts_of_different_types_are_joined(first: pa.DataType, second: pa.DataType) -> None:
    def column(kind: pa.DataType, *values: str | None) -> pa.Array:
        plain = pa.array(values, kind.value_type if pa.types.is_dictionary(kind) else kind)
        return plain.cast(kind)

    table = pa.table({"x": column(first, "a", None, "c"), "y": column(second, "d", "e", "f")})
    for expression, rows in (
        (pc.binary_join_element_wise(pc.field("x"), pc.field("y"), "-") == "c-f", [2]),
        (pc.binary_join_element_wise(pc.field("x"), pc.field("y"), "-").isin(["a-d", "x"]), [0]),
        (pc.binary_join_element_wise(pc.field("x"), "-", null_handling="replace", null_replacement="?") == "?", [1]),
        (pc.match_substring(pc.binary_join_element_wise(pc.scalar("<"), pc.field("y"), ""), "<e"), [1]),
    ):
        assert np.flatnonzero(row_mask(table, expression)).tolist() == rows


@every_case("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
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
