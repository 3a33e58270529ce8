"""The benchmark of programs for Petastorm: the shim's loaders and native pipelines give the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import data, touch
from benchmarks.contenders import ours_torch, petastorm_peer
from benchmarks.workloads import NUMBERS, WORKLOADS, Case

ROWS = {"b-filter": 64, "d": 4_096}


def rows_of(module: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Returns the columns of one pass, in the order of the first column."""
    batches: list[dict[str, np.ndarray]] = []

    def keep(batch: Mapping[str, Any]) -> int:
        batches.append({name: np.asarray(column).copy() for name, column in batch.items()})
        return len(batches[-1][next(iter(batch))])

    monkeypatch.setattr(touch, "_TRAINING", [keep])
    assert sum(module.batches(case)) == case.delivered
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    by = "id" if "id" in columns else "x00"
    order = np.argsort(columns[by])
    return {name: column[order] for name, column in columns.items()}


def both(key: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, np.ndarray], ...]:
    workload = WORKLOADS[key]
    data.prepare(folder / workload.data, workload.data, ROWS[key])
    read = []
    for module, variant in ((petastorm_peer, "torch"), (ours_torch, "iterable")):
        scratch = folder / variant
        scratch.mkdir()
        case = Case(
            workload=workload,
            variant=variant,
            data=folder / workload.data,
            scratch=scratch,
            rows=ROWS[key],
            workers=2,
            passes=1,
        )
        read.append(rows_of(module, case, monkeypatch))
    return tuple(read)


def test_filtered_frames_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim, native = both("b-filter", tmp_path, monkeypatch)
    assert shim["id"].tolist() == native["id"].tolist() == list(range(0, ROWS["b-filter"], 2))
    assert shim["image"].shape == native["image"].shape
    assert shim["image"].dtype == native["image"].dtype  # cut at random, so their pixels differ


def test_tables_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim, native = both("d", tmp_path, monkeypatch)
    assert sorted(shim) == sorted(native) == sorted(["label", *NUMBERS["table"]])
    for name, column in shim.items():
        np.testing.assert_array_equal(column, native[name], err_msg=name)
