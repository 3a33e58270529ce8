"""Sidecars do without `pyarrow.compute`, which takes a while to load. Processes that may be forked load it before they read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import PATIENCE_S

from parquetry.common import CompressedImageCodec, Unischema, UnischemaField, write_dataset

PROGRAM = """
import sys
import psutil
from parquetry.common import Pipeline

def here():
    return "pyarrow.compute" in sys.modules

def in_readers():
    readers = psutil.Process().children(recursive=True)
    return [bool([each for each in reader.memory_maps() if "/pyarrow/_compute" in each.path]) for reader in readers]

rows = Pipeline(sys.argv[1], executor="sidecar").shuffle(7, seed=1).batch(4)
batches = iter(rows)
first = next(batches)
print(here(), in_readers(), sum(len(batch["id"]) for batch in [first, *batches]))
filtered = iter(Pipeline(sys.argv[1], executor="sidecar").where([("id", "<", 2)]))
print([int(row["id"]) for row in filtered], True in in_readers())
threads = iter(Pipeline(sys.argv[1], executor="threads"))
next(threads)
print(here())
"""


@pytest.mark.slow
def test_who_loads_it(tmp_path: Path) -> None:
    schema = Unischema(
        "rows",
        [
            UnischemaField("id", np.int64),
            UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg")),
        ],
    )
    image = np.zeros((8, 8, 3), np.uint8)
    write_dataset(tmp_path / "rows", schema, [{"id": n, "image": image} for n in range(12)], row_group_rows=5)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "rows")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    expected = ["False [False] 12", "[0, 1] True", "True"]
    assert (ended.stdout.splitlines(), ended.returncode) == (expected, 0), ended.stderr
