"""`convert`: every form of source, and resuming after an interruption."""

from __future__ import annotations

import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import plain
from PIL import Image
from processes import eventually
from tfrecords import example, feature, framed

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, class_names
from parquetry.common.apps.tools import convert, converting, copying
from parquetry.common.apps.tools.copy_job import CopyJob
from parquetry.common.base.errors import DatasetError, EncodeError, FieldNotFoundError, PipelineError, SchemaError

pytestmark = pytest.mark.versions

PETASTORM = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"


def picture(gray: int, kind: str = "jpeg", mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 5), (gray, gray, gray)).convert(mode).save(stream, kind)
    return stream.getvalue()


def write_tfrecords(folder: Path, files: int = 3, rows: int = 4) -> list[bytes]:
    """Writes files of examples with an image, a label, a name and boxes; returns the images in order."""
    folder.mkdir(parents=True, exist_ok=True)
    images = [picture(10 * n % 250) for n in range(files * rows)]
    for file in range(files):
        records = [
            example(
                {
                    "image/encoded": feature([images[n]]),
                    "label": feature([n - 5]),
                    "name": feature([f"é{n}".encode()]),
                    "box": feature([0.5] * (n % 3)) if n % 3 else b"",
                }
            )
            for n in range(file * rows, (file + 1) * rows)
        ]
        (folder / f"train.tfrecord-{file:05d}-of-{files:05d}").write_bytes(framed(*records))
    return images


