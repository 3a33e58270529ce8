"""What the command prints does not depend on the terminal that the tests run in."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _lines_as_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
