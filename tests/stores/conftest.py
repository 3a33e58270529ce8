"""Stores that answer on this machine's loopback. Their packages have a separate environment: ``make test-trainers``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDED = ("aiohttp", "gcp_storage_emulator", "huggingface_hub", "moto", "torch")

# `make test` skips these; if they are requested by name and nothing is collected, pytest fails.
collect_ignore_glob = ["test_*.py"] if any(find_spec(name) is None for name in NEEDED) else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))  # their warnings are their own


@pytest.fixture(scope="module", autouse=True)
def _credentials() -> Iterator[None]:
    """Lets clients of S3 sign their requests, and look for credentials nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "example")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield
