"""Token lists joined into items, in every PyTorch class and in loader workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from parquetry.common import Pipeline
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetNode, ParquetPipe


@pytest.fixture
def joined(tmp_path: Path) -> dict[str, Pipeline]:
    random = np.random.default_rng(0)
    rows = [random.integers(0, 100, size).tolist() for size in random.integers(0, 20, 60)]
    pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "t.parquet", row_group_size=9)
    base = Pipeline(tmp_path / "t.parquet").shuffle(16, seed=1)
    options: dict[str, Any] = {"separator": -1, "positions": True, "remainder": "pad"}
    return {"concat": base.concat(32, "tokens", **options), "pack_rows": base.pack_rows(32, "tokens")}


def flat(batches: Any) -> list[list[list[int]]]:
    """Returns the fields of each item."""
    return [list(row) for batch in batches for row in zip(*(values.tolist() for values in batch.values()), strict=True)]


@pytest.mark.parametrize("verb", ["concat", "pack_rows"])
def test_every_class_gives_the_same_items(joined: dict[str, Pipeline], verb: str) -> None:
    pipeline = joined[verb].batch(3)
    expected = flat(joined[verb].with_stages(pipeline.stages))
    batch = next(iter(ParquetIterable(pipeline)))
    assert list(batch) == ["tokens", "segment_ids", "position_ids"]
    assert {(values.dtype, tuple(values.shape)) for values in batch.values()} == {(torch.int32, (3, 32))}
    for made in (ParquetIterable, ParquetPipe, ParquetNode):
        assert flat(made.from_pipeline(pipeline)) == expected
    rows = ParquetMap(joined[verb])
    assert [[values.tolist() for values in rows[number].values()] for number in (4, 0)] == [expected[4], expected[0]]


def test_loader_workers_share_the_items(joined: dict[str, Pipeline]) -> None:
    for pipeline in joined.values():
        loader: Any = DataLoader(ParquetIterable(pipeline.batch(3)), batch_size=None, num_workers=2)
        assert flat(loader) == flat(pipeline.batch(3))


def test_pipes_are_still_put_end_to_end(tmp_path: Path, joined: dict[str, Pipeline]) -> None:
    pipe = ParquetPipe(tmp_path / "t.parquet").concat(32, "tokens")
    assert len(list(pipe.take(2).concat(pipe.take(1), pipe.take(3)))) == 6
