"""`Pipeline.from_huggingface_parquet`: splits, configurations, and features."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, class_names
from parquetry.common.base.errors import DatasetError, FieldNotFoundError, PipelineError, SchemaError
from parquetry.common.tables import huggingface


def write(path: Path, data: pa.Table, features: Mapping[str, Any] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if features is not None:
        text = json.dumps({"info": {"features": features}})
        data = data.replace_schema_metadata({"huggingface": text})
    pq.write_table(data, path)


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def ids(pipeline: Pipeline) -> list[int]:
    return sorted(int(row["id"]) for row in pipeline)


def picture(color: int, kind: str = "png", mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (5, 4), color if mode == "L" else (color, 0, 7)).save(stream, kind)
    return stream.getvalue()


def test_a_split_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-00001-of-00002.parquet", numbers(3, 4))
    write(tmp_path / "data" / "train-00000-of-00002.parquet", numbers(1, 2))
    write(tmp_path / "data" / "test-00000-of-00001.parquet", numbers(9))
    assert [row["id"] for row in Pipeline.from_huggingface_parquet(tmp_path, "train")] == [1, 2, 3, 4]
    assert ids(Pipeline.from_huggingface_parquet(str(tmp_path), split="test")) == [9]
    assert ids(Pipeline.from_huggingface_parquet(tmp_path, "train+test")) == [1, 2, 3, 4, 9]
    assert ids(Pipeline.from_huggingface_parquet(tmp_path, "all")) == [1, 2, 3, 4, 9]
    with pytest.raises(DatasetError, match=r"expected split= one of \['test', 'train'\]"):
        Pipeline.from_huggingface_parquet(tmp_path)
    with pytest.raises(DatasetError, match=r"expected split= one of \['test', 'train'\], got 'dev'"):
        Pipeline.from_huggingface_parquet(tmp_path, "dev")
    with pytest.raises(DatasetError, match=r"expected each split once, got 'test' twice in split='test\+train\+test'"):
        Pipeline.from_huggingface_parquet(tmp_path, "test+train+test")


def test_fields_in_place_of_a_split_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "train.parquet")
    fields: Any = ["id"]
    with pytest.raises(PipelineError, match=r"expected split= as text, got \['id'\].*write fields=\['id'\]"):
        Pipeline.from_huggingface_parquet(str(tmp_path), fields)
    assert ids(Pipeline.from_huggingface_parquet(str(tmp_path), fields=fields)) == [1]


def test_one_split_need_not_be_named(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00001.parquet", numbers(1, 2))
    pipeline = Pipeline.from_huggingface_parquet(tmp_path)
    assert ids(pipeline) == ids(Pipeline.from_json(pipeline.to_json())) == [1, 2]
    assert ids(Pipeline.from_huggingface_parquet(tmp_path / "train-00000-of-00001.parquet")) == [1, 2]


def test_configurations_are_not_mixed(tmp_path: Path) -> None:
    for config, number in (("en", 1), ("de", 2)):
        write(tmp_path / config / "train-00000-of-00001.parquet", numbers(number))
    assert ids(Pipeline.from_huggingface_parquet(tmp_path, config="de")) == [2]
    with pytest.raises(DatasetError, match=r"expected config= one of \['de', 'en'\], got None"):
        Pipeline.from_huggingface_parquet(tmp_path)


def test_images_decode_and_labels_have_names(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": picture(n, "png" if n % 2 else "webp"), "path": f"{n}"} for n in range(3)]
    data = pa.table({"image": pa.array([*images, None], kind), "label": pa.array([0, 1, 1, 0], pa.int64())})
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    write(tmp_path / "train-00000-of-00001.parquet", data, features)
    pipeline = Pipeline.from_huggingface_parquet(tmp_path)
    assert class_names(pipeline) == class_names(Pipeline.from_json(pipeline.to_json())) == {"label": ("cat", "dog")}
    assert pipeline.schema["image"].shape == (None, None, 3)
    assert pipeline.schema["image"].dims == ("H", "W", "C")
    rows = list(pipeline)
    assert [None if row["image"] is None else row["image"].shape for row in rows] == [(4, 5, 3)] * 3 + [None]
    np.testing.assert_array_equal(rows[1]["image"], np.broadcast_to(np.array([1, 0, 7], np.uint8), (4, 5, 3)))
    (batch,) = list(pipeline.take(3).nulls("error").fixed("image", shape=(4, 5, 3)).batch(3))
    assert batch["image"].shape == (3, 4, 5, 3)


def test_gray_images_have_their_own_shape(tmp_path: Path) -> None:
    data = pa.table({"image": [{"bytes": picture(9, mode="L"), "path": None}]})
    write(tmp_path / "train-00000-of-00001.parquet", data, {"image": {"_type": "Image"}})
    (row,) = list(Pipeline.from_huggingface_parquet(tmp_path, image_shape=(None, None)))
    np.testing.assert_array_equal(row["image"], np.full((4, 5), 9, np.uint8))
    with pytest.raises(SchemaError, match="images expected shape"):
        Pipeline.from_huggingface_parquet(tmp_path, image_shape=(None,))


@pytest.mark.parametrize(("mode", "channels"), [("L", ()), ("LA", (2,)), ("RGB", (3,)), ("RGBA", (4,))])
def test_images_are_converted_to_the_mode_of_their_feature(
    tmp_path: Path, mode: str, channels: tuple[int, ...]
) -> None:
    files = [picture(9, mode=each) for each in ("L", "RGB")]
    data = pa.table({"image": [{"bytes": each, "path": None} for each in files]})
    write(tmp_path / "train-00000-of-00001.parquet", data, {"image": {"mode": mode, "_type": "Image"}})
    pipeline = Pipeline.from_huggingface_parquet(tmp_path)
    assert pipeline.schema["image"].shape == (None, None, *channels)
    for file, row in zip(files, pipeline, strict=True):
        np.testing.assert_array_equal(row["image"], np.asarray(Image.open(io.BytesIO(file)).convert(mode)))
    (gray, _) = list(Pipeline.from_huggingface_parquet(tmp_path, image_shape=(None, None)))
    np.testing.assert_array_equal(gray["image"], np.full((4, 5), 9, np.uint8))


def test_other_features_are_what_arrow_says_with_shapes_where_they_are_known(tmp_path: Path) -> None:
    data = pa.table(
        {
            "matrix": [[[1.0, 2.0], [3.0, 4.0]]],
            "pair": [[1, 2]],
            "many": [["a", "b"]],
            "audio": [{"bytes": b"riff", "path": "x.wav"}],
            "text": pa.array(["x"]).dictionary_encode(),
        }
    )
    features = {
        "matrix": {"shape": [2, 2], "dtype": "float64", "_type": "Array2D"},
        "pair": {"feature": {"dtype": "int64", "_type": "Value"}, "length": 2, "_type": "Sequence"},
        "many": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"},
        "audio": {"_type": "Audio"},
    }
    write(tmp_path / "train-00000-of-00001.parquet", data, features)
    pipeline = Pipeline.from_huggingface_parquet(tmp_path)
    shapes = {field.name: field.shape for field in pipeline.schema}
    assert shapes == {"matrix": (2, 2), "pair": (2,), "many": (None,), "audio.bytes": (), "audio.path": (), "text": ()}
    (row,) = list(pipeline)
    assert row["matrix"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert row["audio.bytes"] == b"riff"


def test_a_column_that_some_files_lack_is_null_there(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.parquet", pa.table({"id": [1], "more": [5]}))
    write(tmp_path / "train-00001-of-00002.parquet", numbers(2))
    assert [row["more"] for row in Pipeline.from_huggingface_parquet(tmp_path)] == [5, None]


@pytest.mark.parametrize("turned", [False, True])
def test_files_with_different_schemas_are_unified(tmp_path: Path, turned: bool) -> None:
    """As in a plain pipeline, whichever file comes first."""
    first = pa.table({"id": pa.array([1], pa.int32()), "x": pa.array([1.5], pa.float32()), "s": [{"a": 1}]})
    second = pa.table({"id": [2**40], "x": [0.1], "s": [{"a": 2, "b": "z"}], "more": [7]})
    for number, data in enumerate((second, first) if turned else (first, second)):
        write(tmp_path / f"train-0000{number}-of-00002.parquet", data)
    pipeline = Pipeline.from_huggingface_parquet(tmp_path)
    rows = sorted(pipeline, key=lambda row: int(row["id"]))
    assert [(row["id"], row["x"], row["s.a"], row["s.b"], row["more"]) for row in rows] == [
        (1, 1.5, 1, None, None),
        (2**40, 0.1, 2, "z", 7),
    ]
    assert ids(pipeline.where([("x", "<", 0.2)])) == [2**40]
    assert sorted(pipeline.schema.fields) == sorted(Pipeline(tmp_path).schema.fields)


def test_types_that_do_not_widen_to_one_fail_when_selected(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.parquet", pa.table({"id": [1], "x": [1]}))
    write(tmp_path / "train-00001-of-00002.parquet", pa.table({"id": [2], "x": ["a"]}))
    pipeline = Pipeline.from_huggingface_parquet(tmp_path)
    assert ids(pipeline.select("id")) == [1, 2]
    with pytest.raises(SchemaError, match="field 'x': expected one type in all files, got int64 in"):
        list(pipeline)


def test_class_numbers_mean_the_same_in_all_files(tmp_path: Path) -> None:
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = {"id": {"names": names, "_type": "ClassLabel"}}
        write(tmp_path / f"train-0000{number}-of-00002.parquet", numbers(number), features)
    with pytest.raises(
        DatasetError, match=r"field 'id': expected one feature in all files, got \{'names': \['cat', 'dog"
    ):
        Pipeline.from_huggingface_parquet(tmp_path)


def test_an_image_that_is_only_a_path_is_an_error(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    held: list[Any] = [{"bytes": picture(1), "path": "a.png"}, None, {"bytes": None, "path": None}]
    elsewhere = {"bytes": None, "path": "/pictures/b.png"}
    for name, images in (("some", [*held, elsewhere]), ("all", [elsewhere] * 2), ("none", held)):
        data = pa.table({"image": pa.array(images, kind)})
        write(tmp_path / name / "train.parquet", data, {"image": {"_type": "Image"}})
    expected = r"train\.parquet, row group 0, row {}: expected the bytes of image 'image', got only its path '/pictures/b\.png'"
    for name, row in (("some", 3), ("all", 0)):
        pipeline = Pipeline.from_huggingface_parquet(tmp_path, config=name)
        for each in (pipeline, pipeline.nulls("drop"), pipeline.nulls("drop").shuffle(2, seed=1)):
            with pytest.raises(DatasetError, match=expected.format(row)):
                list(each)
    rows = list(Pipeline.from_huggingface_parquet(tmp_path, config="none"))
    assert [row["image"] is None for row in rows] == [False, True, True]
    assert len(list(Pipeline.from_huggingface_parquet(tmp_path, config="none").nulls("drop"))) == 1


def test_arrow_files_of_save_to_disk_are_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in ("train/data-00000-of-00001.arrow", "train/state.json", "train/dataset_info.json", "dataset_dict.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(
        DatasetError, match=r"found Arrow files such as 'train/data-.*', as save_to_disk\(\) writes them"
    ):
        Pipeline.from_huggingface_parquet(tmp_path, "train")


def test_metadata_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    data = numbers(1).replace_schema_metadata({"huggingface": "{"})
    pq.write_table(data, tmp_path / "train.parquet")
    with pytest.raises(DatasetError, match="expected JSON under 'huggingface'"):
        Pipeline.from_huggingface_parquet(tmp_path)


def test_options_are_the_same_for_every_pipeline(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", numbers(1))
    assert Pipeline.from_huggingface_parquet(tmp_path, fields="id", workers=2).workers == 2
    with pytest.raises(PipelineError, match="expected workers to be an integer"):
        Pipeline.from_huggingface_parquet(tmp_path, workers=0)


def test_a_url_of_the_hub_is_pinned_to_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    class FileSystem:
        def __init__(self, **options: Any) -> None:
            assert options == {"token": "secret"}

        def resolve_path(self, url: str, revision: str | None) -> Any:
            assert url == "hf://datasets/user/faces/data"
            revision = revision or "main"
            return SimpleNamespace(repo_type="dataset", repo_id="user/faces", revision=revision, path_in_repo="data")

    class Api:
        def __init__(self, token: str | None, endpoint: str | None) -> None:
            assert (token, endpoint) == ("secret", None)

        def repo_info(self, repo_id: str, *, repo_type: str, revision: str) -> Any:
            assert (repo_id, repo_type) == ("user/faces", "dataset")
            return SimpleNamespace(sha={"main": "abc123", "v3.0": "def456"}[revision])

    fake = SimpleNamespace(HfApi=Api, HfFileSystem=FileSystem)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    for revision, commit in ((None, "abc123"), ("v3.0", "def456")):
        url = huggingface.pin_commit("hf://datasets/user/faces/data", {"token": "secret"}, revision, what="folder")
        assert url == f"hf://datasets/user/faces@{commit}/data"


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DatasetError, match=r"pip install 'parquetry\[huggingface\]'"):
        Pipeline.from_huggingface_parquet("hf://datasets/user/faces")


def images_without_features(folder: Path) -> UnischemaField:
    """Writes a folder of images as structs, without a footer that says so; returns how to read them."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": picture(10 * n, "jpeg"), "path": f"{n}.jpg"} for n in range(4)] + [None]
    write(folder / "a.parquet", pa.table({"id": range(5), "image": pa.array(cells, kind), "n": range(5)}))
    return UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg"))


