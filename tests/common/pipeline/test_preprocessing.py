"""`Pipeline.preprocessing`: rows from elsewhere become, to the bit, what the pipeline makes of stored ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drive_rows import ROWS, drive_once
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, Preprocessing, UnischemaField
from parquetry.common.base.errors import DecodeError, EncodeError, PipelineError, TransformError

drive = drive_once()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ma.MaskedArray) or isinstance(other, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(one)
        return bool((mask == np.ma.getmaskarray(other)).all()) and same(
            np.asarray(one)[~mask], np.asarray(other)[~mask]
        )
    if hasattr(one, "shapes"):
        return one.shapes.tolist() == other.shapes.tolist() and same(one.values, other.values)
    if one is None or other is None:
        return one is other
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()


CALLS: dict[str, Any] = {
    "standardize": lambda p, stats: p.standardize("speed", "points", stats=stats),
    "clip": lambda p, stats: p.clip("speed", stats=stats, quantiles=(0.1, 0.9)),
    "bucketize": lambda p, stats: p.bucketize("id", stats=stats, buckets=5),
    "encode": lambda p, stats: p.encode("name", stats=stats, unknown=-1),
    "learn": lambda p, stats: p.encode("tags"),
    "null": lambda p, stats: p.encode("drive", null="none"),
    "hash": lambda p, stats: p.hash_encode("name|drive|tags", buckets=7),
    "fill": lambda p, stats: p.nulls("fill", "speed", value=-1),
    "mask": lambda p, stats: p.nulls("mask", "name"),
    "cast": lambda p, stats: p.cast("float16", "id"),
    "rename": lambda p, stats: p.rename({"price": "cost"}),
    "transform": lambda p, stats: p.transform(
        lambda row: {**row, "new": row["id"] * 2}, UnischemaField("new", "int64")
    ),
    "pack": lambda p, stats: p.pack("packed", ["id"], "float32", keep=True),
    "normalize": lambda p, stats: p.normalize("image", mean=0.5, std=0.25),
    "select": lambda p, stats: p.select("(?!price|cost).*"),
    "where": lambda p, stats: p.where([("id", ">=", 0)]),
}


@examples(12)
@given(names=st.lists(st.sampled_from(list(CALLS)), min_size=1, max_size=6, unique=True))
def test_a_row_and_a_batch_become_what_the_pipeline_makes_of_them(drive: Pipeline, names: list[str]) -> None:
    stats = drive.fit("speed", "points", "id", "name", min_count=1, max_size=20)
    pipeline = drive
    for name in names:
        try:
            pipeline = CALLS[name](pipeline, stats)
            _ = pipeline.element
        except PipelineError:  # a verb that does not fit those before it
            return
    serving = pipeline.preprocessing()
    serving = Preprocessing.from_json(json.loads(json.dumps(serving.to_json())))
    batch = next(iter(pipeline.batch(40)))
    made = serving.apply(ROWS)
    assert list(made) == list(batch)
    assert [name for name in batch if not same(batch[name], made[name])] == []
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    again = serving.apply(columns, batched=True)
    assert [name for name in batch if not same(again[name], made[name])] == []
    for number, row in enumerate(pipeline.take(9)):
        one = serving.apply(ROWS[number])
        assert [name for name in row if not same(row[name], one[name])] == []


def test_a_row_needs_only_the_fields_of_the_model(drive: Pipeline) -> None:
    stats = drive.fit("speed", "id")
    features = drive.nulls("fill", "speed", value=0).standardize("speed", "id", stats=stats).encode("name", null="none")
    serving = features.pack("x", ["speed", "id"]).preprocessing("x")
    assert [field.name for field in serving.inputs] == ["id", "speed"]
    expected = next(iter(features.pack("x", ["speed", "id"]).skip(3)))["x"]
    assert serving.apply({"id": 3, "speed": 1.5, "label": object()})["x"].tolist() == expected.tolist()
    assert serving.apply(pa.table({"id": [3], "speed": [1.5]}))["x"].tolist() == [expected.tolist()]
    assert serving.apply([])["x"].shape == (0, 2)
    with pytest.raises(EncodeError, match=r"expected the fields \['id', 'speed'\], got none of the name 'speed'"):
        serving.apply({"id": 3})
    with pytest.raises(EncodeError, match="field 'id': expected int64, got str 'a'"):
        serving.apply({"id": "a", "speed": 1.0})
    with pytest.raises(EncodeError, match="expected columns of one length, got 'id': 2, 'speed': 1"):
        serving.apply({"id": [1, 2], "speed": [1.0]}, batched=True)
    with pytest.raises(EncodeError, match=r"got 'id': 1, 'speed': one value\. Leave batched=True out"):
        serving.apply({"id": [1], "speed": 1.0}, batched=True)
    with pytest.raises(EncodeError, match="expected a dict of field names to values, got 3"):
        serving.apply([3])  # type: ignore[list-item]


def test_nulls_inside_lists_and_empty_vocabularies_are_served(tmp_path: Any) -> None:
    rows = {"words": [["u", None], ["v"]], "c": pa.array([None, None], pa.string())}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    coded = Pipeline(tmp_path / "rows.parquet").encode("words", null="v").encode("c")
    serving = Preprocessing.from_json(coded.preprocessing().to_json())
    made = serving.apply([{"words": ["u", None], "c": None}, {"words": [], "c": None}])
    assert ([each.tolist() for each in made["words"]], made["c"].tolist()) == ([[0, 1], []], [None, None])
    with pytest.raises(
        DecodeError, match=r"encode: field 'words', the rows passed to apply\(\), row 0: expected one of"
    ):
        serving.apply({"words": ["x"], "c": None})


def test_work_that_is_not_that_of_single_rows_is_refused(drive: Pipeline) -> None:
    with pytest.raises(PipelineError, match=r"preprocessing: expected verbs on single rows, got ngram\(\)"):
        drive.ngram(length=2).preprocessing()
    with pytest.raises(PipelineError, match="got one that draws random numbers"):
        drive.random_flip("image").preprocessing()
    with pytest.raises(PipelineError, match="got one that leaves rows out"):
        drive.transform(lambda row: row, drops=True).preprocessing()
    with pytest.raises(PipelineError, match="preprocessing: expected what to_json"):
        Preprocessing.from_json({"version": 2})
    failing = drive.select("id").transform(lambda row: 1 / 0).preprocessing()
    with pytest.raises(TransformError, match=r"the rows passed to apply\(\), row 0: .*division by zero"):
        failing.apply({"id": 1})
