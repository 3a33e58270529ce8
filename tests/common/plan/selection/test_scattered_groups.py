"""Windows grouped by a field warn when the rows of one group lie apart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders import write_table

from parquetry.common import Pipeline
from parquetry.common.base.errors import EmptySelectionError


def over(folder: Path, groups: list[int | None]) -> Pipeline:
    return Pipeline(write_table(folder, pa.table({"g": groups, "t": list(range(len(groups)))})), executor="threads")


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], [None, None, 0], [0]])
def test_rows_that_lie_together_say_nothing(
    tmp_path: Path, groups: list[int | None], caplog: pytest.LogCaptureFixture
) -> None:
    windows = over(tmp_path, groups).ngram(length=2, group_by="g")
    assert "lie in" not in windows.explain()
    assert not caplog.records


def test_rows_that_lie_apart_are_reported_with_the_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    windows = over(tmp_path, [0, 0, 1, 1, 0, 0]).ngram(length=2, timestamp="t", group_by="g")
    assert len(windows) == 3
    (record,) = caplog.records
    assert "the rows of 2 groups by ['g'] lie in 3 pieces" in record.message
    assert "Sort the data by ['g', 't']" in record.message
    assert record.message in windows.explain()
    filtered = over(tmp_path, [0, 0, 1, 1, 0, 0]).where(pc.field("g") == 0).ngram(length=2, group_by="g")
    assert len(filtered) == 3
    assert "lie in" not in filtered.explain()


def test_groups_of_several_fields_are_reported_together(tmp_path: Path) -> None:
    table = pa.table({"g": [0, 0, 1, None, 0], "h": ["x", "y", "x", "x", "x"]})
    rows = Pipeline(write_table(tmp_path, table))
    windows = rows.ngram(length=2, group_by=["g", "h"])
    assert "the rows of 4 groups by ['g', 'h'] lie in 5 pieces" in windows.explain()
    assert "lie in" not in rows.take(4).ngram(length=1, group_by=["g", "h"]).explain()


def test_an_error_of_no_window_says_that_rows_lie_apart(tmp_path: Path) -> None:
    windows = over(tmp_path, [0, 1] * 6).ngram(length=2, group_by="g")
    with pytest.raises(EmptySelectionError, match=r"left 0 of 12\. ngram: the rows of 2 groups .* lie in 12 pieces"):
        list(windows)
    with pytest.raises(EmptySelectionError, match=r"1 file with 1 row group and 2 rows.* Form shorter windows"):
        list(over(tmp_path / "short", [0, 0]).ngram(length=3))
