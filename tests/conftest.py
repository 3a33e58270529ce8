"""What every test needs: shared helpers on the path, a cache directory of its own, and reproducible property tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Test modules are imported by path (importmode=importlib), so what they share must be importable by name.
sys.path.insert(0, str(Path(__file__).parent))

# The same examples on every machine and in every run; a deadline would turn a busy machine into a failure.
COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("reproducible", derandomize=True, **COMMON)
settings.register_profile(
    "search", derandomize=False, **COMMON
)  # for --hypothesis-profile=search: other examples each time
settings.load_profile("reproducible")


@pytest.fixture(scope="session", autouse=True)
def _own_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Selections that other runs kept must not decide a test."""
    before = os.environ.get("PARQUETRY_CACHE_DIR")
    os.environ["PARQUETRY_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["PARQUETRY_CACHE_DIR"]
    else:
        os.environ["PARQUETRY_CACHE_DIR"] = before
