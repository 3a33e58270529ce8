"""Each finding appears exactly where there is a reason for it."""

from __future__ import annotations

import inspect
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import build, write_table
from PIL import Image

from parquetry.common import CompressedImageCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.reports import lint, linting
from parquetry.common.tools import rewrite


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


def test_many_small_row_groups_and_files_are_problems(tmp_path: Path) -> None:
    table = pa.table({"id": range(2000)})
    for number in range(64):
        write_table(tmp_path, table, f"{number}.parquet", row_group_size=100)
    assert codes(str(tmp_path)) == {"small-row-groups", "many-small-files", "no-index"}
    found = lint(str(tmp_path))
    assert [finding.level for finding in found] == ["problem", "problem", "note"]
    assert "1,280 row groups have a median of 100 rows" in str(found[0])


def test_one_row_group_with_all_rows_is_a_problem(tmp_path: Path) -> None:
    values = np.random.default_rng(7).random((20_000, 128))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 128)})
    url = write_table(tmp_path, table, compression="zstd", row_group_size=20_000)
    assert "few-row-groups" in codes(url)


def test_times_that_go_back_are_reported(tmp_path: Path) -> None:
    sorted_rows, mixed = np.arange(400), np.random.default_rng(7).permutation(400)
    assert codes(write_table(tmp_path / "a", pa.table({"ts": sorted_rows, "other": mixed}), row_group_size=40)) == set()
    assert codes(write_table(tmp_path / "b", pa.table({"ts": mixed}), row_group_size=40)) == {"unsorted-times"}


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


@pytest.mark.parametrize("name", ["id", "speed"])
def test_an_empty_dataset_has_nothing_odd(tmp_path: Path, name: str) -> None:
    assert codes(write_table(tmp_path, pa.table({name: pa.array([], pa.int64())}))) == set()


@pytest.mark.parametrize(
    ("remedy", "kind", "call"),
    [
        (
            "Write 120 rows: parquetry rewrite --row-group-rows 120.",
            "delta",
            "Write 120 rows: rewrite(Pipeline.from_delta(url), target, row_group_rows=120) in Python, or the table's own "
            "maintenance.",
        ),
        (
            "Join them: parquetry rewrite --files.",
            "iceberg",
            "rewrite(Pipeline.from_iceberg(table), target, files=...)",
        ),
        ("Split it: parquetry rewrite.", "delta", "rewrite(Pipeline.from_delta(url), target) in Python"),
        (
            "Sort the rows: parquetry rewrite --sort-by a.b c --files 3.",
            "delta",
            "rewrite(Pipeline.from_delta(url), target, sort_by='a.b c', files=3)",
        ),
        ("It is fine as it is.", "delta", "It is fine as it is."),
    ],
)
def test_a_table_is_rewritten_in_python(remedy: str, kind: str, call: str) -> None:
    assert call in linting._for_table(remedy, kind)


def test_every_remedy_of_a_table_can_be_carried_out() -> None:
    """Commands that take plain files only are written as calls, in all forms that the checks write."""
    source = inspect.getsource(linting)
    commands = re.findall(r": (parquetry rewrite[^\"]*\.)\"", source)
    assert len(commands) > 6
    for command in commands:
        call = linting._for_table(re.sub(r"\{[^}]*\}", "x", command), "delta")
        assert "parquetry rewrite" not in call, command
        assert set(re.findall(r", (\w+)=", call)) <= set(inspect.signature(rewrite).parameters), command
