"""Makes the command's output independent of the terminal of the tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _lines_as_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
