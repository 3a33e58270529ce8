"""The compiled core, built from these sources, or switched off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jpeg_trials
import pytest

from parquetry.common.native import build, library
from parquetry.common.native.compiler import find_compiler


@pytest.fixture(scope="session")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The core compiled from these sources, if the package has none or sanitizers are wanted.

    ``make sanitize`` builds it with sanitizers, which abort the process at the first fault.
    """
    sanitizers = os.environ.get("PARQUETRY_SANITIZE")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PARQUETRY_NATIVE", raising=False)
        forget()
        if library.is_compiled() and not sanitizers:
            return None
        if find_compiler() is None:
            pytest.skip("no C++ compiler")
        if sanitizers:
            patch.setattr(build, "_FLAGS", (*build._FLAGS, "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover"))
        return build.build_library(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module", autouse=True)
def core(_library: Path | None) -> Iterator[None]:
    """Uses the compiled core, even if the package has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PARQUETRY_NATIVE", raising=False)
        if _library is not None:
            patch.setattr(library, "library_path", lambda: _library)
        forget()
        assert library.is_compiled()
        yield
    forget()


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs without the core."""
    monkeypatch.setenv("PARQUETRY_NATIVE", "0")
    forget()
    assert not library.is_compiled()
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Makes the next call look for the library again."""
    library.library.cache_clear()
    jpeg_trials.forget()
