"""Deleted rows of tables, compared with lists; each delete file is read once."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.dataset import deletes
from parquetry.common.tables import iceberg

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

import iceberg_tables as hand  # needs pyiceberg

pytestmark = pytest.mark.versions


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each delete file is read."""
    counted: Counter[str] = Counter()
    read = deletes._read_parquet

    def counting(dataset: Any, item: Any, *more: Any) -> pa.Table:
        counted[Path(item.path).name] += 1
        return read(dataset, item, *more)

    monkeypatch.setattr(deletes, "_read_parquet", counting)
    return counted


def _table(folder: Path) -> Any:
    schema = pa.schema([("id", pa.int64()), ("key", pa.int64())])
    properties = {"format-version": "2", "write.parquet.row-group-limit": "3"}
    return hand.catalog_in(folder).create_table("n.t", schema, properties=properties)


def _append(table: Any, ids: range) -> None:
    keys = pa.array([number % 5 for number in ids], pa.int64())
    table.append(pa.table({"id": pa.array(ids, pa.int64()), "key": keys}))


def _ids(table: Any) -> list[int]:
    return sorted(int(row["id"]) for row in Pipeline.from_iceberg(table))


@pytest.mark.parametrize("values_bytes", [1, 1 << 26])
def test_upserts_read_each_equality_delete_once(
    tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch, values_bytes: int
) -> None:
    monkeypatch.setattr(deletes, "_VALUES_BYTES", values_bytes)
    table = _table(tmp_path)
    for number in range(12):
        _append(table, range(number * 4, number * 4 + 8))  # the last four again
        gone = pa.table({"id": pa.array(range(number * 4 + 4, number * 4 + 8), pa.int64())})
        hand.commit_deletes(table, hand.equality_deletes(table, f"e{number}.parquet", gone, {"id": 1}))
    assert _ids(table) == list(range(48))
    assert reads == {f"e{number}.parquet": 1 for number in range(12)}


def test_many_position_deletes_are_read_once_each(tmp_path: Path, reads: Counter[str]) -> None:
    table = _table(tmp_path)
    for number in range(4):
        _append(table, range(number * 100, number * 100 + 100))
    files = hand.data_files(table)
    made = [
        hand.position_deletes(table, f"p{n}.parquet", [(files[n % 4], n), (files[(n + 1) % 4], n)]) for n in range(80)
    ]
    hand.commit_deletes(table, *made)
    assert len(_ids(table)) == 400 - 2 * 80
    assert reads == {f"p{number}.parquet": 1 for number in range(80)}


def test_a_deletion_vector_is_read_once_for_all_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path)
    _append(table, range(60))
    hand.commit_deletes(table, *hand.deletion_vectors(table, "v.puffin", {hand.data_files(table)[0]: range(0, 60, 2)}))
    decoded: list[str] = []
    read = deletes._bitmap

    def slow(filesystem: Any, item: Any) -> Any:
        decoded.append(item.path)
        time.sleep(0.05)  # so that other threads ask for it meanwhile
        return read(filesystem, item)

    monkeypatch.setattr(deletes, "_bitmap", slow)
    assert _ids(table) == list(range(1, 60, 2))
    assert len(decoded) == 1


class _Model:
    """A table, and the ids that a list would still hold after the same steps."""

    def __init__(self, folder: str) -> None:
        self._table = _table(Path(folder))
        self._files: dict[str, range] = {}  # the ids in each data file
        self._marked: set[str] = set()  # data files with a deletion vector
        self._made = 0
        self.alive: set[int] = set()
        self.append(6)

    def append(self, count: int) -> None:
        first = sum(map(len, self._files.values()))
        _append(self._table, range(first, first + count))
        known = {file.location for file in iceberg.open_iceberg(self._table, None).table.files}
        (location,) = known - set(self._files)
        self._files[location] = range(first, first + count)
        self.alive |= set(self._files[location])

    def delete_ids(self, ids: list[int]) -> None:
        self._commit(hand.equality_deletes(self._table, self._name(), _column("id", ids), {"id": 1}))
        self.alive -= set(ids)

    def delete_keys(self, keys: list[int]) -> None:
        self._commit(hand.equality_deletes(self._table, self._name(), _column("key", keys), {"key": 2}))
        self.alive = {number for number in self.alive if number % 5 not in keys}

    def delete_rows(self, places: list[int]) -> None:
        picked = self._picked(places)
        odd = [(min(self._files), None), (None, 0)] if len(places) % 2 else []  # they name no row
        self._commit(hand.position_deletes(self._table, self._name(), picked, odd=odd))
        self.alive -= {self._files[file][row] for file, row in picked if file not in self._marked}

    def mark_rows(self, places: list[int]) -> None:
        rows: dict[str, set[int]] = {}
        for file, row in self._picked(places):
            if file not in self._marked:
                rows.setdefault(file, set()).add(row)
        for file, some in rows.items():  # a vector holds the rows of the position deletes before it
            some |= {row for row, number in enumerate(self._files[file]) if number not in self.alive}
            self.alive -= {self._files[file][row] for row in some}
        self._marked |= set(rows)
        if rows:
            self._commit(*hand.deletion_vectors(self._table, self._name(), rows))

    def found(self) -> set[int]:
        return set(_ids(self._table)) if len(Pipeline.from_iceberg(self._table)) else set()

    def _picked(self, places: list[int]) -> set[tuple[str, int]]:
        rows = [(file, row) for file, ids in self._files.items() for row in range(len(ids))]
        return {rows[place % len(rows)] for place in places}

    def _name(self) -> str:
        self._made += 1
        return f"{self._made}.deletes"

    def _commit(self, *files: Any) -> None:
        hand.commit_deletes(self._table, *files)


def _column(name: str, values: list[int]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64())})


_PLACES = st.lists(st.integers(0, 200), min_size=1, max_size=4)
_STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 9)),
    st.tuples(st.just("delete_ids"), st.lists(st.integers(0, 30), min_size=1, max_size=4)),
    st.tuples(st.just("delete_keys"), st.lists(st.integers(0, 4), min_size=1, max_size=2)),
    st.tuples(st.just("delete_rows"), _PLACES),
    st.tuples(st.just("mark_rows"), _PLACES),
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(_STEPS, min_size=1, max_size=6), st.sampled_from([1, 100, 1 << 26]))
def test_deletes_of_every_kind_leave_what_a_list_leaves(steps: list[tuple[str, Any]], values_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(deletes, "_VALUES_BYTES", values_bytes)
        model = _Model(folder)
        for step, what in steps:
            getattr(model, step)(what)
        assert model.found() == model.alive
