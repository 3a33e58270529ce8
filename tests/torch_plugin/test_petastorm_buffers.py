"""Rows buffered between a reader and the batches of the loaders under Petastorm's names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
buffers = pytest.importorskip("parquetry.torch_plugin.petastorm_buffers")


def chunk(first: int, rows: int) -> dict[str, Any]:
    numbers = torch.arange(first, first + rows)
    return {"id": numbers, "pair": torch.stack([numbers, -numbers], 1).to(torch.float32)}


def read(buffer: Any, chunks: list[int], size: int, kept: int) -> list[dict[str, Any]]:
    """Returns batches of row chunks that are overwritten once the buffer has taken them."""
    found, first = [], 0
    for rows in chunks:
        columns = chunk(first, rows)
        buffer.add(columns)
        first += rows
        found += buffers.batches(buffer, size, kept=kept)
        for column in columns.values():
            column.fill_(-1)
        assert kept <= buffer.rows < kept + size or buffer.rows < kept
    return [*found, *buffers.batches(buffer, size, last=True)]


@given(
    chunks=st.lists(st.integers(1, 40), max_size=8),
    size=st.integers(1, 20),
    kept=st.integers(0, 30),
    block_bytes=st.sampled_from([1, 200, 4 << 20]),
    drawn=st.booleans(),
)
def test_each_row_comes_once_with_all_its_columns(
    chunks: list[int], size: int, kept: int, block_bytes: int, drawn: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "_BLOCK_BYTES", block_bytes)
        found = read(buffers.RowPool(1) if drawn else buffers.RowQueue(copies=True), chunks, size, kept)
    ids = [number for batch in found for number in batch["id"].tolist()]
    assert (sorted(ids) if drawn else ids) == list(range(sum(chunks)))
    assert all(len(batch["id"]) == size for batch in found[:-1])
    for batch in found:
        assert batch["pair"].tolist() == [[number, -number] for number in batch["id"].tolist()]


def test_batches_of_a_queue_that_owns_its_chunks_are_parts_of_them() -> None:
    queue, columns = buffers.RowQueue(copies=False), chunk(0, 10)
    queue.add(columns)
    found = [batch["id"] for batch in buffers.batches(queue, 4)]
    assert [batch.data_ptr() for batch in found] == [columns["id"][start:].data_ptr() for start in (0, 4)]
    queue.add(chunk(10, 3))
    assert [batch["id"].tolist() for batch in buffers.batches(queue, 4, last=True)] == [[8, 9, 10, 11], [12]]


def test_each_row_is_drawn_first_equally_often() -> None:
    counts: Counter[int] = Counter()
    for seed in range(2000):
        pool = buffers.RowPool(seed)
        for first in (0, 5):
            pool.add(chunk(first, 5))
        first_batch = next(iter(buffers.batches(pool, 2, kept=3)))
        counts[first_batch["id"][0].item()] += 1
    assert set(counts) == set(range(10))
    assert all(140 <= count <= 260 for count in counts.values())  # 200 expected, with a standard deviation of 13


def test_drawing_a_batch_permutes_only_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = buffers.RowPool(1)
    pool.add(chunk(0, 50_000))
    monkeypatch.setattr(torch, "randperm", lambda *_, **__: pytest.fail("a permutation of the whole pool"))
    before = pool._stored["id"].clone()
    assert len(pool.take(64, 64)["id"]) == 64
    assert 0 < (pool._stored["id"] != before).sum() <= 64


@pytest.mark.parametrize("dtype", ["bool", "float16", "bfloat16", "complex64", "complex128"])
def test_values_of_every_type_can_be_drawn(dtype: str) -> None:
    pool, values = buffers.RowPool(1), torch.arange(30).to(getattr(torch, dtype))
    for part in values.split(10):
        pool.add({"value": part})
    found = torch.cat([batch["value"] for batch in buffers.batches(pool, 4, last=True)])
    assert found.dtype == values.dtype
    assert sorted(found.tolist(), key=abs) == values.tolist()
