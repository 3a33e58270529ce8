"""Columns of one dtype and shape share an array, unless they are small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.memory import arena
from parquetry.common.base.memory.arena import ALIGNMENT, SMALL_BYTES, Heap
from parquetry.common.engine.read.block_layout import allocate_stacked

DTYPES = [np.dtype(name) for name in ("bool", "int8", "float16", "int32", "float32", "int64", "float64", "S3", "S0")]
SHAPES = [(), (1,), (3,), (2, 2), (0,)]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), max_size=9), st.integers(0, 5_000))
def test_each_column_is_contiguous_and_alone(kinds: list[tuple[np.dtype[Any], tuple[int, ...]]], rows: int) -> None:
    arrays = {10 + number: np.empty((1, *shape), dtype) for number, (dtype, shape) in enumerate(kinds)}
    groups = allocate_stacked(arrays, rows, Heap())
    made = {number: values for group in groups for number, values in zip(group.numbers, group.values, strict=True)}
    assert {*made} == {*arrays}
    for number, values in made.items():
        assert (values.dtype, values.shape) == (arrays[number].dtype, (rows, *arrays[number].shape[1:]))
        assert values.flags.c_contiguous
        values.view(np.uint8)[...] = number if values.nbytes and values.ndim else 0
    for number, values in made.items():
        assert (values.view(np.uint8) == number).all(), "no other column was written to"
    for group in groups:
        if len(group.numbers) > 1 and ALIGNMENT % max(group.values.itemsize, 1) == 0:
            firsts = [values.ctypes.data for values in group.values]
            assert {(address - firsts[0]) % ALIGNMENT for address in firsts} == {0}
            assert group.values[0].nbytes > SMALL_BYTES


@pytest.fixture
def images(tmp_path: Path) -> str:
    """Rows with an image, and labels of one dtype."""
    names = [f"label{number}" for number in range(8)]
    fields = [UnischemaField("image", np.uint8, (64, 64, 3)), *(UnischemaField(name, np.int64) for name in names)]
    rows = ({"image": np.zeros((64, 64, 3), np.uint8), **dict.fromkeys(names, number)} for number in range(256))
    write_dataset(tmp_path / "images", Unischema("images", fields), rows)
    return str(tmp_path / "images")


def memory_of(array: np.ndarray) -> np.ndarray:
    """Returns the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_labels_that_you_keep_do_not_keep_images(images: str) -> None:
    batches = iter(Pipeline(images, executor="threads", workers=1).shuffle(256, seed=1).repeat(4).batch(128))
    for _ in range(4):  # by now, a batch fits into its region
        batch = next(batches)
    batches.close()
    owners = {memory_of(values).ctypes.data: memory_of(values) for name, values in batch.items() if name != "image"}
    assert len(owners) == 8
    assert all(owner.flags.owndata and owner.nbytes <= SMALL_BYTES for owner in owners.values())


@pytest.mark.parametrize("shuffled", [False, True])
def test_while_many_batches_are_held_no_column_keeps_another(
    images: str, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena.SHARED_REGIONS, "_most_held", 0)
    monkeypatch.setattr(arena.SHARED_REGIONS, "_few_held", 0)
    labels = Pipeline(images, executor="threads", workers=1).select("label.*").repeat(20)
    chain = labels.shuffle(256, seed=1) if shuffled else labels
    for batch in chain.batch(1024):
        assert len({id(memory_of(values)) for values in batch.values()}) == 8
        assert all(memory_of(values).nbytes <= values.nbytes * 128 for values in batch.values())
