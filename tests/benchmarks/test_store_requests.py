"""The store benchmark counts what an epoch asks of a store."""

from __future__ import annotations

from pathlib import Path

from builders import build

from benchmarks.store_requests import epochs


def test_a_later_epoch_takes_one_request_for_neighboring_row_groups_and_one_a_file(tmp_path: Path) -> None:
    built = build(tmp_path / "data", [[10, 10, 10], [10, 10]], names=("id",))
    files = sorted(Path(built.url).glob("part*.parquet"))
    first, later = epochs(files, ["id"], 0.0, 10)
    assert later.requests == 2 + 2  # for the row groups of each file, and a check of it at the end
    assert first.requests > later.requests
    assert 1 <= later.fetched / later.needed < 10
    assert "4 requests" in str(later)