def test_images_decode_without_their_feature_if_the_field_is_named_with_a_codec(tmp_path: Path) -> None:
    image = images_without_features(tmp_path)
    pipeline = Pipeline(tmp_path, ["n", image, "id"])
    rows = list(pipeline)
    assert [list(row) for row in rows] == [["id", "image", "n"]] * 5  # in the order of the file
    assert [round(row["image"][..., 0].mean() / 10) for row in rows[:4]] == [0, 1, 2, 3]
    assert rows[4]["image"] is None
    kept = pipeline.nulls("drop", "image").resize("image", (2, 2), interpolation="nearest").shuffle(3, seed=1)
    assert [batch["image"].shape for batch in kept.select("image").batch(2)] == [(2, 2, 2, 3)] * 2
    assert all(set(row) == {"image", "image.path"} for row in Pipeline(tmp_path, [image, "image.path"]))
    again = Pipeline.from_json(json.loads(json.dumps(pipeline.to_json())))
    assert all(map(np.array_equal, (row["image"] for row in list(again)[:4]), (row["image"] for row in rows)))
    cached = pipeline.select("image").cache(str(tmp_path / "cache"))
    for _ in range(2):
        assert np.array_equal(list(cached)[2]["image"], rows[2]["image"])


def test_images_of_a_table_decode_if_the_field_is_named_with_a_codec(tmp_path: Path) -> None:
    image = images_without_features(tmp_path)
    rows = list(Pipeline.from_huggingface_parquet(tmp_path, fields=[image, "id"]))
    assert [row["image"] is None for row in rows] == [False] * 4 + [True]


