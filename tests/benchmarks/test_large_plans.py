"""The benchmark of very large datasets writes and reads each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.large_plans import KINDS, measure, written


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_written_once_and_read(name: str, tmp_path: Path) -> None:
    target = written(KINDS[name], tmp_path, 0.005)
    assert written(KINDS[name], tmp_path, 0.005) == target
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    found = measure(KINDS[name], str(target), "threads")
    assert found.plan_s > 0 < found.first_batch_s
    assert found.trainer_mib > found.sidecar_mib >= 0
    assert "first batch" in str(found)
