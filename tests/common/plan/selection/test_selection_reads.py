"""Counts what a filtered epoch reads, what is cached of a selection, and what windows decode."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import numpy as np
import pyarrow.compute as pc
import pytest
from builders import build
from processes import run_python

from parquetry.common import CompressedNdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.read import kept_tables
from parquetry.common.engine.read.column_reader import ReadRequest
from parquetry.common.engine.read.native_reader import NativeColumnReader

pytestmark = pytest.mark.versions

GROUPS, ROWS, BLOB = 50, 20, 6_000  # more bytes than statistics use
WANTED = [number for number in range(GROUPS * ROWS) if number // ROWS in (3, 17, 44) and number % ROWS < 3]


class Counting(fsspec.implementations.local.LocalFileSystem):
    """Counts the bytes read from data files."""

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.read_bytes = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        whole = file.read

        def read(*args: Any) -> bytes:
            data = whole(*args)
            self.read_bytes += len(data)
            return data

        file.read = read
        return file


def write(url: Path) -> str:
    """Writes 1,000 rows in 50 row groups; 9 rows in 3 of them match on ``tag``, which its bounds do not show."""
    schema = Unischema(
        "rows",
        [
            UnischemaField("id", np.int64),
            UnischemaField("tag", np.int32),
            UnischemaField("blob", bytes),
            UnischemaField("packed", np.int16, (8,), CompressedNdarrayCodec()),
        ],
    )
    rows = [
        {
            "id": number,
            "tag": 5 if number in WANTED else [0, 9][number % 2],
            "blob": np.random.default_rng(number).bytes(BLOB),
            "packed": np.full(8, number, np.int16),
        }
        for number in range(GROUPS * ROWS)
    ]
    write_dataset(url, schema, rows, row_group_rows=ROWS)
    return str(url)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("reads") / "rows")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[tuple[tuple[str, ...], int]]:
    """Counts reads by columns and row group; nothing is cached from other tests."""
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    counted: Counter[tuple[tuple[str, ...], int]] = Counter()
    real = kept_tables.read_row_group

    def read_row_group(dataset: Any, row_group: int, fields: Any, *room: Any) -> Any:
        counted[tuple(field.name for field in fields), int(row_group)] += 1
        return real(dataset, row_group, fields, *room)

    by_core = NativeColumnReader.read

    def read(reader: NativeColumnReader, request: ReadRequest) -> Any:
        found = by_core(reader, request)
        if found.values:
            counted[tuple(found.values), int(request.row_group)] += 1
        return found

    monkeypatch.setattr(kept_tables, "read_row_group", read_row_group)
    monkeypatch.setattr(NativeColumnReader, "read", read)
    return counted


def filtered(url: str, **options: Any) -> Pipeline:
    return Pipeline(url, ["id", "blob"], executor="threads", workers=2, **options).where(pc.field("tag") == 5)


def test_a_filtered_epoch_reads_the_predicate_and_the_row_groups_with_survivors(url: str, reads: Counter) -> None:
    disk = Counting()
    pipeline = filtered(url, filesystem=disk).shuffle(100, seed=1).batch(4)
    assert sorted(int(n) for batch in pipeline for n in batch["id"]) == WANTED
    assert {row_group for names, row_group in reads if names == ("tag",)} == set(range(GROUPS))
    assert {row_group for names, row_group in reads if names == ("id", "blob")} == {3, 17, 44}
    assert set(reads.values()) == {1}
    stored = sum(path.stat().st_size for path in Path(url).rglob("*.parquet"))
    survivors = 3 * ROWS * BLOB
    assert survivors < disk.read_bytes < survivors + 0.03 * stored
    text = pipeline.explain()
    assert "-> 9 of 50 row groups, 50 read" in text
    assert "9 rows in 3 row groups; an epoch reads" in text
    assert "saving 5." in text.split("an epoch reads")[1]  # out of six MB


def test_explain_names_the_filters_that_pruned(tmp_path: Path) -> None:
    built = build(tmp_path, [[10], [5, 5], [10]], names=("id", "drive", "ts", "image"), partition="drive")
    predicate = (pc.field("drive") != "d1") & (pc.field("id") >= 25)
    text = built.pipeline().where(predicate).explain()
    assert "30 -> 5 of 4 row groups, 3 pruned (2 by partitions, 1 by statistics), 1 read" in text
    assert (
        "2 pruned (2 by partitions), 2 proven without a read, none read"
        in built.pipeline().where(pc.field("drive") != "d1").explain()
    )
    assert "pruned (they belong to other shards)" in built.pipeline().shard(2, 0, policy="rowgroup_modulo").explain()


def test_a_selection_is_computed_once_for_epochs_ranks_and_pipelines(url: str, reads: Counter) -> None:
    one = filtered(url)
    for _ in range(2):
        list(one)
    assert sum(count for (names, _), count in reads.items() if names == ("tag",)) == GROUPS
    for rank in range(3):
        assert len(filtered(url).shard(3, rank)) == 3
    list(filtered(url).select("id").shuffle(5, seed=1))
    assert sum(count for (names, _), count in reads.items() if names == ("tag",)) == GROUPS
    windows = filtered(url).ngram(length=2, timestamp="id", max_gap=1)
    assert len(windows) == len(filtered(url).ngram(length=2, timestamp="id", max_gap=1)) == 6


PROGRAM = """
import sys
import pyarrow.compute as pc
from parquetry.common import Pipeline
from parquetry.common.engine.read import kept_tables
from parquetry.common.engine.read.native_reader import NativeColumnReader
seen = []
def noted(real):
    def read(*args, **options):
        found = real(*args, **options)
        if real is not by_core or found[0]:  # it leaves what it cannot decode to the other
            seen.append(args)
        return found
    return read
