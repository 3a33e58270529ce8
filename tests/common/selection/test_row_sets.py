"""Row sets in parts: executors' selections combine into the selection of one process."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.selection.rows import RowSet, all_rows, concat_row_sets


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


@given(groups=GROUPS, cut=st.integers(0, 8))
def test_parts_of_a_row_set_put_together_are_the_row_set(groups: list[tuple[int, set[int]]], cut: int) -> None:
    whole = row_set(groups)
    row_groups = np.arange(len(groups))
    parts = [whole.row_groups(part) for part in (row_groups[:cut], row_groups[cut:]) if len(part)]
    again = concat_row_sets(parts)
    assert listed(again) == listed(whole)
    assert again.total == whole.total
    positions = np.arange(whole.total)
    assert [array.tolist() for array in again.locate(positions)] == [a.tolist() for a in whole.locate(positions)]


@given(groups=GROUPS, data=st.data())
def test_some_row_groups_keep_their_rows(groups: list[tuple[int, set[int]]], data: st.DataObject) -> None:
    row_groups = data.draw(st.lists(st.integers(0, len(groups) - 1), min_size=1, unique=True).map(sorted))
    whole = row_set(groups)
    assert listed(whole.row_groups(np.array(row_groups))) == [listed(whole)[row_group] for row_group in row_groups]
