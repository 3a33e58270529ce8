"""`doctor`, caches and states: what exists, what is missing, what is removed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders import build

from parquetry.common import Pipeline
from parquetry.common.apps.reports import caches, doctor, machine, to_json, warm
from parquetry.common.apps.reports.kept_files import clear
from parquetry.common.base.errors import PipelineError

LIBRARY_NAME = machine._library_name


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow takes seconds to report the name."""
    monkeypatch.setattr(machine, "_library_name", lambda: "_parquetry_ops.so")


def test_the_doctor_looks_at_libraries_memory_limits_and_caches() -> None:
    found = doctor()
    assert found.libraries["numpy"]
    assert {check.name for check in found.checks} >= {"TensorFlow op", "shared memory", "limits", "cache directory"}
    assert found.processors >= 1
    json.dumps(to_json(found))


def test_the_doctor_says_whether_the_compiled_core_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_compiled", lambda: True)
    assert (machine._core().level, machine._core().found[:8]) == ("fine", "loaded: ")
    monkeypatch.setattr(machine, "is_compiled", lambda: False)
    monkeypatch.setenv("PARQUETRY_NATIVE", "0")
    assert machine._core().remedy == "Unset PARQUETRY_NATIVE to use it."
    monkeypatch.delenv("PARQUETRY_NATIVE")
    assert "parquetry.common.base.native.build" in machine._core().remedy


def test_a_missing_compiler_few_descriptors_and_a_lost_cache_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine, "_op_folders", lambda: iter([tmp_path]))
    monkeypatch.setattr(machine, "_library_name", lambda: "_parquetry_ops-tf2.99-linux-new.so")
    assert machine._op(None).level == "fine"
    assert machine._op("2.99").level == "problem"
    (tmp_path / "_parquetry_ops-tf2.99-linux-old.so").write_bytes(b"of other sources")
    (tmp_path / "_parquetry_ops-tf2.99-linux-new.so").touch()
    assert machine._op("2.99").level == "problem"
    (tmp_path / "_parquetry_ops-tf2.99-linux-new.so").write_bytes(b"whole")
    assert machine._op("2.99").level == "fine"
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (256, 4096))
    limits = next(check for check in doctor().checks if check.name == "limits")
    assert (limits.level, limits.remedy[:17]) == ("note", "Run: ulimit -n 4,")
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert "cache directory" in [check.name for check in doctor().problems]


def test_modules_in_the_working_directory_do_not_hide_which_op_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = "from types import SimpleNamespace as S\n__version__ = '2.99'\nsysconfig = S(get_compile_flags=lambda: [])\n"
    (tmp_path / "path" / "tensorflow").mkdir(parents=True)
    (tmp_path / "path" / "tensorflow" / "__init__.py").write_text(stub)
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    assert LIBRARY_NAME.__wrapped__().startswith("_parquetry_ops-tf2.99-")


def test_a_compiler_is_found_as_the_build_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_op_folders", lambda: iter([tmp_path]))
    monkeypatch.setattr(machine.shutil, "which", {"ccache": "/bin/ccache", "clang++": "/bin/clang++"}.get)
    monkeypatch.delenv("CXX", raising=False)
    assert "/bin/clang++ will compile it" in machine._op("2.99").found
    monkeypatch.setenv("CXX", "ccache g++")
    assert "/bin/ccache will compile it" in machine._op("2.99").found


def test_caches_that_live_pipelines_read_are_cleared_only_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    pipeline = Pipeline.from_pandas(pytest.importorskip("pandas").DataFrame({"id": [1, 2, 3]}))
    assert not {"frames", "folders"} & {report.kind for report in clear()}
    assert len(list(pipeline)) == 3
    assert [(report.kind, report.files) for report in clear(["frames"])] == [("frames", 1)]


def test_kept_files_are_listed_warmed_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    pipeline = build(tmp_path / "set", [[10], [10]], names=("id", "drive")).pipeline()
    counts = {report.kind: report.files for report in caches()}
    assert counts["selections"] == 0
    directory = str(tmp_path / "tables")
    done = warm(pipeline.where([("id", ">", 3)]).encode("drive").cache(directory).batch(4).repeat())
    assert (done.elements, done.cached) == (None, directory)
    counts = {report.kind: report.files for report in caches()}
    assert (counts["selections"], counts["vocabularies"]) == (1, 1)
    (tables,) = caches(directory)
    assert tables.files == 2
    assert [report.kind for report in clear(["selections"])] == ["selections"]
    counts = {report.kind: report.files for report in caches()}
    assert (counts["selections"], counts["vocabularies"]) == (0, 1)
    with pytest.raises(PipelineError, match="expected kinds or a directory, got selections and"):
        clear(["selections"], directory)
    clear(directory=directory)
    with pytest.raises(PipelineError, match="expected a directory"):
        caches(directory)
    with pytest.raises(PipelineError, match="expected kinds"):
        clear(["bogus"])


def test_files_and_directories_that_vanish_meanwhile_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(kept))
    pipeline = build(tmp_path / "set", [[10]], names=("id", "drive")).pipeline()
    warm(pipeline.where([("id", ">", 3)]))
    warm(pipeline.where([("id", ">", 4)]).encode("drive"))
    first = sorted((kept / "selections").glob("*.npz"))[0]
    scandir = os.scandir

    @contextmanager
    def changing(directory: str | int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(directory) as entries:
            listed = list(entries)
        if str(directory).endswith("selections"):
            first.unlink(missing_ok=True)
            shutil.rmtree(kept / "vocabularies", ignore_errors=True)  # it is looked at later
        yield listed

    monkeypatch.setattr(os, "scandir", changing)
    counts = {report.kind: report.files for report in doctor().caches}
    assert (counts["selections"], counts["vocabularies"]) == (1, 0)
    monkeypatch.undo()
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(kept))
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path == kept or exists(path))
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    shutil.rmtree(kept)  # after it was seen
    found = doctor()
    assert {report.files for report in found.caches if report.kind != "ops"} == {0}  # those are kept elsewhere
    assert [check.level for check in found.checks if check.name == "cache directory"] != ["problem"]
    assert {report.kind for report in clear()} >= {"selections"}
