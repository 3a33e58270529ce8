"""Columns read without Arrow: which ones are, and that they hold the same values."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import Store
from oracle import examples

from parquetry.common import Pipeline
from parquetry.common.base.native.library import is_compiled
from parquetry.common.base.native.parquet import CHUNK_FACTS
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.parquet import native_decode
from parquetry.common.parquet.file_columns import ColumnKind
from parquetry.common.parquet.native_decode import (
    CoreColumns,
    DescribedGroup,
    core_columns,
    core_compressions,
    read_by_core,
)

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(not is_compiled(), reason="the compiled core reads them"),
]
ROWS = 1000
CORE_READ = CoreColumns.read
DATA = Path(__file__).resolve().parents[2] / "data"


def table(rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(0)
    return pa.table(
        {
            "small": random.integers(-100, 100, rows).astype(np.int8),
            "wide": random.integers(0, 1 << 60, rows, np.uint64),
            "real": random.normal(size=rows).astype(np.float32),
            "few": random.integers(0, 3, rows),
            "double": random.normal(size=rows),
            "text": [str(number) for number in range(rows)],
            "label": [("good", "a scratch", "bad" * 30)[number % 3] for number in range(rows)],
            "holes": pa.array([None if number % 7 == 0 else number for number in range(rows)], pa.int64()),
            "flag": random.integers(0, 2, rows).astype(bool),
            "day": pa.array(random.integers(0, 9999, rows).astype(np.int32), pa.date32()),
            "digits": pa.array(list(range(rows)), pa.decimal128(9, 2)),
            "list": pa.array([list(range(number % 4)) for number in range(rows)], pa.list_(pa.int64())),
            "texts": pa.array([["a"] for _ in range(rows)]),
            "inside": pa.array([{"real": float(number)} for number in range(rows)]),
        }
    )


NUMBERS = {"small", "wide", "real", "few", "double"}
READ = {*NUMBERS, "text", "label", "holes", "list"}


@pytest.fixture
def read_apart(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The columns that each call reads without Arrow."""
    found: list[set[str]] = []

    def spied(columns: CoreColumns, *args: Any, **options: Any) -> Any:
        read = CORE_READ(columns, *args, **options)
        pairs = zip(columns.columns, read.values, strict=True)
        found.append({column.name for column, each in pairs if each is not None})
        return read

    monkeypatch.setattr(CoreColumns, "read", spied)
    return found


def columns(path: Path, **options: Any) -> dict[str, Any]:
    return next(iter(Pipeline(path, **options).batch(ROWS)))


def stored(path: Path, name: str) -> np.ndarray:
    values: np.ndarray = pq.read_table(path).column(name).to_numpy()
    return values


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"compression": "none"}, READ),
        (
            {"compression": {name: "gzip" if name == "real" else "snappy" for name in table().column_names}},
            READ - {"real"},
        ),
        ({"compression": "zstd"}, READ if "ZSTD" in core_compressions() else set()),
        ({"write_statistics": False}, READ),
        ({"use_dictionary": False, "column_encoding": {"real": "BYTE_STREAM_SPLIT"}}, READ - {"real"}),
        ({"data_page_version": "2.0", "write_page_checksum": True, "data_page_size": 100}, READ),
    ],
)
def test_which_columns_are_read_apart(
    tmp_path: Path, read_apart: list[set[str]], options: dict[str, Any], expected: set[str]
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(), path, **options)
    found = columns(path)
    assert read_apart[0] == expected if expected else not read_apart
    for name in NUMBERS:
        assert np.asarray(found[name]).tobytes() == stored(path, name).tobytes(), name
    for name in ("holes", "text"):
        assert found[name].tolist() == table().column(name).to_pylist()


