"""Files with the habits of many writers: every face reads what Arrow reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import footer_edits
import pyarrow.parquet as pq
import pytest
from faces import Face, installed_faces
from foreign.compare import compare
from foreign.habits import write_files


def test_a_footer_that_is_put_together_again_is_the_same(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, [0])
    data = path.read_bytes()
    footer_edits.edit(path, lambda footer: None)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("numbers", "faces"),
    [
        pytest.param(range(2), (), id="threads"),
        pytest.param(range(2, 16), None, id="every face", marks=pytest.mark.slow),
        pytest.param(range(16, 340), None, id="all", marks=pytest.mark.nightly),
    ],
)
def test_every_file_is_read_as_arrow_reads_it(tmp_path: Path, numbers: range, faces: Sequence[Face] | None) -> None:
    wrong = {}
    for path in write_files(tmp_path, numbers):
        result = compare(path, installed_faces() if faces is None else faces)
        if result.differences or result.refusal:
            wrong[path.name] = [*result.differences[:3], result.refusal]
        path.unlink()
    assert not wrong


def test_a_difference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_files(tmp_path, [0])
    read = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", lambda file: read(file).slice(1))
    assert "rows, column 'id': row 0: expected 1, got 0" in compare(path, ()).differences[0]
