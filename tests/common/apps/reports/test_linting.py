"""Each finding appears exactly where there is a reason for it."""

from __future__ import annotations

import inspect
import io
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import build, write_table
from PIL import Image

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.reports import lint, linting
from parquetry.common.apps.reports.inspecting import Sizes
from parquetry.common.apps.reports.remedies import runnable
from parquetry.common.apps.tools import rewrite
from parquetry.common.base.errors import EmptySelectionError, ParquetryError


def codes(url: str) -> set[str]:
    """Returns the codes of all findings."""
    return {finding.code for finding in lint(url)}


def jpegs(count: int, size: int) -> list[bytes]:
    """Returns JPEG files that all differ."""
    values = np.random.default_rng(7).integers(0, 255, (count, size, size, 3), np.uint8)
    streams = [io.BytesIO() for _ in values]
    for value, stream in zip(values, streams, strict=True):
        Image.fromarray(value).save(stream, "jpeg")
    return [stream.getvalue() for stream in streams]


def test_a_dataset_as_parquetry_writes_it_has_no_problem(tmp_path: Path) -> None:
    built = build(tmp_path, [[40, 40], [40]], names=("id", "drive", "ts", "image"))
    assert codes(built.url) == set()


def test_many_small_row_groups_and_files_are_problems_if_reading_takes_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"id": range(2000)})
    for number in range(64):
        write_table(tmp_path, table, f"{number}.parquet", row_group_size=100)
    assert codes(str(tmp_path)) == {"small-row-groups", "many-small-files", "no-index"}
    assert {finding.level for finding in lint(str(tmp_path))} == {"note"}  # all of it is read at once
    monkeypatch.setattr(linting, "_SMALL_BYTES", 1_000)
    found = lint(str(tmp_path))
    assert [finding.level for finding in found] == ["problem", "problem", "note"]
    assert "1,280 row groups have a median of 100 rows" in str(found[0])


@pytest.mark.parametrize("total_bytes", [1 << number for number in range(10, 45, 2)])
@pytest.mark.parametrize("row_bytes", [8, 4_000, 1 << 20, 40 << 20])
def test_row_groups_of_the_size_that_lint_advises_are_good_ones(total_bytes: int, row_bytes: int) -> None:
    """A dataset that was rewritten as advised has no finding, and the sizes that docs/tuning.md names."""
    rows = max(total_bytes // row_bytes, 1)
    report = sizes(rows, rows * row_bytes, rows)
    better = linting._better_rows(report)
    after = sizes(rows, rows * row_bytes, better)
    assert [finding.code for finding in linting._row_groups(after, SimpleNamespace())] == []
    if 100_000 > better > 1 and after.row_groups > 1:
        assert 0.9 * (1 << 20) <= better * row_bytes <= 64 << 20
        assert after.row_groups >= 200 or better * row_bytes < 2 << 20


def sizes(rows: int, size_bytes: int, group_rows: int) -> Any:
    """Returns the part of a report that says how large row groups are."""
    groups = -(-rows // group_rows)
    per_group = same(min(group_rows, rows))
    bytes_per_group = same(min(group_rows, rows) * size_bytes // rows)
    return SimpleNamespace(
        rows=rows,
        bytes=size_bytes,
        row_groups=groups,
        rows_per_group=per_group,
        bytes_per_group=bytes_per_group,
        decoded_per_group=bytes_per_group,
    )


def same(number: int) -> Sizes:
    return Sizes(least=number, median=number, most=number)


def test_a_pattern_is_not_advised_to_have_an_index(tmp_path: Path) -> None:
    for number in range(64):
        write_table(tmp_path / f"day={number}", pa.table({"x": [number]}))
    for url, remedy in ((f"{tmp_path}/*/*", "Only directories have one"), (tmp_path, f"parquetry index {tmp_path}")):
        (finding,) = (each for each in lint(str(url)) if each.code == "no-index")
        assert remedy in finding.remedy


def test_one_row_group_with_all_rows_is_a_problem(tmp_path: Path) -> None:
    values = np.random.default_rng(7).random((20_000, 128))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 128)})
    url = write_table(tmp_path, table, compression="zstd", row_group_size=20_000)
    assert "few-row-groups" in codes(url)


def test_times_that_go_back_are_reported(tmp_path: Path) -> None:
    sorted_rows, mixed = np.arange(400), np.random.default_rng(7).permutation(400)
    assert codes(write_table(tmp_path / "a", pa.table({"ts": sorted_rows, "other": mixed}), row_group_size=40)) == set()
    assert codes(write_table(tmp_path / "b", pa.table({"ts": mixed}), row_group_size=40)) == {"unsorted-times"}


DRIVES, STEPS = 5, 60


def drives(order: str, dtype: str = "int64") -> pa.Table:
    """Returns recordings that all begin at time 0, with a class for each row, in an order."""
    rng = np.random.default_rng(7)
    drive, step = np.divmod(np.arange(DRIVES * STEPS), STEPS)
    where = {
        "one after the other": np.arange(DRIVES * STEPS),
        "by time": np.argsort(step, kind="stable"),
        "mixed": rng.permutation(DRIVES * STEPS),
    }[order]
    return pa.table(
        {
            "row": where,
            "label": rng.integers(0, 2, DRIVES * STEPS),
            "drive": pa.array([f"drive {number}" for number in drive[where]]).dictionary_encode(),
            "stamp": pa.array(step[where] * 100_000, pa.int64()).cast(dtype),
        }
    )


def windows(url: Path | str, **options: Any) -> int | None:
    """Counts windows of two rows; ``None`` if times go backward inside a group."""
    try:
        return len(Pipeline(url).ngram(length=2, timestamp="stamp", **options))
    except EmptySelectionError:
        return 0
    except ParquetryError:
        return None


@pytest.mark.parametrize("dtype", ["int64", "timestamp[us]", "timestamp[ns]"])
@pytest.mark.parametrize(("order", "before"), [("one after the other", 295), ("by time", 0), ("mixed", None)])
def test_rows_that_are_sorted_as_advised_make_all_windows(
    tmp_path: Path, order: str, before: int | None, dtype: str
) -> None:
    url = write_table(tmp_path / "drives", drives(order, dtype), row_group_size=30)
    assert windows(url, group_by="drive") == before
    [finding] = lint(url)
    assert 'pass group_by="drive"' in finding.remedy
    command = re.search(r"parquetry rewrite .*$", finding.remedy)
    if before == DRIVES * (STEPS - 1):
        assert command is None  # nothing is gained
        assert "where 'drive' changes" in finding.what
        return
    assert command is not None
    _, _, source, target, *options = shlex.split(command[0])
    assert options == ["--sort-by", "drive", "--sort-by", "stamp"]
    assert f"once sorted, {DRIVES * (STEPS - 1)} have one" in finding.cost
    rewrite(source, target, sort_by=options[1::2], row_group_rows=30)
    assert windows(target, group_by="drive") == DRIVES * (STEPS - 1)
    [after] = lint(target)
    assert "rewrite" not in after.remedy
    assert 'pass group_by="drive"' in after.remedy


def test_recordings_and_times_in_structs_are_seen(tmp_path: Path) -> None:
    rows = drives("one after the other").to_pylist()
    table = pa.table({"meta": [{"drive": row["drive"], "stamp": row["stamp"]} for row in rows]})
    [finding] = lint(write_table(tmp_path, table, row_group_size=30))
    assert finding.field == "meta.stamp"
    assert 'pass group_by="meta.drive". The rows are in the right order' in finding.remedy


def test_recordings_without_a_column_of_their_own_are_not_to_be_mixed(tmp_path: Path) -> None:
    table = drives("one after the other").drop(["drive"])
    [finding] = lint(write_table(tmp_path, table, row_group_size=30))
    assert "Sorting by time alone would mix recordings" in finding.remedy
    assert "rewrite" not in finding.remedy


@pytest.mark.parametrize("column", ["row", "label"])
def test_a_single_recording_in_order_is_fine_whatever_its_columns_hold(tmp_path: Path, column: str) -> None:
    table = pa.table({"stamp": range(500), column: np.random.default_rng(3).integers(0, 4, 500)})
    assert codes(write_table(tmp_path, table, row_group_size=40)) == set()


def test_images_that_are_compressed_again_or_not_declared_are_reported(tmp_path: Path) -> None:
    table = pa.table({"photo": jpegs(120, 160)})
    assert codes(write_table(tmp_path / "a", table, compression="zstd")) == {"compressed-twice", "undeclared-images"}
    assert codes(write_table(tmp_path / "b", table, compression="none")) == {"undeclared-images"}
    field = UnischemaField("photo", np.uint8, (128, 128, 3), CompressedImageCodec("jpeg"))
    write_dataset(tmp_path / "c", Unischema("photos", [field]), [{"photo": value} for value in jpegs(4, 128)])
    assert codes(str(tmp_path / "c")) == set()


def test_uuids_are_not_images(tmp_path: Path) -> None:
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16)))
    assert codes(write_table(tmp_path, pa.table({"u": column}))) == set()


def test_raw_images_slow_compression_and_texts_without_dictionary_are_reported(tmp_path: Path) -> None:
    raw = UnischemaField("photo", np.uint8, (8, 8, 3))
    write_dataset(tmp_path / "raw", Unischema("photos", [raw]), [{"photo": np.zeros((8, 8, 3), np.uint8)}])
    assert codes(str(tmp_path / "raw")) == {"raw-images"}
    table = pa.table({"city": [f"a city with a long name {number % 7}" for number in range(50_000)]})
    assert codes(write_table(tmp_path / "a", table, use_dictionary=False)) == {"no-dictionary"}
    assert codes(write_table(tmp_path / "b", table)) == set()
    numbers = pa.table({"x": np.random.default_rng(7).random(200_000)})
    assert "slow-compression" in codes(write_table(tmp_path / "c", numbers, compression="gzip"))


def test_nulls_missing_statistics_and_refused_columns_are_reported(tmp_path: Path) -> None:
    table = pa.table({"speed": [1.0, None] * 50, "odd": pa.array([None] * 100, pa.null())})
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=50, write_statistics=["odd"])
    assert {"no-statistics", "refused-column"} <= codes(str(tmp_path))
    assert "nulls" in codes(write_table(tmp_path / "more", table.select(["speed"])))
    problems = [finding.code for finding in lint(str(tmp_path)) if finding.level == "problem"]
    assert problems == ["refused-column"]


def test_nulls_of_many_columns_are_one_note(tmp_path: Path) -> None:
    columns = {f"x{number}": [1.0, None] for number in range(8)}
    (note,) = [each for each in lint(write_table(tmp_path, pa.table(columns))) if each.code == "nulls"]
    assert note.field is None
    assert note.what == (
        "Of 2 rows, 'x0' is null in 1, 'x1' in 1, 'x2' in 1, 'x3' in 1, 'x4' in 1, 'x5' in 1, and 2 more fields."
    )
    assert 'nulls("drop", "x0", "x1", "x2", "x3", "x4", "x5", ...)' in note.remedy


@pytest.mark.parametrize("name", ["id", "speed"])
def test_an_empty_dataset_has_nothing_odd(tmp_path: Path, name: str) -> None:
    assert codes(write_table(tmp_path, pa.table({name: pa.array([], pa.int64())}))) == set()


TABLE = "/data/my rows"


