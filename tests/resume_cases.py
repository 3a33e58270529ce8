"""Pipelines for tests that stop and resume, and ways a state may be damaged; the same for every face."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.compute as pc
from hypothesis import strategies as st

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.plan.state import read_state

RESUME_NAMES = ("id", "drive", "ts", "speed", "label", "image", "points", "tags", "codes")


def _double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": row["id"] * 2}


DOUBLE = [UnischemaField("double", np.int64)]
CASES: dict[str, Callable[[Pipeline], Pipeline]] = {
    "rows": lambda p: p,
    "rows with nulls in windows": lambda p: p.ngram(length=2),
    "batches": lambda p: p.batch(4),
    "full batches": lambda p: p.batch(4, drop_remainder=True),
    "filter": lambda p: p.where(pc.field("id") > 3).batch(2),
    "filter by a function": lambda p: p.where(lambda row: row["id"] % 2 == 0, fields=["id"]),
    "shuffle": lambda p: p.shuffle(4, seed=1),
    "shuffle and batch over two passes": lambda p: p.shuffle(4, seed=1).repeat(2).batch(5),
    "batch, then two passes": lambda p: p.shuffle(4, seed=1).batch(5).repeat(2),
    "shards": lambda p: p.shuffle(3, seed=2).shard(3, 1).batch(2),
    "a shard of its own": lambda p: p.shard(3, 2, even="none").shuffle(3, seed=2).repeat(2),
    "canonical shards": lambda p: p.shuffle(3, seed=2).shard(2, 1, canonical_shards=4).batch(3).repeat(2),
    "windows with repeated edges": lambda p: p.ngram(
        offsets={"id": [0, 1], "image": [-2, 0], "tags": -1}, group_by="drive", edges="clamp"
    ).shuffle(5, seed=4).batch(3),
    "windows by offset": lambda p: p.ngram({-1: ["id", "image"], 1: ["tags"]}, timestamp="ts", max_gap=600).batch(3),
    "shuffled windows": lambda p: p.select("id", "points").ngram(length=3).shuffle(3, seed=4).batch(2),
    "take and skip": lambda p: p.skip(2).shuffle(4, seed=1).take(9).skip(1),
    "take and skip of batches": lambda p: p.shuffle(4, seed=1).batch(2).skip(1).take(5),
    "transform": lambda p: p.select("id").transform(_double, DOUBLE),
    "transform of batches": lambda p: p.select("id").batch(4).transform(_double, DOUBLE),
    "transform before windows": lambda p: p.select("id").transform(_double, DOUBLE).ngram(length=2).batch(3),
    "new names and dtypes": lambda p: p.rename({"ts": "time"}).where(pc.field("time") > 99).cast("int16", "points").shuffle(4, seed=1).batch(2),
    "rows by weight": lambda p: p.weigh(pc.add(pc.field("id"), 1), 15, seed=1).shuffle(4, seed=2).repeat(2).batch(4),
    "batches by length": lambda p: p.nulls("drop", "codes").shuffle(6, seed=1).bucket("codes", [1, 2], batch_size=2).repeat(2),
    "rows end to end": lambda p: p.nulls("drop", "codes").shuffle(6, seed=1).shard(2, 1, canonical_shards=4).concat(2, "codes", separator=9, remainder="pad").batch(2).repeat(2),
    "packed rows": lambda p: p.nulls("drop", "codes").shuffle(6, seed=1).pack_rows(4, "codes").repeat(2),
    "null policies": lambda p: p.nulls("mask", "speed").nulls("drop", "label").pad("points").batch(3),
}  # fmt: skip

SIMPLE_CHAINS: list[Callable[[Pipeline], Pipeline]] = [
    lambda p: p,
    lambda p: p.shuffle(4, 1).batch(3),
    lambda p: p.shuffle(4).shard(2, 1).repeat(3).batch(2),
    lambda p: p.shard(3, 1, even="none").repeat(2).batch(4, True),
    lambda p: p.shuffle(4, 2).repeat().batch(2),
    lambda p: p.take(9).shuffle(3, 1).skip(2),
]
"""Chains over twenty rows with a field ``id``."""

_WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=4),
    st.integers(-3, 40),
    st.sampled_from([1 << 31, 1 << 62, 1 << 63, 1 << 200, -(1 << 70)]),
    st.lists(st.integers(-2, 30) | st.none() | st.booleans(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@st.composite
def corrupted(draw: st.DrawFn, state: dict[str, Any]) -> Any:
    """Draws a state with one field changed, removed or added, or its text cut, or arbitrary bytes."""
    how = draw(st.sampled_from(["change", "change", "drop", "add", "cut", "bytes"]))
    if how == "cut":
        return json.dumps(state)[: draw(st.integers(0, 60))]
    if how == "bytes":
        return draw(st.binary(max_size=40))
    name = "more" if how == "add" else draw(st.sampled_from(sorted(state)))
    rest = {key: value for key, value in state.items() if key != name}
    return rest if how == "drop" else {**rest, name: draw(_WRONG)}


def is_at_its_end(pipeline: Pipeline, state: Any) -> bool:
    """Whether an accepted state leaves, or may leave, nothing of the pipeline."""
    found, plan = read_state(state), pipeline.plan()
    length = plan.elements_from(found.start) if found.batch_size == plan.element.batch_size else None
    return length is None or found.consumed >= length - 2
