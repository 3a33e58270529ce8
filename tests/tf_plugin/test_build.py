"""Finding, compiling and sharing the op library."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tensorflow as tf
from processes import run_python

import parquetry.tf_plugin
from parquetry.common.base.native import compiler
from parquetry.tf_plugin import build


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a compiler that counts its runs in a file and writes the count to its output."""
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
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build.build_library, [folder] * 4))
    assert (folder / build.library_name()).read_text() == "run\n"
    assert quick_compiler.read_text() == "run\n"
    assert not list(folder.glob(".building-*"))


def test_a_library_beside_the_package_is_used(
    tmp_path: Path, quick_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    (tmp_path / build.library_name()).write_text("op")
    assert build.library_path.__wrapped__() == tmp_path / build.library_name()
    assert not quick_compiler.exists()


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Records the tried libraries; replaces the trial process, and accepts all except ``cut off``."""
    tried: list[Path] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "--try" not in command:
            return compile_(command, **_)
        tried.append(Path(command[-1]))
        return subprocess.CompletedProcess(command, -11 if "cut off" in tried[-1].read_text() else 0, "", "it crashed")

    compile_: Any = subprocess.run
    monkeypatch.setattr(subprocess, "run", run)
    return tried


def test_a_compiled_library_is_tried_once_and_then_known_by_its_hash(
    tmp_path: Path, quick_compiler: Path, trials: list[Path]
) -> None:
    folder = tmp_path / "cache" / "ops"
    library = build.kept_library(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert build.kept_library(folder) == library
    assert trials == [library]
    assert quick_compiler.read_text() == "run\n"
    library.with_suffix(".sha256").unlink()  # an earlier version stored none
    assert build.kept_library(folder) == library
    assert trials == [library, library]
    assert quick_compiler.read_text() == "run\n"


@pytest.mark.parametrize("content", ["", "cut off", "changed, but it loads"])
def test_a_library_that_is_empty_or_cut_off_or_changed_is_built_again(
    tmp_path: Path, quick_compiler: Path, trials: list[Path], content: str
) -> None:
    folder = tmp_path / "cache"
    library = build.kept_library(folder)
    library.write_text(content)
    assert build.kept_library(folder).read_text() == "run\nrun\n"
    assert build.kept_library(folder).read_text() == "run\nrun\n"


def test_a_library_that_others_could_change_is_built_again(
    tmp_path: Path, quick_compiler: Path, trials: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    library = build.kept_library(folder)
    library.chmod(0o777)
    assert build.kept_library(folder).read_text() == "run\nrun\n"
    library.rename(tmp_path / "elsewhere")
    library.symlink_to(tmp_path / "elsewhere")
    assert build.kept_library(folder).read_text() == "run\nrun\nrun\n"
    folder.chmod(0o777)
    assert build.kept_library(folder).read_text() == "run\n" * 4
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "others could write" in caplog.text


def test_a_folder_of_another_user_is_an_error(
    tmp_path: Path, quick_compiler: Path, trials: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(
        RuntimeError, match=r"it belongs to another user, or others can write to it.*Set XDG_CACHE_HOME"
    ):
        build.kept_library(folder)


def test_a_library_that_cannot_be_loaded_is_an_error_and_does_not_stay(
    tmp_path: Path, trials: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_compile", lambda target: target.write_text("cut off"))
    with pytest.raises(RuntimeError, match=r"which it cannot\.\nTrial process: exit status -11\.\nit crashed"):
        build.kept_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


@pytest.mark.slow
def test_a_trial_process_recognizes_a_library(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(build.library_path().read_bytes()[:5_000])
    assert "exit status" in build._tried(broken)
    assert not (tmp_path / "broken.sha256").exists()


def test_the_compilers_command_may_have_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -I")
    assert build._compiler() == [sys.executable, "-I"]


def test_a_missing_compiler_is_an_error_that_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"got no no-such-compiler. Run: apt-get install g"):
        build.build_library(tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    (tmp_path / "_parquetry_ops-tf2.0.0-linux-x86_64-0123456789abcdef.so").touch()
    with pytest.raises(
        RuntimeError, match=r"\(built are those for: 2.0.0\), got no g\+\+.*install a wheel of parquetry"
    ):
        build.build_library(tmp_path)


def test_compiling_and_waiting_for_it_are_said(
    tmp_path: Path, quick_compiler: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = (tmp_path / build.library_name()).with_suffix(".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        builder = threading.Thread(target=build.build_library, args=(tmp_path,))
        builder.start()
        while "waits for another process" not in caplog.text:
            builder.join(0.01)
            assert builder.is_alive()
        assert not quick_compiler.exists()
    builder.join()
    said = [record.getMessage() for record in caplog.records]
    assert [re.sub(r"\d+ s$", "N s", text.replace(tf.__version__, "V")) for text in said] == [
        "parquetry waits for another process that compiles its op ...",
        "parquetry waits for another process that compiles its op: done after N s",
        "parquetry compiles its op for TensorFlow V, once, about a minute ...",
        "parquetry compiles its op for TensorFlow V, once, about a minute: done after N s",
    ]


def test_a_builder_that_was_killed_keeps_nobody_waiting(tmp_path: Path, quick_compiler: Path) -> None:
    lock = (tmp_path / build.library_name()).with_suffix(".lock")
    holds = (
        f"import fcntl, os; file = open({str(lock)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", holds], check=False)
    assert lock.exists()
    assert build.build_library(tmp_path).read_text() == "run\n"


def test_a_builder_that_was_stopped_is_waited_for_with_patience(
    tmp_path: Path, quick_compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler, "_PATIENCE_S", 0.1)
    lock = (tmp_path / build.library_name()).with_suffix(".lock")
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert build.build_library(tmp_path).read_text() == "run\n"
    assert f"{lock} is locked by process {os.getpid()}; compiling here, too." in caplog.text


def test_a_file_system_without_locks_is_compiled_on(
    tmp_path: Path, quick_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(37, "No locks available")))
    assert build.build_library(tmp_path).read_text() == "run\n"


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
    result = run_python("-c", program, check=True)
    assert result.stdout == "set()\n"
