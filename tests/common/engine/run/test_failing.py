"""Texts about the rows of a job."""

from __future__ import annotations

import numpy as np
import pytest

from parquetry.common.engine.run.failing import describe_rows
from parquetry.common.plan.block_reads import BlockKey, BlockRead, BlockRows


class Fetcher:
    """Names row groups by number."""

    def places(self, row_groups: list[int]) -> list[str]:
        return [f"file a.parquet, row group {each}" for each in row_groups]


BLOCK = BlockRows(row_groups=(2, 5), rows=(range(10, 20), np.array([0, 3, 7])), item_rows=None)


def drawn(*items: int) -> BlockRead:
    return BlockRead(key=BlockKey(0, 0, 0), items=np.array(items), places=None, pass_number=0)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([4], "file a.parquet, row group 2, row 14"),
        ([5, 3, 4], "file a.parquet, row group 2, rows 13 to 15"),
        ([0, 10, 12], "file a.parquet, row group 2, row 10; file a.parquet, row group 5, rows 0, 7"),
    ],
)
def test_rows_are_named_as_they_are_stored(items: list[int], expected: str) -> None:
    assert describe_rows([drawn(*items)], [BLOCK], [Fetcher()]) == expected  # type: ignore[list-item]


def test_many_rows_and_row_groups_are_cut() -> None:
    block = BlockRows(row_groups=tuple(range(9)), rows=(range(100),) * 9, item_rows=None)
    text = describe_rows([drawn(*range(0, 900, 2))], [block], [Fetcher()])  # type: ignore[list-item]
    assert text.startswith("file a.parquet, row group 0, rows 0, 2, 4, 6, 8, 10, 12, 14 and 42 more rows; ")
    assert text.endswith(" and 6 more row groups")


def test_the_rows_of_two_draws_from_a_row_group_are_named_once() -> None:
    windows = BlockRows(row_groups=(2,), rows=(range(10, 20),), item_rows=np.array([[0, 1], [1, 2]]))
    text = describe_rows([drawn(0), drawn(1)], [windows, windows], [Fetcher()])  # type: ignore[list-item]
    assert text == "file a.parquet, row group 2, rows 10 to 12"
