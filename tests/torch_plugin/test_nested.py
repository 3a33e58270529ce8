"""Nested lists as tensors: values, and offsets for each level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from nested_rows import BOXES, PAIRS, WORDS, write_nested
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from parquetry.common.base.errors import NullValueError
from parquetry.torch_plugin import NestedTensors, ParquetIterable, ParquetMap, to_list


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nested(tmp_path_factory.mktemp("nested"))


def lists_of(batch: dict[str, Any]) -> list[Any]:
    return [value.tolist() for value in batch.values()]


def test_it_is_values_and_offsets(url: Path) -> None:
    batch = next(iter(ParquetIterable(url).nested(".*").batch(4)))
    boxes, pairs = batch["boxes"], batch["pairs"]
    assert isinstance(boxes, NestedTensors)
    assert (boxes.values.dtype, boxes.offsets[0].dtype) == (torch.int32, torch.int64)
    assert [offsets.tolist() for offsets in boxes.offsets] == [[0, 2, 2, 4, 5], [0, 2, 3, 3, 6, 7]]
    assert (pairs.values.shape, batch["words"].values) == ((3, 2), ["a", "bb", "c", "d"])
    assert boxes[-2].tolist() == BOXES[2]
    assert [row.tolist() for row in to_list(boxes)] == BOXES
    assert boxes[2][1].tolist() == [4, 5, 6]
    assert boxes[torch.tensor(3)][0].tolist() == [7]
    for part in (slice(0, 1), slice(1, None), slice(-1, None, -2), slice(7, 9)):
        assert [entry.tolist() for entry in boxes[part]] == BOXES[part]
        assert batch["words"][0][part] == [["a"], []][part]
    with pytest.raises(IndexError, match="entry 4 of 4"):
        boxes[4]
    assert repr(boxes) == "NestedTensors(4 lists, levels=2, torch.int32)"
    assert ParquetMap(url).nested(".*")[2]["boxes"].tolist() == BOXES[2]
    assert boxes.values.data_ptr() == boxes[0].values.data_ptr()


def test_it_moves_as_tensors_do(url: Path) -> None:
    batch = next(iter(ParquetIterable(url).nested(".*").batch(4)))
    moved = batch["boxes"].to("cpu", torch.float64, non_blocking=True)
    assert (moved.values.dtype, moved.offsets[1].dtype, moved.tolist()) == (torch.float64, torch.int64, BOXES)
    for words in (batch["words"].to("cpu"), batch["words"].to(torch.float16), batch["words"].to("cpu", torch.int8)):
        assert (words.tolist(), {offsets.dtype for offsets in words.offsets}) == (WORDS, {torch.int64})
    assert batch["words"].to("meta").offsets[1].device.type == "meta"
    meta = batch["pairs"].to("meta")
    assert {meta.values.device.type, *(offsets.device.type for offsets in meta.offsets)} == {"meta"}
    doubled = tree_map(lambda part: part + part if isinstance(part, torch.Tensor | str) else part, batch["pairs"])
    assert isinstance(doubled, NestedTensors)
    assert doubled.values.tolist() == (2 * batch["pairs"].values).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_hand_batches_on_and_collate_rows(url: Path, workers: int) -> None:
    rows = ParquetIterable(url).nested(".*")
    whole = list(DataLoader(rows.batch(4), batch_size=None, num_workers=workers))
    assert [lists_of(batch) for batch in whole] == [[BOXES, WORDS, PAIRS]]
    collated = next(iter(DataLoader(ParquetIterable(url).nested(".*"), batch_size=4, num_workers=workers)))
    assert lists_of(collated) == [BOXES, WORDS, PAIRS]
    assert isinstance(collated["pairs"], NestedTensors)
    assert collated["pairs"].values.shape == (3, 2)
    windows = ParquetIterable(url).nested(".*").ngram(length=2).batch(3)
    assert next(iter(DataLoader(windows, batch_size=None, num_workers=workers)))["words"].tolist() == [
        WORDS[n : n + 2] for n in range(3)
    ]


def test_it_is_pinned_part_by_part(monkeypatch: pytest.MonkeyPatch, url: Path) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    batch = next(iter(ParquetIterable(url).nested(".*").batch(4)))
    assert batch["boxes"].pin_memory().tolist() == BOXES
    assert batch["words"].pin_memory().tolist() == WORDS
    assert len(pinned) == 3 + 2


def test_nulls_are_errors_without_a_policy(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[[1, None]], None], pa.list_(pa.list_(pa.int32())))})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = ParquetIterable(tmp_path).nested("x")
    masked = next(iter(rows.nulls("mask", "x", elements=True).batch(2)))
    assert lists_of(masked) == [[[[1, 0]], []], [[[True, False]], []]]
    with pytest.raises(NullValueError, match=r"field 'x', file .*row 1: expected a value"):
        list(rows.skip(1))
