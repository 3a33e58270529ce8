"""A predicate has one meaning, whether a partition's value, statistics, or the rows themselves decide it."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import directory
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import EmptySelectionError

pytestmark = pytest.mark.versions

Truth = bool | None
Model = Callable[[Any], Truth]
NAN = float("nan")
DAY = datetime.date(2020, 1, 1)

# name: (Arrow type, dtype of the field, values; None is null)
KINDS: dict[str, tuple[pa.DataType, Any, list[Any]]] = {
    "int": (pa.int32(), np.int32, [-3, 0, 2, 7]),
    "unsigned": (pa.uint64(), np.uint64, [0, 1, 2**63 + 5, 2**64 - 1]),
    "double": (pa.float64(), np.float64, [-1.5, -0.0, 0.0, 2.5, float("inf"), NAN]),
    "float": (pa.float32(), np.float32, [-1.5, 0.0, 2.5, NAN]),
    "bool": (pa.bool_(), np.bool_, [False, True]),
    "text": (pa.string(), str, ["a", "ab", "b", "é"]),
    "date": (pa.date32(), "datetime64[D]", [DAY, DAY + datetime.timedelta(3), DAY - datetime.timedelta(9)]),
    "decimal": (pa.decimal128(9, 2), Decimal, [Decimal("1.50"), Decimal("-2.25"), Decimal(0)]),
}
COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def predicates(kind: str) -> st.SearchStrategy[tuple[pc.Expression, Model]]:
    """Expressions on ``v``, each with its meaning in Kleene's logic: a comparison with null is null."""
    arrow, _, values = KINDS[kind]
    literals = [value for value in values if not is_nan(value)]

    def compared(drawn: tuple[str, Any]) -> tuple[pc.Expression, Model]:
        name, literal = drawn
        scalar = pa.scalar(literal, arrow)
        return (
            COMPARE[name](pc.field("v"), scalar),
            lambda value: None if value is None else bool(COMPARE[name](value, literal)),
        )

    def member(chosen: list[Any]) -> tuple[pc.Expression, Model]:
        # Arrow looks up members by their bits, which differ between the zeros.
        return pc.field("v").isin(pa.array(chosen, arrow)), lambda value: value is not None and value in chosen

    whole = [value for value in literals if value != 0.0 or arrow not in (pa.float64(), pa.float32())]
    leaves = st.one_of(
        st.tuples(st.sampled_from(sorted(COMPARE)), st.sampled_from(literals)).map(compared),
        st.lists(st.sampled_from(whole), min_size=1, max_size=3).map(member),
        st.just((pc.field("v").is_null(), lambda value: value is None)),
        st.just((pc.field("v").is_valid(), lambda value: value is not None)),
        st.just((pc.field("v").is_null(nan_is_null=True), lambda value: value is None or is_nan(value))),
    )

    def joined(inner: st.SearchStrategy[tuple[pc.Expression, Model]]) -> st.SearchStrategy[Any]:
        return st.one_of(
            inner.map(lambda one: (~one[0], lambda value: _not(one[1](value)))),
            st.tuples(inner, inner).map(
                lambda two: (two[0][0] & two[1][0], lambda value: _and(two[0][1](value), two[1][1](value)))
            ),
            st.tuples(inner, inner).map(
                lambda two: (two[0][0] | two[1][0], lambda value: _not(_and(_not(two[0][1](value)), _not(two[1][1](value)))))
            ),
        )  # fmt: skip

    return st.recursive(leaves, joined, max_leaves=4)


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _and(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def kept(url: Path, expression: pc.Expression) -> list[int]:
    try:
        return sorted(int(row["id"]) for row in Pipeline(url, ["id"], executor="threads", workers=1).where(expression))
    except EmptySelectionError:
        return []


@pytest.mark.parametrize("kind", KINDS)
@examples(12)
@given(st.data())
def test_partitions_statistics_and_rows_decide_alike(kind: str, data: st.DataObject) -> None:
    arrow, dtype, possible = KINDS[kind]
    values = data.draw(st.lists(st.sampled_from([*possible, None]), min_size=1, max_size=8), "values")
    expression, model = data.draw(predicates(kind), "predicate")
    expected = [number for number, value in enumerate(values) if model(value) is True]
    column = pa.array(values, arrow)
    table = pa.table({"id": pa.array(range(len(values))), "v": column})
    size = data.draw(st.integers(1, 3), "rows of a row group")
    with directory() as root:
        for name, options in {
            "statistics": {"row_group_size": size},
            "rows": {"row_group_size": size, "write_statistics": False},
        }.items():
            (root / name).mkdir()
            pq.write_table(table, root / name / "a.parquet", **options)
            assert kept(root / name, expression) == expected, name
        if kind in ("int", "unsigned", "text", "date", "bool"):  # valid as a directory name
            schema = Unischema("rows", [UnischemaField("id", np.int64), UnischemaField("v", dtype, nullable=True)])
            rows = [{"id": number, "v": value} for number, value in enumerate(values)]
            write_dataset(root / "partitions", schema, rows, partition_by=("v",))
            assert kept(root / "partitions", expression) == expected, "partitions"


def test_a_row_of_nan_is_kept_by_a_negation_and_a_row_of_null_is_not(tmp_path: Path) -> None:
    table = pa.table({"id": range(4), "v": [1.0, NAN, None, 3.0]})
    for name, options in {"a": {"row_group_size": 1}, "b": {}, "c": {"write_statistics": False}}.items():
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "x.parquet", **options)
        assert kept(tmp_path / name, ~(pc.field("v") > 2)) == [0, 1]
        assert kept(tmp_path / name, pc.field("v") > 2) == [3]
        assert kept(tmp_path / name, pc.field("v").is_null()) == [2]
