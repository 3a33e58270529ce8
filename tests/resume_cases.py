"""One pipeline per stage and combination, for the tests that stop and go on; the same for every face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.compute as pc

from parquetry.common import Pipeline, UnischemaField

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
    "windows by offset": lambda p: p.ngram({-1: ["id", "image"], 1: ["tags"]}, timestamp="ts", max_gap=600).batch(3),
    "shuffled windows": lambda p: p.select("id", "points").ngram(length=3).shuffle(3, seed=4).batch(2),
    "take and skip": lambda p: p.skip(2).shuffle(4, seed=1).take(9).skip(1),
    "take and skip of batches": lambda p: p.shuffle(4, seed=1).batch(2).skip(1).take(5),
    "transform": lambda p: p.select("id").transform(_double, DOUBLE),
    "transform of batches": lambda p: p.select("id").batch(4).transform(_double, DOUBLE),
    "transform before windows": lambda p: p.select("id").transform(_double, DOUBLE).ngram(length=2).batch(3),
    "null policies": lambda p: p.nulls("mask", "speed").nulls("drop", "label").pad("points").batch(3),
}  # fmt: skip
