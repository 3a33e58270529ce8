"""Row groups larger than `memory_limit` are read in slices: the same rows, in bounded memory, and nothing is left."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import Built, build, built_once
from faces import SIDECAR, THREADS, TORCH_WARNINGS, Face, plain, rows_over
from processes import in_own_process, unless_ended
from s3_server import serving
from spies import spied

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.read import arrow_reader, fetch
from parquetry.common.engine.run import selecting
from parquetry.common.plan.block_reads import BlockKey
from parquetry.common.storage import temporary
from parquetry.common.storage.temporary import NoRoomError, TemporaryBuffer

pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNINGS]
ROWS, WIDTH, BATCH = 120_000, 256, 64
LIMIT = 40 << 20
BOUNDED = 0.7  # of a row group: 1.2 times the limit as a rule, but a busy machine lets more batches wait
STARTED_BYTES = 60 << 20  # a sidecar or a loader worker without data
DOCUMENTS = 90_000
MOST_TOKENS = 1024
PACKED = 4096
FRAME = (130, 130)  # a column chunk of eight takes more than the 128 KiB from which values stay in their file
VECTOR_BYTES = ROWS * WIDTH * 4
DOCUMENT_BYTES = DOCUMENTS * MOST_TOKENS * 2
WATCHED_S = 0.02
MANY = 12_000_000
FEW = 100


def few(path: str | Path) -> str:
    """Returns the path of a file with a few of the same rows."""
    return str(Path(path).with_name("few.parquet"))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes one row group of compressed vectors, in which each row has its own values."""
    path = tmp_path_factory.mktemp("vectors") / "one.parquet"
    numbers = np.repeat(np.arange(ROWS, dtype=np.float32), WIDTH)
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers), WIDTH)
    table = pa.table({"id": np.arange(ROWS), "vector": column})
    pq.write_table(table, path, row_group_size=ROWS, compression="snappy", use_dictionary=False)
    pq.write_table(table[:FEW], few(path))
    return str(path)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes one row group of compressed lists that differ in length, each of its row's number."""
    path = tmp_path_factory.mktemp("documents") / "one.parquet"
    lengths = np.random.default_rng(0).integers(1, MOST_TOKENS, DOCUMENTS)
    ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
    tokens = pa.ListArray.from_arrays(
        pa.array(ends), pa.array(np.repeat(np.arange(DOCUMENTS, dtype=np.int32), lengths))
    )
    table = pa.table({"id": np.arange(DOCUMENTS), "tokens": tokens})
    pq.write_table(table, path, row_group_size=DOCUMENTS, compression="snappy", use_dictionary=False)
    pq.write_table(table[:FEW], few(path))
    return str(path)


def limited(face: str, url: str) -> Any:
    return rows_over(face, url, workers=1, memory_limit=LIMIT)


class Memory:
    """The peak of anonymous memory of this process and its children while the block runs, above the start.

    Pages that forked processes share count once.
    """

    def __enter__(self) -> Memory:
        self._before = self._now()
        self.grown = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(WATCHED_S):
            self.grown = max(self.grown, self._now() - self._before)

    def _now(self) -> int:
        total = 0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            lines = unless_ended(Path(f"/proc/{process.pid}/smaps_rollup").read_text, otherwise="").splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))
        return total


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("face", "shuffled", "started"),
    [
        ("threads", False, 0),
        ("threads", True, 0),
        ("sidecar", True, 1),
        ("ParquetIterable", False, 0),
        ("tensorflow", True, 1),
    ],
)
def test_memory_stays_within_the_limit(face: str, shuffled: bool, started: int, vectors: str) -> None:
    limited(face, vectors)  # skips if its framework is not installed
    grown = in_own_process(grown_by_vectors, face, shuffled, vectors)
    assert grown < BOUNDED * VECTOR_BYTES + started * STARTED_BYTES


