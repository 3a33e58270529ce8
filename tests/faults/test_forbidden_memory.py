"""Where a sandbox forbids memory files, every API that shares memory between processes works without them."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builders import build
from processes import in_own_process
from sandbox import can_forbid, forbid_memfd

from parquetry.common import Pipeline
from parquetry.common.apps.reports import machine

pytestmark = pytest.mark.skipif(not can_forbid, reason="the number of the system call is not known")
IDS = list(range(30))


def _ids_of_a_sidecar(url: str, error: int) -> list[Any]:
    forbid_memfd(error)
    pipeline = (
        Pipeline(url, ["id"], executor="sidecar", workers=1).transform(lambda row: {"id": 2 * row["id"]}).batch(8)
    )
    with closing(iter(pipeline)) as iterator:
        ids = [number for batch in iterator for number in batch["id"].tolist()]
        return [ids, iterator.stats().rows, machine._shared_memory().level]


def _ids_of_loader_workers(url: str, method: str) -> list[list[int]]:
    from torch.utils.data import DataLoader

    from parquetry.torch_plugin import ParquetIterable

    forbid_memfd()
    data = ParquetIterable(url, ["id"]).shuffle(10, seed=1).batch(5)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=method)
    return [[number for batch in loader for number in batch["id"].tolist()] for _ in range(2)]


def _ids_of_tensorflow(url: str) -> list[Any]:
    from parquetry.tf_plugin import ParquetDataset

    forbid_memfd()
    data = ParquetDataset(url, ["id"]).batch(8)
    return [[number for batch in data for number in batch["id"].numpy().tolist()], data.stats().rows]


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_sidecar_uses_other_shared_memory_and_counts(tmp_path: Path, error: int) -> None:
    url = build(tmp_path, [[10], [20]], names=("id",)).url
    ids, rows, level = in_own_process(_ids_of_a_sidecar, url, error)
    assert ids == [2 * number for number in IDS]
    assert rows == len(IDS)
    assert level in {"fine", "note"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_are_told_their_epochs(tmp_path: Path, method: str) -> None:
    pytest.importorskip("torch")
    url = build(tmp_path, [[10], [20]], names=("id",)).url
    first, second = in_own_process(_ids_of_loader_workers, url, method)
    assert sorted(first) == sorted(second) == IDS
    assert first != second


@pytest.mark.slow
def test_the_op_uses_other_shared_memory_and_counts(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    url = build(tmp_path, [[10], [20]], names=("id",)).url
    assert in_own_process(_ids_of_tensorflow, url) == [IDS, len(IDS)]