def test_the_name_alone_does_not_make_an_image_struct_a_field(tmp_path: Path) -> None:
    images_without_features(tmp_path)
    assert "image" not in Pipeline(tmp_path).schema
    with pytest.raises(FieldNotFoundError, match=r"field 'image': expected a codec, .* or name 'image.bytes'"):
        _ = Pipeline(tmp_path, ["image"]).element
    with pytest.raises(FieldNotFoundError, match="field 'imag'"):
        _ = Pipeline(tmp_path, [UnischemaField("imag", np.uint8, (1, 1, 3), CompressedImageCodec())]).element


@pytest.mark.parametrize(
    "features",
    [
        {"id": {"_type": "ClassLabel", "names": [1, 2]}},
        {"image": {"_type": "Image", "mode": []}},
        {"id": {"_type": "ClassLabel", "names": 7}},
        {"x": {"_type": "Array2D"}},
        {"x": {"_type": "Array2D", "shape": [2, []]}},
        {"x": {"_type": "Array2D", "shape": [2, 1 << 40]}},
        {"x": {"_type": "Sequence", "length": "3"}},
        [1, 2],
    ],
    ids=str,
)
def test_features_that_the_package_does_not_write_are_an_error_that_names_the_file(
    tmp_path: Path, features: Any
) -> None:
    data = numbers(1, 2).append_column("x", pa.array([[[1.0]]] * 2))
    data = data.append_column("image", pa.array([{"bytes": b"", "path": None}] * 2))
    write(tmp_path / "train.parquet", data, features)
    with pytest.raises(DatasetError, match=rf"file {tmp_path}/train.parquet: expected "):
        Pipeline.from_huggingface_parquet(tmp_path)


def test_features_that_are_nested_too_deeply_are_an_error(tmp_path: Path) -> None:
    data = numbers(1).replace_schema_metadata({"huggingface": "[" * 100_000})
    pq.write_table(data, tmp_path / "train.parquet")
    with pytest.raises(DatasetError, match="expected JSON under 'huggingface'"):
        Pipeline.from_huggingface_parquet(tmp_path)
