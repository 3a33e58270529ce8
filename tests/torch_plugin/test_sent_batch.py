"""Batches of numbers that loader workers send as a whole: what user code makes of them is what arrives."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from parquetry.common import TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, as_is, sent_batch

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
NAMES = ("id", "flag", "small", "half", "position", "matrix")
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


def made_again(batch: Batch) -> Batch:
    return type(batch)({name: tensor + 1 for name, tensor in batch.items()})


def emptied(batch: Batch) -> Batch:
    batch.clear()
    return batch


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
    made_again,
    emptied,
)


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is dict
    assert list(map(repr, found)) == list(map(repr, wanted))
    for name, tensor in wanted.items():
        other = found[name]
        assert (other.dtype, other.shape, other.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
        assert torch.equal(other, tensor)


@pytest.mark.parametrize("change", CHANGES)
def test_what_user_code_makes_of_a_batch_is_what_arrives(folder: str, change: Callable[[Any], Any]) -> None:
    def loader(workers: int) -> DataLoader:
        pipe = ParquetPipe(folder).shuffle(40, seed=3).batch(8)
        return DataLoader(pipe, batch_size=None, num_workers=workers, collate_fn=change)

    found, wanted = list(loader(1)), list(loader(0))
    assert len(found) == len(wanted) == 8
    for batch, other in zip(found, wanted, strict=True):
        assert_same(batch, dict(other))


class Kinds(torch.utils.data.IterableDataset):
    """Gives how many bytes each batch takes on its way, as it is and as a plain dict, and what copies of it are."""

    def __init__(self, folder: str) -> None:
        self._rows = ParquetIterable(folder).shuffle(40, seed=3).batch(8)

    def __iter__(self) -> Any:
        for batch in self._rows:
            whole, apart = (ForkingPickler.dumps(each) for each in (batch, dict(batch)))
            stored = pickle.loads(pickle.dumps(batch))
            kinds = [type(each).__name__ for each in (batch, copy.copy(batch), copy.deepcopy(batch), stored)]
            yield (
                b"_batch_at" in bytes(whole),
                b"_batch_at" in bytes(apart),
                kinds,
                torch.equal(stored["id"], batch["id"]),
            )


def test_batches_travel_as_a_whole_and_copies_elsewhere_are_plain(folder: str) -> None:
    for whole, apart, kinds, is_equal in DataLoader(Kinds(folder), batch_size=None, num_workers=1):
        assert (whole, apart) == (True, False)
        assert kinds == ["SentBatch", "SentBatch", "dict", "dict"]
        assert is_equal


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


def test_layouts_are_remembered_up_to_a_limit() -> None:
    sent_batch._layout.cache_clear()
    for number in range(3 * sent_batch._MOST_LAYOUTS):
        sent_batch._layout(("x",), (torch.int64,), (torch.Size([number + 1]),))
    assert sent_batch._layout.cache_info().currsize == sent_batch._MOST_LAYOUTS
