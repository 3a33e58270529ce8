"""Loader workers read each row group once, with any number of workers, and give the same elements as one process."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ids import ids
from processes import open_files, settled
from torch.utils.data import DataLoader

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.read import kept_tables, shared_tables
from parquetry.common.engine.read.native_reader import NativeColumnReader
from parquetry.common.engine.read.passed_pages import PASSED_PAGES
from parquetry.common.engine.read.shared_tables import can_share
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, mix
from parquetry.torch_plugin.loader_workers import relay

pytestmark = pytest.mark.skipif(not can_share(), reason="needs memory files and locks of open files")
ROWS, GROUP, BATCH = 2000, 250, 10


@pytest.fixture(autouse=True)
def _each_worker_makes_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one worker would read for all."""
    monkeypatch.setattr(relay, "_SMALL_BYTES", 0)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("shared") / "rows.parquet"
    values = {f"x{n}": rng.integers(0, 50, ROWS).astype(np.float32) for n in range(3)}
    names = [f"name {n}" for n in range(ROWS)]
    lists = [list(range(n % 5)) for n in range(ROWS)]
    table = pa.table({"id": np.arange(ROWS), **values, "name": names, "list": lists})
    pq.write_table(table, file, row_group_size=GROUP, compression="zstd")
    return str(file)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """Returns a function that counts the row groups read by all processes since its last call."""
    log = tmp_path / "reads"
    log.touch()

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **options: Any) -> Any:
            found = real(*args, **options)
            if real is not by_core or found[0]:  # it leaves what it cannot decode to the other
                with log.open("a") as file:
                    file.write("x")
            return found

        return read

    def count() -> int:
        found = log.stat().st_size
        log.write_text("")
        return found

    by_core = NativeColumnReader.read
    monkeypatch.setattr(kept_tables, "read_row_group", noted(kept_tables.read_row_group))  # workers are forked
    monkeypatch.setattr(NativeColumnReader, "read", noted(by_core))
    return count


def loader_of(data: Any, workers: int, **options: Any) -> DataLoader:
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_each_row_group_is_read_once(url: str, reads: Callable[[], int], workers: int) -> None:
    data = ParquetIterable(url).batch(BATCH)
    assert ids(loader_of(data, workers)) == list(range(ROWS))
    assert reads() <= ROWS // GROUP + 2  # the last ones again if a worker has ended
    assert data.stats().read_bytes <= 1.3 * whole_bytes(data)


def whole_bytes(data: ParquetIterable) -> int:
    _ = ids(loader_of(data, 0))
    return data.stats().read_bytes


@pytest.mark.parametrize("make", [ParquetPipe, pytest.param(ParquetIterable, marks=pytest.mark.slow)])
def test_every_epoch_of_a_shuffle_is_shared(url: str, reads: Callable[[], int], make: Any) -> None:
    alone = [ids(loader_of(data, 0)) for data in [make(url).shuffle(600, seed=3).batch(BATCH)] for _ in range(3)]
    reads()
    for options in ({}, {"persistent_workers": True}):
        loader = loader_of(make(url).shuffle(600, seed=3).batch(BATCH), 3, **options)
        for epoch in range(3):
            assert ids(loader) == alone[epoch]
            assert reads() <= ROWS // GROUP + 4


@pytest.mark.slow
def test_a_filter_and_a_mix_are_shared(url: str, reads: Callable[[], int]) -> None:
    def data() -> ParquetIterable:
        some = ParquetIterable(url, ["id", "x1"]).where([("x1", "<", 20)])
        other = ParquetIterable(url, ["id", "x1"])
        return mix([some, other], weights=[1, 2], seed=4).batch(BATCH)

    expected = ids(loader_of(data(), 0))
    alone = reads()
    assert ids(loader_of(data(), 4)) == expected
    assert reads() <= alone + 4


