"""A failing element is skipped: the next call returns the following one, in every executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import ELEMENT_ERRORS, DatasetError, TransformError

ROWS = 23
BAD = (0, 7, 8, 22)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64())}), path, row_group_size=5)
    return str(path)


def fails_on_bad(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] in BAD:
        raise KeyError(f"bad row {row['id']}")
    return row


def odd_and_not_bad(row: dict[str, Any]) -> dict[str, Any] | None:
    return fails_on_bad(row) if row["id"] % 2 or row["id"] in BAD else None


def given(iterator: Iterator[Any]) -> list[list[int] | None]:
    """Returns the rows of each element; ``None`` for a failed one."""
    result: list[list[int] | None] = []
    while True:
        try:
            element = next(iterator)
        except StopIteration:
            return result
        except ELEMENT_ERRORS:
            result.append(None)
        else:
            result.append(np.atleast_1d(element["id"]).tolist())


def pipeline_of(url: str, executor: str) -> Pipeline:
    return Pipeline(url, executor=executor, workers=2)


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [None, 1, 4])
def test_elements_that_do_not_fail_come_in_order(url: str, executor: str, batch: int | None) -> None:
    pipeline = pipeline_of(url, executor).transform(fails_on_bad)
    parts = [[row] for row in range(ROWS)]
    if batch is not None:
        pipeline = pipeline.batch(batch)
        parts = [list(range(first, min(first + batch, ROWS))) for first in range(0, ROWS, batch)]
    assert given(iter(pipeline)) == [None if set(BAD) & set(part) else part for part in parts]


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [None, 3])
def test_rows_that_are_left_are_grouped_without_those_that_fail(url: str, executor: str, batch: int | None) -> None:
    pipeline = pipeline_of(url, executor).transform(odd_and_not_bad, drops=True)
    left = [row for row in range(ROWS) if row % 2 and row not in BAD]
    found = given(iter(pipeline if batch is None else pipeline.batch(batch)))
    size = batch or 1
    assert [part for part in found if part is not None] == [left[i : i + size] for i in range(0, len(left), size)]
    assert found.count(None) == len(BAD)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_state_after_a_failure_resumes_behind_it(url: str, executor: str) -> None:
    pipeline = pipeline_of(url, executor).transform(fails_on_bad)
    iterator = iter(pipeline)
    with pytest.raises(TransformError, match=r"bad row 0"):
        next(iterator)
    assert next(iterator)["id"] == 1
    resumed = iter(pipeline)
    resumed.load_state_dict(iterator.state_dict())
    rest = given(iterator)
    assert given(resumed) == rest
    assert rest == [None if row in BAD else [row] for row in range(2, ROWS)]


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
def test_a_file_that_is_gone_ends_the_iterator(tmp_path: Path, executor: str) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(3)}), path)
    pipeline = Pipeline(str(path), executor=executor)
    assert len(pipeline) == 3
    path.unlink()
    iterator = iter(pipeline)
    with pytest.raises(DatasetError):
        next(iterator)
    assert next(iterator, None) is None
