"""Row sets in parts, which combine into the selection of one process, and rows as ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.plan.selection.rows import RowNumbers, RowSet, all_rows, rows_inside


def row_set(wanted: list[tuple[int, set[int]]]) -> RowSet:
    """Returns the selected rows of row groups, each given as (row count, selected rows)."""
    base = all_rows(np.array([rows for rows, _ in wanted], dtype=np.int64))
    chosen = {
        row_group: np.array(sorted(row for row in rows if row < count), dtype=np.int64)
        for row_group, (count, rows) in enumerate(wanted)
    }
    return base.replace(chosen)


def listed(rows: RowSet) -> list[list[int]]:
    return [rows.of(row_group).tolist() for row_group in range(len(rows.whole))]


GROUPS = st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 4))), min_size=1, max_size=8)


@given(groups=GROUPS, data=st.data())
def test_some_row_groups_keep_their_rows(groups: list[tuple[int, set[int]]], data: st.DataObject) -> None:
    row_groups = data.draw(st.lists(st.integers(0, len(groups) - 1), min_size=1, unique=True).map(sorted))
    whole = row_set(groups)
    assert listed(whole.row_groups(np.array(row_groups))) == [listed(whole)[row_group] for row_group in row_groups]


def test_row_groups_that_are_selected_whole_have_a_range_of_rows() -> None:
    rows = all_rows(np.array([3, 5])).replace({1: np.array([1, 4])})
    assert rows.numbers(0) == range(3)
    assert np.asarray(rows.numbers(1)).tolist() == rows.of(1).tolist() == [1, 4]


PARTS: list[RowNumbers] = [range(2, 4), range(0), range(7, 8)]


@pytest.mark.parametrize("parts", [PARTS, [*PARTS, np.array([1, 5])], [np.array([2, 9])]])
def test_rows_inside_are_the_parts_end_to_end(parts: list[RowNumbers]) -> None:
    joined = [row for part in parts for row in part]
    places = np.arange(len(joined))[::-1]
    assert rows_inside(parts, places).tolist() == joined[::-1]
