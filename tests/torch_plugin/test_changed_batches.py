"""User code may change batches in loader workers before they are sent; its result arrives."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from processes import PATIENCE_S
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from parquetry.common import TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, as_is

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
Batch = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    schema = Unischema(
        "numbers",
        [
            UnischemaField("id", np.int64),
            UnischemaField("flag", np.bool_),
            UnischemaField("small", np.uint8),
            UnischemaField("half", np.float16),
            UnischemaField("position", np.float32, (3,), TensorCodec()),
            UnischemaField("matrix", np.float64, (2, 2), TensorCodec()),
        ],
    )
    rows = (
        {
            "id": number,
            "flag": number % 3 == 0,
            "small": number,
            "half": number / 2,
            "position": np.full(3, number, np.float32),
            "matrix": np.array([[number, -number], [1, 2]], np.float64),
        }
        for number in range(60)
    )
    folder = tmp_path_factory.mktemp("sent") / "data"
    write_dataset(folder, schema, rows, row_group_rows=20)
    return str(folder)


def unchanged(batch: Batch) -> Batch:
    return batch


def replaced(batch: Batch) -> Batch:
    batch["small"] = batch["small"].float() / 2
    return batch


def written(batch: Batch) -> Batch:
    batch["id"] += 1000
    return batch


def added(batch: Batch) -> Batch:
    batch["sum"] = batch["matrix"].sum(dim=(1, 2))
    return batch


def removed(batch: Batch) -> Batch:
    del batch["half"]
    return batch


def renamed(batch: Batch) -> Batch:
    batch["last"] = batch.pop("matrix")
    return batch


def numbered(batch: Batch) -> Any:
    return {number: batch[name] for number, name in enumerate(batch)} | batch


def keyed_by_one(batch: Any) -> Any:
    batch[1] = batch.pop("matrix")
    return batch


def sliced(batch: Batch) -> Batch:
    batch["id"] = batch["id"][1:]
    return batch


def transposed(batch: Batch) -> Batch:
    batch["position"].t_()
    return batch


def with_an_axis(batch: Batch) -> Batch:
    batch["small"].unsqueeze_(1)
    return batch


def other_data(batch: Batch) -> Batch:
    batch["id"].data = torch.arange(100, 100 + len(batch["id"]))
    return batch


def other_type(batch: Batch) -> Batch:
    batch["small"].data = batch["small"].view(torch.int8)
    return batch


def differentiable(batch: Batch) -> Batch:
    batch["matrix"].requires_grad_()
    return batch


def swapped(batch: Batch) -> Batch:
    batch["id"], batch["half"] = batch["half"], batch["id"]
    return batch


def copied(batch: Batch) -> Batch:
    return copy.copy(batch)


def deeply_copied(batch: Batch) -> Batch:
    return copy.deepcopy(batch)


def emptied(batch: Batch) -> Batch:
    batch.clear()
    return batch


def noted(batch: Any) -> Any:
    return batch.update(source="train", step=3, rate=1.5, nothing=None) or batch


def sparse(batch: Batch) -> Batch:
    batch["eye"] = torch.eye(3).to_sparse()
    return batch


def subclassed(batch: Batch) -> Batch:
    batch["small"] = batch["small"].as_subclass(Own)
    return batch


def flattened(batch: Batch) -> Batch:
    batch["matrix"] = batch["matrix"].view(-1)
    return batch


def negative(batch: Batch) -> Batch:
    batch["matrix"] = torch._neg_view(batch["matrix"])
    return batch


def mapped(batch: Batch) -> Batch:
    assert type(batch) is dict
    return tree_map(lambda tensor: tensor + 1, batch)


def in_a_list(batch: Batch) -> Any:
    return {"both": [batch["id"], batch["id"]], "rest": (batch["small"],)}


CHANGES = (
    unchanged,
    replaced,
    written,
    added,
    removed,
    renamed,
    numbered,
    keyed_by_one,
    sliced,
    transposed,
    with_an_axis,
    other_data,
    other_type,
    differentiable,
    swapped,
    copied,
    deeply_copied,
    emptied,
    noted,
    sparse,
    subclassed,
    flattened,
    negative,
    mapped,
    in_a_list,
)


class Own(torch.Tensor):
    """A subclass of torch's class."""


class Changed(torch.utils.data.IterableDataset):
    """The batches of a dataset, changed before the loader sees them."""

    def __init__(self, rows: ParquetIterable, change: Callable[[Any], Any]) -> None:
        self._rows = rows
        self._change = change

    def __iter__(self) -> Iterator[Any]:
        return map(self._change, self._rows)


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(map(repr, found)) == list(map(repr, wanted))  # 1 == True
        for name in wanted:
            assert_same(found[name], wanted[name])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.shape, found.layout) == (wanted.dtype, wanted.shape, wanted.layout)
        assert found.requires_grad == wanted.requires_grad
        assert torch.equal(found.to_dense(), wanted.to_dense())
    else:
        assert found == wanted


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("place", ["collate_fn", pytest.param("dataset", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_results_of_user_code_arrive_unchanged(folder: str, change: Callable[[Any], Any], place: str) -> None:
    def batches(workers: int) -> list[Any]:
        rows = ParquetIterable(folder).shuffle(40, seed=3).batch(20)
        options = {"batch_size": None, "num_workers": workers, "timeout": PATIENCE_S if workers else 0}
        if place == "collate_fn":
            return list(DataLoader(rows, collate_fn=change, **options))
        return list(DataLoader(Changed(rows, change), **options))  # torch's default_convert follows

    found, wanted = batches(1), batches(0)
    assert len(found) == 3
    assert_same(found, wanted)


@pytest.mark.parametrize("options", [{}, {"collate_fn": as_is}, {"pin_memory": False, "persistent_workers": True}])
def test_batches_that_are_kept_stay_what_they_were(folder: str, options: dict[str, Any]) -> None:
    pipe = ParquetPipe(folder).shuffle(40, seed=3).batch(4).repeat(20)
    loader = DataLoader(pipe, batch_size=None, num_workers=2, **options)
    kept = [batch for number, batch in enumerate(loader) if number % 7 == 0]
    gc.collect()
    for batch in kept:
        rows = batch["id"]
        assert torch.equal(batch["small"], rows.to(torch.uint8))
        assert torch.equal(batch["position"], rows[:, None].expand(-1, 3).float())
        assert torch.equal(batch["matrix"][:, 0, 0], rows.double())
