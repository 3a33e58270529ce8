"""Verbs of `Pipeline` that other classes have in another form."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from drive_rows import write_drive

from parquetry.common import Pipeline, UnischemaField


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": row["id"] * 2}


def test_map_and_filter_are_transform_and_where(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path), ["id", "speed"])
    output = [UnischemaField("double", np.int64)]
    assert drive.map(double, output).stages == drive.transform(double, output).stages
    assert drive.filter(pc.field("id") > 3).stages == drive.where(pc.field("id") > 3).stages
    assert drive.filter(bool, ["id"], batched=True).stages == drive.where(bool, ["id"], batched=True).stages
    assert [int(row["double"]) for row in drive.filter([("id", ">", 37)]).map(double, output)] == [76, 78]
    for name, verb in (("map", "transform"), ("filter", "where")):
        assert signature(getattr(Pipeline, name)).parameters == signature(getattr(Pipeline, verb)).parameters


def test_whether_a_verb_may_follow_is_told_by_each_of_its_names(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path))
    for verb in ("map", "filter", "hash_split", "fixed", "balance"):
        assert drive.accepts(verb)
    assert not drive.batch(3).accepts("hash_split")
    assert not drive.weigh("id").accepts("balance")
