"""Filters as tuples, in disjunctive normal form."""

from __future__ import annotations

import datetime as dt
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from processes import run_python

from parquetry.common.base.errors import PipelineError
from parquetry.common.stages.predicates.filter_tuples import as_expression, from_tuples
from parquetry.common.stages.predicates.row_mask import row_mask

pytestmark = pytest.mark.versions

a, b = pc.field("a"), pc.field("b")


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


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "Asia/Kathmandu"), pa.duration("ns")], ids=str)
def test_times_of_pandas_are_compared_to_the_nanosecond(kind: pa.DataType) -> None:
    pytest.importorskip("pandas")
    table = pa.table({"a": pa.array([1_499, 1_500, 1_501, 2_000], kind)})
    middle, whole = table.column("a")[1].as_py(), table.column("a")[3].as_py()
    assert type(middle).__module__.startswith("pandas")
    for condition, expected in (
        (("==", middle), [1]), (("<", middle), [0]), ((">=", middle), [1, 2, 3]),
        (("in", [whole, middle]), [1, 3]), (("not in", (middle,)), [0, 2, 3]), (("==", whole), [3]),
    ):  # fmt: skip
        assert np.flatnonzero(row_mask(table, from_tuples(("a", *condition)))).tolist() == expected


@pytest.mark.slow
def test_a_set_gives_one_expression_in_every_process() -> None:
    script = (
        "from parquetry.common.stages.predicates.expression import expression_to_json;"
        "from parquetry.common.stages.predicates.filter_tuples import from_tuples;"
        "print(expression_to_json(from_tuples(('a', 'in', set('abcdefgh')))))"
    )
    runs = [
        run_python("-c", script, env={**os.environ, "PYTHONHASHSEED": seed}, check=True).stdout for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_thousands_of_groups_do_not_nest_deeply() -> None:
    expression = from_tuples([[("a", "==", value)] for value in range(2000)])
    assert row_mask(pa.table({"a": [1999, 2000, 0]}), expression).tolist() == [True, False, True]


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
        (("a", "==", "\ud800"), "a value that Arrow can hold"),
        (("a", "in", ["\ud800"]), "a value that Arrow can hold"),
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
