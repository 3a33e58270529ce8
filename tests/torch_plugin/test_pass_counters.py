"""`stats()` of the faces: over loaders, their workers, and nodes."""

from __future__ import annotations

import copy
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch.utils.data import ChainDataset, DataLoader

from parquetry import trace
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics.counters import Count
from parquetry.common.base.metrics.watching import stats_of
from parquetry.common.engine.read import kept_tables
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetNode, ParquetPipe, pass_counters
from parquetry.torch_plugin.pass_counters import PassCounters

ROWS = 60


@pytest.mark.parametrize("face", [ParquetIterable, ParquetNode, ParquetPipe])
def test_an_epoch_is_counted_while_it_runs(url: str, face: Any) -> None:
    data = face(url, ["id"]).shuffle(10, seed=1).batch(7)
    with pytest.raises(PipelineError, match="stats: expected"):
        data.stats()
    iterator = iter(data)
    next(iterator)
    assert data.stats().elements == iterator.stats().elements == 1
    assert len(list(iterator)) == 8
    assert (data.stats().rows, data.stats().elements) == (ROWS, 9)


def test_workers_that_cost_more_than_they_bring_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def passes(work_s: float, waits: list[float], workers: int = 2, *, alone: bool = True) -> list[str]:
        caplog.clear()
        counting = PassCounters()
        for _ in range(2):
            counting.announce(workers, alone=alone)
            counting.of_worker().row()[Count.PARQUET_S] += work_s / 2
            counting.of_worker().row()[Count.DECODE_S] += work_s / 2
            for wait in waits:
                counting.waited(10.0, 10.0 + wait)
            counting.ended("rows")
        return [record.getMessage() for record in caplog.records]

    (told,) = passes(0.5, [100.0, 100.0, 2.0, 2.0])
    assert "rows: the loader's 2 workers cost more than they bring: your loop waited 4.0 s for them" in told
    assert "took only 0.5 s" in told
    assert passes(3.0, [100.0, 100.0, 2.0, 2.0]) == []  # one thread would hardly be faster
    assert passes(0.1, [100.0, 100.0, 0.2, 0.2]) == []  # too little to say anything
    assert passes(0.5, [100.0, 100.0, 2.0, 2.0], alone=False) == []  # functions of the user work there, too
    assert passes(0.5, [100.0, 100.0, 2.0, 2.0], workers=0) == []


@pytest.mark.slow
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_loaders_tell_of_workers_that_cost_more(
    url: str, face: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_counters, "_WORTH_SAYING_S", 0.0)
    monkeypatch.setattr(pass_counters, "_MOST_WAIT", 0.0)
    data = face(url, ["id"]).batch(6)
    silent: list[dict[str, Any]] = [{}, {"num_workers": 2, "collate_fn": list}, {"num_workers": 2, "batch_size": 3}]
    for options in [*silent, {"num_workers": 2, "persistent_workers": True}]:
        assert "cost more" not in caplog.text
        loader = DataLoader(data, **{"batch_size": None, **options})
        for _ in range(2):
            list(loader)
    assert caplog.text.count("cost more than they bring") == 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe, ParquetMap])
def test_a_trace_has_the_work_of_loader_workers_and_the_waits_for_them(
    url: str, tmp_path: Path, face: Any, workers: int
) -> None:
    data = face(url, ["id"])
    batched = {"batch_size": 7} if face is ParquetMap else {"batch_size": None}
    loader = DataLoader(data if face is ParquetMap else data.batch(7), num_workers=workers, **batched)
    with trace(tmp_path / "trace.json"):
        assert len(list(loader)) == 9
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    working = {event["name"] for event in events if (event["pid"] != os.getpid()) == bool(workers)}
    assert working >= {"decode", "load a row group"}
    waits = [event for event in events if event["name"] == "wait for an element"]
    assert [event["pid"] for event in waits] == [os.getpid()] * 9


def test_a_copy_counts_for_itself(url: str) -> None:
    data = ParquetPipe(url, ["id"]).batch(7)
    list(data)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert len(list(other)) == 9
        assert other.stats().elements == 9


def test_without_shared_memory_workers_read_anyway(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "parquetry.torch_plugin.pass_counters.memory_file", Mock(side_effect=OSError(28, "No space left on device"))
    )
    data = ParquetPipe(url, ["id"]).batch(7)
    assert len(list(DataLoader(data, batch_size=None, num_workers=1))) == 9
    assert data.stats().elements == 0


def test_a_chain_of_datasets_is_searched_for_stats(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).batch(7)
    assert stats_of(DataLoader(ChainDataset([pipe, pipe]), batch_size=None)) == pipe.stats


MAP_LOADERS: dict[str, dict[str, Any]] = {
    "none": {},
    "forked": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
SPAWNED = pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, id="spawned", marks=pytest.mark.nightly)


@pytest.mark.parametrize("options", [*(pytest.param(each, id=name) for name, each in MAP_LOADERS.items()), SPAWNED])
@pytest.mark.parametrize("batched", [False, True], ids=["rows", "batches"])
def test_rows_by_number_are_counted_for_the_loader(url: str, options: dict[str, Any], batched: bool) -> None:
    data = ParquetMap(url, ["id", "x"])
    data = data.batch(7) if batched else data
    with pytest.raises(PipelineError, match="stats: expected"):
        data.stats()
    loader = DataLoader(data, batch_size=None if batched else 8, shuffle=True, **options)
    assert stats_of(loader) == data.stats
    for epoch in range(2):
        list(loader)
        found = data.stats()
        assert (found.rows, found.elements) == (ROWS, 9 if batched else ROWS)
        assert found.decode_s > 0 <= found.parquet_s
        assert epoch > 0 or found.parquet_s > 0  # the rows may be cached
        assert 0 < found.seconds >= found.wait_s
        assert found.delivered_bytes > 0
        assert found.hand_over_s > 0


def test_rows_read_by_hand_are_added_to_the_latest_pass(url: str) -> None:
    data = ParquetMap(url, ["id"], workers=2)
    assert len(data[:40]) == 40  # nobody counts
    list(DataLoader(data))
    assert data.stats().rows == ROWS
    assert len(data[10:20]) == 10
    assert data.stats().rows == ROWS + 10
    assert data.stats().memory_bytes > 0
    list(ParquetIterable(url, ["id"]))
    assert data.stats().rows == ROWS + 10


def test_loader_workers_with_a_cache_fetch_each_row_group_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = kept_tables.read_row_group

    def slow(*arguments: Any) -> Any:  # forked workers have it, too
        time.sleep(0.05)
        return read(*arguments)

    monkeypatch.setattr(kept_tables, "read_row_group", slow)
    pipe = ParquetPipe(url, ["id", "x"]).cache(str(tmp_path / "kept")).batch(7)
    list(DataLoader(pipe, batch_size=None, num_workers=4, collate_fn=dict, multiprocessing_context="fork"))
    alone = ParquetPipe(url, ["id", "x"]).cache(str(tmp_path / "alone")).batch(7)
    list(DataLoader(alone, batch_size=None))
    assert pipe.stats().cache_misses == alone.stats().cache_misses > 0
    assert pipe.stats().cache_hits > 0
    assert pipe.stats().read_bytes == alone.stats().read_bytes