def grown_by_vectors(face: str, shuffled: bool, url: str) -> int:
    """Reads all vectors. Returns by how many bytes memory has grown meanwhile."""
    rows = limited(face, url)
    batches = (rows.shuffle(1000, seed=3) if shuffled else rows).batch(BATCH)
    next(iter(limited(face, few(url)).take(1)))  # memory that the first iteration keeps, whatever it reads
    found = []
    with Memory() as memory:
        for batch in batches:
            ids, vector = np.asarray(batch["id"]), np.asarray(batch["vector"])
            assert vector.shape == (len(ids), WIDTH)
            assert (vector == ids[:, None]).all()
            found += ids.tolist()
    assert sorted(found) == list(range(ROWS))
    assert (found == list(range(ROWS))) != shuffled
    return memory.grown


def has_odd_id(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2)


def is_long(row: dict[str, Any]) -> bool:
    return len(row["tokens"]) > MOST_TOKENS // 2


VERBS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda rows: rows.batch(BATCH),
    "shuffled": lambda rows: rows.shuffle(1000, seed=3).batch(BATCH),
    "windows": lambda rows: rows.ngram(length=2).shuffle(1000, seed=3).batch(BATCH // 2),
    "filtered": lambda rows: rows.where(has_odd_id, fields=["id"]).shuffle(1000, seed=3).batch(BATCH),
    "filtered by the large column": lambda rows: rows.where(is_long, fields=["tokens"]).batch(BATCH),
    "batches by length": lambda rows: rows.shuffle(1000, seed=3).bucket("tokens", [256, 512], batch_size=BATCH),
    "joined": lambda rows: rows.shuffle(1000, seed=3).concat(PACKED, "tokens").batch(8),
}


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("face", "verbs", "started"),
    [
        *(("threads", verbs, 0) for verbs in VERBS),
        *(("sidecar", verbs, 1) for verbs in ("shuffled", "windows", "batches by length")),
        *((face, "shuffled", 0) for face in ("ParquetIterable", "ParquetPipe", "ParquetNode")),
        ("tensorflow", "shuffled", 1),
    ],
)
def test_memory_stays_within_the_limit_whatever_the_verbs(face: str, verbs: str, started: int, documents: str) -> None:
    limited(face, documents)  # skips if its framework is not installed
    grown = in_own_process(grown_by_verbs, face, verbs, documents)
    assert grown < BOUNDED * DOCUMENT_BYTES + started * STARTED_BYTES


def grown_by_verbs(face: str, verbs: str, url: str) -> int:
    rows = limited(face, url)
    next(iter(limited(face, few(url)).take(1)))  # memory that the first iteration keeps, whatever it reads
    batches = 0
    with Memory() as memory:
        for _ in VERBS[verbs](rows):
            batches += 1
    assert batches > DOCUMENTS // BATCH // 4
    return memory.grown


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_of_loader_workers_stays_within_the_limit(documents: str) -> None:
    limited("ParquetIterable", documents)  # skips if torch is not installed
    grown = in_own_process(grown_by_loader_workers, documents)
    assert grown < BOUNDED * DOCUMENT_BYTES + 2 * STARTED_BYTES


def grown_by_loader_workers(url: str) -> int:
    rows = limited("ParquetIterable", url).shuffle(1000, seed=3).batch(BATCH)
    from torch.utils.data import DataLoader

    for _ in DataLoader(limited("ParquetIterable", few(url)).take(4).batch(1), batch_size=None, num_workers=2):
        pass
    found = []
    with Memory() as memory:
        for batch in DataLoader(rows, batch_size=None, num_workers=2):
            found += batch["id"].tolist()
    assert sorted(found) == list(range(DOCUMENTS))
    return memory.grown


