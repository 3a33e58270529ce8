"""`bench`: its runs, its parts, and its advice, but not any speed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import build

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.apps.reports import bench, benching, to_json
from parquetry.common.apps.reports.benching import MeasuredRun, _parts
from parquetry.common.base.errors import EmptySelectionError, PipelineError


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return build(
        tmp_path_factory.mktemp("built"), [[20, 20], [10]], names=("id", "image", "tags", "drive"), partition="drive"
    ).pipeline()


@pytest.mark.parametrize("verbs", ["rows", "batches", "windows", "tuples", "buckets"])
def test_every_kind_of_chain_runs_with_its_stages_switched_off(pipeline: Pipeline, verbs: str) -> None:
    chain = {
        "rows": pipeline,
        "batches": pipeline.shuffle(10, seed=1).cast(np.float32, "id").batch(8),
        "windows": pipeline.ngram({0: ["id"], 1: ["image"]}).batch(4),
        "tuples": pipeline.as_tuple("id", "image").batch(4),
        "buckets": pipeline.select("id", "tags").bucket("tags", [1], batch_size=4),
    }[verbs]
    found = bench(chain, seconds=0.02)
    names = [run.name for run in found.runs]
    assert names == [*(["without work on values"] if verbs == "batches" else []), "without decoding", "bytes alone"]
    assert all(run.rows > 0 for run in (found.whole, *found.runs))
    assert found.bound in [part.stage for part in found.parts]
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)
    assert found.advice
    json.dumps(to_json(found))


def _doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "twice": row["id"] * 2}


def test_verbs_that_name_a_field_which_a_function_makes_are_switched_off_with_it(pipeline: Pipeline) -> None:
    made = pipeline.select("id").transform(_doubled, output=[UnischemaField("twice", np.int64)])
    for chain in (made.select("twice"), made.rename({"twice": "double"}), made.as_tuple("twice")):
        found = bench(chain.batch(4), seconds=0.02)
        assert "without work on values" in [run.name for run in found.runs]


def test_a_part_is_what_its_stage_adds_to_the_time_of_a_row() -> None:
    runs = [
        MeasuredRun(name="", rows=1, seconds=1.0, rows_per_s=rate, mib_per_s=0, processors=0)
        for rate in (100, 200, 1000, 500)
    ]
    parts = {part.stage: part.microseconds for part in _parts(runs[0], runs[1:], has_work=True)}
    assert parts == pytest.approx({"work on values": 5000, "decode": 4000, "parquet": 0, "store": 2000})


def test_chains_that_cannot_be_measured_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="seconds above 0"):
        bench(pipeline, seconds=0)
    for chain in (pipeline.batch(64, drop_remainder=True), pipeline.batch(2).take(0)):
        with pytest.raises(PipelineError, match="expected a chain with elements, got none"):
            bench(chain, seconds=0.01)
    with pytest.raises(EmptySelectionError):
        bench(pipeline.where([("id", ">", 999)]), seconds=0.01)


def test_commands_against_slow_planning_name_the_dataset(tmp_path: Path) -> None:
    pipeline = build(tmp_path / "my set", [[10]], names=("id",)).pipeline().batch(4)
    whole: Any = SimpleNamespace(processors=1.0)
    *_, last = benching._advice("store", pipeline, whole, 12)
    assert f"parquetry cache warm '{tmp_path}/my set' with the same chain" in last
    assert last.endswith(f"parquetry index '{tmp_path}/my set'")
