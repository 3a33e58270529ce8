"""Four rows of nested lists, which the tests of every face read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BOXES = [[[1, 2], [3]], [], [[], [4, 5, 6]], [[7]]]
WORDS = [[["a"], []], [[]], [["bb", "c"], ["d"]], []]
PAIRS = [[[[1.0, 2.0]], []], [[[3.0, 4.0], [5.0, 6.0]]], [], [[]]]


def write_nested(folder: Path, **columns: Any) -> Path:
    """Writes them, with further columns, in row groups of three; returns the file."""
    nested = {
        "boxes": pa.array(BOXES, pa.list_(pa.list_(pa.int32()))),
        "words": pa.array(WORDS),
        "pairs": pa.array(PAIRS, pa.list_(pa.list_(pa.list_(pa.float32(), 2)))),
    }
    pq.write_table(pa.table({**nested, **columns}), folder / "a.parquet", row_group_size=3)
    return folder / "a.parquet"
