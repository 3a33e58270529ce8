"""Large values read without Arrow, into memory or later from their file: the same batches as with Arrow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from processes import open_files, settled

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DatasetWriter,
    NdarrayCodec,
    Pipeline,
    TensorCodec,
    Unischema,
    UnischemaField,
)
from parquetry.common.base.errors import DatasetError, DecodeError
from parquetry.common.engine.read import cell_reader, fetch, file_cells, open_file
from parquetry.common.engine.read.cell_reader import CellReader
from parquetry.common.engine.read.column_reader import NOTHING, ReadContext
from parquetry.common.engine.read.fetch import fetchers_of
from parquetry.common.engine.read.file_cells import FileCells
from parquetry.common.engine.read.stored_cells import StoredCells, cells_of
from parquetry.common.engine.run.block_loader import loaders_of
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.plan.block_reads import BlockRows
from parquetry.common.storage.file_versions import local_version
from parquetry.common.storage.files import list_files

pytestmark = pytest.mark.versions

SCHEMA = Unischema(
    "cells",
    [
        UnischemaField("id", np.int64),
        UnischemaField("image", np.uint8, (4, 6, 3), CompressedImageCodec("png")),
        UnischemaField("sweep", np.float32, (5, 4), NdarrayCodec()),
        UnischemaField("ragged", np.float32, (None, 4), NdarrayCodec()),
        UnischemaField("packed", np.int16, (9,), CompressedNdarrayCodec()),
        UnischemaField("raw", np.float64, (3, 2), TensorCodec()),
        UnischemaField("photo", np.uint8, (6, 8, 3), TensorCodec()),
        UnischemaField("when", "datetime64[us]", (3,), NdarrayCodec()),
        UnischemaField("rare", np.float32, (5,), NdarrayCodec(), nullable=True),
        UnischemaField("there", np.float32, (5,), NdarrayCodec(), nullable=True),
    ],
)
ROWS = 90


def row(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "id": number,
        "image": random.integers(0, 256, (4, 6, 3), np.uint8),
        "sweep": random.standard_normal((5, 4), np.float32),
        "ragged": random.standard_normal((number % 4, 4), np.float32),
        "packed": random.integers(-9, 9, 9).astype(np.int16),
        "raw": random.standard_normal((3, 2)),
        "photo": random.integers(0, 256, (6, 8, 3), np.uint8),
        "when": random.integers(0, 1 << 50, 3).astype("datetime64[us]"),
        "rare": None if 40 <= number < 45 else random.standard_normal(5, np.float32),
        "there": random.standard_normal(5, np.float32),
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("cells") / "data")
    with DatasetWriter(folder, SCHEMA, row_group_rows=20, files=2, compression=None) as writer:
        writer.expect_rows(ROWS)
        for number in range(ROWS):
            writer.write(row(number))
    return folder


@pytest.fixture(autouse=True)
def small_values_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_reader, "_LARGE_VALUE_BYTES", 1)


def through_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellReader, "read", lambda *_: NOTHING)


def pipelines(url: str, data: st.DataObject) -> Pipeline:
    pipeline = Pipeline(url, workers=1)
    some = sorted(data.draw(st.sets(st.integers(0, 39), min_size=1)))
    if data.draw(st.booleans()):
        pipeline = pipeline.where(pc.field("id").isin([*some, 50, 51, 52]))
    if data.draw(st.booleans()):
        pipeline = pipeline.select("id", "raw", "sweep", "photo", "image").ngram(length=3, timestamp="id")
    else:
        pipeline = pipeline.nulls("drop", "rare")
    if data.draw(st.booleans()):
        pipeline = pipeline.center_crop("photo", (4, 4)).random_flip("photo")
    if data.draw(st.booleans()):
        pipeline = pipeline.shuffle(data.draw(st.sampled_from([5, 50, 500])), seed=data.draw(st.integers(0, 9)))
    batch = data.draw(st.sampled_from([None, 1, 7, 32]))
    return pipeline if batch is None else pipeline.batch(batch)


def assert_same(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            np.testing.assert_array_equal(value, right[name])
            assert value.dtype == right[name].dtype
        elif isinstance(value, int | float | np.generic):
            assert value == right[name]
        else:
            assert len(value) == len(right[name])
            for one, other in zip(value, right[name], strict=True):
                np.testing.assert_array_equal(one, other)


@examples(40)
@given(data=st.data())
def test_batches_are_the_same_as_through_arrow(url: str, data: st.DataObject) -> None:
    pipeline = pipelines(url, data)
    first = iter(pipeline)
    state = first.state_dict()
    stay, buffers, open_files = data.draw(st.sampled_from([(1, 2, 9), (1, 512, 9), (1, 512, 1), (1 << 40, 512, 9)]))
    shared_by_workers = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_reader, "_VALUE_BYTES_TO_STAY", stay)
        patch.setattr(fetch, "CellReader", lambda *given, **_: CellReader(*given, shared_by_workers=shared_by_workers))
        patch.setattr(open_file, "_MOST_BUFFERS", buffers)
        patch.setattr(open_file, "_MOST_FILES", open_files)
        direct = list(first)
    with pytest.MonkeyPatch.context() as patch:
        through_arrow(patch)
        again = iter(pipeline)
        again.load_state_dict(state)  # the same epoch
        arrow = list(again)
    assert len(direct) == len(arrow)
    for one, other in zip(direct, arrow, strict=True):
        assert_same(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("field", "kind"), [("image", StoredCells), ("sweep", FileCells), ("mixed", FileCells)])
@pytest.mark.parametrize("user_code", [False, True])
def test_the_sidecar_hands_large_values_on(tmp_path: Path, field: str, kind: type, user_code: bool) -> None:
    """Runs with workers (images, user functions), and in the reader's own threads."""
    large = Unischema(
        "large",
        [
            UnischemaField("image", np.uint8, (40, 60, 3), CompressedImageCodec("png")),
            UnischemaField("sweep", np.float32, (5_000,), NdarrayCodec()),
            UnischemaField("mixed", np.float32, (None,), NdarrayCodec()),
        ],
    )
    random = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "data", large, row_group_rows=7, compression=None) as writer:
        for _ in range(30):
            image = random.integers(0, 256, (40, 60, 3), np.uint8)
            sweep = random.standard_normal(5_000, np.float32)
            writer.write({"image": image, "sweep": sweep, "mixed": sweep})
    pipeline = Pipeline(tmp_path / "data", [field], workers=2)
    if field == "mixed":  # the user declares one shape, and other shapes are detected late
        kind = StoredCells
    [fetcher] = fetchers_of(pipeline.plan())
    assert type(fetcher.fetch(0, None).columns[0]) is kind
    if user_code:
        pipeline = pipeline.transform(lambda row: {**row, field: row[field][::-1]})
    pipeline = pipeline.shuffle(12, seed=3).batch(8)
    for one, other in zip(pipeline, pipeline.with_options(executor="sidecar"), strict=True):
        assert_same(one, other)


