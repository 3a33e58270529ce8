"""How many rows of an unbatched pipeline are made at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from parquetry.common import Pipeline, mix


def test_chunks_of_large_values_are_small(tmp_path: Path) -> None:
    """Rows of an unbatched pipeline are made in chunks of a few megabytes, whatever the schema leaves open."""
    large, small = "a" * (1 << 20), "b"
    for name, value in (("large", large), ("small", small)):
        pq.write_table(pa.table({"x": [value + str(number) for number in range(40)]}), tmp_path / f"{name}.parquet")
    rows = {name: Pipeline(tmp_path / f"{name}.parquet") for name in ("large", "small")}
    assert rows["large"].plan().chunk_rows <= 4
    assert rows["small"].plan().chunk_rows > 100
    assert mix([rows["small"], rows["large"]]).plan().chunk_rows <= 4
    assert [row["x"] for row in rows["large"]] == [large + str(number) for number in range(40)]
