"""Batches that leave a loader worker in one block of shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from parquetry.common.engine.columns.batch import Dense, Ragged
from parquetry.torch_plugin import ParquetPipe, iterator
from parquetry.torch_plugin.loader_workers.loader_memory import SharedPacker

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False, True]),
    np.array([2**64 - 1, 3], dtype=np.uint64),
    np.array([], dtype=np.float16).reshape(0, 4),
    np.asarray(np.arange(8, dtype=np.int16).reshape(2, 4).T),
    np.array(7, dtype=np.uint16),
]


def test_tensors_share_one_block_and_hold_the_arrays_values() -> None:
    pack = SharedPacker([Dense(array) for array in ARRAYS])
    tensors = [pack(array) for array in ARRAYS]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert all(tensor.is_shared() for tensor in tensors)
    for tensor, array in zip(tensors, ARRAYS, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.storage_offset() * tensor.element_size() % 64 == 0


@pytest.mark.parametrize("cells", [0, 3])
def test_there_is_room_for_the_offsets_of_ragged_fields(cells: int) -> None:
    values = np.arange(5 * cells, dtype=np.float64)
    pack = SharedPacker([Ragged(np.full((cells, 1), 5), values, (cells,))])
    assert pack(values).tolist() == values.tolist()
    offsets = np.arange(0, 5 * cells + 1, 5)
    assert pack(offsets).tolist() == offsets.tolist()


def test_a_worker_without_memory_files_sends_one_block_for_all_fields(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterator, "share_regions", lambda: False)
    names = ["id", "half", "u64", "flag", "image", "x", "map", "points"]
    direct = next(iter(ParquetPipe(url, names).batch(9)))
    batch = next(iter(DataLoader(ParquetPipe(url, names).batch(9), batch_size=None, num_workers=1)))
    assert len({tensor.untyped_storage().data_ptr() for tensor in _tensors(batch)}) == 1
    assert len(_tensors(batch)) == 6 + 9 + 2
    for one, other in zip(_tensors(batch), _tensors(direct), strict=True):
        assert torch.equal(one, other)


def _tensors(batch: dict[str, Any]) -> list[torch.Tensor]:
    found = []
    for value in batch.values():
        if isinstance(value, list):
            found += value
        elif value.is_nested:
            found += [value.values(), value.offsets()]
        else:
            found.append(value)
    return found
