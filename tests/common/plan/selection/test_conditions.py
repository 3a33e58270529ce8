"""Adjacent filters are one pass: they read columns once, and prepare large sets for many row groups at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.engine.run import selecting
from parquetry.common.plan.selection import conditions
from parquetry.common.stages.predicates.column_predicates import contains, hash_split

GROUPS, ROWS = 12, 50
TOTAL = GROUPS * ROWS
Row = dict[str, Any]


def rows() -> list[Row]:
    random = np.random.default_rng(7)
    return [
        {
            "id": number,
            "value": None if random.random() < 0.1 else int(random.integers(0, 40)),
            "text": None if random.random() < 0.1 else f"t{random.integers(0, 30)}",
            "tags": random.integers(0, 5, 2).tolist(),
        }
        for number in range(TOTAL)
    ]


FILES = rows()
FILTERS: dict[str, tuple[Callable[[Pipeline], Pipeline], Callable[[Row], bool]]] = {
    "low": (lambda p: p.where(pc.field("id") < 430), lambda row: row["id"] < 430),
    "high": (lambda p: p.where(pc.field("id") >= 120), lambda row: row["id"] >= 120),
    "value": (
        lambda p: p.where(pc.field("value").isin(list(range(0, 4000, 3)))),
        lambda row: row["value"] is not None and row["value"] % 3 == 0,
    ),
    "null": (
        lambda p: p.where(pc.field("value").isin([None, *range(10, 900)])),
        lambda row: row["value"] is None or row["value"] >= 10,
    ),
    "text": (
        lambda p: p.where(pc.field("text").isin([f"t{number}" for number in range(20)])),
        lambda row: row["text"] is not None and int(row["text"][1:]) < 20,
    ),
    "tags": (lambda p: p.where(contains("tags", 1, 3)), lambda row: bool({1, 3} & {*row["tags"]})),
    "nulls": (lambda p: p.nulls("drop", "text"), lambda row: row["text"] is not None),
    "function": (lambda p: p.where(lambda row: row["id"] % 2 == 0, fields=["id"]), lambda row: row["id"] % 2 == 0),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("conditions")
    for file in range(3):
        part = FILES[file * TOTAL // 3 : (file + 1) * TOTAL // 3]
        pq.write_table(pa.Table.from_pylist(part), folder / f"{file}.parquet", row_group_size=ROWS)
    return str(folder)


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))


def reports(pipeline: Pipeline) -> list[tuple[int, ...]]:
    return [
        (each.row_groups, each.pruned, each.proven, each.read, each.rows_before, each.rows_after)
        for each in pipeline.plan().selection.reports
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(FILTERS)), min_size=1, max_size=6), st.booleans())
def test_filters_in_one_pass_leave_what_each_leaves_alone(url: str, names: list[str], sliced: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selecting, "save_selection", lambda key, selection: None)
        patch.setattr(selecting, "load_selection", lambda key, rows: None)
        if sliced:
            patch.setattr("parquetry.common.engine.read.arrow_reader._SLICE_BYTES", (200, 200))
        pipeline = Pipeline(url, ["id"], executor="threads", memory_limit=1000 if sliced else 1 << 30)
        expected = FILES
        counts = [len(expected)]
        for name in names:
            apply, keeps = FILTERS[name]
            pipeline, expected = apply(pipeline), [*filter(keeps, expected)]
            counts.append(len(expected))
        assert [report[4:] for report in reports(pipeline)] == [*pairwise(counts)]
        selection = pipeline.plan().selection.rows
        group, row = selection.locate(np.arange(selection.total))
        assert (group * ROWS + row).tolist() == [each["id"] for each in expected]
        patch.setattr("parquetry.common.plan.selection.select._passes", lambda steps: ([step] for step in steps))
        assert reports(pipeline.with_options(memory_limit=1 << 29)) == reports(pipeline)


class Counts:
    """Counts reads of row groups and evaluations of expressions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self.sets = 0, 0
        read, mask = selecting.Fetcher.stored_slices, conditions.row_mask

        def reading(fetcher: Any, row_group: int) -> Any:
            self.reads += 1
            return read(fetcher, row_group)

        def masking(*args: Any, **options: Any) -> Any:
            self.sets += 1
            return mask(*args, **options)

        monkeypatch.setattr(selecting.Fetcher, "stored_slices", reading)
        monkeypatch.setattr(conditions, "row_mask", masking)


@pytest.mark.parametrize("filters", [1, 2, 9])
def test_reads_do_not_depend_on_the_number_of_filters(url: str, filters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    pipeline = Pipeline(url, executor="threads")
    for number in range(filters):
        pipeline = pipeline.where(pc.field("value") != number).where(hash_split("text", [0.9], 0, seed=number))
    assert len(pipeline) > 0
    assert counts.reads == GROUPS
    assert len(pipeline.plan().selection.reports) == 2 * filters


def test_a_large_set_is_built_for_many_row_groups_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    kept = Pipeline(url, executor="threads").where(pc.field("value").isin(range(0, 2 * TOTAL, 2)))
    assert len(kept) == sum(row["value"] is not None and row["value"] % 2 == 0 for row in FILES)
    assert counts.reads == GROUPS
    assert counts.sets == 1


def test_a_small_set_is_built_for_each_row_group(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_NUMBER_BYTES", 1 << 20)
    counts = Counts(monkeypatch)
    assert len(Pipeline(url, executor="threads").where(pc.field("value").isin([3]))) > 0
    assert counts.sets == GROUPS


def test_a_column_counts_once_in_the_bytes_that_filters_read(url: str) -> None:
    twice = Pipeline(url, executor="threads").where(pc.field("value") > 1).where(pc.field("value") < 30)
    first, second = twice.plan().selection.reports
    assert first.read_bytes > 0
    assert second.read_bytes == 0


def test_an_error_names_the_filter_that_failed(url: str) -> None:
    failing = Pipeline(url, executor="threads").where(pc.field("value") > 1).where(pc.field("text") > 5)
    with pytest.raises(PipelineError, match=r"predicate '\(text > 5\)' for columns text: "):
        len(failing)
