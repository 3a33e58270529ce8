"""Tables and data frames in every face: the same rows as from `Pipeline`, tested in `tests/common/tables`."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import THREADS, TorchFace, import_framework, installed_faces
from lerobot_sets import FRONT, TASKS, write_lerobot
from movies import numbers_of
from PIL import Image

from parquetry.common import Pipeline
from parquetry.common.pipeline.constructors import Constructors

FACES = installed_faces()[1:]  # threads are compared with the tables' own packages
LOADERS = [TorchFace(2)] if any(isinstance(face, TorchFace) for face in FACES) else []


@pytest.fixture(params=[*FACES, *LOADERS], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_delta_table_with_deleted_rows(tmp_path: Path, face: Any) -> None:
    pytest.importorskip("deltalake")
    import delta_tables as hand

    vector = hand.inline_vector([1, 4])
    data = pa.table({"id": pa.array(range(6), pa.int64())})
    hand.commit(
        tmp_path,
        0,
        hand.protocol(["deletionVectors"]),
        hand.metadata([hand.field("id", "long"), hand.field("day", "string")], ["day"]),
        hand.add(tmp_path, "a.parquet", data, {"day": "monday"}, deletionVector=vector),
    )
    pipeline = Pipeline.from_delta(tmp_path, executor="threads")
    assert face.elements(pipeline) == [{"id": number, "day": "monday"} for number in (0, 2, 3, 5)]
    shuffled = pipeline.shuffle(4, seed=3).batch(2)
    assert face.elements(shuffled) == THREADS.elements(shuffled)


def test_an_iceberg_table_with_equality_deletes(tmp_path: Path, face: Any) -> None:
    pytest.importorskip("pyiceberg")
    import iceberg_tables as hand

    data = pa.table({"id": pa.array(range(5), pa.int64())})
    table = hand.catalog_in(tmp_path).create_table("n.t", data.schema)
    table.append(data)
    hand.commit_deletes(table, hand.equality_deletes(table, "e.parquet", data.slice(2, 2), {"id": 1}))
    assert face.elements(Pipeline.from_iceberg(table)) == [{"id": number} for number in (0, 1, 4)]


def test_a_data_frame(face: Any) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": np.arange(4), "x": np.arange(4) / 2})
    assert face.elements(Pipeline.from_pandas(frame)) == frame.to_dict("records")


def test_a_hugging_face_folder_is_converted(tmp_path: Path, face: Any) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "train-00000-of-00001.parquet")
    assert face.elements(Pipeline.from_huggingface_parquet(tmp_path, "train")) == [{"id": 1}, {"id": 2}]


def test_a_folder_of_images(tmp_path: Path, face: Any) -> None:
    for number, name in enumerate(["cat/1.png", "cat/0.png", "dog/0.png"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / name)
    pipeline = Pipeline.from_image_folder(tmp_path, image_shape=(2, 2, 3))
    rows = face.elements(pipeline.shuffle(2, seed=1))
    assert rows == THREADS.elements(pipeline.shuffle(2, seed=1))
    found = sorted((row["path"], row["label"], row["image"][0][0][0]) for row in rows)
    assert found == [("cat/0.png", 0, 1), ("cat/1.png", 0, 0), ("dog/0.png", 1, 2)]


@pytest.mark.parametrize("deltas", [None, {"action": [0, 0.1], FRONT: [-0.1, 0]}], ids=["rows", "windows"])
def test_a_lerobot_dataset(tmp_path: Path, face: Any, deltas: dict[str, list[float]] | None) -> None:
    pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")
    root = write_lerobot(tmp_path / "robot", front=True)
    pipeline = Pipeline.from_lerobot(root, delta_timestamps=deltas, episodes=[0, 2])
    stats = pipeline.dataset.stats
    chain = pipeline.standardize("action", stats=stats).shuffle(6, seed=1)
    rows = face.elements(chain)
    assert rows == THREADS.elements(chain)
    assert sorted(row["index"] for row in rows) == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    for row in rows:
        assert row["task"] == TASKS[0]
        assert numbers_of(row[FRONT])[-1] == row["index"]


def face_classes() -> list[Any]:
    """Returns the class of each installed face; all have the constructors of `Pipeline`."""
    found: list[Any] = []
    for framework, package, names in (
        ("tensorflow", "tf_plugin", ["ParquetDataset"]),
        ("torch", "torch_plugin", ["ParquetIterable", "ParquetPipe", "ParquetNode", "ParquetMap"]),
    ):
        if find_spec(framework) is not None:
            import_framework(framework)
            module = import_module(f"parquetry.{package}")
            found += [getattr(module, name) for name in names]
    return found


@pytest.mark.parametrize("kind", face_classes(), ids=lambda kind: kind.__name__)
def test_every_class_has_the_constructors_of_a_pipeline(tmp_path: Path, kind: Any) -> None:
    pd = pytest.importorskip("pandas")
    pq.write_table(pa.table({"id": [1, 2], "x": [3, 4]}), tmp_path / "train-00000-of-00001.parquet")
    made = kind.from_huggingface_parquet(tmp_path, "train", ["id"], workers=3)
    assert isinstance(made, kind)
    assert made.pipeline == Pipeline.from_huggingface_parquet(tmp_path, "train", ["id"], workers=3)
    assert [int(row["id"]) for row in made.where([("id", ">", 1)])] == [2]
    frame = pd.DataFrame({"id": [5, 6]})
    assert kind.from_pandas(frame, "id").pipeline == Pipeline.from_pandas(frame, "id")
    with pytest.raises(TypeError, match="no_such_option"):
        kind.from_pandas(frame, no_such_option=1)
    robot = write_lerobot(tmp_path / "robot")
    deltas = {"action": [0, 0.1]}
    made = kind.from_lerobot(robot, ["index", "action"], episodes=[1], delta_timestamps=deltas, workers=2)
    assert made.pipeline == Pipeline.from_lerobot(
        robot, ["index", "action"], episodes=[1], delta_timestamps=deltas, workers=2
    )
    names = {name for name in vars(Constructors) if name.startswith("from_")}
    for name in names:
        own, shared = (inspect.unwrap(getattr(each, name).__func__) for each in (kind, Pipeline))
        assert own is shared
