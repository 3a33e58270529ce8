"""Readers start without `pyarrow.compute`, and it is loaded as soon as something needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from processes import PATIENCE_S

from parquetry.common import CompressedImageCodec, Unischema, UnischemaField, write_dataset

PROGRAM = """
import sys
import parquetry.common.sidecar.server
from parquetry.common import Pipeline

def loaded():
    return "pyarrow.compute" in sys.modules

rows = Pipeline(sys.argv[1], executor="threads")
print(len(list(rows.shuffle(7, seed=1).batch(4))), loaded())
print([int(row["id"]) for row in rows.where([("id", "<", 2)])], loaded())
"""


def test_numbers_and_images_are_read_without_it(tmp_path: Path) -> None:
    schema = Unischema(
        "rows",
        [
            UnischemaField("id", np.int64),
            UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg")),
        ],
    )
    image = np.zeros((8, 8, 3), np.uint8)
    rows = [{"id": n, "image": image} for n in range(12)]
    write_dataset(str(tmp_path / "rows"), schema, rows, row_group_rows=5)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "rows")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.stdout.splitlines(), ended.returncode) == (["3 False", "[0, 1] True"], 0), ended.stderr
