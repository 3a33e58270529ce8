"""`rewrite`: the same rows, in another order and layout, with other codecs."""

from __future__ import annotations

import io
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import ALL_FIELDS, build, write_table
from faces import plain as as_plain
from processes import eventually

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, TensorCodec
from parquetry.common.apps.tools import convert, rewrite, rewriting
from parquetry.common.base.errors import DatasetError, FieldNotFoundError, PipelineError, SchemaError

REAL = Path(__file__).parents[3] / "data" / "petastorm"


def rows_of(place: Any) -> list[dict[str, Any]]:
    """Returns all rows in plain form."""
    return [as_plain(row) for row in Pipeline(place, executor="threads")]


def row_groups_of(url: str) -> list[int]:
    """Returns the rows of each row group."""
    return Pipeline(url).dataset.row_groups.rows.tolist()


def test_every_kind_of_field_is_the_same_in_row_groups_of_one_size(tmp_path: Path) -> None:
    built = build(tmp_path / "old", [[3, 9], [0, 12]], names=ALL_FIELDS)
    report = rewrite(built.url, tmp_path / "new", row_group_rows=5, progress=False)
    assert (report.rows, report.files) == (24, 1)
    assert row_groups_of(str(tmp_path / "new")) == [5, 5, 5, 5, 4]
    assert rows_of(tmp_path / "new") == rows_of(built.url)


@pytest.mark.parametrize("version", ["0.12.1", "0.7.6"])
def test_old_datasets_become_new_ones(tmp_path: Path, version: str) -> None:
    rewrite(str(REAL / version), tmp_path / "new", progress=False)
    old, new = Pipeline(REAL / version), Pipeline(tmp_path / "new")
    assert list(old.schema.fields) == list(new.schema.fields)
    assert new.dataset.partitions.keys() == old.dataset.partitions.keys()
    key = "id"
    assert sorted(rows_of(tmp_path / "new"), key=lambda row: row[key]) == sorted(
        rows_of(REAL / version), key=lambda row: row[key]
    )


