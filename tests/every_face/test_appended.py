"""Datasets that grow: every face reads the parts that are there, and a state goes on with those of its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces import Face, installed_faces

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import StateError

OLD = Unischema("s", [UnischemaField("x", np.int64), UnischemaField("day", str)])
NEW = Unischema("s", [*OLD, UnischemaField("score", np.float32, nullable=True)])


def add(root: Path, numbers: range, day: str, *, partitioned: bool) -> list[dict[str, Any]]:
    """Adds rows, which have a score from the day ``b`` on, and returns them as readers see them."""
    schema = OLD if day == "a" else NEW
    rows = [{"x": number, "day": day, "score": number / 2} for number in numbers]
    stored = [{name: row[name] for name in schema.fields} for row in rows]
    write_dataset(root, schema, stored, mode="append", row_group_rows=3, partition_by="day" if partitioned else ())
    return [{**row, "score": 0.0 if day == "a" else row["score"]} for row in rows]


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_every_face_reads_the_rows_of_all_parts(tmp_path: Path, face: Face, partitioned: bool) -> None:
    parts = [(range(5), "a"), (range(5, 9), "b"), (range(9, 12), "c")]
    rows = [row for numbers, day in parts for row in add(tmp_path, numbers, day, partitioned=partitioned)]
    pipeline = Pipeline(tmp_path).nulls("fill", "score", value=0).batch(4)
    assert [row for element in face.elements(pipeline) for row in element] == rows


def test_a_pipeline_that_was_opened_before_reads_the_rows_of_then(tmp_path: Path) -> None:
    add(tmp_path, range(5), "a", partitioned=True)
    pipeline = Pipeline(tmp_path, executor="threads").select("x").repeat(2)
    iterator = iter(pipeline)
    first = [int(next(iterator)["x"])]
    add(tmp_path, range(5, 9), "b", partitioned=True)
    assert first + [int(row["x"]) for row in iterator] == [*range(5)] * 2
    assert [int(row["x"]) for row in pipeline] == [*range(5)] * 2
    assert len(Pipeline(tmp_path)) == 9


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_state_says_what_was_added_and_goes_on_with_the_files_of_then(tmp_path: Path, partitioned: bool) -> None:
    def chain(source: Any) -> Any:
        return Pipeline(source, executor="threads").select("x").shuffle(4, seed=1).batch(2)

    root = tmp_path / "d"
    for number, day in enumerate("ab"):
        add(root, range(7 * number, 7 * number + 7), day, partitioned=partitioned)
    then = sorted(root.glob("day=*") if partitioned else root.glob("*.parquet"))
    iterator = iter(chain(then if partitioned else root))
    next(iterator)
    state = iterator.state_dict()
    rest = [batch["x"].tolist() for batch in iterator]
    add(root, range(14, 20), "c", partitioned=partitioned)
    with pytest.raises(
        StateError, match=r"it had 2 files with 14 rows, and this one has 3 with 20\. .* with those of then"
    ):
        iter(chain(root)).load_state_dict(state)
    resumed = iter(chain(then))
    resumed.load_state_dict(state)
    assert [batch["x"].tolist() for batch in resumed] == rest
