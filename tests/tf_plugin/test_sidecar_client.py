"""The C++ protocol client alone: forks, threads, cancellation, and every byte it reads or writes."""

from __future__ import annotations

import fcntl
import math
import operator
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import sidecar_packets
from processes import PATIENCE_S, gone
from sidecar_packets import BROKEN, entry, golden, request

from fuzz import compiled_targets
from fuzz.inputs import corpus_of
from parquetry.common.transport.sidecar.protocol import DTYPE_CODES

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "tf_plugin" / "kernels"
PACKETS = Path(sidecar_packets.__file__)
FAKE = [sys.executable, str(HERE / "fake_sidecar.py")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the driver; ``make sanitize`` builds it with sanitizers, which abort at the first fault."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    own = tmp_path_factory.getbasetemp()
    target = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "client_driver"
    with (target.with_suffix(".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest-xdist's processes share it
        if not target.exists():
            _compile(compiler, target)
    return target


def _compile(compiler: str, target: Path) -> None:
    sources = [source for source in KERNELS.glob("*.cc") if not re.search(r"\b(tensorflow|absl)::", source.read_text())]
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"]
    if sanitizers := os.environ.get("PARQUETRY_SANITIZE"):
        flags += ["-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, HERE / "client_driver.cc", *sources, "-o", target, "-ldl"], check=True)


@pytest.fixture
def run(driver: Path) -> Callable[..., str]:
    """Runs one scenario and returns its output."""

    def run_driver(scenario: str, request: str, command: list[str] = FAKE, *, stdin: str | None = None) -> str:
        result = subprocess.run(
            [driver, scenario, request, *command],
            input=None if stdin is None else stdin.encode(),
            stdout=subprocess.PIPE,
            check=True,
            timeout=PATIENCE_S,
        )
        return result.stdout.decode(errors="replace")

    return run_driver


@pytest.fixture
def request_of(fake_request: Callable[..., str], output: Any) -> Callable[..., str]:
    """Returns the request for a fake with one field."""
    return lambda **options: fake_request((output("id"),), **options)


@pytest.mark.nightly
def test_a_forked_child_leaves_its_parents_sidecars_alone(
    run: Callable[..., str], request_of: Callable[..., str]
) -> None:
    lines = run("fork", request_of(rows=40, slots=3)).splitlines()
    assert lines[0].startswith("inherited: sidecar: made before a fork, used after it.")
    assert lines[1:] == ["own: 0", "child status: 0", "held: 0", "batches: 10", "pooled: 0"]


def test_a_child_of_a_child_keeps_what_was_opened_between(
    run: Callable[..., str], request_of: Callable[..., str]
) -> None:
    assert run("fork-twice", request_of()) == "child status: 0\n"


@pytest.mark.slow
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
        alive = gone([sidecar.pid])
        still_there = gone([child.pid], within_s=0) == [child.pid]
        child.kill()
    assert still_there
    assert alive == []


def test_batches_outlive_their_sidecar_on_any_thread(run: Callable[..., str], request_of: Callable[..., str]) -> None:
    assert sorted(run("outlive", request_of(rows=-1)).splitlines()) == ["value: 0", "value: 4", "value: 8"]


def test_waiting_for_a_plan_can_be_cancelled(run: Callable[..., str]) -> None:
    program = "import socket\nclient = socket.socket(fileno=3)\nwhile client.recv(1 << 16): pass"
    never_opens = [sys.executable, "-c", program]
    assert run("cancel-open", "{}", never_opens) == "cancelled: 1\n"


# --- bytes ---


def test_it_writes_the_starts_of_the_protocol(run: Callable[..., str]) -> None:
    packets = golden()
    bodies = [packets[name][40:].hex() for name in ("start", "start_at_state")]
    assert run("starts", "").splitlines() == bodies


def test_it_reads_the_packets_of_the_protocol(run: Callable[..., str]) -> None:
    names = ["opened", "started", "slot", "batch", "batches", "end", "error_of_one_element"]
    lines = [golden()[name].hex() for name in names]
    assert run("packets", "", stdin="\n".join(lines)).splitlines() == [
        "101 0 -1 0",
        '102 7 -2 12 -2 12 4 6 {"é":1,"consumed":5}',
        "103 7 6 65536",
        "104 7 6 0 65536 4096 1099511627776 3 64 2048",
        "104 7 6 0 65536 4096 1099511627776 3 64 2048 65536 8320 1099511627840 3 1 32",
        "105 7 0 0",
        "106 7 1 13 DecodeError ",
    ]
    assert run("packets", "", stdin=golden()["error"].hex()) == "106 7 0 0 DatasetError file 'é': not there.\nLook.\n"


@pytest.mark.slow
def test_bytes_that_are_garbled_are_refused_or_read_within_their_bounds(run: Callable[..., str]) -> None:
    random = np.random.default_rng(0)
    good = [golden()[name] for name in ("opened", "started", "batches", "error")]
    packets = [_garbled(good[number % 4], random) for number in range(20_000)]
    lines = run("packets", "", stdin="\n".join(packet.hex() for packet in packets)).splitlines()
    assert sum(line.startswith("refused: expected") for line in lines) > 10_000
    assert max(len(line) for line in lines) < 300


@pytest.mark.slow
def test_packets_are_read_without_a_fault_whatever_they_say(tmp_path: Path) -> None:
    compiler, target = shutil.which("g++"), tmp_path / "fuzz_messages"
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = ["-std=c++17", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, HERE / "fuzz_messages.cc", KERNELS / "messages.cc", "-o", target], check=True)
    runs = os.environ.get("PARQUETRY_FUZZ_RUNS", "20000")
    packets = [packet.hex() for packet in golden().values()]
    found = subprocess.run([target, "7", runs, *packets], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, f"runs: {runs}\n"), found.stderr


def test_packets_are_read_without_a_fault_where_coverage_guides_the_fuzzer(tmp_path: Path) -> None:
    if reason := compiled_targets.reason_to_skip():
        pytest.skip(reason)
    packets = tmp_path / "packets"
    packets.mkdir()
    for name, packet in golden().items():
        (packets / name).write_bytes(packet)
    assert {path.read_bytes() for path in packets.iterdir()} == set(corpus_of("op_client"))
    runs = os.environ.get("PARQUETRY_FUZZ_RUNS", "20000")
    run = compiled_targets.fuzz("op_client", packets, tmp_path, f"-runs={runs}", "-seed=7")
    assert run.returncode == 0, run.stdout


def _garbled(packet: bytes, random: np.random.Generator) -> bytes:
    """Draws a packet with some bytes changed, cut off, or added."""
    garbled = bytearray(packet)
    for _ in range(random.integers(1, 4)):
        garbled[random.integers(8, len(garbled))] = random.choice([0, 1, 3, 127, 128, 255])
    cut = random.integers(-8, 8)
    return bytes(garbled[:cut] if cut < 0 else garbled + bytes(int(cut) // 4))


@pytest.mark.slow
def test_tensors_fit_where_python_says_so(run: Callable[..., str]) -> None:
    random = np.random.default_rng(1)
    numbers, offsets = [-1, 0, 1, 1, 2, 3, 4, 2**62], [0, 0, 64, 4096 - 64, 4096, 2**64 - 64, 1]
    entries, fits = [], []
    for _ in range(20_000):
        dtype, role, ndim = (int(random.integers(0, most)) for most in (14, 7, 10))
        dims = [numbers[index] for index in random.integers(0, len(numbers), 8)]
        count = math.prod(dims[:ndim]) + (role == 1)
        size = protocol_item_bytes(dtype)
        nbytes = count * size if 0 <= count * size < 2**64 else 32
        nbytes += int(random.choice([0, 0, 0, 8]))
        offset = offsets[random.integers(0, len(offsets))]
        entries.append(entry(role=role, dtype=dtype, ndim=ndim, offset=offset, bytes=nbytes, dims=tuple(dims)))
        fits.append(
            ndim <= 8
            and role <= 5
            and min(dims[:ndim], default=0) >= 0
            and max(accumulate(dims[:ndim], operator.mul), default=0) < 2**63
            and {1: 5, 2: 6, 3: 5, 5: 1}.get(role, dtype) == dtype
            and size > 0
            and nbytes == count * size
            and offset % 64 == 0
            and offset + nbytes <= 4096
        )
    lines = run("tensors", "4096", stdin="\n".join(item.hex() for item in entries)).splitlines()
    assert [line == "1" for line in lines] == fits
    assert sum(fits) > 100


def protocol_item_bytes(code: int) -> int:
    names = {code: name for name, code in DTYPE_CODES.items()}
    return np.dtype(names[code]).itemsize if code in names else 0


@pytest.mark.parametrize("name", BROKEN)
def test_a_sidecar_that_breaks_the_protocol_is_one_clear_error(driver: Path, name: str) -> None:
    command = [driver, "read", request(BROKEN[name]), sys.executable, str(PACKETS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (result.returncode, result.stderr) == (1, "")
    assert re.fullmatch(r"error: sidecar: (expected|tensor|slot) .*[^.]\.\n", result.stdout)
    if name == "another version":
        assert "version 3, got one of version 1. Trainer and sidecar must run the same parquetry" in result.stdout


def test_the_death_of_a_sidecar_is_noticed_even_if_another_process_holds_its_connection(
    driver: Path, tmp_path: Path
) -> None:
    program = f"""
import os, time
other = os.fork()
if other == 0:
    os.close(1)
    os.close(2)
    time.sleep({PATIENCE_S})
    os._exit(0)
with open({str(tmp_path / "other")!r}, "w") as file:
    file.write(str(other))
os._exit(3)
"""
    command = [driver, "read", "{}", sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
    assert "ended unexpectedly: exit status 3" in result.stdout
    other = int((tmp_path / "other").read_text())
    assert gone([other], within_s=0) == [other]
    os.kill(other, signal.SIGKILL)