@pytest.mark.parametrize("order", [{}, {"sort_by": "id"}])
def test_an_error_leaves_no_cycles_for_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: dict[str, str]
) -> None:
    """The collector may run while a thread holds a lock of the interpreter: waiting for threads would never end."""

    monkeypatch.setattr(rewriting, "_KEPT_BYTES", 1)
    monkeypatch.setattr(rewriting._Rows, "_finished", Mock(side_effect=DatasetError("full")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    built = build(tmp_path / "old", [[7, 5], [8]], names=("id", "flag"))
    with pytest.raises(DatasetError, match="full") as kept:
        rewrite(built.url, tmp_path / "new", progress=False, **order)
    assert eventually(lambda: not any(thread.name == "parquetry-copy" for thread in threading.enumerate()))
    assert list((tmp_path / "temporary").iterdir()) == []
    del kept  # it held the frames of the error


@pytest.mark.parametrize("kept_bytes", [1, 1 << 30])
def test_rows_are_sorted_stably_with_nulls_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr(rewriting, "_KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(rewriting, "_CHUNK_BYTES", 600)
    built = build(tmp_path / "old", [[7, 5], [8]], names=("id", "flag", "image", "tags"))
    rewrite(built.url, tmp_path / "new", sort_by=["flag", "-id"], progress=False)
    rank = {False: 0, True: 1, None: 2}
    wanted = sorted(built.plain, key=lambda row: (rank[row["flag"]], -row["id"]))
    assert rows_of(tmp_path / "new") == wanted
    rewrite(built.url, tmp_path / "stable", sort_by="flag", progress=False)
    assert rows_of(tmp_path / "stable") == sorted(built.plain, key=lambda row: rank[row["flag"]])


@pytest.mark.parametrize("fails", [None, KeyboardInterrupt, OSError])
def test_row_groups_beyond_the_memory_are_read_once_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: type[BaseException] | None
) -> None:
    built = build(tmp_path / "old", [[7, 5, 1], [8, 3]], names=("id", "drive", "label", "image", "tags", "codes"))
    rewrite(built.url, tmp_path / "in memory", sort_by=["drive", "-id"], progress=False)
    read: list[int] = []
    load, temporary = rewriting.Fetcher.stored, tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(rewriting.tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(rewriting, "_KEPT_BYTES", 2_000)
    monkeypatch.setattr(rewriting, "_CHUNK_BYTES", 500)
    monkeypatch.setattr(rewriting, "_MOST_FILES", 5)
    seen: list[int] = []

    def count_reads(self: Any, row_group: int) -> pa.Table:
        if len(self.fields) > 1:  # not a field to sort by
            read.append(row_group)
        return load(self, row_group)

    monkeypatch.setattr(rewriting.Fetcher, "stored", count_reads)

    def write(self: Any, table: pa.Table) -> None:
        seen.append(len(list(temporary.rglob("*.arrows"))))
        if fails is not None and len(seen) == 2:
            raise fails
        stored(self, table)

    stored = rewriting.DatasetWriter.write_stored
    monkeypatch.setattr(rewriting.DatasetWriter, "write_stored", write)
    if fails is None:
        rewrite(built.url, tmp_path / "by files", sort_by=["drive", "-id"], progress=False)
        assert rows_of(tmp_path / "by files") == rows_of(tmp_path / "in memory")
    else:
        with pytest.raises(fails):
            rewrite(built.url, tmp_path / "by files", sort_by=["drive", "-id"], progress=False)
        assert not (tmp_path / "by files").exists()
    assert sorted(read) == list(range(5))
    assert 3 <= seen[0] <= 6
    assert not list(temporary.iterdir())


def test_rows_that_differ_in_size_are_dealt_until_they_fit_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = np.full(400, 10)
    sizes[200::10] = 5_000
    rows = pa.table({"id": np.arange(400), "size": sizes, "data": pa.array([bytes(int(size)) for size in sizes])})
    url = write_table(tmp_path / "old", rows, row_group_size=20)
    monkeypatch.setattr(rewriting, "_KEPT_BYTES", 20_000)
    monkeypatch.setattr(rewriting, "_CHUNK_BYTES", 5_000)
    largest, write = [0], rewriting.DatasetWriter.write_stored
    monkeypatch.setattr(
        rewriting.DatasetWriter, "write_stored", lambda self, rows: largest.append(rows.nbytes) or write(self, rows)
    )
    rewrite(url, tmp_path / "new", sort_by=["size", "-id"], progress=False)
    assert max(largest) <= 20_000
    wanted = np.lexsort((-np.arange(400), sizes))
    assert [int(row["id"]) for row in Pipeline(tmp_path / "new", ["id"])] == wanted.tolist()


def test_a_full_temporary_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(tmp_path / "old", [[7, 5]], names=("id",))
    monkeypatch.setattr(rewriting.pa.ipc, "new_stream", Mock(side_effect=OSError(28, "No space left on device")))
    monkeypatch.setattr(rewriting.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rewriting, "_KEPT_BYTES", 1)
    with pytest.raises(DatasetError, match=rf"No space left on device.*'{tmp_path}'.*TMPDIR"):
        rewrite(built.url, tmp_path / "new", sort_by="id", progress=False)
    assert not (tmp_path / "new").exists()


def test_codecs_partitions_filters_and_fields_are_chosen(tmp_path: Path) -> None:
    built = build(tmp_path / "old", [[20]], names=("id", "drive", "image", "matrix"))
    codecs = {"matrix": TensorCodec(), "image": CompressedImageCodec("jpeg", 90)}
    rewrite(
        built.url,
        tmp_path / "new",
        where=[("id", ">", 4)],
        codecs=codecs,
        partition_by="drive",
        sort_by="-id",
        files=1,
        progress=False,
    )
    new = Pipeline(tmp_path / "new")
    assert new.schema["image"].codec == codecs["image"]
    assert sorted(new.dataset.partitions) == ["drive"]
    rows = {row["id"]: row for row in new}
    old = {row["id"]: row for row in Pipeline(built.url)}
    assert sorted(rows) == list(range(5, 20))
    for number, row in rows.items():
        assert as_plain(row["matrix"]) == as_plain(old[number]["matrix"])
        assert np.abs(row["image"].astype(int) - old[number]["image"]).mean() < 30
    rewrite(built.url, tmp_path / "few", ["id"], files=3, compression="none", progress=False)
    assert len(Pipeline(tmp_path / "few").dataset.files) == 3
    assert rows_of(tmp_path / "few") == [{"id": number} for number in range(20)]


def test_images_lose_the_second_compression_and_texts_get_a_dictionary(tmp_path: Path) -> None:
    table = pa.table({"city": ["a", "b"] * 50})
    url = write_table(tmp_path / "old", table, use_dictionary=False, write_statistics=False)
    rewrite(url, tmp_path / "new", progress=False)
    chunk = pq.read_metadata(next((tmp_path / "new").glob("*.parquet"))).row_group(0).column(0)
    assert chunk.has_dictionary_page
    assert chunk.is_stats_set


def test_a_failed_rewrite_leaves_nothing(tmp_path: Path) -> None:
    built = build(tmp_path / "old", [[20]], names=("id", "tags", "image"))
    target = tmp_path / "new"
    with pytest.raises(FieldNotFoundError, match="bogus"):
        rewrite(built.url, target, sort_by="bogus", progress=False)
    with pytest.raises(SchemaError, match="single plain values to sort by"):
        rewrite(built.url, target, sort_by="tags", progress=False)
    with pytest.raises(PipelineError, match="expected codecs for fields of"):
        rewrite(built.url, target, codecs={"bogus": TensorCodec()}, progress=False)
    with pytest.raises(SchemaError, match="expected numbers for another codec"):
        rewrite(built.url, target, codecs={"tags": NdarrayCodec()}, progress=False)
    with pytest.raises(PipelineError, match="got shuffle"):
        rewrite(built.pipeline().shuffle(4, seed=1), target, progress=False)
    assert not target.exists()
    rewrite(built.url, target, progress=False)
    with pytest.raises(DatasetError):
        rewrite(built.url, target, progress=False)
    empty = write_table(tmp_path / "empty", pa.table({"id": pa.array([], pa.int64())}))
    assert rewrite(empty, tmp_path / "none", sort_by="id", progress=False).rows == 0


def test_columns_that_arrow_neither_sorts_nor_casts(tmp_path: Path) -> None:
    table = pa.table(
        {
            "city": pa.array(["b", "a", None], pa.dictionary(pa.int8(), pa.string())),
            "half": pa.array(np.array([3, 1, 2], np.float16)),
            "at": pa.array([3000, 1000, 2000], pa.time32("ms")),
            "exact": pa.array([3, 1, 2], pa.time64("us")),
        }
    )
    url = write_table(tmp_path / "old", table)
    for key, order in (("city", [1, 0, 2]), ("half", [1, 2, 0]), ("at", [1, 2, 0])):
        rewrite(url, tmp_path / key, sort_by=key, progress=False)
        rows = rows_of(url)
        assert rows_of(tmp_path / key) == [rows[number] for number in order]


@pytest.mark.parametrize("keys", [[".id", "id"], ["id", ".id"], ["-.id", "[0]"], ["[0]", "-id"]])
def test_a_name_that_looks_like_a_path_is_a_name(tmp_path: Path, keys: list[str]) -> None:
    columns = {".id": [3, 1, 2, 1, 3], "id": [1, 2, 3, 1, 2], "[0]": [2, 2, 1, 1, 2]}
    url = write_table(tmp_path / "old", pa.table(columns))
    rewrite(url, tmp_path / "new", sort_by=keys, progress=False)

    def rank(row: dict[str, Any]) -> list[int]:
        return [-int(row[key[1:]]) if key.startswith("-") else int(row[key]) for key in keys]

    assert rows_of(tmp_path / "new") == sorted(rows_of(url), key=rank)


def test_class_names_stay_and_sources_do_not_grow(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "0.png").write_bytes(png())
    convert(tmp_path / "in", tmp_path / "out", progress=False)
    rewrite(tmp_path / "out", tmp_path / "new", progress=False)
    assert Pipeline(tmp_path / "new").dataset.labels == {"label": ("cat", "dog")}
    for target in ("out", "out/new", ""):
        with pytest.raises(DatasetError, match="expected a target"):
            rewrite(tmp_path / "out", tmp_path / target, progress=False)
    assert len(Pipeline(tmp_path / "out")) == 2


def png() -> bytes:
    """Returns a small image."""
    content = io.BytesIO()
    PIL.Image.new("RGB", (2, 2)).save(content, "PNG")
    return content.getvalue()
