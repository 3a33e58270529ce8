"""Finding, compiling and sharing the op library."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

import parquetry.tf_plugin
from parquetry.tf_plugin import build


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that counts its runs in a file and writes that to its output."""
    runs = tmp_path / "runs"
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\necho run >> {runs}\nwhile [ "$1" != "-o" ]; do shift; done\ncp {runs} "$2"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return runs


def test_the_name_tells_tensorflow_and_sources_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = build.library_name()
    assert f"tf{tf.__version__}" in name
    (tmp_path / "one.cc").write_text("int x;")
    monkeypatch.setattr(build, "KERNELS", tmp_path)
    other = build.library_name()
    (tmp_path / "one.cc").write_text("int y;")
    assert len({name, other, build.library_name()}) == 3


def test_processes_that_build_at_once_compile_once(tmp_path: Path, quick_compiler: Path) -> None:
    folder = tmp_path / "cache"
    threads = [threading.Thread(target=build.build_library, args=(folder,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / build.library_name()).read_text() == "run\n"
    assert quick_compiler.read_text() == "run\n"
    assert not list(folder.glob(".building-*"))


def test_a_library_beside_the_package_is_used(
    tmp_path: Path, quick_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    (tmp_path / build.library_name()).touch()
    assert build.library_path.__wrapped__() == tmp_path / build.library_name()
    assert not quick_compiler.exists()


def test_a_missing_compiler_is_an_error_that_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="Run: apt-get install g"):
        build.build_library(tmp_path)


def test_a_failing_compiler_is_an_error_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "compiler"
    script.write_text("#!/bin/sh\necho 'the header is not there' >&2\nexit 4\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(RuntimeError, match=r"status 4(.|\n)*the header is not there"):
        build.build_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_folder_that_cannot_be_written_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match=r"expected a folder that can be written, got .*Set XDG_CACHE_HOME"):
        build.build_library(tmp_path / "file" / "cache")


def test_the_package_offers_its_names_and_no_others() -> None:
    for name in parquetry.tf_plugin.__all__:
        assert getattr(parquetry.tf_plugin, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = parquetry.tf_plugin.nothing


def test_importing_the_package_imports_neither_framework() -> None:
    program = "import sys, parquetry.tf_plugin; print({'torch', 'tensorflow'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


def test_using_the_package_does_not_import_torch() -> None:
    program = "import sys; from parquetry.tf_plugin import ParquetDataset; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
