"""The C++ client of the protocol, alone: forks, threads, cancelling, JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "tf_plugin" / "kernels"
FAKE = [sys.executable, str(HERE / "fake_sidecar.py")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled driver."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("driver") / "client_driver"
    sources = [source for source in KERNELS.glob("*.cc") if source.name != "parquet_dataset_op.cc"]
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([compiler, *flags, HERE / "client_driver.cc", *sources, "-o", target, "-ldl"], check=True)
    return target


@pytest.fixture
def run(driver: Path) -> Callable[..., str]:
    """Runs one scenario and returns what it prints."""

    def run_driver(scenario: str, request: str, command: list[str] = FAKE) -> str:
        result = subprocess.run(
            [driver, scenario, request, *command], stdout=subprocess.PIPE, text=True, check=True, timeout=50
        )
        return result.stdout

    return run_driver


@pytest.fixture
def request_of(fake_request: Callable[..., str], output: Any) -> Callable[..., str]:
    """The request for a fake with one field."""
    return lambda **options: fake_request((output("id"),), **options)


def test_a_forked_child_leaves_its_parents_sidecars_alone(
    run: Callable[..., str], request_of: Callable[..., str]
) -> None:
    lines = run("fork", request_of(rows=40, slots=3)).splitlines()
    assert lines[0].startswith("inherited: sidecar: made before a fork, used after it.")
    assert lines[1:] == ["own: 0", "child status: 0", "held: 0", "batches: 10", "pooled: 0"]


def test_forks_beside_a_busy_thread_do_not_deadlock(run: Callable[..., str], request_of: Callable[..., str]) -> None:
    assert run("fork-storm", request_of()) == "child status: 0\n"


def test_a_forked_child_does_not_keep_a_sidecar_alive(driver: Path, request_of: Callable[..., str], log: Any) -> None:
    request = request_of(rows=-1, log=str(log.path))
    with subprocess.Popen([driver, "fork-leak", request, *FAKE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        sidecar = psutil.Process(log.pids[0])
        (child,) = (item for item in psutil.Process(process.pid).children() if item.pid != sidecar.pid)
        process.kill()
        gone, alive = psutil.wait_procs([sidecar], timeout=10)
        still_there = child.is_running()
        child.kill()
    assert still_there
    assert gone == [sidecar]
    assert alive == []


def test_batches_outlive_their_sidecar_on_any_thread(run: Callable[..., str], request_of: Callable[..., str]) -> None:
    assert sorted(run("outlive", request_of(rows=-1)).splitlines()) == ["value: 0", "value: 4", "value: 8"]


def test_waiting_for_a_plan_can_be_cancelled(run: Callable[..., str]) -> None:
    program = "import socket\nclient = socket.socket(fileno=3)\nwhile client.recv(1 << 16): pass"
    never_opens = [sys.executable, "-c", program]
    assert run("cancel-open", "{}", never_opens) == "cancelled: 1\n"


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"a": "plain", "b": 'quotes " and \\ and / and \n\r\t\b\f \x01'},
        {"unicode": "é 中 😀", "é": "name"},
        {"empty": "", "state": '{"version": 1, "at": {"x": [1, "}"]}, "consumed": '},
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_texts_survive_reading_and_writing(
    run: Callable[..., str], members: dict[str, str], ascii_only: bool
) -> None:
    printed = run("json", json.dumps(members, ensure_ascii=ascii_only))
    pairs = [json.JSONDecoder().raw_decode(line) for line in printed.splitlines()]
    assert {
        name: json.loads(line[end:]) for line, (name, end) in zip(printed.splitlines(), pairs, strict=True)
    } == members


def test_json_values_that_are_no_text_are_kept_as_json(run: Callable[..., str]) -> None:
    members = {"a": 12, "b": [1, {"x": "}]"}], "c": {"d": None}, "e": True, "f": -1.5}
    printed = dict(line.split(" ", 1) for line in run("json", json.dumps(members, indent=1)).splitlines())
    assert {json.loads(name): json.loads(json.loads(value)) for name, value in printed.items()} == members


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": }', '{"a": "b"', '{"a": "\\x"}', '{"a" 1}'])
def test_what_is_no_json_object_is_refused(run: Callable[..., str], text: str) -> None:
    assert run("json", text) == "no object\n"
