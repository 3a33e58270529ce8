"""Footers with a flipped bit cause an error that names the file, or pyarrow can read them; no process dies."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run_python

from parquetry.common import Pipeline
from parquetry.common.apps.reports.inspecting import inspect
from parquetry.common.base.errors import DatasetError, SchemaError
from parquetry.common.parquet.footer_check import check_footer

TABLE = pa.table(
    {
        "a": pa.array([1, 2, 3]),
        "text": ["x", "y", "z"],
        "list": pa.array([[1.0], [2.0, 3.0], []]),
        "fixed": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
    }
)
TOUCH = """
import sys, io
import pyarrow as pa, pyarrow.parquet as pq
from parquetry.common.parquet.footer_check import check_footer, has_no_known_bounds

content = open(sys.argv[1], "rb").read()
size = int.from_bytes(content[-8:-4], "little")
sound = 0
for bit in range(0, 8 * size, 3):
    flipped = bytearray(content)
    flipped[len(content) - 8 - size + bit // 8] ^= 1 << bit % 8
    try:
        footer = pq.read_metadata(pa.BufferReader(bytes(flipped)))
        check_footer(bytes(flipped[-8 - size : -8]), footer, len(flipped))
    except (pa.ArrowException, OSError, ValueError):
        continue
    for number in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            try:
                chunk = footer.row_group(number).column(column)
                chunk.compression, chunk.encodings, chunk.path_in_schema
                asked = not has_no_known_bounds(footer.schema.column(column))
                statistics = chunk.statistics if asked else None
                if statistics is not None and statistics.has_min_max:
                    statistics.min, statistics.max
            except (UnicodeDecodeError, OverflowError, ValueError):
                pass
    sound += 1
print(sound)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.parquet"
    pq.write_table(TABLE, path, row_group_size=2, store_schema=False, write_page_checksum=True)
    return path


def footer_of(content: bytes) -> bytes:
    size = int.from_bytes(content[-8:-4], "little")
    return content[-8 - size : -8]


def test_no_footer_that_passes_ends_the_process(file: Path) -> None:
    done = run_python("-c", TOUCH, file)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_footers_of_other_writers_pass() -> None:
    """Returns every stored dataset of the tests, including Petastorm's and Spark's."""
    files = sorted((Path(__file__).parents[1] / "data").rglob("*.parquet"))
    assert files
    for path in files:
        content = path.read_bytes()
        check_footer(footer_of(content), pq.read_metadata(path), len(content))


def test_a_damaged_footer_names_its_file(file: Path) -> None:
    content = bytearray(file.read_bytes())
    place = content.rindex(b"\x15\x04\x19", len(content) - 8 - len(footer_of(bytes(content))))  # a chunk's type: INT64
    content[place + 1] = 0x08
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=r"file .*x\.parquet: expected a readable Parquet file, got .* Remove it"):
        list(Pipeline(file))


@pytest.mark.slow
def test_a_metadata_file_with_a_flipped_bit_is_read_or_named(file: Path) -> None:
    metadata, kinds = file.with_name("_common_metadata"), set()
    schema = pa.schema([("a", pa.int64()), ("b", pa.uint8())])
    pq.write_table(schema.empty_table(), metadata, store_schema=False)
    content = metadata.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        metadata.write_bytes(flipped)
        try:
            kinds.add(len(Pipeline(file.parent)))
        except DatasetError as error:
            kinds.add("an error with its name" if str(metadata) in str(error) else str(error))
    assert kinds == {3, "an error with its name"}


@pytest.mark.slow
def test_a_flipped_bit_of_a_footer_never_leaves_rows_out(tmp_path: Path) -> None:
    path, table = tmp_path / "x.parquet", pa.table({"a": range(90)})
    pq.write_table(table, path, row_group_size=60, write_statistics=False, store_schema=False)
    content, counts = path.read_bytes(), set()
    begin = len(content) - 8 - len(footer_of(content))
    for bit in range(8 * begin, 8 * (len(content) - 8)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with suppress(DatasetError, SchemaError):
            counts.add(len(list(Pipeline(path, executor="threads", workers=1))))
    assert counts == {90}


def test_a_writer_whose_name_is_no_text_is_unknown(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[content.rindex(b"parquet-cpp")] ^= 1 << 7
    file.write_bytes(content)
    rows = Pipeline(file, ["a"], executor="threads").where([("text", ">=", "y")])
    assert [row["a"] for row in rows] == [2, 3]
    assert inspect(str(file)).written_by == ""


@pytest.mark.slow
def test_footers_of_many_column_chunks_are_checked(tmp_path: Path) -> None:
    """A file of 7,000 column chunks among others."""
    table = pa.table({f"c{number}": range(70) for number in range(100)})
    for number, rows in enumerate([70, 1, 70]):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=rows)
    damaged = tmp_path / "1.parquet"
    content = bytearray(damaged.read_bytes())
    begin = len(content) - 8 - len(footer_of(bytes(content)))
    codec = content.index(b"\x18\x02c3\x15", begin) + 5
    assert content[codec] == 0x02  # SNAPPY
    content[codec] ^= 1 << 5
    damaged.write_bytes(content)
    code = f"from parquetry.common import Pipeline; list(Pipeline({str(tmp_path)!r}, ['c3']).where([('c3', '>=', 0)]))"
    done = run_python("-c", code)
    assert done.returncode == 1, done.stderr
    assert re.search(r"DatasetError: file .*1\.parquet: expected a readable Parquet file", done.stderr)


def test_bounds_that_a_writer_has_cut_are_not_asked_for(tmp_path: Path) -> None:
    path, long, cut = tmp_path / "x.parquet", b"a" * 100, b"a" * 64
    table = pa.table({"id": range(20), "long": pa.array([long] * 20, pa.binary(100))})
    pq.write_table(table, path, use_dictionary=False, compression="none", store_schema=False)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8].replace(b"\x64" + long, b"\x40" + cut)
    assert len(footer) < size
    path.write_bytes(content[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    rows = Pipeline(path, executor="threads").where([("id", ">=", 18), ("long", "==", long)])
    assert [row["id"] for row in rows] == [18, 19]
    assert inspect(str(path)).rows == 20
