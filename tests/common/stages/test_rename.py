"""``rename``: later stages use the new names; filters and windows still read the fields from storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drive_rows import ROWS, drive_url_once

from parquetry.common import Pipeline, ScalarCodec, UnischemaField, mix
from parquetry.common.base.errors import FieldNotFoundError, PipelineError, StateError
from parquetry.common.plan.plan import Plan
from parquetry.common.server import serve
from parquetry.common.stages.base import stage_from_json

url = drive_url_once()


@pytest.fixture
def drive(url: str) -> Pipeline:
    return Pipeline(url, executor="threads", workers=1)


def numbers(pipeline: Pipeline, name: str) -> list[int]:
    return [int(row[name]) for row in pipeline]


def read(pipeline: Pipeline) -> list[str]:
    """Returns the columns read for the elements."""
    plan = pipeline.plan()
    assert isinstance(plan, Plan)
    return [field.name for field in plan.program.fields]


def test_the_element_has_the_new_names_in_place_of_the_old_ones(drive: Pipeline) -> None:
    renamed = drive.select("id", "name", "speed").rename({"name": "label", "speed": "v"})
    assert [output.name for output in renamed.element.outputs] == ["id", "label", "v"]
    assert [row["label"] for row in renamed] == [row["name"] for row in ROWS]
    assert len(renamed) == 40
    assert str(renamed).endswith("\n  .rename({'name': 'label', 'speed': 'v'})")


def test_fields_may_swap_their_names(drive: Pipeline) -> None:
    row = next(iter(drive.rename({"id": "name", "name": "id"}).skip(1)))
    assert (row["id"], int(row["name"])) == ("n1", 1)


def test_only_the_columns_that_remain_are_read(drive: Pipeline) -> None:
    assert read(drive.rename({"id": "number"}).select("number")) == ["id"]
    assert read(drive.rename({"id": "number"}).ngram({0: ["number"], 1: ["speed"]})) == ["id", "speed"]


FAST = [number for number in range(40) if number % 5 and number > 24]


@pytest.mark.parametrize(
    "where",
    [
        lambda p: p.where(pc.field("v") > 12),
        lambda p: p.where([("v", ">", 12)]),
        lambda p: p.where(lambda row: row["v"] is not None and row["v"] > 12, fields=["v"]),
        lambda p: p.where(lambda row: row["v"] is not None and row["v"] > 12 and "speed" not in row, fields=["(v|speed)"]),
        lambda p: p.rename({"v": "speed"}).where(pc.field("speed") > 12),
        lambda p: p.rename({"v": "w", "number": "v"}).where((pc.field("w") > 12) & (pc.field("v") > 0)).rename({"v": "number"}),
        lambda p: p.where(pc.field("v") > 12).rename({"v": "w"}),
    ],
)  # fmt: skip
def test_a_filter_has_the_new_names_and_reads_storage(drive: Pipeline, where: Any) -> None:
    assert numbers(where(drive.rename({"speed": "v", "id": "number"})), "number") == FAST


def test_a_filter_prunes_by_the_statistics_of_the_stored_column(drive: Pipeline) -> None:
    plan = drive.rename({"id": "number"}).where(pc.field("number") < 5).plan()
    assert isinstance(plan, Plan)
    assert plan.selection.reports[0].pruned == 5
    plain = drive.where(pc.field("id") < 5).plan()
    assert isinstance(plain, Plan)
    assert plain.order.selection == plan.order.selection  # so both find the same cached selection


def test_every_later_stage_takes_the_new_names(drive: Pipeline) -> None:
    double = UnischemaField("double", "int64")
    made = (
        drive.rename({"id": "n", "points": "cloud", "price": "cost", "speed": "v"})
        .decimals("scaled", "cost")
        .nulls("mask", "v")
        .pad("cloud", shape=(3, 3))
        .transform(lambda row: {**row, "double": row["n"] * 2}, [double])
        .pack("x", ["n", "double"])
        .cast("float32", "v")
        .select("x", "v.*", "cloud", "cost")
    )
    batch = next(iter(made.batch(4)))
    assert batch["x"].tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]
    assert batch["v__valid"].tolist() == [False, True, True, True]
    assert batch["cloud"].shape == (4, 3, 3)
    assert batch["cost"].tolist() == [0, 25, 50, 75]


def test_sources_of_a_mix_become_alike_by_renaming(drive: Pipeline) -> None:
    one = drive.select("id", "name").rename({"id": "key"})
    other = drive.select("id", "name").rename({"id": "key"})
    mixed = mix([one, other], seed=3).rename({"key": "number"})
    assert set(next(iter(mixed))) == {"number", "name"}


def test_stages_that_read_storage_travel_with_stored_names(drive: Pipeline) -> None:
    renamed = drive.rename({"speed": "v", "id": "n"}).where(pc.field("v") > 1).where(_is_even, fields=["n"])
    steps = renamed.nulls("drop", "v").ngram(length=2, timestamp="n").plan().order.selection
    again = [stage_from_json(json.loads(json.dumps(step.to_json()))) for step in steps]
    assert list(map(str, again)) == list(map(str, steps))
    assert [again[1].function({"id": number}) for number in (2, 3)] == [True, False]
    assert [step.reads for step in again] == [("speed",), ("id",), (), ("id",)]
    assert Pipeline.from_json(renamed.to_json()) == renamed


def _is_even(row: dict[str, Any]) -> bool:
    return bool(row["n"] % 2 == 0)


def test_a_client_may_rename_what_a_server_has(drive: Pipeline) -> None:
    with serve(drive.select("id", "name")) as server:
        renamed = Pipeline(address=server.address).rename({"id": "number"}).select("number")
        assert [int(row["number"]) for row in renamed] == list(range(40))


def test_a_state_belongs_to_the_rows_not_to_their_names(drive: Pipeline) -> None:
    plain = iter(drive.select("id").where(pc.field("id") > 3).shuffle(9, seed=1))
    next(plain)
    renamed = drive.select("id").rename({"id": "n"}).where(pc.field("n") > 3).shuffle(9, seed=1)
    with pytest.raises(StateError, match="saved for a different pipeline"):
        iter(renamed).load_state_dict(plain.state_dict())
    left = [int(row["n"]) for row in iter(renamed).load_state_dict(plain.state_dict(), strict=False)]
    assert left == [int(row["id"]) for row in plain]
    other = drive.select("id", "speed").rename({"speed": "n"}).where(pc.field("n") > 3).shuffle(9, seed=1)
    with pytest.raises(StateError, match="saved for a different pipeline"):
        iter(other).load_state_dict(plain.state_dict(), strict=False)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: p.rename({}), PipelineError, r"expected {old: new} with at least one pair of names, got {}"),
        (lambda p: p.rename("id"), PipelineError, r"expected {old: new}, got 'id'"),
        (lambda p: p.rename({"id": ""}), PipelineError, r"got {'id': ''}"),
        (lambda p: p.rename({"id": 3}), PipelineError, r"got {'id': 3}"),
        (lambda p: p.rename({"id": "x", "name": "x"}), PipelineError, "a different new name for each field, got 'x'"),
        (lambda p: p.rename({"id": "name"}).element, PipelineError, "field 'id': expected a name that no other field has, got 'name'"),
        (lambda p: p.rename({"nope": "x"}).element, FieldNotFoundError, "field 'nope'"),
        (lambda p: p.select("name").rename({"id": "x"}).element, FieldNotFoundError, "field 'id'"),
        (lambda p: p.rename({"i.": "x"}).element, FieldNotFoundError, "field 'i.'"),
        (lambda p: p.rename({"id": "n"}).where(pc.field("id") > 3), FieldNotFoundError, "field 'id': expected its new name 'n'"),
        (lambda p: p.rename({"id": "n"}).select("id").element, FieldNotFoundError, "field 'id'"),
        (lambda p: p.rename({"id": "n"}).select(UnischemaField("n", "int64", (), ScalarCodec(pa.int64()))), PipelineError, r"select\(\) must come before rename\(\)"),
        (lambda p: p.nulls("fill", "speed", value=0).rename({"speed": "v"}).where(pc.field("v") > 3), PipelineError, "it reads the stored values of 'speed', which that call changes"),
    ],
)  # fmt: skip
def test_invalid_input_is_refused(drive: Pipeline, make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(drive)


def test_a_field_of_a_struct_is_renamed_by_its_dotted_name(tmp_path: Path) -> None:
    values = [{"x": number, "y": -number} for number in range(10)]
    pq.write_table(pa.table({"at": values, "id": list(range(10))}), tmp_path / "part.parquet")
    renamed = Pipeline(str(tmp_path), executor="threads").rename({"at.x": "x", "id": "at.x"})
    assert numbers(renamed.where(pc.field("x") > 6), "at.x") == [7, 8, 9]
    assert numbers(renamed.where((pc.field("at", "y") < -6) & (pc.field("at", "x") > 7)), "x") == [8, 9]