def write_tar(path: Path, samples: list[dict[str, bytes]]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for sample in samples:
            for name, content in sample.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def run(*arguments: Any, **options: Any) -> Any:
    return convert(*arguments, **{"progress": False, "workers": 1, **options})


def stored(target: Path, name: str) -> list[Any]:
    return [value for path in sorted(target.glob("*.parquet")) for value in pq.read_table(path)[name].to_pylist()]


def test_tfrecords_are_inferred_and_images_kept_as_they_are(tmp_path: Path) -> None:
    images = write_tfrecords(tmp_path / "in")
    report = run(tmp_path / "in", tmp_path / "out", rename={"image/encoded": "image"})
    assert (report.rows, report.files, report.resumed_stripes) == (12, 1, 0)
    assert stored(tmp_path / "out", "image") == images
    rows = list(Pipeline(tmp_path / "out"))
    assert [int(row["label"]) for row in rows] == list(range(-5, 7))
    assert [row["name"] for row in rows] == [f"é{n}" for n in range(12)]
    assert [None if row["box"] is None else row["box"].tolist() for row in rows] == [
        [0.5] * (n % 3) or None for n in range(12)
    ]
    assert rows[3]["image"].shape == (5, 6, 3)
    assert report.schema["image"].codec == CompressedImageCodec("jpeg", convert=True)


def test_a_feature_description_says_what_fields_are(tmp_path: Path) -> None:
    write_tfrecords(tmp_path / "in")
    text = SimpleNamespace(as_numpy_dtype=object)
    number = SimpleNamespace(as_numpy_dtype=np.int64)
    description = {
        "name": SimpleNamespace(shape=[], dtype=text, default_value=None),
        "label": SimpleNamespace(shape=[1], dtype=number, default_value=None),
        "box": SimpleNamespace(dtype=SimpleNamespace(as_numpy_dtype=np.float32)),
        "image/encoded": SimpleNamespace(shape=[], dtype=text, default_value=None),
    }
    found = run(
        tmp_path / "in",
        tmp_path / "out",
        {**description, "box": UnischemaField("box", np.float32, (None,), nullable=True)},
    ).schema
    assert [(field.name, field.shape) for field in found] == [
        ("name", ()),
        ("label", (1,)),
        ("box", (None,)),
        ("image/encoded", (None, None, 3)),
    ]
    with pytest.raises(SchemaError, match=r"feature 'label': expected tf.io.FixedLenFeature"):
        run(tmp_path / "in", tmp_path / "more", {"label": 3})


def described(*shape: int, default: Any = None, dtype: Any = np.int64, **more: Any) -> SimpleNamespace:
    """Returns what stands for ``tf.io.FixedLenFeature``; with ``allow_missing``, for ``FixedLenSequenceFeature``."""
    kind = SimpleNamespace(as_numpy_dtype=dtype)
    return SimpleNamespace(shape=list(shape), dtype=kind, default_value=default, **more)


def test_default_values_replace_missing_features(tmp_path: Path) -> None:
    some = {"n": feature([5]), "pair": feature([1.0, 2.0]), "name": feature([b"x"]), "list": feature([3])}
    empty = {"n": b"", "pair": b"", "name": b"", "list": b""}
    (tmp_path / "a.tfrecord").write_bytes(framed(example(some), example(empty), example({"other": feature([1])})))
    description = {
        "n": described(default=-1),
        "pair": described(2, default=0.5, dtype=np.float32),
        "name": described(default="none", dtype=object),
        "list": SimpleNamespace(dtype=SimpleNamespace(as_numpy_dtype=np.int64)),
        "other": described(default=None, allow_missing=True),
    }
    found = run(tmp_path / "a.tfrecord", tmp_path / "out", description)
    assert [(field.name, field.shape, field.nullable) for field in found.schema] == [
        ("n", (), False),
        ("pair", (2,), False),
        ("name", (), False),
        ("list", (None,), False),
        ("other", (None,), False),
    ]
    first, *others = [plain(row) for row in Pipeline(tmp_path / "out")]
    assert first == {"n": 5, "pair": [1.0, 2.0], "name": "x", "list": [3], "other": []}
    missing = {"n": -1, "pair": [0.5, 0.5], "name": "none", "list": []}
    assert others == [{**missing, "other": []}, {**missing, "other": [1]}]
    with pytest.raises(DatasetError, match="expected an empty target"):
        run(tmp_path / "a.tfrecord", tmp_path / "out", {**description, "n": described(default=-2)})
    for wrong in (described(default="x"), described(3, default=[1, 2]), described(default=1.5)):
        with pytest.raises(SchemaError, match="feature 'n': expected a default value"):
            run(tmp_path / "a.tfrecord", tmp_path / "more", {"n": wrong})
    with pytest.raises(SchemaError, match=r"feature 'n': expected tf\.io\.FixedLenFeature"):
        run(tmp_path / "a.tfrecord", tmp_path / "more", {"n": described(index_key="i", value_key="v")})


def test_another_default_value_is_another_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tfrecord").write_bytes(framed(example({"m": feature([1])}), example({"n": feature([1])})))

    with monkeypatch.context() as patch:
        patch.setattr(CopyJob, "complete", Mock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            run(tmp_path / "a.tfrecord", tmp_path / "out", {"n": described(default=1)})
    with pytest.raises(DatasetError, match="a different unfinished one"):
        run(tmp_path / "a.tfrecord", tmp_path / "out", {"n": described(default=2)})


def test_a_feature_that_the_first_records_lack_is_not_lost(tmp_path: Path) -> None:
    records = [example({"a": feature([n])}) for n in range(300)]
    records[299] = example({"a": feature([1]), "late": feature([2])})
    (tmp_path / "a.tfrecord").write_bytes(framed(*records))
    with pytest.raises(EncodeError, match=r"a.tfrecord: record 300: has features .* lack: \['late'\].*Declare"):
        run(tmp_path / "a.tfrecord", tmp_path / "out")
    assert run(tmp_path / "a.tfrecord", tmp_path / "few", ["a"]).rows == 300
    late = ["a", UnischemaField("late", np.int64, nullable=True)]
    run(tmp_path / "a.tfrecord", tmp_path / "all", late)
    assert [row["late"] for row in Pipeline(tmp_path / "all")][-2:] == [None, 2]


def test_a_record_with_two_features_for_one_field_is_refused(tmp_path: Path) -> None:
    records = [
        example({"a": feature([1])}),
        example({"b": feature([2])}),
        example({"a": feature([1]), "b": feature([2])}),
    ]
    (tmp_path / "a.tfrecord").write_bytes(framed(*records))
    with pytest.raises(EncodeError, match=r"field 'b': expected one of its features .* got \['a', 'b'\]"):
        run(tmp_path / "a.tfrecord", tmp_path / "out", rename={"a": "b"})


def test_fields_are_cast_exactly_or_refused(tmp_path: Path) -> None:
    raw = np.arange(6, dtype="<i2").tobytes()
    records = [
        example(
            {
                "small": feature([200]),
                "flag": feature([1, 0]),
                "raw": feature([raw]),
                "flat": feature([1.0, 2.0, 3.0, 4.0]),
            }
        )
    ]
    (tmp_path / "a.tfrecord").write_bytes(framed(*records))
    fields = [
        UnischemaField("small", np.uint8),
        UnischemaField("flag", np.bool_, (2,)),
        UnischemaField("raw", np.int16, (2, 3)),
        UnischemaField("flat", np.float64, (2, None)),
        UnischemaField("missing", str, nullable=True),
    ]
    run(tmp_path / "a.tfrecord", tmp_path / "out", fields)
    (row,) = Pipeline(tmp_path / "out")
    assert (int(row["small"]), row["flag"].tolist(), row["missing"]) == (200, [True, False], None)
    assert row["raw"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert row["flat"].tolist() == [[1, 2], [3, 4]]
    for field, text in [
        (UnischemaField("small", np.int8), "expected -128 to 127"),
        (UnischemaField("flag", np.int64), "expected one value, got 2"),
        (UnischemaField("flag", np.int64, (3,)), r"expected shape \(3,\), got 2 values"),
        (UnischemaField("flat", np.uint8, (4,)), None),
        (UnischemaField("raw", str), "expected text in UTF-8" if not _utf8(raw) else None),
        (UnischemaField("missing", str), "expected a value, got None"),
    ]:
        if text is not None:
            with pytest.raises(EncodeError, match=rf"file .*a.tfrecord: .*field '{field.name}': {text}.*fields="):
                run(tmp_path / "a.tfrecord", tmp_path / "bad", [field], overwrite=True)


def _utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_files_without_records_are_passed_over(tmp_path: Path) -> None:
    for number, records in enumerate([[], [{}, {"a": feature([1])}], [], [{"a": feature([2])}]]):
        (tmp_path / f"{number}.tfrecord").write_bytes(framed(*map(example, records)))
    run(tmp_path, tmp_path / "out")
    assert stored(tmp_path / "out", "a") == [None, 1, 2]
    with pytest.raises(DatasetError, match=r"2.tfrecord: expected records with features, got 0 without"):
        run([tmp_path / "0.tfrecord", tmp_path / "2.tfrecord"], tmp_path / "none")


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
def test_webdataset_samples_become_rows(tmp_path: Path, name: str) -> None:
    array = io.BytesIO()
    np.save(array, np.ones((2, 3), np.float32))
    samples = [
        {
            f"./d/{n}.JPG": picture(n),
            f"./d/{n}.cls": str(n).encode(),
            f"./d/{n}.json": json.dumps({"n": n}).encode(),
            f"./d/{n}.seg.png": picture(n, "png", "L"),
            f"./d/{n}.npy": array.getvalue(),
        }
        for n in range(3)
    ] + [{"d/.hidden.jpg": b"", "__meta__.txt": b""}, {"d/3.png": picture(3, "png", "RGBA"), "d/3.cls": b"7"}]
    write_tar(tmp_path / name, samples)
    report = run(tmp_path / name, tmp_path / "out", rename={"jpg": "image", "png": "image", "cls": "label"})
    rows = list(Pipeline(tmp_path / "out"))
    assert [row["__key__"] for row in rows] == ["d/0", "d/1", "d/2", "d/3"]
    assert [int(row["label"]) for row in rows] == [0, 1, 2, 7]
    assert [row["image"].shape for row in rows] == [(5, 6, 3)] * 4
    assert [row["json"] for row in rows] == ['{"n": 0}', '{"n": 1}', '{"n": 2}', None]
    assert rows[0]["npy"].shape == (2, 3)
    assert report.schema["seg_png"].shape == (None, None)
    assert report.schema["seg_png"].nullable
    assert stored(tmp_path / "out", "image")[3] == samples[-1]["d/3.png"]


def test_files_of_a_tar_that_belong_to_no_sample_are_counted_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"README": b"?", "x.y/c": b"?", ".hid.cls": b"?", "__k__.json": b"{}"}
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, [{"0.cls": b"1", **others}])
    run(str(tmp_path / "*.tar"), tmp_path / "out", stripe_bytes=1)
    (warning,) = [record.message for record in caplog.records if "belong to no sample" in record.message]
    assert re.search(r"left out 6 files .*, such as 'README' in .*[ab]\.tar", warning)
    run(str(tmp_path / "a.tar"), tmp_path / "one")
    assert stored(tmp_path / "one", "cls") == [1]


def test_an_image_folder_keeps_its_files_and_class_names(tmp_path: Path) -> None:
    for number, name in enumerate(["cat/0.jpg", "cat/1.jpg", "dog/0.jpg"]):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(picture(number))
    run(tmp_path / "in", tmp_path / "out")
    assert stored(tmp_path / "out", "image") == [picture(number) for number in range(3)]
    converted = Pipeline(tmp_path / "out")
    assert class_names(converted) == {"label": ("cat", "dog")}
    direct = list(Pipeline.from_image_folder(tmp_path / "in"))
    for row, other in zip(converted, direct, strict=True):
        assert (row["path"], row["label"]) == (other["path"], other["label"])
        assert np.array_equal(row["image"], other["image"])
    run(tmp_path / "in", tmp_path / "pictures", "image")
    assert class_names(Pipeline(tmp_path / "pictures")) == {}


@pytest.mark.parametrize("content", [b"", b"no image", b"GIF89a" + bytes(40), picture(1)[:30]])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_image_folder_with_a_file_that_is_not_an_image_is_refused(
    tmp_path: Path, content: bytes, workers: int
) -> None:
    for name in ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content if name == "dog/0.jpg" else picture(9))
    with pytest.raises(EncodeError, match=r"field 'image', file 'dog/0.jpg' of .*: expected an image .* got: "):
        run(tmp_path / "in", tmp_path / "out", workers=workers)
    assert run(tmp_path / "in", tmp_path / "labels", ["label", "path"]).rows == 3
    some = Pipeline.from_image_folder(tmp_path / "in", convert=True).where([("label", "=", 0)])
    assert run(some, tmp_path / "cats").rows == 2