@pytest.fixture(scope="module")
def zeros(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes one row group of many rows, in which a few bytes hold a million."""
    path = tmp_path_factory.mktemp("zeros") / "one.parquet"
    pq.write_table(pa.table({"zero": np.zeros(MANY, np.int64)}), path, row_group_size=MANY)
    return str(path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_numbers_of_many_rows_take_no_memory(shuffled: bool, zeros: str) -> None:
    grown = in_own_process(grown_by_zeros, shuffled, zeros)
    assert grown < MANY * 8


def grown_by_zeros(shuffled: bool, url: str) -> int:
    rows = limited("threads", url).shuffle(1000, seed=3) if shuffled else limited("threads", url)
    next(iter(limited("threads", url).take(1)))
    with Memory() as memory:
        assert sum(len(batch["zero"]) for batch in rows.batch(100_000)) == MANY
    return memory.grown


built = built_once([[20, 13], [7, 0, 30], [30]])


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": row["id"] * 2}


CHAINS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "in order": lambda rows: rows,
    "shuffled": lambda rows: rows.shuffle(45, seed=3),
    "filtered": lambda rows: rows.where([("id", ">", 9)]).shuffle(45, seed=3),
    "a function": lambda rows: rows.transform(double, [UnischemaField("double", np.int64)]).batch(7),
    "one shard": lambda rows: rows.shuffle(20, seed=1).shard(2, 1),
}


@pytest.mark.parametrize(
    ("face", "chain"),
    [
        *((THREADS, chain) for chain in CHAINS),
        (SIDECAR, "a function"),
        *(pytest.param(SIDECAR, chain, marks=pytest.mark.slow) for chain in CHAINS if chain != "a function"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_rows_equal_blocks_in_memory(built: Built, chain: str, face: Face) -> None:
    rows = CHAINS[chain](built.pipeline())
    assert face.elements(rows.with_options(memory_limit=1)) == THREADS.elements(rows)


SELECTING: dict[str, Callable[[Pipeline], Pipeline]] = {
    "an expression": lambda rows: rows.where(pc.is_valid(pc.field("label"))),
    "a function": lambda rows: rows.where(lambda row: row["id"] % 3 == 1, fields=["id"]),
    "a function of images": lambda rows: rows.where(lambda row: bool(row["image"].sum() % 4), fields=["image"]),
    "a function of arrays": lambda rows: rows.where(lambda some: some["id"] % 3 == 1, fields=["id"], batched=True),
    "a function of selected rows": lambda rows: rows.where([("id", ">", 9)]).where(str_of_id_ends, fields=["id"]),
    "lists without nulls": lambda rows: rows.nulls("drop", "tags"),
    "windows": lambda rows: rows.where([("id", "not in", [12, 40])]).ngram(length=2, group_by="drive", timestamp="ts"),
    "weights": lambda rows: rows.weigh(pc.add(pc.field("id"), 1), 30, seed=1),
    "classes": lambda rows: rows.balance("drive", 30, seed=1),
    "lengths": lambda rows: rows.shuffle(9, seed=1).bucket("drive", [2, 3], batch_size=4),
}


def str_of_id_ends(row: dict[str, Any]) -> bool:
    return str(row["id"]).endswith(("1", "7"))


@pytest.mark.parametrize("chain", SELECTING)
def test_slices_of_one_row_select_the_same_rows(built: Built, chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = THREADS.elements(SELECTING[chain](built.pipeline()))
    assert expected
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", "")
    monkeypatch.setattr(arrow_reader, "_SLICE_BYTES", (1, 1))
    monkeypatch.setattr(selecting, "_TESTED_AT_ONCE", 4)
    slices: list[int] = []
    read = arrow_reader.ArrowReader.slices

    def counted(self: Any, *args: Any) -> Any:
        for each in read(self, *args):
            slices.append(each[0])
            yield each

    monkeypatch.setattr(arrow_reader.ArrowReader, "slices", counted)
    assert THREADS.elements(SELECTING[chain](built.pipeline(memory_limit=1))) == expected
    assert max(slices) == 1


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes two files with large uncompressed values."""
    target = tmp_path_factory.mktemp("frames") / "frames"
    schema = Unischema(
        "frames", [UnischemaField("id", np.int64), UnischemaField("frame", np.uint8, FRAME, NdarrayCodec())]
    )
    rows = ({"id": number, "frame": np.full(FRAME, number, np.uint8)} for number in range(48))
    write_dataset(target, schema, rows, row_group_rows=8, files=2, compression=None)
    return str(target)


@pytest.mark.parametrize("face", [THREADS, pytest.param(SIDECAR, marks=pytest.mark.slow)], ids=lambda face: face.name)
@pytest.mark.parametrize("chain", ["shuffled", "filtered", pytest.param("a function", marks=pytest.mark.slow)])
def test_large_values_stay_in_their_files(frames: str, chain: str, face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    appended = spied(monkeypatch, TemporaryBuffer, "append", lambda buffer, content: len(content))
    rows = CHAINS[chain](Pipeline(frames, executor="threads", workers=2))
    assert face.elements(rows.with_options(memory_limit=1)) == THREADS.elements(rows)
    assert bool(appended) == (face is THREADS)
    assert sum(appended) < 48 * 64


def test_rows_by_number_equal_blocks_in_memory(built: Built) -> None:
    rows = built.pipeline().shuffle(45, seed=3)
    small = rows.with_options(memory_limit=1)
    assert [plain(small[number]) for number in range(0, 100, 9)] == [plain(rows[number]) for number in range(0, 100, 9)]


@pytest.mark.slow
@pytest.mark.parametrize("face", ["threads", "sidecar", "ParquetIterable", "tensorflow"])
def test_nothing_is_left_in_the_directory(
    face: str, vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    batches = limited(face, vectors).batch(BATCH)
    before = psutil.Process().num_fds()
    for _ in zip(range(3), batches, strict=False):
        assert not list(tmp_path.glob("parquetry-*"))
    assert psutil.Process().num_fds() < before + 40


def test_without_room_blocks_are_read_into_memory_with_a_warning(
    built: Built, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        temporary, "temporary_file", Mock(side_effect=NoRoomError("expected room for temporary files in /full."))
    )
    rows = built.pipeline().batch(7)
    assert THREADS.elements(rows.with_options(memory_limit=1)) == THREADS.elements(rows)
    assert "whole, because temporary files cannot hold it: expected room for temporary files in /full" in caplog.text


@pytest.mark.parametrize("chain", ["an expression", "a function", "windows", "classes", "lengths"])
def test_without_room_row_groups_of_a_store_are_looked_at_whole(
    tmp_path: Path, chain: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = build(tmp_path / "lake" / "rows", [[20, 13], [30]])
    expected = THREADS.elements(SELECTING[chain](built.pipeline()))
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", "")
    monkeypatch.setattr(
        temporary, "temporary_file", Mock(side_effect=NoRoomError("expected room for temporary files in /full."))
    )
    fetch._warn_of_room.cache_clear()
    with serving(tmp_path) as server, caplog.at_level(logging.WARNING):
        rows = Pipeline(server.url("lake/rows"), executor="threads", memory_limit=1)
        assert THREADS.elements(SELECTING[chain](rows)) == expected
    assert "whole, because temporary files cannot hold it: expected room for temporary files in /full" in caplog.text


def test_numbers_in_dictionaries_count_with_the_memory_that_they_take(tmp_path: Path) -> None:
    rows = 50_000
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"few": np.arange(rows) % 7}), path, row_group_size=rows)
    stored = pq.read_metadata(path).row_group(0).total_byte_size
    assert 4 * stored < rows * 8
    plan = Pipeline(path, executor="threads").plan()
    assert plan.block_size(BlockKey(epoch=0, stream=0, block=0)).num_bytes == rows * 8


@pytest.mark.slow
def test_a_wide_row_group_is_opened_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {f"c{number}": np.full(100, number) for number in range(400)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    opened = spied(monkeypatch, pq.ParquetFile, "__init__", lambda file, *_, **options: file)
    (batch,) = Pipeline(tmp_path, executor="threads", memory_limit=1 << 16).batch(100)
    assert {name: int(values[99]) for name, values in batch.items()} == {f"c{number}": number for number in range(400)}
    assert len(opened) < 25  # each takes time for every column of the file
