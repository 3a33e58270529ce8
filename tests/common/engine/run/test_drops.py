"""Functions that drop rows: full batches of the remaining rows, an unknown length, and still exact states."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drive_rows import ROWS, write_drive
from ids import ids

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.apps.testing import assert_resumable
from parquetry.common.base.errors import PipelineError, TransformError

LEFT = [row["id"] for row in ROWS if row["id"] % 3 != 1]


def keep_most(row: dict[str, Any]) -> dict[str, Any] | None:
    return None if row["id"] % 3 == 1 else {**row, "half": row["id"] / 2}


@pytest.fixture(params=["threads", "sidecar"])
def dropping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    url = write_drive(tmp_path_factory.mktemp("drops"))
    base = Pipeline(url, ["id", "tags", "points"], executor=request.param, workers=1)
    return base.transform(keep_most, output=[UnischemaField("half", np.float64)], drops=True)


def test_the_rows_that_are_left_come_in_order(dropping: Pipeline) -> None:
    rows = list(dropping)
    assert [int(row["id"]) for row in rows] == LEFT
    assert [row["half"] for row in rows] == [number / 2 for number in LEFT]
    assert [row["tags"].tolist() for row in rows] == [ROWS[number]["tags"] for number in LEFT]


def test_batches_are_full_except_for_the_last(dropping: Pipeline) -> None:
    batches = [batch["id"].tolist() for batch in dropping.batch(7)]
    assert list(chain.from_iterable(batches)) == LEFT
    assert [len(batch) for batch in batches[:-1]] == [7] * (len(batches) - 1)
    whole = [batch["id"].tolist() for batch in dropping.repeat(2).batch(7, drop_remainder=True)]
    assert list(chain.from_iterable(whole)) == (LEFT * 2)[: len(whole) * 7]


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["rows", "batches", "shuffled"])
def test_every_state_resumes_exactly(dropping: Pipeline, stages: str) -> None:
    chain = {
        "rows": lambda: dropping,
        "batches": lambda: dropping.batch(7),
        "shuffled": lambda: dropping.shuffle(10, seed=2).repeat(2).batch(5),
    }[stages]
    assert_resumable(lambda: iter(chain().with_options()))


def test_the_length_is_unknown_and_says_so(dropping: Pipeline) -> None:
    with pytest.raises(TypeError, match="transform with drops=True may leave rows out"):
        len(dropping)
    assert "an unknown number" in dropping.explain()


def test_verbs_that_count_rows_must_come_first(dropping: Pipeline) -> None:
    for change in (lambda: dropping.take(3), lambda: dropping.skip(3), lambda: dropping.shard(2, 0)):
        with pytest.raises(PipelineError, match="the number of rows that the function keeps is unknown"):
            change()
    with pytest.raises(PipelineError, match="expected drops=True only with a function of single rows"):
        Pipeline("x").transform(keep_most, batched=True, drops=True)


def test_none_without_a_declaration_is_an_error(tmp_path: Path) -> None:
    plain = Pipeline(write_drive(tmp_path), ["id"], executor="threads").transform(lambda row: None)
    with pytest.raises(TransformError, match="To drop rows, set drops=True"):
        ids(plain)