def test_an_error_leaves_no_threads_to_the_garbage_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run while a thread holds a lock of the interpreter: waiting for threads would never end."""

    for name in ("0.jpg", "1.jpg"):
        (tmp_path / "in" / "cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "cat" / name).write_bytes(picture(9))
    monkeypatch.setattr(copying, "_check_images", Mock(side_effect=EncodeError("full")))
    with pytest.raises(EncodeError, match="full") as kept:
        run(tmp_path / "in", tmp_path / "out")
    assert eventually(lambda: not any(thread.name == "parquetry-copy" for thread in threading.enumerate()))
    del kept  # it held the frames of the error


def test_a_hugging_face_folder_keeps_images_and_class_names(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["no", "yes"]}}
    data = pa.table(
        {"image": pa.array([{"bytes": picture(n), "path": None} for n in range(3)], kind), "label": [0, 1, 0]}
    )
    data = data.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    (tmp_path / "in").mkdir()
    for split in ("train", "test"):
        pq.write_table(data, tmp_path / "in" / f"{split}-00000-of-00001.parquet")
    with pytest.raises(DatasetError, match="expected split="):
        run(tmp_path / "in", tmp_path / "out")
    run(tmp_path / "in", tmp_path / "out", split="test")
    assert stored(tmp_path / "out", "image") == [picture(n) for n in range(3)]
    assert class_names(Pipeline(tmp_path / "out")) == {"label": ("no", "yes")}
    assert next(iter(Pipeline(tmp_path / "out")))["image"].shape == (5, 6, 3)


@pytest.mark.slow
def test_plain_parquet_takes_codecs_and_petastorm_keeps_its_own(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"image": [picture(n) for n in range(3)], "id": range(3), "more": range(3)}),
        tmp_path / "plain.parquet",
    )
    field = UnischemaField("image", np.uint8, (5, 6, 3), CompressedImageCodec("jpeg"))
    report = run(tmp_path / "plain.parquet", tmp_path / "out", [field, "id"])
    assert list(report.schema.fields) == ["image", "id"]
    assert next(iter(Pipeline(tmp_path / "out")))["image"].shape == (5, 6, 3)
    filtered = run(Pipeline(tmp_path / "plain.parquet").where([("id", ">", 0)]).select("id"), tmp_path / "some")
    assert (filtered.rows, list(filtered.schema.fields)) == (2, ["id"])
    run(PETASTORM, tmp_path / "petastorm")
    assert plain(list(Pipeline(tmp_path / "petastorm"))) == plain(list(Pipeline(PETASTORM)))
    with pytest.raises(PipelineError, match="with only select, where, take and skip, got rename"):
        run(Pipeline(tmp_path / "plain.parquet").rename({"id": "x"}), tmp_path / "renamed")
    with pytest.raises(FieldNotFoundError, match="'nothing'"):
        run(tmp_path / "plain.parquet", tmp_path / "none", ["nothing"])


@pytest.mark.parametrize("workers", [1, 3])
def test_an_interrupted_conversion_resumes_and_gives_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    write_tfrecords(tmp_path / "in", files=5)
    options = {"stripe_bytes": 1, "workers": workers}
    run(tmp_path / "in", tmp_path / "whole", stripe_bytes=1)
    broken = converting._ROWS["tfrecord"]

    def failing(stream: Any, where: str) -> Iterator[Any]:
        yield from broken(stream, where)
        if "00003-of" in where:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(converting._ROWS, "tfrecord", failing)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "in", tmp_path / "out", **options)
    assert not list((tmp_path / "out").glob("*.parquet"))
    with pytest.raises(DatasetError, match="expected to resume the same copy"):
        run(tmp_path / "in", tmp_path / "out", ["label"], **options)
    report = run(tmp_path / "in", tmp_path / "out", **options)
    assert report.resumed_stripes >= (3 if workers == 1 else 1)
    assert (report.rows, report.files) == (20, 5)
    made = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}


@pytest.mark.parametrize("source", [None, 3])
def test_a_source_that_is_no_path_is_refused(tmp_path: Path, source: Any) -> None:
    with pytest.raises(PipelineError, match=f"convert: expected a path, a URL, a list of them, or .*, got {source}"):
        convert(source, tmp_path / "out")


def test_a_target_that_holds_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tfrecord").write_bytes(framed(example({"a": feature([1])})))
    (tmp_path / "link").symlink_to(tmp_path / "in")
    run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "cat" / "0.jpg").write_bytes(picture(1))
    for source, target in (("in", "in"), ("in", "link"), ("in/a.tfrecord", ""), ("out", "out"), ("pictures", "")):
        with pytest.raises(DatasetError, match="expected a target that contains none of the sources"):
            run(tmp_path / source, tmp_path / target, overwrite=True)
    for source, target in (("out", "out/copy"), ("pictures", "pictures/cat/out")):
        with pytest.raises(DatasetError, match="expected a target outside the sources, got one below"):
            run(tmp_path / source, tmp_path / target)
    run(tmp_path / "in", tmp_path / "in" / "beside")
    run(tmp_path / "out", tmp_path / "out" / "_copy")
    for target in ("out", "out/_copy", "in/beside"):
        assert len(Pipeline(tmp_path / target)) == 1


def test_features_to_rename_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(framed(example({"jpg": feature([1]), "b": feature([2])})))
    with pytest.raises(FieldNotFoundError, match=r"got \['jgp'\]; the first 1 records of .* have \['b', 'jpg'\]"):
        run(tmp_path, tmp_path / "out", rename={"jgp": "image", "b": "c"})
    run(tmp_path, tmp_path / "out", rename={"jpg": "image", "png": "image"})
    assert [field.name for field in Pipeline(tmp_path / "out").dataset.schema] == ["b", "image"]


def test_a_record_that_does_not_fit_names_its_file(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.tfrecord").write_bytes(framed(*[example({"a": feature([1] * (1 + number))})] * 300))
    with pytest.raises(EncodeError, match=r"file .*1.tfrecord: field 'a': expected one value, got 2\. Declare"):
        run(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        ("missing", {}, DatasetError, "found nothing there|cannot be reached"),
        ("*.tar", {}, DatasetError, "expected files, found nothing there"),
        ("", {}, DatasetError, r"expected Parquet, TFRecord, WebDataset tars or images, got 1 files such as \['x.bin'\]"),
        ("x.bin", {"form": "tfrecord"}, DatasetError, "record 0: expected a TFRecord"),
        ("", {"form": "webdataset"}, DatasetError, r"expected files like \*.tar"),
        ("x.bin", {"form": "csv"}, PipelineError, "expected form to be one of"),
        ("x.bin", {"form": "tfrecord", "split": "train"}, PipelineError, "split and config for Hugging Face folders only"),
        ("x.bin", {"form": "parquet", "rename": {"a": "b"}}, PipelineError, "rename for TFRecord and WebDataset only"),
        ("x.bin", {"form": "tfrecord", "workers": 0}, PipelineError, "workers to be an integer >= 1"),
    ],
)  # fmt: skip
def test_invalid_sources_and_arguments_are_refused(
    tmp_path: Path, source: str, options: dict[str, Any], error: Any, text: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.bin").write_bytes(b"0123456789" * 5)
    with pytest.raises(error, match=text):
        run(tmp_path / "in" / source, tmp_path / "out", **options)
    with pytest.raises(PipelineError, match="got an empty list"):
        run([], tmp_path / "out")


def test_floats_are_rounded_but_do_not_overflow(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(framed(example({"x": feature([0.1, 1e6])})))
    run(tmp_path / "a.tfrecord", tmp_path / "out", [UnischemaField("x", np.float64, (2,))])
    with pytest.raises(EncodeError, match=r"field 'x': expected values that float16 holds"):
        run(tmp_path / "a.tfrecord", tmp_path / "bad", [UnischemaField("x", np.float16, (2,))])