@pytest.mark.slow
def test_a_loader_that_is_left_in_the_middle_leaves_nothing(url: str) -> None:
    def left() -> int:
        gc.collect()
        return len(open_files("parquetry-contents"))

    before = left()  # what other tests still hold
    data = ParquetIterable(url).batch(BATCH)
    for _ in range(3):
        iterator = iter(loader_of(data, 2))
        next(iterator)
        del iterator
    assert ids(loader_of(data, 2)) == list(range(ROWS))
    del data
    assert settled(left, before) <= before


def test_values_that_stay_in_their_file_count_once(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (60, 100, 100, 3), np.uint8)  # stored uncompressed
    schema = Unischema("frames", [UnischemaField("frame", np.uint8, (100, 100, 3), NdarrayCodec())])
    write_dataset(tmp_path / "frames", schema, ({"frame": frame} for frame in frames), row_group_rows=20)
    data = ParquetIterable(tmp_path / "frames").batch(5)
    bytes_read = []
    for workers in (0, 4):
        assert torch.cat([batch["frame"] for batch in loader_of(data, workers)]).equal(torch.from_numpy(frames))
        bytes_read.append(data.stats().read_bytes)
    assert bytes_read[0] > frames.nbytes
    # A worker that starts when the others are done with a row group counts it again. Alone, each of the four would.
    assert 0.99 * bytes_read[0] < bytes_read[1] < 2.5 * bytes_read[0]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_check_pages_that_another_one_checked_no_more(tmp_path: Path, start: str) -> None:
    """Otherwise new workers would read whole pages in each epoch, although they need single values."""
    frames = np.random.default_rng(0).integers(0, 256, (400, 100, 100, 3), np.uint8)
    frame = UnischemaField("frame", np.uint8, (100, 100, 3), NdarrayCodec())
    schema = Unischema("frames", [UnischemaField("id", np.int64), frame])
    rows = ({"id": number, "frame": frame} for number, frame in enumerate(frames))
    write_dataset(tmp_path / "frames", schema, rows, row_group_rows=200, compression=None)
    data = ParquetIterable(tmp_path / "frames").where([("id", "in", list(range(0, 400, 20)))]).batch(2)
    loader = loader_of(data, 2, multiprocessing_context=start)
    pages = []
    for _ in range(2):
        before = (PASSED_PAGES._words != 0).sum()
        assert ids(loader) == list(range(0, 400, 20))
        pages.append((PASSED_PAGES._words != 0).sum() - before)
    assert pages[0] > 0
    assert pages[1] == 0


@pytest.mark.slow
def test_two_loaders_of_one_dataset_do_not_disturb_each_other(url: str) -> None:
    data = ParquetIterable(url, ["id", "x1"]).batch(BATCH)
    both = zip(loader_of(data, 2), loader_of(data, 3), strict=True)
    assert all(torch.equal(one["id"], other["id"]) for one, other in both)


@pytest.mark.slow
def test_a_small_limit_shares_what_fits(url: str, reads: Callable[[], int]) -> None:
    data = ParquetIterable(url, ["id", "x1"], memory_limit=4 * 8000).batch(BATCH)
    assert ids(loader_of(data, 3)) == list(range(ROWS))
    assert reads() <= 3 * ROWS // GROUP


@pytest.mark.nightly
def test_spawned_workers_share_too(url: str) -> None:
    data = ParquetIterable(url, ["id", "x1"]).batch(BATCH)
    assert ids(loader_of(data, 2, multiprocessing_context="spawn")) == list(range(ROWS))


def test_a_copy_that_outlives_its_dataset_gets_its_own(url: str) -> None:
    data = ParquetIterable(url, ["id"]).batch(BATCH)
    assert ids(loader_of(data, 2)) == list(range(ROWS))
    kept, path = copy.deepcopy(data), data._sharing._path
    del data
    gc.collect()
    assert path is not None
    assert kept._sharing._path == path
    assert settled(lambda: os.path.exists(path), 0) == 0
    assert kept._sharing.of_worker(0, 2, 1000) is None
    assert ids(loader_of(kept, 2)) == list(range(ROWS))
    assert kept._sharing._owner == os.getpid()  # it has its own now
    assert shared_tables._tables == {}  # only workers have any
