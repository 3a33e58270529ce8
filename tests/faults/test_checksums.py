"""Page checksums: every writer writes them, every reader checks them, and a mismatch is one error with its location."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquetry.common import (
    CompressedImageCodec,
    NdarrayCodec,
    Pipeline,
    TensorCodec,
    Unischema,
    UnischemaField,
    mix,
    write_dataset,
)
from parquetry.common.apps.reports import verify
from parquetry.common.apps.tools import rewrite
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.parquet.page_header import page_headers

SCHEMA = Unischema(
    "all",
    [
        UnischemaField("id", np.int64),
        UnischemaField("points", np.float32, (2_000, 4), TensorCodec()),  # stays in its file
        UnischemaField("array", np.float32, (2_000, 4), NdarrayCodec()),  # after a header there
        UnischemaField("image", np.uint8, (40, 40, 3), CompressedImageCodec("png")),  # read as a chunk
        UnischemaField("tokens", np.int32, (None,)),
    ],
)
ROWS = 12
CHECKSUM = r'CRC checksum.*If only its checksums are wrong, .* read it with verify="never"\.$'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    target = tmp_path_factory.mktemp("checksums") / "data"
    rows = (
        {
            "id": number,
            "points": rng.random((2_000, 4), np.float32),
            "array": rng.random((2_000, 4), np.float32),
            "image": rng.integers(0, 255, (40, 40, 3), np.uint8),
            "tokens": np.arange(number + 300, dtype=np.int32),
        }
        for number in range(ROWS)
    )
    write_dataset(target, SCHEMA, rows)
    return target


def only_file(url: Path) -> Path:
    [file] = url.glob("*.parquet")
    return file


def leaf(file: Path, name: str) -> Any:
    group = pq.read_metadata(file).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    return next(chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == name)


def span(file: Path, name: str) -> tuple[int, int]:
    """Returns the byte range of a column chunk in its file."""
    chunk = leaf(file, name)
    begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return begin, begin + chunk.total_compressed_size


def page_ends(file: Path, name: str) -> list[int]:
    """Returns the end offsets of a column's pages in its file; each page has a checksum."""
    begin, end = span(file, name)
    chunk = memoryview(file.read_bytes())[begin:end]
    pages = [*page_headers(lambda first, last: chunk[first:last], len(chunk))]
    assert all(page.checksum is not None for page in pages)
    return [begin + page.end for page in pages]


def damaged(url: Path, target: Path, name: str, page: int = 0) -> Path:
    """Makes a copy with one bit flipped in the body of a page of the column."""
    target.mkdir()
    source = only_file(url)
    content = bytearray(source.read_bytes())
    content[page_ends(source, name)[page] - 3] ^= 4
    (target / source.name).write_bytes(content)
    return target


@pytest.mark.parametrize("page", [0, -1])
@pytest.mark.parametrize("name", list(SCHEMA.fields))
def test_a_flipped_bit_is_an_error_that_names_file_row_group_and_column(
    url: Path, tmp_path: Path, name: str, page: int
) -> None:
    copy = damaged(url, tmp_path / "copy", name, page)
    with pytest.raises(DatasetError, match=rf"part-00000\.parquet, row group 0: .* \['{name}.*{CHECKSUM}"):
        list(Pipeline(copy))
    others = [other for other in SCHEMA.fields if other != name]
    assert len(list(Pipeline(copy, others))) == ROWS


READERS: dict[str, Callable[[Path], object]] = {
    "few rows": lambda url: list(Pipeline(url).where(pc.field("id") == 7)),
    "rows by number": lambda url: Pipeline(url)[5],
    "random batches": lambda url: list(Pipeline(url).shuffle(100, seed=1).batch(4)),
    "lists of known length": lambda url: list(Pipeline(url, ["tokens"]).concat(64, "tokens")),
    "a predicate": lambda url: list(Pipeline(url, ["image"]).where(pc.field("id") > 3)),
    "a cache": lambda url: list(Pipeline(url).cache(url / "cache")),
}
READ_BY = {"lists of known length": "tokens", "a predicate": "id"}
ROW_READ = {"few rows": 7, "rows by number": 5}  # a value of ``points`` has a page of its own


@pytest.mark.parametrize("reader", READERS)
def test_every_way_to_read_compares_checksums(url: Path, tmp_path: Path, reader: str) -> None:
    copy = damaged(url, tmp_path / "copy", READ_BY.get(reader, "points"), ROW_READ.get(reader, 0))
    with pytest.raises(DatasetError, match=r"row group 0: expected readable columns .*" + CHECKSUM):
        READERS[reader](copy)


def test_never_reads_what_is_there(url: Path, tmp_path: Path) -> None:
    copy = damaged(url, tmp_path / "copy", "points")
    [batch] = Pipeline(copy, ["points"], verify="never").batch(ROWS)
    [whole] = Pipeline(url, ["points"]).batch(ROWS)
    assert (batch["points"] != whole["points"]).sum() == 1


def test_verify_reports_the_column(url: Path, tmp_path: Path) -> None:
    found = verify(damaged(url, tmp_path / "copy", "array")).damages
    assert any(damage.check == "bytes" and "CRC checksum" in damage.what for damage in found)


@pytest.mark.parametrize("name", list(SCHEMA.fields))
def test_always_refuses_pages_without_a_checksum(url: Path, tmp_path: Path, name: str) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    plain = {"compression": "none", "use_dictionary": False} if SCHEMA[name].codec is not None else {}
    pq.write_table(pq.read_table(only_file(url)), bare / "x.parquet", **plain)
    assert len(list(Pipeline(bare, [name]))) == ROWS
    with pytest.raises(
        DatasetError, match=rf"x\.parquet, row group 0, column '{name}.*': expected a checksum .*rewrite"
    ):
        list(Pipeline(bare, [name], verify="always"))
    rewrite(bare, tmp_path / "again")
    assert len(list(Pipeline(tmp_path / "again", verify="always"))) == ROWS


def test_every_page_of_the_writer_has_a_checksum(url: Path) -> None:
    assert all(page_ends(only_file(url), name) for name in SCHEMA.fields)


def test_the_option_travels(url: Path) -> None:
    pipeline = Pipeline(url, verify="always").batch(4)
    assert Pipeline.from_json(pipeline.to_json()).verify == "always"
    assert pipeline.dataset.verify == "always"
    never = pipeline.with_options(verify="never")
    assert (never.dataset.verify, pipeline.dataset.verify) == ("never", "always")
    assert len({never.dataset.version, pipeline.dataset.version, Pipeline(url).dataset.version}) == 3
    assert never.dataset.fingerprint == pipeline.dataset.fingerprint  # states go from one to the other
    both = mix([Pipeline(url), Pipeline(url)], seed=1).with_options(verify="never")
    assert [leaf.dataset.verify for leaf in both.leaves] == ["never", "never"]
    with pytest.raises(PipelineError, match="expected verify to be one of"):
        Pipeline(url, verify="sometimes")  # type: ignore[arg-type]
