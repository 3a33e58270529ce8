"""A row group that takes much of the memory leaves nothing behind in Arrow's pool."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.engine.read.column_reader import ReadContext, ReadRequest
from parquetry.common.engine.read.fetch import fetchers_of


@pytest.mark.parametrize(("room_bytes", "releases"), [(1 << 20, 1), (1 << 24, 0), (None, 0)])
def test_arrows_pool_returns_what_a_large_row_group_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int | None, releases: int
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["repeated" * 50] * 2000}), path)
    (fetcher,) = fetchers_of(Pipeline(path, executor="threads").plan(), ReadContext(room_bytes=room_bytes))
    calls: list[int] = []

    class Pool:
        def release_unused(self) -> None:
            calls.append(1)

    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    assert len(fetcher._arrow.read(ReadRequest(row_group=0, room_bytes=room_bytes)).values["text"]) == 2000
    assert len(calls) == releases
