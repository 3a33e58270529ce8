"""Row groups that are far larger than their footers say are read in bounded memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run_python

from parquetry.common.layout.value_bounds import most_bytes, slice_rows

MIB = 1 << 20
VALUES, VALUE_BYTES = 500, MIB
LIMIT = 32 * MIB
ENOUGH = 1 << 20
READS = """
import sys
from resource import RUSAGE_SELF, getrusage
from parquetry.common import Pipeline
url, limit = sys.argv[1], int(sys.argv[2])
pipeline = Pipeline(url, executor="threads", workers=1, memory_limit=limit)
before = getrusage(RUSAGE_SELF).ru_maxrss
rows = sum(len(value) == 1 << 20 for batch in pipeline.batch(4) for value in batch["x"])
print(rows, (getrusage(RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def write(path: Path, *, values: int, value_bytes: int) -> str:
    """Writes one row group of equal values, which a dictionary holds once."""
    entry = pa.array([b"x" * value_bytes], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([0] * values, pa.int32()), entry)
    pq.write_table(
        pa.table({"x": column}), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False
    )
    return str(path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_values_of_a_dictionary_are_read_in_bounded_memory(tmp_path: Path) -> None:
    url = write(tmp_path / "x.parquet", values=VALUES, value_bytes=VALUE_BYTES)
    done = run_python("-c", READS, url, LIMIT, check=True)
    rows, taken = map(int, done.stdout.split())
    assert rows == VALUES
    assert taken < VALUES * VALUE_BYTES // 2


def test_a_bound_counts_each_use_of_a_dictionary_entry(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", values=3000, value_bytes=1000)
    with pa.OSFile(path) as source, pq.ParquetFile(source) as reader:
        assert most_bytes(source, reader, 0, [0], enough=ENOUGH) >= 3000 * 1000
        assert most_bytes(source, reader, 0, [0], enough=1 << 40) >= 3000 * 1000
        assert slice_rows(source, reader, 0, [0], slice_bytes=100_000) in range(50, 101)