def test_every_plain_column_without_nulls_is_read_this_way(url: str) -> None:
    plan = Pipeline(url).plan()
    [fetcher] = fetchers_of(plan)
    names = [field.name for field in SCHEMA.fields.values()]
    direct = {
        (row_group, names[number])
        for row_group in range(6)
        for number, column in enumerate(fetcher.fetch(row_group, None).columns)
        if isinstance(column, StoredCells | FileCells)
    }
    coded = set(names) - {"id"}
    assert {name for _, name in direct} == coded
    assert {row_group for row_group, name in direct if name == "there"} == set(range(6))
    assert 0 < len([row_group for row_group, name in direct if name == "rare"]) < 6  # one row group has nulls


@pytest.mark.parametrize("options", [{"compression": "snappy"}, {"use_dictionary": ["image"], "compression": None}])
def test_columns_that_are_not_plain_are_read_by_arrow(url: str, tmp_path: Path, options: dict[str, Any]) -> None:
    pq.write_table(pq.read_table(data_file(url)), tmp_path / "x.parquet", **options)
    [fetcher] = fetchers_of(Pipeline(tmp_path, ["image"]).plan())
    assert isinstance(fetcher.fetch(0, None).columns[0], pa.Array)


def data_file(url: str) -> Path:
    return sorted(Path(url).rglob("part*.parquet"))[0]


