"""The compiled core, built from these sources, or switched off."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from parquetry.common.native import build, copies, footers, gather, jpeg, pixels, sorting
from parquetry.common.native.compiler import find_compiler


@pytest.fixture(scope="module", autouse=True)
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiles the core from these sources, even if the package has none; ``make sanitize`` builds it with sanitizers,
    which abort the process at the first fault.
    """
    if find_compiler() is None and not gather.is_compiled():
        pytest.skip("no C++ compiler")
    sanitizers = os.environ.get("PARQUETRY_SANITIZE")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PARQUETRY_NATIVE", raising=False)
        if sanitizers:
            patch.setattr(build, "_FLAGS", (*build._FLAGS, "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover"))
        if sanitizers or not gather.is_compiled():
            library = build.build_library(tmp_path_factory.mktemp("core"))
            patch.setattr(build, "library_path", lambda: library)
        forget()
        assert gather.is_compiled()
        yield
    forget()


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs without the core."""
    monkeypatch.setenv("PARQUETRY_NATIVE", "0")
    forget()
    assert not gather.is_compiled()
    yield
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Makes the next call look for the library again."""
    build.library.cache_clear()
    gather._core.cache_clear()
    jpeg._loaded.cache_clear()
    pixels._function.cache_clear()
    copies._function.cache_clear()
    footers._core.cache_clear()
    sorting._function.cache_clear()