@examples(30)
@given(
    rows=st.integers(1, 300),
    each=st.sampled_from([1, 17, 100]),
    seed=st.integers(0, 99),
    verify=st.sampled_from(["written", "never", "always"]),
    remote=st.booleans(),
    nulls=st.booleans(),
)
def test_rows_are_those_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory, rows: int, each: int, seed: int, verify: Any, remote: bool, nulls: bool
) -> None:
    path = tmp_path_factory.mktemp("numbers") / "x.parquet"
    written = table(rows).select([*NUMBERS, "text", "holes"])
    if not nulls:
        written = written.drop_columns("holes")
    pq.write_table(written, path, row_group_size=each, write_page_checksum=True)
    store = Store("numbers")
    store.put_file_bytes("x.parquet", path.read_bytes())
    pipeline = Pipeline("x.parquet", filesystem=store, verify=verify) if remote else Pipeline(path, verify=verify)
    pipeline = pipeline.shuffle(50, seed=seed)
    expected = sorted(written.to_pylist(), key=lambda row: int(row["text"]))
    assert sorted(map(dict, pipeline), key=lambda row: int(row["text"])) == expected


def test_many_rows_of_one_value_are_left_to_arrow(tmp_path: Path, read_apart: list[set[str]]) -> None:
    """A footer could claim any number of rows for a few bytes."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.zeros(1 << 20)}), path, row_group_size=1 << 20)
    assert len(next(iter(Pipeline(path).batch(1 << 20)))["x"]) == 1 << 20
    assert not any(read_apart)


def test_columns_of_one_name_are_left_to_arrow(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    same = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["x", "x"])
    pq.write_table(same, path)
    with pa.OSFile(str(path)) as source:
        described = StoredDataset([str(path)]).group_footer(0)
        found = read_by_core(source, described, ["x"], path=str(path), key=str(path), checked=True)
    assert found == {}


def test_large_chunks_of_a_store_are_left_to_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in memory already, and the core would copy them."""
    monkeypatch.setattr(native_decode, "_WINDOW_BYTES", 1 << 16)
    path = tmp_path / "x.parquet"
    written = pa.table({"small": np.zeros(20_000, np.int8), "large": np.random.default_rng(0).random(20_000)})
    pq.write_table(written, path, use_dictionary=False, data_page_size=1 << 12, write_batch_size=100)
    described = StoredDataset([str(path)]).group_footer(0)
    with pa.OSFile(str(path)) as source:
        for place, expected in ((None, {"small"}), (str(path), {"small", "large"})):
            found = read_by_core(source, described, ["small", "large"], path=place, key="x", checked=True)
            assert set(found) == expected


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0", "0.7.6"])
def test_files_of_parquet_mr_are_read_apart(version: str) -> None:
    """Their chunks name the encoding BIT_PACKED, although no page of a flat column has it."""
    (path,) = (DATA / "petastorm" / version).rglob("*.parquet")
    reader = pq.ParquetFile(path)
    assert reader.metadata.created_by.startswith("parquet-mr")
    described = StoredDataset([str(path)]).group_footer(0)
    with pa.OSFile(str(path)) as source:
        names = [*described.columns.leaves]
        found = read_by_core(source, described, names, path=str(path), key=str(path), checked=True)
    assert len(found) > 3
    for name, values in found.items():
        assert values.equals(reader.read_row_group(0, columns=[name]).column(name).combine_chunks()), name


KINDS = {
    "number": {"dtype": np.dtype("i8"), "definition": 1, "empty": -1, "stored": 8, "width": 8, "offset_bytes": 0},
    "text": {"dtype": None, "definition": 1, "empty": -1, "stored": 0, "width": 1, "offset_bytes": 8},
    "list": {"dtype": None, "definition": 2, "empty": 1, "stored": 4, "width": 4, "offset_bytes": 4},
}
KEYS = count()


