"""The compiled core that these tests need."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from parquetry.common.base.native import build

SANITIZERS = os.environ.get("PARQUETRY_SANITIZE")
if SANITIZERS:  # `make sanitize`; they abort the process at the first fault. The core is loaded at its first import.
    build._FLAGS = (*build._FLAGS, "-g", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover")
    build.BUILT = Path(tempfile.mkdtemp())
    build.build_library(build.BUILT)

from parquetry.common.base.native.library import is_compiled  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def core() -> None:
    """Skips these tests where the core is not built."""
    if not is_compiled():
        pytest.skip("no compiled core")
