"""Row groups that are far larger than their footers say are read in bounded memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run_python

from parquetry.common.parquet.value_bounds import expanded_bytes, most_bytes, slice_rows

pytestmark = pytest.mark.versions

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


def write(path: Path, *, values: int, value_bytes: int, as_dictionary: bool) -> str:
    """Writes one row group of equal values, which a dictionary holds once."""
    entry = pa.array([b"x" * value_bytes], pa.binary())
    column = pa.DictionaryArray.from_arrays(pa.array([0] * values, pa.int32()), entry)
    pq.write_table(
        pa.table({"x": column}), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=as_dictionary
    )
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("as_dictionary", [False, True])
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_values_of_a_dictionary_are_read_in_bounded_memory(tmp_path: Path, as_dictionary: bool) -> None:
    url = write(tmp_path / "x.parquet", values=VALUES, value_bytes=VALUE_BYTES, as_dictionary=as_dictionary)
    done = run_python("-c", READS, url, LIMIT, check=True)
    rows, taken = map(int, done.stdout.split())
    assert rows == VALUES
    assert taken < VALUES * VALUE_BYTES // 2


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_bound_counts_each_use_of_a_dictionary_entry(tmp_path: Path, as_dictionary: bool) -> None:
    path = write(tmp_path / "x.parquet", values=3000, value_bytes=1000, as_dictionary=as_dictionary)
    with pa.OSFile(path) as source, pq.ParquetFile(source) as reader:
        assert most_bytes(source, reader, 0, [0], enough=ENOUGH) >= 3000 * 1000
        assert most_bytes(source, reader, 0, [0], enough=1 << 40) >= 3000 * 1000
        assert slice_rows(source, reader, 0, [0], slice_bytes=100_000) in range(50, 101)


LONG = "x" * 100_000
EXPANDED = {
    "texts": (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), ["ab", LONG]), 3 * 8 + 4 + len(LONG)),
    "an entry that no row uses": (pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int8()), ["ab", LONG]), 30),
    "a slice": (pa.DictionaryArray.from_arrays(pa.array([1, 0, 0], pa.int8()), ["ab", LONG])[1:], 20),
    "nulls": (pa.DictionaryArray.from_arrays(pa.array([None, 0], pa.int8()), ["ab", LONG]), 18),
    "numbers": (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array([1.5, 2.5])), 24),
    "no entries": (pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([], pa.string())), 8),
    "lists": (
        pa.ListArray.from_arrays(
            [0, 2, 3], pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.int8()), ["ab", "c"])
        ),
        2 * 8 + 3 * 8 + 5,
    ),
    "structs": (
        pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), ["ab"])], ["t"]),
        2 * 8 + 4,
    ),
    "a map": (
        pa.MapArray.from_arrays(
            [0, 2], ["a", "b"], pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), ["abc"])
        ),
        8 + (2 + 2 * 4) + 2 * 8 + 6,
    ),
}


@pytest.mark.parametrize("kind", EXPANDED)
def test_the_values_of_a_dictionary_are_counted_where_they_are_used(kind: str) -> None:
    array, expected = EXPANDED[kind]
    assert expanded_bytes(array) == expected