def copied(url: str, folder: Path) -> Path:
    """Copies the first file alone, and returns the copy."""
    folder.mkdir()
    return Path(shutil.copy(data_file(url), folder))


def test_a_file_that_went_away_or_was_cut_is_an_error(url: str, tmp_path: Path) -> None:
    copy = copied(url, tmp_path / "data")
    pipeline = Pipeline(copy.parent, ["sweep"]).batch(5)
    assert len(pipeline)
    os.truncate(copy, 2_000)
    with pytest.raises(DatasetError, match="changed since the pipeline was planned"):
        list(pipeline)
    copy.unlink()
    with pytest.raises(DatasetError, match="row group 0: the file no longer exists"):
        list(pipeline)


def test_a_damaged_value_is_named_with_its_file_and_row(url: str, tmp_path: Path) -> None:
    source = data_file(url)
    content = bytearray(source.read_bytes())
    place = content.index(b"\x89PNG", content.index(b"\x89PNG") + 1)
    content[place + 20 : place + 24] = b"oops"
    (tmp_path / source.name).write_bytes(content)
    with pytest.raises(DecodeError, match=rf"{source.name}, row group 0, row 1: CompressedImageCodec could not decode"):
        list(Pipeline(tmp_path, ["image"], verify="never"))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    wanted=st.sets(st.integers(0, 29)),
    fixed=st.booleans(),
    offset=st.integers(0, 3),
)
def test_some_cells_are_the_bytes_of_those_rows(lengths: list[int], wanted: set[int], fixed: bool, offset: int) -> None:
    values = [bytes([number]) * (7 if fixed else length) for number, length in enumerate(lengths)]
    array = pa.array([b"before!"] * offset + values, pa.binary(7) if fixed else pa.large_binary()).slice(offset)
    rows = np.array(sorted(number for number in wanted if number < len(values)), np.int64)
    cells = cells_of(array)
    some = cells.take(rows)
    assert [some.data[a:b].tobytes() for a, b in zip(some.starts, some.ends, strict=True)] == [values[n] for n in rows]
    covered = [
        int(cells.starts[first]) + distance * step for first, count, distance in cells.runs() for step in range(count)
    ]
    assert covered == cells.starts.tolist()


def test_few_of_many_cells_do_not_hold_the_memory_of_all() -> None:
    cells = cells_of(pa.array([bytes(1_000)] * 100, pa.large_binary()))
    assert cells.take(np.array([3, 5])).data.nbytes == 2_000
    assert cells.take(np.arange(90)).data is cells.data


# --- values left in their file ---


@pytest.fixture
def stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_reader, "_VALUE_BYTES_TO_STAY", 1)


def cells_in_file(path: Path, lengths: list[int], gaps: list[int]) -> tuple[FileCells, list[bytes]]:
    """Lays out values of these lengths with these gaps before them."""
    random = np.random.default_rng(sum(lengths))
    content, starts, values = b"", [], []
    for length, gap in zip(lengths, gaps, strict=True):
        content += random.bytes(gap)
        starts.append(len(content))
        values.append(random.bytes(length))
        content += values[-1]
    path.write_bytes(content)
    begin = np.array(starts, np.int64)
    file = open_file.OpenFile(local_version("local", str(path), path.stat()))
    return FileCells(begin, begin + np.array(lengths, np.int64), file, None), values


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 4, 100, 4096, 5000])), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
    most=st.sampled_from([1, 3, 512]),
    step=st.sampled_from([1, 7, 1 << 20]),
)
def test_bytes_are_read_in_place_however_few_come_at_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], order: Any, most: int, step: int
) -> None:
    lengths, gaps = zip(*sizes, strict=True)
    cells, values = cells_in_file(tmp_path_factory.mktemp("cells") / "x", list(lengths), list(gaps))
    rows = order.sample(range(len(values)), order.randint(0, len(values)))
    real = os.preadv

    def preadv(descriptor: int, buffers: list[Any], begin: int, flags: int = 0) -> int:
        short, left = [], step
        for buffer in buffers:
            short.append(buffer[:left])
            left -= len(short[-1])
        return real(descriptor, short, begin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_file, "_MOST_BUFFERS", most)
        patch.setattr(os, "preadv", preadv)
        cells.expect()
        loaded = cells.take(np.array(rows, np.int64)).loaded()
    assert [loaded.data[a:b].tobytes() for a, b in zip(loaded.starts, loaded.ends, strict=True)] == [
        values[row] for row in rows
    ]


