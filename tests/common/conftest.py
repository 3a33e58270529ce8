"""The rooms work without a framework: no test of theirs imports one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

FRAMEWORKS = {"tensorflow", "torch"}


@pytest.fixture(autouse=True)
def _no_framework_is_imported() -> Iterator[None]:
    """Checks that neither a room nor its test imports a framework; tests that need one belong to `every_face`."""
    before = FRAMEWORKS & sys.modules.keys()
    yield
    assert FRAMEWORKS & sys.modules.keys() == before
