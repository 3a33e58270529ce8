"""Footers of wide files are part of what a pipeline may take in memory, with a row-group index and without one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common.dataset.index import write_index

FILES, COLUMNS, ROW_GROUPS, GROUP_ROWS = 16, 4000, 32, 8
LIMIT_BYTES, MORE_BYTES = 64 << 20, 200 << 20
READ = """
import re, sys
from pathlib import Path
from parquetry.common import Pipeline
url, limit, shuffled = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
names = [f"column {number}" for number in range(0, 4000, 400)]
rows = Pipeline(url, names, executor="threads", memory_limit=limit)
rows = (rows.shuffle(1000, seed=1) if shuffled else rows).batch(64)
count = sum(len(batch[names[0]]) for batch in rows)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]  # ru_maxrss begins with the parent's
print(count, int(peak) * 1024)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    numbers = np.arange(ROW_GROUPS * GROUP_ROWS)
    table = pa.table({f"column {number}": numbers * number for number in range(COLUMNS)})
    pq.write_table(table, folder / "0.parquet", row_group_size=GROUP_ROWS)
    for number in range(1, FILES):
        shutil.copy(folder / "0.parquet", folder / f"{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def indexed_files(files: Path) -> Path:
    """The same files in a folder of their own, with an index, which takes minutes on a busy machine."""
    folder = files.with_name("indexed")
    folder.mkdir()
    for path in files.iterdir():
        (folder / path.name).hardlink_to(path)
    write_index(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("which", ["files", "indexed_files"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_footers_of_wide_files_stay_within_the_memory_limit(
    request: pytest.FixtureRequest, shuffled: bool, which: str
) -> None:
    folder = request.getfixturevalue(which)
    command = [sys.executable, "-c", READ, str(folder), str(LIMIT_BYTES), str(shuffled)]
    rows, peak_bytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(rows) == FILES * ROW_GROUPS * GROUP_ROWS
    assert int(peak_bytes) <= LIMIT_BYTES + MORE_BYTES