def write_images(folder: Path, count: int) -> list[np.ndarray]:
    """Noise images, 20 per row group."""
    schema = Unischema(
        "x", [UnischemaField("id", np.int64), UnischemaField("x", np.uint8, (80, 80, 3), CompressedImageCodec("png"))]
    )
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (80, 80, 3), np.uint8) for _ in range(count)]
    with DatasetWriter(folder, schema, row_group_rows=20, compression=None) as writer:
        for number, image in enumerate(images):
            writer.write({"id": number, "x": image})
    return images


def test_workers_of_a_loader_read_each_image_once_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_images(tmp_path / "data", 40)
    read: list[int] = []
    real = os.preadv

    def preadv(*arguments: Any) -> int:
        size = real(*arguments)
        if size > 1:
            read.append(size)
        return size

    monkeypatch.setattr(os, "preadv", preadv)
    pipeline = Pipeline(tmp_path / "data", workers=2, verify="never").shuffle(40, seed=1).batch(4)
    for worker in range(5):
        for _, (ids, found) in StepIterator(pipeline, 0, strict_nulls=True, worker=worker, workers=5):
            for number, image in zip(ids.values, found.values, strict=True):
                np.testing.assert_array_equal(image, images[number])
    assert len(read) == 40
    assert 40 * images[0].nbytes < sum(read) < 42 * images[0].nbytes


def test_a_file_that_is_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    cells, values = cells_in_file(tmp_path / "x", [100, 100], [4, 4])
    values_of = file_cells.FileValues(cells, cells.starts, np.dtype(np.uint8), (100,))
    out = np.empty((2, 100), np.uint8)
    values_of.read(np.array([1, 0]), out)
    assert [place.tobytes() for place in out] == values[::-1]
    assert values_of[1].tobytes() == values[1]
    os.truncate(tmp_path / "x", 150)
    for read in (lambda: values_of[0], lambda: values_of.read(np.array([0, 1]), out), cells.loaded):
        with pytest.raises(DatasetError, match=r"x: expected .*\(208 bytes, .* got another \(150 bytes"):
            read()


def test_places_beyond_the_end_of_a_file_are_an_error(tmp_path: Path) -> None:
    cells, _ = cells_in_file(tmp_path / "x", [100], [4])
    with pytest.raises(DatasetError, match=r"x: expected 4 more bytes at 104, got the end of the file\. Write it"):
        FileCells(cells.starts, cells.ends + 4, cells.file, None).loaded()


def test_the_system_is_asked_for_what_it_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, begin, size, advice: asked.append((begin, size)))
    cells, _ = cells_in_file(tmp_path / "x", [300_000, 100_000, 50], [4, 4, 10_000])
    monkeypatch.setattr(file_cells, "is_cached", lambda *_: True)
    cells.expect()
    assert asked == []
    monkeypatch.setattr(file_cells, "is_cached", lambda *_: False)
    cells.expect()
    assert asked[0][0] == 4
    assert [begin + size for begin, size in asked[:-2]] == [begin for begin, _ in asked[1:-1]]
    assert sum(asked[-2]) == 400_008
    assert asked[-1] == (410_008, 50)
    assert max(size for _, size in asked) <= 128 << 10


