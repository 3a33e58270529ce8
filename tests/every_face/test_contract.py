"""Every stage, and combinations of them, against the oracle in every face and executor.

The threads executor is compared with the oracle; every other face must yield the same elements in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders import STRICT_FIELDS, Built, build
from faces import SIDECAR, THREADS, Face, NumpyFace, installed_faces
from oracle import Call, apply, call, check

from parquetry.common import UnischemaField

FILES = [[4, 1, 5], [3], [0], [2, 6, 2], [], [7]]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Writes a dataset without nulls, which every face can read."""
    return build(tmp_path_factory.mktemp("strict"), FILES, names=STRICT_FIELDS)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Writes a dataset with every kind of field and null."""
    return build(tmp_path_factory.mktemp("full"), FILES)


def _double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": np.asarray(row["id"]) * 2}


def _double_plain(row: dict[str, Any]) -> dict[str, Any]:
    value = row["id"]
    return {**row, "double": [2 * step for step in value] if isinstance(value, list) else 2 * value}


def _first_drive(row: dict[str, Any]) -> dict[str, Any]:
    first = row[0]
    return {**row, "first": str(np.asarray(first["drive"]))}


def _negate(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "ts": row["ts"], "vector": -row["vector"], "tags": row["tags"]}


def _negate_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "vector": [-value for value in row["vector"]]}


def _sums(batch: dict[str, Any]) -> dict[str, Any]:
    sums = np.array([float(points.sum()) for points in batch["points"]])
    return {"id": batch["id"], "sum": sums, "tags": batch["tags"]}


def _sums_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "sum": float(sum(map(sum, row["points"]))), "tags": row["tags"]}


def _is_even(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2 == 0)


def _late(batch: dict[str, Any]) -> Any:
    return (batch["ts"] > 1500) & np.array([len(tags) > 0 for tags in batch["tags"]])


def _cut_off(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "cloud": [[int(part) for part in point] for point in row["cloud"]]}


OVER_SIX = call("where", pc.field("id") > 6, model=lambda row: row["id"] > 6)
BY_DRIVE = {"timestamp": "ts", "max_gap": 100, "group_by": "drive"}
DOUBLE = UnischemaField("double", np.int64)

CASES: dict[str, list[Call]] = {
    "rows": [],
    "select": [call("select", "id", "p.*", "tags")],
    "select twice, last after batch": [call("select", "id", "t.*", "vector"), call("batch", 4), call("select", "id", "tags")],
    "where": [call("where", pc.field("drive") == "d1", model=lambda row: row["drive"] == "d1")],
    "where tuples": [call("where", [("id", ">", 4), ("drive", "in", ["d0", "d2"])], model=lambda row: row["id"] > 4 and row["drive"] in ("d0", "d2"))],
    "where NaN": [call("where", pc.field("odd") >= 2.5, model=lambda row: row["odd"] != "nan" and row["odd"] >= 2.5)],
    "where rows": [call("where", _is_even, fields=["id"], model=lambda row: row["id"] % 2 == 0)],
    "where batch": [call("where", _late, fields=["ts", "tags"], batched=True, model=lambda row: row["ts"] > 1500 and len(row["tags"]) > 0)],
    "where where take skip": [OVER_SIX, call("where", _is_even, fields="id", model=lambda row: row["id"] % 2 == 0), call("take", 7), call("skip", 2)],
    "ngram stacked": [call("ngram", length=3)],
    "ngram stacked by drive": [call("select", "id", "image", "points", "tags"), call("ngram", length=3, **BY_DRIVE), call("batch", 4)],
    "ngram offsets": [call("ngram", {-1: ["id", "image"], 1: ["id", "tags", "po.*"]}, timestamp="ts", max_gap=600)],
    "ngram stride": [call("select", "id"), call("ngram", length=2, stride=3), call("batch", 2)],
    "ngram apart": [call("select", "id", "odd"), call("ngram", length=2, overlap=False, timestamp="ts"), call("shuffle", 3, seed=5)],
    "ngram apart in time": [call("select", "id", "odd"), call("ngram", length=2, overlap=False, timestamp="ts", stride=1), call("batch", 3)],
    "ngram inside row groups": [call("select", "id", "raw"), call("ngram", length=2, span_row_groups=False)],
    "ngram last": [call("ngram", length=3, last=["points", "tags", "half"], edges="clamp"), call("shuffle", 6, seed=5), call("batch", 4)],
    "ngram offsets by field": [call("ngram", offsets={"id": [0, 1], "image": [2, -2], "points": 0, "half": -1}, edges="clamp", **BY_DRIVE), call("batch", 3)],
    "ngram whole offsets by field": [call("ngram", offsets={"id": 0, "vector": [1, -1], "tags": [0]}), call("shard", 3, 1)],
    "ngram apart at edges": [call("select", "id", "odd"), call("ngram", length=3, overlap=False, edges="clamp", timestamp="ts"), call("batch", 3)],
    "ngram then select": [call("ngram", length=2), call("select", "id", "grid")],
    "take skip": [call("skip", 3), call("take", 20), call("skip", 1)],
    "batch": [call("batch", 4)],
    "batch drop": [call("select", "id", "small", "half"), call("batch", 4, drop_remainder=True), call("skip", 2)],
    "repeat batch": [call("select", "id", "level"), call("repeat", 2), call("batch", 7)],
    "batch repeat take": [call("select", "id", "price"), call("batch", 7), call("repeat", 3), call("take", 10)],
    "endless": [call("select", "id"), call("repeat"), call("take", 70)],
    "shuffle": [call("shuffle", 6, seed=0)],
    "shuffle batch repeat": [call("shuffle", 6, seed=1), call("batch", 8), call("repeat", 2)],
    "shuffle repeat shard batch": [call("select", "id", "words|points|flag|tags"), call("shuffle", 4, seed=2), call("repeat", 2), call("shard", 4, 3), call("batch", 6)],
    "a batch that ends in the first pass again": [call("select", "id"), call("shuffle", 4, seed=2), call("repeat", 2), call("shard", 7, 5), call("batch", 9)],
    "shuffle in one order": [call("select", "id"), call("shuffle", 4, 2, reshuffle_each_iteration=False), call("repeat", 2)],
    "shard pad": [call("select", "id", "points"), call("shard", 4, 3)],
    "shard drop": [call("select", "id", "points"), call("shard", 4, 1, even="drop")],
    "shard none shuffle": [call("select", "id"), call("shard", 4, 2, even="none"), call("shuffle", 3, seed=4)],
    "shard pad shuffle": [call("select", "id"), call("shard", 4, 2), call("shuffle", 3, seed=4), call("repeat", 2)],
    "shard take shuffle": [call("select", "id"), call("shard", 4, 2), call("take", 5), call("shuffle", 3, seed=4), call("skip", 1)],
    "canonical shard take shuffle": [call("select", "id"), call("shard", 2, 1, canonical_shards=6), call("take", 9), call("shuffle", 3, seed=4)],
    "shuffle shard canonical": [call("select", "id"), call("shuffle", 3, seed=4), call("shard", 2, 1, canonical_shards=6), call("batch", 3)],
    "shuffle take shard": [call("select", "id"), call("shuffle", 3, seed=4), call("take", 9), call("shard", 2, 1)],
    "repeat take shard": [call("select", "id"), call("repeat", 2), call("take", 33), call("shard", 2, 1)],
    "filter window shard shuffle batch": [
        OVER_SIX,
        call("shard", 2, 0),
        call("ngram", {0: ["id", "image"], 2: ["vector", "grid"]}, timestamp="ts", max_gap=700, group_by=["drive"]),
        call("shuffle", 5, seed=9),
        call("batch", 2),
    ],
    "rename cast": [
        call("rename", {"ts": "time", "points": "cloud", "image": "small", "small": "image"}),
        call("where", pc.field("time") > 600, model=lambda row: row["ts"] > 600),
        call("cast", "int16", "cloud", model=_cut_off),
        call("cast", "float32", "image", model=dict),
        call("select", "id", "cloud", "image", "time"),
        call("ngram", length=2, timestamp="time"),
        call("batch", 3),
    ],
    "transform": [call("select", "id", "drive", "image"), call("transform", _double, [DOUBLE], remove=["image"], model=lambda row: {k: v for k, v in _double_plain(row).items() if k != "image"})],
    "transform before ngram": [call("select", "id", "ts", "vector", "tags"), call("transform", _negate, [UnischemaField("vector", np.float32, (3,))], model=_negate_plain), call("ngram", length=2, timestamp="ts"), call("batch", 3)],
    "transform after ngram": [call("select", "id", "tags", "points"), call("ngram", length=2), call("transform", _double, [UnischemaField("double", np.int64, (2,))], model=_double_plain)],
    "transform offsets": [call("ngram", {0: ["id", "drive"], 1: ["tags"]}), call("transform", _first_drive, [UnischemaField("first", str)], model=lambda row: {**row, "first": row[0]["drive"]})],
    "transform batched": [call("transform", _sums, [UnischemaField("sum", np.float64)], remove=["(?!id|tags|sum).*"], batched=True, model=_sums_plain)],
    "transform after batch": [call("select", "id", "points", "tags"), call("batch", 5), call("transform", _sums, [UnischemaField("sum", np.float64)], remove=["points"], model=_sums_plain)],
}  # fmt: skip
# Each face takes a process or a graph for each; the rest takes seconds of processor time.
IN_EVERY_FACE: tuple[tuple[tuple[str, ...], tuple[pytest.MarkDecorator, ...]], ...] = (
    (("rows", "ngram offsets", "filter window shard shuffle batch", "transform batched"), ()),
    (
        (
            "ngram stacked by drive",
            "batch drop",
            "shuffle batch repeat",
            "transform after ngram",
            "rename cast",
            "shuffle repeat shard batch",
        ),
        (pytest.mark.slow,),
    ),
)
FACES = [face for face in installed_faces() if face is not THREADS]


@pytest.mark.parametrize("name", CASES)
def test_threads_give_what_a_list_comprehension_gives(strict: Built, name: str) -> None:
    check(strict, CASES[name], THREADS.elements)


@pytest.mark.parametrize("name", CASES)
def test_threads_give_what_a_list_comprehension_gives_where_values_are_null(full: Built, name: str) -> None:
    check(full, CASES[name], THREADS.elements)


def _slow(row: dict[str, Any]) -> bool:
    return row["speed"] is not None and row["speed"] < 8


def _slow_batch(batch: dict[str, Any]) -> Any:
    return batch["speed"] < 8


NULL_CASES: dict[str, list[Call]] = {
    "where, null is not true": [call("where", pc.field("speed") < 8, model=_slow)],
    "where, and neither is its negation": [
        call("where", ~(pc.field("speed") < 8), model=lambda row: row["speed"] is not None and row["speed"] >= 8)
    ],
    "where null": [call("where", pc.field("label").is_null(), model=lambda row: row["label"] is None)],
    "where rows": [call("where", _slow, fields=["speed"], model=_slow)],
    "where batch": [call("where", _slow_batch, fields=["speed"], batched=True, model=_slow)],
    "drop": [call("nulls", "drop", "label", "codes"), call("ngram", length=2), call("batch", 3)],
    "fill": [call("nulls", "fill", "speed", value=-2.5), call("nulls", "fill", "label", value="?"), call("batch", 3)],
    "mask": [call("nulls", "mask", "codes", model_zero=[]), call("nulls", "mask", "names", model_zero=["", ""])],
    "mask in windows": [call("select", "id", "speed"), call("nulls", "mask", "speed", model_zero=0.0), call("ngram", length=2)],
}  # fmt: skip


@pytest.mark.parametrize("name", NULL_CASES)
def test_nulls_are_what_their_policy_says(full: Built, name: str) -> None:
    check(full, NULL_CASES[name], THREADS.elements)


def test_a_cache_is_shared_by_pipelines_of_other_fields_and_stages(full: Built, tmp_path: Path) -> None:
    cache = call("cache", str(tmp_path))
    for _ in range(2):
        check(full, [call("select", "id"), cache], THREADS.elements)
        check(full, [call("select", "id", "label", "image"), cache, call("shuffle", 4, seed=1)], THREADS.elements)
        check(full, [cache, OVER_SIX, call("ngram", length=2)], THREADS.elements)
        check(full, [call("select", "image", "id"), cache, call("batch", 4)], THREADS.elements)


@pytest.mark.parametrize(
    "name", [name for name, calls in CASES.items() if any(each.verb == "shuffle" for each in calls)]
)
def test_every_epoch_is_checked_by_itself(strict: Built, name: str) -> None:
    assert check(strict, CASES[name], THREADS.elements, iteration=2) == check(
        strict, CASES[name], THREADS.elements, iteration=2
    )


@pytest.mark.parametrize(
    ("face", "name"),
    [pytest.param(face, name, marks=marks) for face in FACES for names, marks in IN_EVERY_FACE for name in names],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_face_gives_the_same_elements_in_the_same_order(strict: Built, name: str, face: Face) -> None:
    pipeline = apply(strict.pipeline(), CASES[name])
    found, expected = face.elements(pipeline), THREADS.elements(pipeline)
    assert len(found) == len(expected) == len(pipeline) > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == theirs


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "id", pc.multiply(batch.column(0), 2))


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_every_face_has_the_values_and_forms_that_verbs_make(full: Built, face: Face) -> None:
    rows = full.pipeline("id", "speed", "label", "when", "price", "points", "tags", "codes")
    rows = rows.hash_split("id", [0.9, 0.1], 0).where([("id", ">", 2)]).decimals("float64", "price")
    rows = rows.nulls("fill", "speed", value=-1).nulls("mask", "label").nulls("drop", "codes", "when")
    rows = rows.pad("codes", shape=(5,), value=7)
    rows = rows.transform(_doubled, [UnischemaField("id", np.int64)], batched="arrow")
    rows = rows.cast("datetime64[s]", "when").cast("int64", "when").shuffle(6, seed=1)
    tuples = rows.as_tuple(
        {"b": "points", "a": ("tags", "label", "label__valid")}, "id", "speed", "when", "price", "codes"
    )
    for pipeline in (
        rows,
        rows.pad("points", "tags").batch(5),
        tuples,
        tuples.batch(5).take(2),
        rows.ngram(length=2).batch(3),
    ):
        elements = face.elements(pipeline)
        assert elements == THREADS.elements(pipeline)
        assert elements


@pytest.mark.slow
def test_the_sidecar_gives_nulls_of_every_kind_as_threads_do(full: Built) -> None:
    pipeline = full.pipeline().shuffle(5, seed=3).batch(6)
    assert SIDECAR.elements(pipeline) == THREADS.elements(pipeline)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_the_second_epoch_is_the_same_in_every_face(strict: Built, face: Face) -> None:
    pipeline = strict.pipeline("id", "points").shuffle(5, seed=3).batch(6)
    first, second = THREADS.elements(pipeline, 0), THREADS.elements(pipeline, 1)
    assert first != second
    assert face.elements(pipeline, 1) == second


def test_any_number_of_workers_gives_the_same_bytes(full: Built) -> None:
    pipeline = full.pipeline().shuffle(5, seed=3).ngram(length=2).batch(4)
    faces = [NumpyFace("threads", workers) for workers in (1, 2, 3)] + [
        NumpyFace("sidecar", workers) for workers in (1, 3)
    ]
    first, *others = [face.elements(pipeline) for face in faces]
    assert all(other == first for other in others)


def test_a_pipeline_that_went_through_json_gives_the_same(strict: Built) -> None:
    from parquetry.common import Pipeline

    pipeline = apply(strict.pipeline(), CASES["filter window shard shuffle batch"])
    again = Pipeline.from_json(pipeline.to_json())
    assert again == pipeline
    assert THREADS.elements(again) == THREADS.elements(pipeline)


@pytest.mark.slow
def test_partition_columns_are_fields_like_any_other(tmp_path: Path) -> None:
    built = build(tmp_path, [[5, 5], [10], [4]], names=("id", "drive", "ts", "image"), partition="drive")
    for calls in (
        [],
        [call("select", "id", "drive")],
        [call("where", pc.field("drive") != "d1", model=lambda row: row["drive"] != "d1"), call("shuffle", 3, seed=1)],
        [call("ngram", length=3, **BY_DRIVE), call("batch", 3)],
    ):
        check(built, calls, THREADS.elements)