by_core = NativeColumnReader.read
NativeColumnReader.read, kept_tables.read_row_group = noted(by_core), noted(kept_tables.read_row_group)
pipeline = Pipeline(sys.argv[1], ["id", "blob"], executor="threads", workers=2).where(pc.field("tag") == 5)
print(len(pipeline), len(seen), sum(1 for _ in pipeline), len(seen))
"""


@pytest.mark.slow
def test_another_process_finds_the_selection_on_disk(url: str, reads: Counter, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run() -> list[int]:
        done = run_python("-c", PROGRAM, url, env=environment, check=True)
        return [int(number) for number in done.stdout.split()]

    assert run() == [9, GROUPS, 9, GROUPS + 3]
    assert run() == [9, 0, 9, 3]
    assert len(filtered(url)) == 9
    assert not reads
    (kept,) = (tmp_path / "cache" / "selections").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert run() == [9, GROUPS, 9, GROUPS + 3]


def test_a_dataset_that_changed_is_selected_again(tmp_path: Path, reads: Counter) -> None:
    url = write(tmp_path / "rows")
    assert len(filtered(url)) == 9
    (path,) = Path(url).rglob("*.parquet")
    later = path.stat().st_mtime_ns + 5_000_000_000
    os.utime(path, ns=(later, later))
    assert len(filtered(url)) == 9
    assert sum(count for (names, _), count in reads.items() if names == ("tag",)) == 2 * GROUPS


@pytest.mark.parametrize("options", [{"length": 5}, {"fields": {0: ["packed"], 3: ["packed", "id"], 4: ["packed"]}}])
def test_a_row_that_windows_share_is_decoded_once(url: str, monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    decoded: Counter[int] = Counter()
    real = CompressedNdarrayCodec.decode_into

    def decode_into(codec: Any, field: Any, data: Any, out: np.ndarray) -> None:
        real(codec, field, data, out)
        decoded[int(out.flat[0])] += 1

    monkeypatch.setattr(CompressedNdarrayCodec, "decode_into", decode_into)
    pipeline = Pipeline(url, ["id", "packed"], executor="threads", workers=2).where(pc.field("id") < 200)
    windows = list(pipeline.ngram(**options).shuffle(10_000, seed=2).batch(16))
    assert sum(len(window["id"] if "id" in window else window[3]["id"]) for window in windows) == 196
    assert decoded == Counter(range(200))