@pytest.mark.usefixtures("stay")
def test_images_of_a_file_that_was_cut_are_not_called_damaged(url: str, tmp_path: Path) -> None:
    copy = copied(url, tmp_path / "data")
    plan = Pipeline(copy.parent, ["image"]).plan()
    [loader] = loaders_of(plan, fetchers_of(plan, ReadContext(shared_by_workers=True)))
    rows = np.arange(20)
    column = loader.load(BlockRows(row_groups=(0,), rows=(rows,), item_rows=rows[:, None])).column(0)
    out = np.empty((20, 4, 6, 3), np.uint8)
    for number in range(3):
        column.decode(number, out[number])
        np.testing.assert_array_equal(out[number], row(number)["image"])
    os.truncate(copy, 10)
    with pytest.raises(DatasetError, match="changed since the pipeline was planned"):
        column.decode(3, out[3])
    with pytest.raises(DatasetError, match="changed since the pipeline was planned"):
        column.gather(rows, out)


@pytest.mark.usefixtures("stay")
def test_another_file_under_the_name_is_not_read_by_the_places_of_the_first(url: str, tmp_path: Path) -> None:
    """Writers replace whole files; an open file is read to its end."""
    copy = copied(url, tmp_path / "data")
    [fetcher] = fetchers_of(Pipeline(copy.parent, ["sweep"]).plan())
    before = fetcher.fetch(0, None).columns[0]
    expected = before.loaded().data.tobytes()
    (tmp_path / "new").write_bytes(copy.read_bytes()[::-1])
    os.replace(tmp_path / "new", copy)
    assert before.loaded().data.tobytes() == expected
    assert fetcher.fetch(0, None).columns[0].file is before.file
    del before
    with pytest.raises(DatasetError, match="changed since the pipeline was planned"):
        fetcher.fetch(0, None)


def test_a_file_that_is_not_as_it_was_listed_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"content")
    [listed] = list_files([str(path)]).files
    files = open_file.OpenFiles()
    first = files.open(listed)
    assert first is not None
    assert files.open(listed) is first
    (tmp_path / "new").write_bytes(b"another")  # the same size
    os.replace(tmp_path / "new", path)
    assert files.open(listed) is first  # the listed file, though its name is gone
    del first
    assert files.open(listed) is None
    path.unlink()
    assert files.open(listed) is None


@pytest.mark.usefixtures("stay")
def test_files_are_closed_with_the_last_value(url: str) -> None:
    pipeline = Pipeline(url, ["sweep"], workers=1).batch(7)
    [fetcher] = fetchers_of(pipeline.plan())
    held = fetcher.fetch(0, None).columns[0]
    assert len(open_files(url)) == 1
    del held
    assert open_files(url) == []
    for _ in pipeline:
        pass
    assert settled(lambda: len(open_files(url)), 0) == 0  # a thread ends with the job that it made last


@pytest.mark.usefixtures("stay")
def test_values_with_several_headers_are_decoded_one_by_one(tmp_path: Path) -> None:
    """The same shape and dtype, but Fortran order in one of them."""
    schema = Unischema("x", [UnischemaField("x", np.float32, (5, 4), NdarrayCodec())])
    arrays = [np.random.default_rng(n).standard_normal((5, 4), np.float32) for n in range(8)]
    with DatasetWriter(tmp_path / "data", schema, row_group_rows=4, compression=None) as writer:
        for array in arrays:
            writer.write({"x": array})
    [file] = (tmp_path / "data").glob("part*")
    content = file.read_bytes()
    place = content.rindex(b"'fortran_order': False")
    assert content.count(b"'fortran_order': False") == 8
    file.write_bytes(content[:place] + b"'fortran_order': True " + content[place + 22 :])
    [batch] = Pipeline(tmp_path / "data", verify="never").batch(8)
    np.testing.assert_array_equal(batch["x"][:7], arrays[:7])
    np.testing.assert_array_equal(batch["x"][7], arrays[7].reshape(4, 5).T)


def test_few_wanted_images_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_images(tmp_path / "data", 20)
    read: list[int] = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: read.append(real(*a)) or read[-1])
    batches = iter(Pipeline(tmp_path / "data", verify="never").where(pc.field("id").isin([3, 4, 11])).batch(9))
    [batch] = batches
    np.testing.assert_array_equal(batch["x"], [images[3], images[4], images[11]])
    assert 3 * images[0].nbytes < sum(read) < 3.2 * images[0].nbytes
    assert 3 * images[0].nbytes < batches.stats().read_bytes < 3.2 * images[0].nbytes
