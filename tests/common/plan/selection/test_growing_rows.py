"""Large selections are found slice by slice, kept in temporary files, and stored in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.base.platform import files
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.plan.selection import growing_rows, store
from parquetry.common.plan.selection.growing_rows import joined, rows_in, rows_where
from parquetry.common.plan.selection.rows import RowNumbers
from parquetry.common.stages.predicates.column_predicates import hash_split
from parquetry.common.storage import temporary

ROWS = 3000


@given(st.lists(st.lists(st.booleans(), max_size=9), min_size=1, max_size=6), st.data())
def test_rows_are_those_whose_mask_is_true(masks: list[list[bool]], data: st.DataObject) -> None:
    mask = [each for part in masks for each in part]
    wanted: RowNumbers = range(len(mask))
    if data.draw(st.booleans()):
        kept = data.draw(st.lists(st.booleans(), min_size=len(mask), max_size=len(mask)))
        wanted = np.flatnonzero(kept).astype(data.draw(st.sampled_from([np.int32, np.int64])))
    firsts = np.cumsum([0, *map(len, masks)]).tolist()
    found = joined(
        rows_where(np.array(part, bool), rows_in(wanted, first, first + len(part)), first)
        for part, first in zip(masks, firsts[:-1], strict=True)
    )
    assert found.tolist() == [row for row in wanted if mask[row]]
    assert found.dtype == np.int32


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_rows, "MOST_BYTES", 64)
    monkeypatch.setattr(store, "MOST_BYTES", 64)
    monkeypatch.setattr(store, "_PART_ROWS", 7)


def parts(count: int) -> Iterator[np.ndarray]:
    return (np.arange(10 * number, 10 * number + 10, dtype=np.int32) for number in range(count))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_parts_are_joined_in_memory_and_on_disk(count: int) -> None:
    assert joined(parts(count)).tolist() == list(range(10 * count))


@pytest.mark.usefixtures("_small")
def test_without_room_on_disk_rows_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(temporary, "temporary_directories", lambda: ["/nowhere"])
    assert joined(parts(9)).tolist() == list(range(90))
    assert "kept in memory: expected room for temporary files in /nowhere" in caplog.text


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two row groups in each of two partitions, with nulls."""
    random = np.random.default_rng(3)
    for number in range(2):
        numbers = random.integers(0, 50, ROWS)
        texts = pa.array([None if value < 3 else f"text {value}" for value in random.integers(0, 30, ROWS).tolist()])
        table = pa.table({"id": np.arange(ROWS) + number * ROWS, "number": numbers, "text": texts})
        (tmp_path / f"part={number}").mkdir()
        pq.write_table(table, tmp_path / f"part={number}/rows.parquet", row_group_size=ROWS // 2)
    return str(tmp_path)


CHAINS = {
    "number": lambda rows: rows.where(pc.field("number") < 20),
    "text": lambda rows: rows.where(pc.field("text") != "text 7"),
    "partition": lambda rows: rows.where((pc.field("part") == 1) | (pc.field("number") == 7)),
    "twice": lambda rows: rows.where(pc.field("number") < 40).where(pc.field("text") > "text 2"),
    "column": lambda rows: rows.where(pc.field("number") < 45).where(hash_split("text", [0.5, 0.5], 0)),
    "nulls": lambda rows: rows.nulls("drop", "text"),
    "window": lambda rows: rows.where(pc.field("number") < 40).ngram(["number"], length=2),
}


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("chain", CHAINS)
def test_row_groups_beyond_the_limit_give_the_same_rows_in_slices(
    url: str, chain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def selected(memory_limit: int) -> tuple[list[tuple[int, int]], int]:
        sizes: list[int] = []
        read = Fetcher.stored_slices

        def recording(fetcher: Fetcher, row_group: int) -> Iterator[pa.Table]:
            return (sizes.append(table.num_rows) or table for table in read(fetcher, row_group))

        def places() -> list[tuple[int, int]]:
            rows = CHAINS[chain](Pipeline(url, executor="threads", memory_limit=memory_limit)).plan().selection.rows
            return [(int(group), int(row)) for group, row in zip(*rows.locate(np.arange(rows.total)), strict=True)]

        monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / f"cache {memory_limit}"))
        with monkeypatch.context() as patch:
            patch.setattr(Fetcher, "stored_slices", recording)
            found = places()
            count = len(sizes)
            assert places() == found  # from the stored selection
            assert len(sizes) == count
        return found, max(sizes)

    monkeypatch.setattr("parquetry.common.engine.read.arrow_reader._SLICE_BYTES", (1000, 1000))
    whole, largest = selected(1 << 30)
    assert largest == ROWS // 2
    sliced, largest = selected(1000)
    assert sliced == whole
    assert largest < ROWS // 2
    assert 0 < len(sliced) < 2 * ROWS


@pytest.mark.usefixtures("_small")
def test_a_stored_selection_in_parts_that_is_damaged_is_computed_again(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    rows = Pipeline(url, executor="threads").where(pc.field("number") < 20)
    expected = [int(row["id"]) for row in rows]
    (kept,) = (tmp_path / "cache/selections").glob("*.npz")
    content = kept.read_bytes()
    assert b"values-3.npy" in content
    assert b"values.npy" not in content
    kept.write_bytes(content.replace(b"values-3.npy", b"values-x.npy", 1))
    assert [int(row["id"]) for row in Pipeline(url, executor="threads").where(pc.field("number") < 20)] == expected


@pytest.mark.usefixtures("_small")
def test_forgetting_rows_changes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    in_file = joined(parts(9))
    forgotten: list[pa.Buffer] = []
    monkeypatch.setattr(growing_rows, "forget", lambda held: forgotten.append(held) or files.forget(held))
    growing_rows.forget_rows(in_file[3:])
    assert len(forgotten) == 1
    assert in_file.tolist() == list(range(90))
    elsewhere = np.frombuffer(pa.array(np.arange(1 << 20, dtype=np.int32)).buffers()[1], np.int32)
    growing_rows.forget_rows(elsewhere)
    assert len(forgotten) == 1


@pytest.mark.usefixtures("_small")
def test_a_stored_selection_of_rows_that_do_not_exist_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    assert len(Pipeline(url, executor="threads").where(pc.field("number") < 20))
    (kept,) = (tmp_path / "cache/selections").glob("*.npz")
    assert store.read_selection(kept.read_bytes(), np.full(4, ROWS // 2)).rows.total
    with pytest.raises(ValueError, match="expected rows of this dataset"):
        store.read_selection(kept.read_bytes(), np.full(4, ROWS // 2 - 100))
