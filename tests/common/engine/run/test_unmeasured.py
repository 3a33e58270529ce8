"""Rows without a length are left out of ``concat``, ``pack_rows`` and ``bucket``, and counted; items whose function
fails are left out as a whole. `tests/mishaps.py` has the property test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline, mix
from parquetry.common.base.errors import EmptySelectionError, NullValueError, PipelineError, StateError
from parquetry.common.pipeline.step_iterator import StepIterator

ROWS = 30
NULL, INSIDE = (4, 9, 17), (12,)
"""Rows whose list is null, or holds a null."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lists of two tokens, of which row n has 2n and 2n + 1."""
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    lists = [None if n in NULL else [n, None] if n in INSIDE else [2 * n, 2 * n + 1] for n in range(ROWS)]
    pq.write_table(pa.table({"id": range(ROWS), "t": lists}), tmp_path / "rows.parquet", row_group_size=7)
    return str(tmp_path / "rows.parquet")


def texts(url: str, **options: Any) -> Pipeline:
    return Pipeline(url, ["id", "t"], **{"on_error": "skip", "executor": "threads", **options})


def tokens(elements: Any) -> list[int]:
    return [int(token) for element in elements for token in np.asarray(element["t"]).reshape(-1)]


GOOD = [token for n in range(ROWS) if n not in (*NULL, *INSIDE) for token in (2 * n, 2 * n + 1)]


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["concat", "pack_rows"])
def test_they_are_counted_by_cause_named_and_reported(
    url: str, executor: str, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = getattr(texts(url, executor=executor), verb)(4, "t")
    assert len(pipeline) == len(GOOD) // 4  # known before the first epoch
    for _ in range(2):  # the second selection is a stored one
        iterator = iter(getattr(texts(url, executor=executor), verb)(4, "t"))
        assert sorted(tokens(iterator)) == GOOD
        stats = iterator.stats()
        assert (stats.skipped_null, stats.skipped_decode, stats.skipped_rows) == (3, 1, 4)
        assert [(row.row_group, row.row) for row in stats.skipped] == [(0, 4), (1, 2), (1, 5), (2, 3)]
    told = [record.getMessage() for record in caplog.records if "bad rows" in record.getMessage()]
    assert (
        executor == "sidecar" or "Skipped 4 bad rows in this epoch (on_error='skip'). First: NullValueError" in told[0]
    )


def test_without_skip_they_are_an_error(url: str) -> None:
    with pytest.raises(NullValueError, match=r"row group 0, row 4: expected a list of tokens, found null\. Leave such"):
        list(texts(url, on_error="raise").concat(4, "t"))
    assert "on_error='skip'" in texts(url).concat(4, "t").explain()


def test_each_rank_and_worker_counts_a_share(url: str) -> None:
    counted = []
    for rank in range(2):
        for worker in range(3):
            steps: StepIterator[Any] = StepIterator(
                texts(url).concat(4, "t").shard(2, rank), 0, strict_nulls=True, worker=worker, workers=3
            )
            list(steps)
            counted.append(steps.stats().skipped_rows)
    assert counted == [1, 1, 1, 1, 0, 0]


def test_more_than_max_errors_end_the_epoch_before_its_first_element(url: str) -> None:
    assert tokens(texts(url, max_errors=4).concat(4, "t")) == GOOD
    for most in (1, 0.05):
        iterator = iter(texts(url, max_errors=most).concat(4, "t"))
        with pytest.raises(
            PipelineError, match=r"at most 1 rows of an epoch to fail, got one more.*row group 1, row 2"
        ):
            next(iterator)
        assert iterator.stats().skipped_rows == 2


def test_resuming_counts_no_row_again_but_the_limit_does(url: str) -> None:
    pipeline = texts(url).concat(4, "t")
    iterator = iter(pipeline)
    first = [next(iterator) for _ in range(3)]
    resumed = iter(pipeline)
    resumed.load_state_dict(iterator.state_dict())
    assert tokens([*first, *resumed]) == GOOD
    assert resumed.stats().skipped_rows == 0


def test_a_state_stays_with_its_on_error(url: str) -> None:
    skipping, raising = texts(url).concat(4, "t"), texts(url, on_error="raise").where([("id", "<", 4)]).concat(4, "t")
    iterator = iter(texts(url).where([("id", "<", 4)]).concat(4, "t"))
    next(iterator)
    with pytest.raises(StateError, match=r"expected a pipeline with on_error='skip', as where it was taken"):
        iter(raising).load_state_dict(iterator.state_dict())
    state = iter(skipping).state_dict()
    state.pop("skipped")
    with pytest.raises(StateError, match=r"expected one taken with on_error='skip', because the rows that it leaves"):
        iter(skipping).load_state_dict(state)
    unharmed = iter(raising)
    next(unharmed)
    resumed = iter(raising.with_options(on_error="skip"))  # nothing was left out, so it continues
    resumed.load_state_dict(unharmed.state_dict())
    assert tokens(resumed) == [4, 5, 6, 7]


def test_a_row_that_is_wrong_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    columns = {"t": [[1], None, [2, 3], [4]], "u": [[1], [5], [6], [None]]}
    pq.write_table(pa.table(columns), tmp_path / "two.parquet")
    pipeline = Pipeline(str(tmp_path / "two.parquet"), on_error="skip", executor="threads").concat(1, "t", "u")
    iterator = iter(pipeline)
    assert tokens(iterator) == [1]
    assert (iterator.stats().skipped_null, iterator.stats().skipped_decode) == (1, 2)


def test_a_vocabulary_holds_the_values_of_refused_rows(url: str) -> None:
    pipeline = texts(url).encode("id").bucket("t", [3], batch_size=2)
    assert pipeline.plan().parts[0].selection.rows.total == ROWS - len(NULL)
    assert pipeline.vocabulary("id") == list(range(ROWS))  # it is stored for pipelines without bucket(), too


def test_filled_nulls_inside_lists_are_no_errors(url: str) -> None:
    filled = texts(url).where([("id", "in", [11, 12])]).nulls("fill", "t", value=7).concat(2, "t")
    assert tokens(filled) == [22, 23, 12, 7]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_an_item_whose_function_fails_is_left_out_as_a_whole(url: str, executor: str) -> None:
    def fail(item: dict[str, Any]) -> dict[str, Any]:
        if 23 in item["t"]:
            raise ValueError("no")
        return item

    items = texts(url, executor=executor).concat(4, "t")
    whole = [item["t"].tolist() for item in items]
    left = [item for item in whole if 23 not in item]
    failing = items.transform(fail)
    with pytest.raises(TypeError):
        len(failing)
    iterator = iter(failing)
    assert [item["t"].tolist() for item in iterator] == left
    assert (iterator.stats().skipped_transform, iterator.stats().skipped_rows) == (1, 5)
    batches = [batch["t"].tolist() for batch in items.batch(3).transform(fail)]
    assert batches == [left[first : first + 3] for first in range(0, len(left), 3)]


def test_a_mix_leaves_out_rows_of_joined_sources(url: str) -> None:
    def source(**options: Any) -> Pipeline:
        return texts(url, **options).select("t").concat(2, "t")

    mixed = mix([source(), source()], seed=1)
    iterator = iter(mixed)
    assert sorted(tokens(iterator)) == sorted([*GOOD, *GOOD][: len(tokens(mixed))])
    assert iterator.stats().skipped_rows == 8


def test_a_selection_of_refused_rows_alone_is_empty(url: str) -> None:
    with pytest.raises(EmptySelectionError, match=r"on_error='skip' left 0 of 3\. Left out: NullValueError"):
        list(texts(url).where([("id", "in", list(NULL))]).concat(4, "t"))


def test_a_function_that_drops_rows_and_fails_leaves_out_both(url: str) -> None:
    def some(row: dict[str, Any]) -> dict[str, Any] | None:
        if row["id"] in (3, 11, 12):
            raise ValueError("no")
        return None if row["id"] % 2 else row

    dropping = Pipeline(url, ["id"], executor="threads", on_error="skip").transform(some, drops=True).batch(4)
    iterator = iter(dropping)
    good = [n for n in range(0, ROWS, 2) if n != 12]
    assert [batch["id"].tolist() for batch in iterator] == [good[first : first + 4] for first in range(0, 14, 4)]
    assert iterator.stats().skipped_transform == 3


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
def test_an_endless_part_whose_rows_all_fail_ends_with_an_error(url: str, executor: str) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    for endless in (texts(url).bucket("id", [9], batch_size=4).repeat(), Pipeline(url, ["id"]).repeat().batch(4)):
        pipeline = endless.with_options(executor=executor, on_error="skip").transform(fail)
        with pytest.raises(PipelineError, match=r"all of \d+ consecutive (rows|batches) failed"):
            next(iter(pipeline))
