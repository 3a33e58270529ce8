"""The progress bar: never interferes with the items, and only appears when they are slow."""

from __future__ import annotations

import io
import logging
import re
import threading

import pytest

from parquetry.common.base import progress as module
from parquetry.common.base.progress import progress, pulse


def test_quick_work_gives_its_items_and_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    assert list(progress(iter("abc"), "reading", 3, unit="file")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    assert threading.active_count() <= before  # fewer if one of an earlier test ends


def test_slow_work_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "AFTER_S", -1.0)
    assert list(progress(range(5), "reading", 5, unit="file")) == [0, 1, 2, 3, 4]
    assert "reading" in capsys.readouterr().err


def test_work_of_unknown_length_moves_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with pulse("compiling", logging.getLogger("parquetry.test")):
        pass
    assert "━" in terminal.getvalue()
    assert re.search(r"compiling: done after \d+ s\n", terminal.getvalue())
