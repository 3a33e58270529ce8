"""`watch`: elements pass through, and one line is shown if somebody can see it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import parquetry
from parquetry import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics import watching


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_EVERY_S", 0.0)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pq.write_table(pa.table({"id": range(60)}), tmp_path / "rows.parquet", row_group_size=20)
    return Pipeline(str(tmp_path / "rows.parquet"), executor="threads").batch(10)


def test_it_is_silent_without_a_terminal(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    watched = parquetry.watch(pipeline)
    assert len(watched) == 6
    for _ in range(2):
        assert sum(len(batch["id"]) for batch in watched) == 60
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_one_line(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    assert len(list(parquetry.watch(pipeline))) == 6
    assert "too early" in terminal.getvalue()
    assert "6 elements" in terminal.getvalue()


def test_a_notebook_gets_a_plain_line(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert len(list(parquetry.watch(pipeline))) == 6
    shown = capsys.readouterr().out
    assert shown.startswith("\rtoo early")
    assert shown.endswith("6 elements\n")


def test_other_iterables_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"watch: expected a parquetry pipeline or dataset.*got list"):
        list(parquetry.watch([1, 2]))
