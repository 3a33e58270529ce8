"""Filters both frameworks' warnings, and sets time limits that work inside TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest
from faces import TORCH_WARNINGS

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            for warning in TORCH_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            item.add_marker(pytest.mark.timeout(method="thread"))  # a hanging TensorFlow handles no signals
            item.add_marker(pytest.mark.versions)
