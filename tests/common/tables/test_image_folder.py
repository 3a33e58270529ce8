"""`Pipeline.from_image_folder`: which files it lists, in which order, and what happens when they change."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pytest
from memory_store import Store
from PIL import Image

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, class_names
from parquetry.common.base.errors import DatasetError, DecodeError, SchemaError
from parquetry.common.pipeline.sources import Snapshot
from parquetry.common.plan.selection.statistics import decoded_bytes
from parquetry.common.plan.selection.store import kept_key
from parquetry.common.tables import image_folder

FILES = ["dog/1.jpg", "cat/b.PNG", "cat/a/2.jpeg", "zebra/0.webp", "cat/a.jpg", "cat/.hidden.jpg", ".git/x/y.png"]
LISTED = [("cat/a/2.jpeg", 0), ("cat/a.jpg", 0), ("cat/b.PNG", 0), ("dog/1.jpg", 1), ("zebra/0.webp", 2)]


def picture(kind: str, gray: int = 7, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (5, 4), (gray, gray, gray)).convert(mode).save(stream, kind)
    return stream.getvalue()


def kind_of(name: str) -> str:
    return {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png", ".webp": "webp"}[Path(name).suffix.lower()]


def put(folder: Path, name: str, data: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(FILES):
        put(tmp_path / "train", name, picture(kind_of(name), 10 * number))
    return tmp_path / "train"


def listed(pipeline: Pipeline) -> list[tuple[str, int]]:
    return [(str(row["path"]), int(row["label"])) for row in pipeline]


def test_images_come_in_the_order_of_their_paths_with_the_number_of_their_class(folder: Path) -> None:
    pipeline = Pipeline.from_image_folder(folder)
    rows = list(pipeline)
    assert listed(pipeline) == LISTED
    assert class_names(pipeline) == {"label": ("cat", "dog", "zebra")}
    for row in rows:
        assert row["image"].shape == (4, 5, 3)
        assert abs(int(row["image"].mean()) - 10 * FILES.index(row["path"])) <= 2


def test_every_verb_works_on_a_folder(folder: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.from_image_folder(folder)
    images = {row["path"]: row["image"] for row in pipeline}
    assert listed(pipeline.where([("label", "in", [0, 2])])) == [pair for pair in LISTED if pair[1] != 1]
    shuffled = pipeline.shuffle(3, seed=1)
    parts = [listed(shuffled.shard(2, part, even="none")) for part in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(LISTED)
    shuffled = pipeline.shuffle(3, seed=1)
    iterator = iter(shuffled)
    first = [next(iterator)["path"] for _ in range(2)]
    again = iter(Pipeline.from_json(json.loads(json.dumps(shuffled.to_json()))))
    again.load_state_dict(iterator.state_dict())
    assert first + [row["path"] for row in again] == [path for path, _ in listed(pipeline.shuffle(3, seed=1))]
    iterator.close()
    for other in (
        shuffled.cache(str(tmp_path / "cache")),
        shuffled.cache(str(tmp_path / "cache")),
        pickle.loads(pickle.dumps(pipeline)),
        shuffled.with_options(executor="sidecar"),
    ):
        assert all(np.array_equal(row["image"], images[row["path"]]) for row in other)
    (batch,) = pipeline.center_crop("image", 2).select("image").take(4).batch(4)
    assert batch["image"].shape == (4, 2, 2, 3)


def test_fields_classes_and_shapes_can_be_chosen(folder: Path) -> None:
    labels = Pipeline.from_image_folder(folder, "label", classes=["zebra", "owl", "cat", "dog"], workers=2)
    assert [int(row["label"]) for row in labels] == [2, 2, 2, 3, 0]
    assert class_names(labels) == {"label": ("zebra", "owl", "cat", "dog")}
    shutil.rmtree(folder / "zebra")
    shutil.rmtree(folder / "cat")
    gray = Pipeline.from_image_folder(f"file://{folder}", image_shape=(4, None))
    assert [row["image"].shape for row in gray] == [(4, 5)]
    field = UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("jpeg"))
    assert Pipeline.from_image_folder(folder, [field]).element.outputs[0].shape == (4, 5, 3)
    with pytest.raises(SchemaError, match=r"expected shape \(H, W\)"):
        Pipeline.from_image_folder(folder, image_shape=(4,))


def test_a_split_that_numbers_a_class_differently_warns_and_says_what_to_write(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "_numbered", {})
    valid, later = folder.parent / "valid", folder.parent / "later"
    for name in ("dog", "zebra"):
        put(valid, f"{name}/0.png", picture("png"))
    for name in ("cat", "dog"):  # without the last class, the others keep their numbers
        put(later, f"{name}/0.png", picture("png"))
    names = class_names(Pipeline.from_image_folder(folder))["label"]
    assert listed(Pipeline.from_image_folder(valid, classes=names)) == [("dog/0.png", 1), ("zebra/0.png", 2)]
    for other in (folder, later):
        Pipeline.from_image_folder(other)
    assert not caplog.records
    assert listed(Pipeline.from_image_folder(valid)) == [("dog/0.png", 0), ("zebra/0.png", 1)]
    (record,) = caplog.records
    assert f"class 'dog' is label 0 here and label 1 in image folder '{later}'" in record.getMessage()
    assert "classes=parquetry.class_names(train)['label']" in record.getMessage()


def test_every_format_has_every_shape(tmp_path: Path) -> None:
    put(tmp_path, "a/0.webp", picture("webp", 40))
    assert Pipeline.from_image_folder(tmp_path).schema["image"].codec == CompressedImageCodec("webp")
    (row,) = Pipeline.from_image_folder(tmp_path, image_shape=(None, None), convert=True)
    assert (row["image"].shape, abs(int(row["image"].mean()) - 40) <= 2) == ((4, 5), True)


def test_a_folder_is_read_through_any_file_system(folder: Path) -> None:
    arrow = Pipeline.from_image_folder(
        "/train", filesystem=pafs.SubTreeFileSystem(str(folder.parent), pafs.LocalFileSystem())
    )
    assert listed(arrow) == LISTED
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name in FILES:
        memory.pipe(f"/pictures/{name}", (folder / name).read_bytes())
    try:
        pipeline = Pipeline.from_image_folder("memory://pictures")
        assert listed(pipeline) == LISTED
        assert pipeline.dataset.remote
        memory.pipe("/pictures/dog/1.jpg", picture("jpeg", 99) + b"more")
        with pytest.raises(DatasetError, match=r"file /pictures/dog/1.jpg: expected the version"):
            list(pipeline)
    finally:
        memory.rm("/pictures", recursive=True)


def test_a_folder_listed_again_is_the_same_dataset_until_a_file_changes(folder: Path, tmp_path: Path) -> None:
    first, again = Pipeline.from_image_folder(folder), Pipeline.from_image_folder(folder)
    assert (first, first.dataset.version) == (again, again.dataset.version)
    shutil.copytree(folder, tmp_path / "moved")  # with its times
    assert Pipeline.from_image_folder(tmp_path / "moved").dataset.fingerprint == first.dataset.fingerprint
    os.utime(folder / "dog/1.jpg", ns=(1, 1))
    touched = Pipeline.from_image_folder(folder)
    assert touched.dataset.fingerprint == first.dataset.fingerprint
    assert touched.dataset.version != first.dataset.version
    put(folder, "dog/2.jpg", picture("jpeg"))
    assert Pipeline.from_image_folder(folder).dataset.fingerprint != first.dataset.fingerprint
    assert [row["path"] for row in first.where([("label", "!=", 1)])] == [path for path, label in LISTED if label != 1]
    with pytest.raises(DatasetError, match=r"dog/1.jpg: expected the version that the pipeline was planned with"):
        list(first)


def test_a_row_by_its_number_reads_its_file_alone(folder: Path) -> None:
    images = [row["image"] for row in Pipeline.from_image_folder(folder)]
    put(folder, "dog/0.jpg", b"")
    pipeline = Pipeline.from_image_folder(folder)
    for path, _ in LISTED[:3]:
        (folder / path).unlink()
    assert [np.array_equal(pipeline[place]["image"], images[place - 1]) for place in (4, 5)] == [True, True]
    with pytest.raises(DatasetError, match=r"cat/a.jpg: expected a file, which existed when the folder was listed"):
        pipeline[1]
    with pytest.raises(DecodeError, match=r"'dog/0.jpg' of image folder"):
        pipeline[3]


@pytest.mark.parametrize("change", ["gone", "shorter"])
def test_a_file_that_is_gone_or_cut_is_an_error_that_names_it(folder: Path, change: str) -> None:
    pipeline = Pipeline.from_image_folder(folder)
    assert len(pipeline) == len(LISTED)
    if change == "gone":
        (folder / "dog/1.jpg").unlink()
    else:
        (folder / "dog/1.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(DatasetError, match=r"file .*dog/1.jpg: expected"):
        list(pipeline)


@pytest.mark.parametrize("convert", [None, True])
def test_an_image_that_does_not_decode_is_an_error_that_names_its_file(folder: Path, convert: bool | None) -> None:
    put(folder, "dog/1.jpg", b"no image" if convert else picture("png", mode="LA"))
    pipeline = Pipeline.from_image_folder(folder, convert=convert)
    for executor in ("threads", "sidecar") if convert else ("threads",):
        with pytest.raises(
            DecodeError, match=r"field 'image', file 'dog/1.jpg' of image folder .*train, row group 0: "
        ):
            list(pipeline.with_options(executor=executor))
    put(folder, "dog/1.jpg", picture("png", mode="LA"))
    assert len(list(Pipeline.from_image_folder(folder, convert=True))) == len(LISTED)


@pytest.mark.parametrize("planned", [False, True])
def test_a_manifest_that_is_gone_is_an_error_that_says_what_to_do(folder: Path, planned: bool) -> None:
    pipeline = Pipeline.from_image_folder(folder)
    assert isinstance(pipeline.source, Snapshot)
    if planned:
        assert len(pipeline) == len(LISTED)
    os.unlink(pipeline.source.table.files[0].path)
    unplanned = r"its manifest in the cache directory, .* Call from_image_folder\(\) again"
    with pytest.raises(DatasetError, match=r"no longer exists\. .* again\.$" if planned else unplanned):
        list(pipeline)
    assert listed(Pipeline.from_image_folder(folder)) == LISTED


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_text_is_an_error_that_shows_it(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder / "dog") + b"/\xff.png")).write_bytes(picture("png"))
    with pytest.raises(DatasetError, match=r"/dog/\\xff.png': expected a path in UTF-8"):
        Pipeline.from_image_folder(folder)


def test_files_that_are_not_images_are_left_out_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(folder, "cat/readme.txt", b"x")
    assert len(Pipeline.from_image_folder(folder)) == len(LISTED)
    assert "skipped 1 files that are not JPEG, PNG or WebP, such as cat/readme.txt" in caplog.text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda f: Pipeline.from_image_folder(f / "missing"), r"expected a folder, got nothing"),
        (lambda f: Pipeline.from_image_folder(f / "dog" / "1.jpg"), "expected a folder, got a file"),
        (lambda f: Pipeline.from_image_folder(f / "dog"), "found an image outside of them: '1.jpg'"),
        (lambda f: Pipeline.from_image_folder(f / "empty"), r"expected images \(.jpeg, .jpg, .png, .webp\) .* none among 0"),
        (lambda f: Pipeline.from_image_folder(f, classes=["cat", "dog"]), r"expected classes= .* Add \['zebra'\]"),
        (lambda f: Pipeline.from_image_folder(f, classes=["cat", "dog", "zebra", "cat"]), "each of its folders once"),
        (lambda f: Pipeline.from_image_folder(f, classes={"cat", "dog", "zebra"}), "whose order numbers them, got a set"),
    ],
)  # fmt: skip
def test_invalid_folders_are_refused(folder: Path, make: Any, text: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DatasetError, match=text):
        make(folder)


def test_row_groups_are_small_and_weigh_as_much_as_their_images(tmp_path: Path) -> None:
    data = picture("png")
    for number in range(130):
        put(tmp_path, f"only/{number:03d}.png", data)
    pipeline = Pipeline.from_image_folder(tmp_path)
    assert pipeline.dataset.row_groups.rows.tolist() == [128, 2]
    assert decoded_bytes(pipeline.dataset, 0, ["image"]) == 128 * len(data)
    assert "KiB of 3 columns" in pipeline.explain()


def replaced(path: Path, data: bytes) -> None:
    """Writes other content with the same size and time."""
    before = path.stat()
    assert len(data) == before.st_size
    path.with_suffix(".new").write_bytes(data)
    os.replace(path.with_suffix(".new"), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("cached", [False, True])
def test_an_image_that_is_replaced_by_one_of_its_size_and_time_is_noticed(
    folder: Path, tmp_path: Path, cached: bool
) -> None:
    def opened() -> Pipeline:
        pipeline = Pipeline.from_image_folder(folder)
        return pipeline.cache(str(tmp_path / "cache")) if cached else pipeline

    for number, name in enumerate(["dog/1.jpg", "cat/b.PNG"]):
        put(folder, name, picture(kind_of(name), 10 + number).ljust(2000, b"\0"))
    first = opened()
    (folder / "cat/a.jpg").chmod(0o600)  # does not change the content
    assert [int(row["image"].mean()) for row in first if row["path"] == "dog/1.jpg"] == [10]
    replaced(folder / "dog/1.jpg", picture("jpeg", 90).ljust(2000, b"\0"))
    if not cached:  # a cache may return the planned content
        with pytest.raises(DatasetError, match=r"dog/1.jpg: expected the version that the pipeline was planned with"):
            list(first)
    again = opened()
    assert [int(row["image"].mean()) for row in again if row["path"] == "dog/1.jpg"] == [90]
    assert again.dataset.version != first.dataset.version


def in_memory(name: str, gray: int, says: str) -> Store:
    store = Store(name=name, says=says)
    for number in range(3):
        store.put_file_bytes(f"/train/c{number % 2}/{number}.png", picture("png", gray).ljust(300, b"\0"))
    return store


def grays(pipeline: Pipeline) -> set[int]:
    return {int(row["image"].mean()) for row in pipeline}


@pytest.mark.parametrize("says", ["tag", "time", ""])
@pytest.mark.parametrize("cached", [False, True])
def test_two_stores_with_equal_listings_are_two_datasets(tmp_path: Path, cached: bool, says: str) -> None:
    def opened(store: Store) -> Pipeline:
        pipeline = Pipeline.from_image_folder("/train", filesystem=store)
        return pipeline.cache(str(tmp_path / "cache")) if cached else pipeline

    first, second = in_memory("first", 20, says), in_memory("second", 70, says)
    assert [grays(opened(store)) for store in (first, second, first)] == [{20}, {70}, {20}]
    kept = list((tmp_path / "cache").glob("*.table")) if cached else []
    assert bool(kept) == (cached and bool(says))
    for path in first.files:  # whether this change shows tells whether the cache is used
        first.files[path] = picture("png", 50).ljust(300, b"\0")
    assert grays(opened(first)) == ({20} if kept else {50})
    for path in first.files:
        first.put_file_bytes(path, picture("png", 60).ljust(300, b"\0"))
    assert grays(opened(first)) == {60}
    assert opened(first).dataset.is_cacheable == bool(says)


def test_nothing_is_kept_of_a_store_without_a_name() -> None:
    store = in_memory("", 20, "tag")
    store.storage_options["hook"] = lambda: None  # cannot be pickled
    pipeline = Pipeline.from_image_folder("/train", filesystem=store)
    assert not pipeline.dataset.is_cacheable
    assert kept_key(pipeline.dataset, [], "vocabulary") is None
    assert pipeline != Pipeline.from_image_folder("/train", filesystem=store)
    assert Pipeline.from_image_folder("/train", filesystem=in_memory("x", 1, "tag")).dataset.is_cacheable


def test_a_cache_that_keeps_nothing_says_which_folder_it_is_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    store.put_file_bytes("/pictures/a/0.png", picture("png"))
    list(Pipeline.from_image_folder("/pictures", filesystem=store).cache(str(tmp_path / "cache")))
    assert "cache() of /pictures keeps nothing" in caplog.text