@pytest.mark.parametrize(
    ("remedy", "kind", "written"),
    [
        (
            "Write 120 rows: parquetry rewrite --row-group-rows 120.",
            None,
            "Write 120 rows: parquetry rewrite '/data/my rows' '/data/my rows-rewritten' --row-group-rows 120",
        ),
        ("Write one: parquetry index.", None, "Write one: parquetry index '/data/my rows'"),
        ("Convert it to JSON: parquetry migrate.", None, "Convert it to JSON: parquetry migrate '/data/my rows'"),
        (
            "Write 120 rows: parquetry rewrite --row-group-rows 120.",
            "delta",
            "Write 120 rows: rewrite(Pipeline.from_delta(url), target, row_group_rows=120) in Python, or the table's own "
            "maintenance.",
        ),
        (
            "Join them: parquetry rewrite --files 2.",
            "iceberg",
            "Join them: rewrite(Pipeline.from_iceberg(table), target, files=2) in Python, or the table's own maintenance.",
        ),
        (
            "Write it: parquetry rewrite --compression none.",
            "image_folder",
            "Write it: rewrite(Pipeline.from_image_folder(path), target, compression='none') in Python.",
        ),
        (
            "Sort the rows: parquetry rewrite --sort-by 'a.b c' --sort-by t --files 3.",
            "huggingface",
            "Sort the rows: rewrite(Pipeline.from_huggingface_parquet(path), target, sort_by=['a.b c', 't'], files=3) in "
            "Python.",
        ),
        ("It is fine as it is.", "delta", "It is fine as it is."),
    ],
)
def test_a_remedy_ends_with_what_can_be_run(remedy: str, kind: str | None, written: str) -> None:
    assert runnable(remedy, [TABLE], kind) == written


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("s3://bucket/train/", "s3://bucket/train-rewritten"),
        ("drive.parquet", "drive-rewritten"),
        ("data/*.parquet", "data-rewritten"),
        ("*.parquet", "rewritten"),
        ("https://host/a/b.parquet", "b-rewritten"),
        ("hf://datasets/a/b", "b-rewritten"),
        ("data/drive.parquet", "data-drive-rewritten"),
        ("data/day=1/hour=2/", "data-day-1-hour-2-rewritten"),
        ("day=1", "day-1-rewritten"),
        ("s3://bucket/day=1/a.parquet", "s3://bucket/day-1-a-rewritten"),
        ("s3://bucket/a.parquet", "s3://bucket/a-rewritten"),
        ("/a.parquet", "/a-rewritten"),
        (".", "../rewritten"),
        ("../", "../../rewritten"),
    ],
)
def test_a_rewritten_dataset_has_a_place_of_its_own(url: str, target: str) -> None:
    command = runnable("Write it: parquetry rewrite.", [url], None).removeprefix("Write it: ")
    assert shlex.split(command) == ["parquetry", "rewrite", url, target]
    several = runnable("Write it: parquetry rewrite.", [url, url], None)
    assert several == "Write it: rewrite(pipeline, target) in Python."
    assert runnable("Write one: parquetry index.", ["a", "b"], None).endswith("parquetry index a && parquetry index b")


def test_every_remedy_of_a_table_can_be_carried_out() -> None:
    """Commands that take plain files only are written as calls, in all forms that the checks write."""
    source = inspect.getsource(linting)
    commands = re.findall(r"parquetry (?:rewrite|index|migrate)\b[^\"]*\.(?=\")", source)
    assert len(commands) > 10
    for command in commands:
        filled = command.replace("{'' if coded else ' --compression none'}", "").replace("{by}", "--sort-by x")
        filled = re.sub(r"\{[^}]*\}", "1", filled)
        assert shlex.split(runnable(filled, ["url"], None))[:3] == [*filled.rstrip(".").split()[:2], "url"], command
        call = runnable(filled, ["url"], "delta")
        assert "parquetry rewrite" not in call, command
        assert set(re.findall(r", (\w+)=", call)) <= set(inspect.signature(rewrite).parameters), command
