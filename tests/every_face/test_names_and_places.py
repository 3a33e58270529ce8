"""Directories that other programs added to: every face reads the same columns, partition values and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders import write_table
from faces import Face, installed_faces

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of this library; beside it a partition with a new column and a stored key, and a link to it."""
    root = tmp_path / "root"
    schema = Unischema("own", [UnischemaField("x", np.int64), UnischemaField("day", np.int32)])
    write_dataset(str(root), schema, [{"x": number, "day": 1} for number in range(3)], partition_by=("day",))
    new = {"x": pa.array([3, 4], pa.int64()), "score": [1.5, None], "day": pa.array([2, 7], pa.int32())}
    write_table(root / "day=2", pa.table(new))
    (root / "day=3").symlink_to("day=2")
    return root


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_new_columns_directories_and_links_are_the_same_in_every_face(root: Path, face: Face) -> None:
    pipeline = Pipeline(root)
    rows = [{"x": 0, "day": 1, "score": -1.0}, {"x": 1, "day": 1, "score": -1.0}, {"x": 2, "day": 1, "score": -1.0}]
    rows += [{"x": 3, "day": 2, "score": 1.5}, {"x": 4, "day": 2, "score": -1.0}]
    for filtered, left in (
        (pipeline, rows),
        (pipeline.where(pc.field("day") == 2), rows[3:]),
        (pipeline.where(pc.field("score") > 1), rows[3:4]),
    ):
        assert face.elements(filtered.nulls("fill", "score", value=-1.0)) == left
