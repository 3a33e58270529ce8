"""What users pass on its way to a sidecar: functions, file systems and options travel, or an error says why not."""

from __future__ import annotations

import datetime
import importlib
import os
import subprocess
import sys
import threading
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import Built, built_once
from fsspec.implementations.local import LocalFileSystem
from processes import PATIENCE_S, run_python

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.server.own_server import OwnServer

pytestmark = pytest.mark.versions

PROGRAM = """
import multiprocessing
import sys

import numpy as np

from parquetry.common import Pipeline, UnischemaField


class Scale:
    factor = 3


class Scaled:
    def __call__(self, row):
        return {"scaled": scale(row["id"])}


def scale(number):
    return number * Scale.factor


def train(url):
    fields = [UnischemaField("scaled", np.int64)]
    pipeline = Pipeline(url, ["id"], executor="sidecar", workers=1).transform(Scaled(), fields, remove=["id"])
    print(sum(int(row["scaled"]) for row in pipeline), flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=train, args=(sys.argv[1],))
    process.start()
    process.join()
"""
built = built_once([[20, 13]])


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_functions_of_a_spawned_trainers_program_travel(built: Built, tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(built.url), method]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert finished.stdout == f"{3 * sum(range(33))}\n", finished.stderr


def test_a_function_that_cannot_be_loaded_elsewhere_says_why(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_in_this_process")
    exec("def same(row):\n    return row", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    same: Any = module.same
    pipeline = built.pipeline("id", executor="sidecar", workers=1).transform(same)
    with pytest.raises(PipelineError, match="user function same: cannot be loaded in another process: ModuleNotFound"):
        next(iter(pipeline))


def test_only_workers_import_what_a_function_needs(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "with_imports.py").write_text(
        f"import os, pathlib\npathlib.Path({str(tmp_path)!r}, 'pids', str(os.getpid())).touch()\n"
        "def same(row):\n    return row\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    same = importlib.import_module("with_imports").same
    iterator = iter(built.pipeline("id", executor="sidecar", workers=2).transform(same))
    next(iterator)
    readers = {reader.pid for reader in psutil.Process().children()}
    assert len(list(iterator)) == 32
    found = {int(path.name) for path in (tmp_path / "pids").iterdir()}
    assert found > {os.getpid()}
    assert readers
    assert not found & readers


def test_a_file_system_that_cannot_travel_says_why(built: Built) -> None:
    class Locked(LocalFileSystem):
        def __reduce__(self) -> Any:
            return Locked, (threading.Lock(),)

    pipeline = Pipeline(str(built.url), ["id"], filesystem=Locked())
    assert len(list(pipeline)) == 33
    with pytest.raises(PipelineError, match=r"filesystem .*Locked: cannot travel to another process: TypeError"):
        next(iter(pipeline.with_options(executor="sidecar")))


def test_a_file_system_that_cannot_be_loaded_elsewhere_says_why(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_in_this_process")
    exec("from fsspec.implementations.local import LocalFileSystem\nclass Own(LocalFileSystem): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    pipeline = Pipeline(str(built.url), ["id"], filesystem=module.Own(), executor="sidecar", workers=1)
    with pytest.raises(PipelineError, match="filesystem: cannot be loaded in another process: ModuleNotFound"):
        next(iter(pipeline))


@pytest.mark.parametrize("value", [datetime.timedelta(seconds=1), {(1, 2): 3}])
def test_an_option_that_json_cannot_hold_says_what_to_do(built: Built, value: Any) -> None:
    url, options = f"local://{built.url}", {"of_requests": value}
    pipeline = Pipeline(url, ["id"], storage_options=options)
    assert len(list(pipeline)) == 33
    refusal = "storage_options: expected what JSON can hold, .* Pass filesystem="
    with pytest.raises(PipelineError, match=refusal):
        next(iter(pipeline.with_options(executor="sidecar")))
    with pytest.raises(PipelineError, match=refusal):
        OwnServer(pipeline.batch(4))
    given = Pipeline(str(built.url), ["id"], filesystem=LocalFileSystem(**options), executor="sidecar", workers=1)
    assert len(list(given)) == 33


LOADING = """
import multiprocessing
import sys
import threading

import cloudpickle
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

LOCK = threading.Lock()


def double(row):
    with LOCK:
        return {"id": 2 * row["id"]}


def single(row):
    return row


def train(url):
    rows = ParquetIterable(url, ["id"]).transform(double)
    loader = DataLoader(rows, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    print(sum(int(row["id"]) for row in loader), flush=True)
    next(iter(ParquetIterable(url, ["id"]).transform(single)))  # in a sidecar
    print(cloudpickle.list_registry_pickle_by_value(), flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train, args=(sys.argv[1],))
    process.start()
    process.join()
"""


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_loader_workers_that_a_spawned_trainer_spawns_run_its_program(built: Built, tmp_path: Path) -> None:
    program = tmp_path / "loading.py"
    program.write_text(LOADING)
    finished = run_python(program, built.url)
    assert finished.stdout == f"{2 * sum(range(33))}\nset()\n", finished.stderr
