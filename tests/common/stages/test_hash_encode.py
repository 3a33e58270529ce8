"""``hash_encode``: the same codes everywhere, forever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError


def test_codes_are_those_of_every_process_and_release(tmp_path: Path) -> None:
    columns = {
        "text": ["a", None, "", "é"],
        "raw": [b"a", b"\x00", None, b""],
        "n": pa.array([5, 5, None, 2**64 - 1], pa.uint64()),
        "words": [["a", "b"], [], ["a"], ["é"]],
        "x": [0.5, 0.5, 0.5, 0.5],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    rows = Pipeline(tmp_path / "rows.parquet")
    batch = next(iter(rows.hash_encode("text|raw|n|words", buckets=1000, seed=3).batch(4)))
    assert {name: batch[name].tolist() for name in ("text", "raw", "n")} == {
        "text": [421, None, 996, 57],
        "raw": [5, 49, None, 492],
        "n": [709, 709, None, 842],
    }
    assert [each.tolist() for each in batch["words"]] == [[421, 492], [], [421], [57]]
    assert batch["text"].dtype == np.int64
    assert next(iter(rows.hash_encode("text", buckets=1)))["text"] == 0
    with pytest.raises(PipelineError, match="field 'x': expected strings, bytes or integers, got float64"):
        _ = rows.hash_encode("x", buckets=2).element
    with pytest.raises(PipelineError, match="expected buckets to be an integer >= 1, got 0"):
        rows.hash_encode("text", buckets=0)