@examples(60)
@given(data=st.data())
def test_a_large_chunk_is_read_page_by_page_as_far_as_its_rows_are_wanted(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = 30_000
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    written = {
        "number": pa.array(random.integers(0, 1 << 60, rows)),
        "holes": pa.array(random.normal(size=rows), mask=random.random(rows) < 0.3),
        "text": pa.array([each * 7 for each in random.integers(0, 1 << 30, rows).astype(str)]),
    }
    path = tmp_path_factory.mktemp("large") / "x.parquet"
    pq.write_table(
        pa.table(written),
        path,
        compression=data.draw(st.sampled_from(["none", "snappy"])),
        use_dictionary=data.draw(st.booleans()),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([1 << 12, 1 << 16])),
        dictionary_pagesize_limit=1 << 16,
        write_batch_size=100,
    )
    begin = data.draw(st.integers(0, rows - 1))
    wanted = np.unique(random.integers(begin, min(begin + 5000, rows), data.draw(st.integers(1, 300))))
    described = StoredDataset([str(path)]).group_footer(0, frozenset(written))
    for window_bytes in (16 << 20, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_decode, "_WINDOW_BYTES", window_bytes)
            columns = core_columns(lambda: described, tuple(written), f"large {next(KEYS)}")
        for some in (wanted, None):
            read = columns.read(str(path), checked=True, wanted=some)
            for column, found in zip(columns.columns, read.values, strict=True):
                chosen = np.arange(rows) if some is None else some
                assert pa.array(found).take(pa.array(chosen)) == written[column.name].take(pa.array(chosen)).cast(
                    column.type
                )
            assert (read.unread_bytes > 0) == (some is not None)


EXTREMES = [-(1 << 63), -1, 0, 1, 4, 5, 900, 1 << 14, 1 << 24, 1 << 31, 1 << 41, 1 << 60, (1 << 63) - 1]


def may_be_read(kind: str, facts: dict[str, int], rows: int) -> bool:
    """Whether nothing speaks against a chunk: its claims fit together, and are not too large for its bytes."""
    size, unpacked, values = facts["stored_bytes"], facts["unpacked_bytes"], facts["values"]
    begin = min(facts["data_page"], facts["dictionary_page"] if facts["dictionary_page"] > 0 else facts["data_page"])
    count = {"number": rows, "list": values}.get(kind, unpacked + 8 * rows * (facts["dictionary_page"] >= 0))
    needed = count * int(KINDS[kind]["stored"] or 1), unpacked, int(KINDS[kind]["offset_bytes"]) * rows
    fits = size > 0 and max(needed) <= max(min(64 * size, 1 << 30), 1 << 20)
    known = facts["codec"] in (0, 1) and facts["encodings"] in (1, 9)
    return known and fits and min(begin, count, unpacked) >= 0 and (kind == "list" or values == rows)


@examples(300)
@given(data=st.data())
def test_a_footer_with_any_numbers_gives_only_chunks_that_may_be_read(data: st.DataObject) -> None:
    rows = data.draw(st.sampled_from([each for each in EXTREMES if each >= 0]))
    numbers = st.sampled_from([*EXTREMES, rows])
    facts = np.zeros(len(KINDS), CHUNK_FACTS)
    for number in range(len(KINDS)):
        for name in ("values", "unpacked_bytes", "stored_bytes", "data_page", "dictionary_page"):
            facts[name][number] = data.draw(numbers)
        facts["codec"][number] = data.draw(st.sampled_from([0, 1, 1, 2, -1]))
        facts["encodings"][number] = data.draw(st.sampled_from([1, 9, 9, 33, -1]))
    kinds = [ColumnKind(name=name, leaf=leaf, type=pa.int8(), **of) for leaf, (name, of) in enumerate(KINDS.items())]  # type: ignore[arg-type]

    class Group:
        @property
        def columns(self) -> Any:
            return self

        def kinds(self, *_: Any) -> list[ColumnKind]:
            return kinds

        def __init__(self) -> None:
            self.rows, self.facts = rows, facts

    group: DescribedGroup = Group()
    columns = core_columns(lambda: group, tuple(KINDS), f"any {next(KEYS)}")
    names = facts.dtype.names or ()
    claims = {kind: dict(zip(names, facts[number].tolist(), strict=True)) for number, kind in enumerate(KINDS)}
    assert {column.name for column in columns.columns} == {
        kind for kind in KINDS if may_be_read(kind, claims[kind], rows)
    }
