"""``mesh=`` in four real processes: rows once per data-parallel rank, and the same rows for ranks of one model."""

from __future__ import annotations

from typing import Any

import pytest
from ids import ids_by_element as ids
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader
from two_ranks import in_ranks

from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe, mix

pytestmark = pytest.mark.slow
RANKS = 4
STEPS = 3  # before the run stops
FACES = [ParquetIterable, ParquetNode, ParquetPipe]


def _dataset(url: str, face: Any, shape: tuple[int, int]) -> Any:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    return face(url, ["id"], mesh=mesh["dp"]).shuffle(10).batch(4)  # without a seed: the ranks agree on one


def _stopped(url: str, face: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Returns the batches of an epoch, the batches of a second epoch that stops early, and its state."""
    dataset = _dataset(url, face, shape)
    whole = ids(dataset)
    if face is ParquetNode:
        dataset.reset()
    iterator = iter(dataset)
    return whole, ids(next(iterator) for _ in range(STEPS)), dataset.state_dict()


def _resumed(url: str, face: Any, shape: tuple[int, int], states: list[Any]) -> list[list[int]]:
    return ids(_dataset(url, face, shape).load_state_dict(states[-1]))


def _loaded(url: str, face: Any, shape: tuple[int, int]) -> tuple[Any, int]:
    dataset = _dataset(url, face, shape)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    return ids(loader), len(loader)


def _mixed(url: str) -> list[list[int]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sources = [ParquetIterable(url, ["id"], mesh=mesh["dp"]), ParquetIterable(url, ["id"], mesh=mesh["dp"])]
    return ids(mix(sources, seed=1, stop="all").batch(4))


def check(ranks: list[list[list[int]]], data: int, before: list[int]) -> list[int]:
    """Checks equal rows in each model, equal steps, and each row once; returns the rows."""
    models = [ranks[first : first + RANKS // data] for first in range(0, RANKS, RANKS // data)]
    assert all(rank == model[0] for model in models for rank in model)
    assert len({len(rank) for rank in ranks}) == 1
    rows = [number for model in models for batch in model[0] for number in batch]
    assert sorted(before + rows) == list(range(60))
    return rows


@pytest.mark.parametrize("face", FACES)
def test_each_row_goes_to_one_data_parallel_rank_and_resumes_on_others(url: str, face: Any) -> None:
    found = in_ranks(RANKS, _stopped, url, face, (2, 2))
    whole, begun, states = zip(*found, strict=True)
    check(list(whole), 2, [])
    assert begun[0] == begun[1] != begun[2] == begun[3]
    read = [number for rank in (0, 2) for batch in begun[rank] for number in batch]
    for data in (4, 1, 2):
        rest = in_ranks(RANKS, _resumed, url, face, (data, RANKS // data), list(states))
        check(rest, data, read)


@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_loader_workers_follow_the_mesh(url: str, face: Any) -> None:
    found = in_ranks(RANKS, _loaded, url, face, (2, 2))
    batches, lengths = zip(*found, strict=True)
    check(list(batches), 2, [])
    assert set(lengths) == {len(batches[0])}


def test_a_mix_of_datasets_with_a_mesh_is_dealt_along_it(url: str) -> None:
    found = in_ranks(RANKS, _mixed, url)
    assert found[0] == found[1] != found[2] == found[3]
    assert sorted(row for rank in (0, 2) for batch in found[rank] for row in batch) == sorted([*range(60)] * 2)
