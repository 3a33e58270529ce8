"""Blocks that a reader writes for its workers come back as they were, large ones through a file or without one."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError
from parquetry.common.engine.read.column_reader import ReadContext
from parquetry.common.engine.read.fetch import fetchers_of
from parquetry.common.engine.read.file_cells import FileCells
from parquetry.common.engine.read.large_blocks import LargeColumns
from parquetry.common.engine.read.stored_cells import StoredCells
from parquetry.common.plan.block_reads import BlockRows
from parquetry.common.storage.temporary import NoRoomError
from parquetry.common.transport.sidecar import shared_blocks
from parquetry.common.transport.sidecar.shared_blocks import ExportedBlock, export_block, open_exported

FRAME = (150, 150)
ROWS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    schema = Unischema(
        "frames", [UnischemaField("id", np.int64), UnischemaField("frame", np.uint8, FRAME, NdarrayCodec())]
    )
    rows = ({"id": number, "frame": np.full(FRAME, number, np.uint8)} for number in range(ROWS))
    write_dataset(tmp_path / "frames", schema, rows, row_group_rows=2, files=1, compression=None)
    return tmp_path / "frames"


def export(folder: Path) -> ExportedBlock:
    pipeline = Pipeline(folder)
    [fetcher] = fetchers_of(pipeline.plan(), ReadContext(room_bytes=1 << 20))
    groups, wanted = (0, 1, 2), tuple(np.arange(2) for _ in range(3))
    columns = fetcher.fetch_large(groups, wanted)
    assert columns is not None
    assert [type(parts[0]) for parts in columns.parts] == [pa.Int64Array, FileCells]
    rows = BlockRows(row_groups=groups, rows=wanted, item_rows=np.arange(ROWS)[:, None])
    return export_block(7, rows, columns, fetcher.places(groups), 0)


def check(block: ExportedBlock) -> None:
    columns, places, rows, row_groups = open_exported(os.dup(block.descriptor))
    block.close()
    assert isinstance(columns, LargeColumns)
    (ids,), (frames,) = columns.parts
    assert isinstance(frames, StoredCells)
    assert ids.to_pylist() == list(range(ROWS))
    values = [frames.data[begin:end] for begin, end in zip(frames.starts, frames.ends, strict=True)]
    assert [value[-1] for value in values] == list(range(ROWS))
    assert (len(places), len(rows), list(row_groups)) == (3, 3, [0, 1, 2])


@pytest.mark.parametrize("piece_bytes", [1, 50_000, 1 << 20])
def test_a_large_block_goes_through_a_temporary_file(
    folder: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocks, "_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(shared_blocks, "memory_file", None)
    check(export(folder))


def test_without_room_it_goes_through_shared_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        shared_blocks, "temporary_file", Mock(side_effect=NoRoomError("expected room for temporary files in /full."))
    )
    check(export(folder))
    assert "goes through shared memory: expected room for temporary files in /full" in caplog.text


def test_a_damaged_file_is_not_taken_for_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileCells, "loaded", Mock(side_effect=DatasetError("file x: expected more bytes.")))
    with pytest.raises(DatasetError, match="file x: expected more bytes"):
        export(folder)
