"""Consecutive iterations that end early: the sidecar stays intact, and none of its work is mistaken for a death."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drive_rows import ROWS, write_drive

from parquetry.common import Pipeline


def test_iterations_that_end_early_harm_no_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(write_drive(tmp_path), ["id", "image"], executor="sidecar", workers=2).repeat().batch(3)
    for _ in range(40):
        iterator = iter(pipeline)
        next(iterator)
        iterator.close()
    iterator = iter(pipeline)
    found = [next(iterator) for _ in range(10)]
    assert [batch["id"].tolist() for batch in found] == [[(3 * n + k) % 40 for k in range(3)] for n in range(10)]
    assert all(np.array_equal(batch["image"][0], ROWS[batch["id"][0]]["image"]) for batch in found)
    iterator.close()
    assert "decode worker died" not in capsys.readouterr().err
