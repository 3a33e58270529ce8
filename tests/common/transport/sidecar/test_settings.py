"""Environment variables of the Python client; the C++ client has the same, see `tests/tf_plugin/test_iterators.py`."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S, gone, open_files

from parquetry.common import Pipeline
from parquetry.common.base.errors import SidecarError
from parquetry.common.transport.sidecar import client, idle_pool
from parquetry.common.transport.sidecar.idle_pool import IDLE


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    pq.write_table(pa.table({"a": range(10)}), tmp_path / "x.parquet")
    IDLE.close()
    yield Pipeline(tmp_path, executor="sidecar", workers=1).batch(4)
    IDLE.close()


def _sidecar_of(iterator: Any) -> psutil.Process:
    return psutil.Process(iterator._steps._source._client._process.pid)


class Clock:
    """A clock that stands still until a test sets it."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("text", "idle_s"), [("0", 0), ("0.2", 0.2), ("60", 60), ("-1", idle_pool.IDLE_S), ("ever", idle_pool.IDLE_S)]
)
def test_the_environment_says_how_long_a_sidecar_stays_idle(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, text: str, idle_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(idle_pool, "time", clock)
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", text)
    iterator = iter(pipeline)
    next(iterator)
    sidecar = _sidecar_of(iterator)
    iterator.close()
    if idle_s:
        clock.now_s += 0.9 * idle_s
        IDLE._sweep()
        assert gone([sidecar.pid], within_s=0) == [sidecar.pid]
        clock.now_s += 0.2 * idle_s
        IDLE._sweep()
    assert gone([sidecar.pid]) == []


def test_a_sidecar_that_was_idle_for_long_ends_by_itself(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "0.001")
    iterator = iter(pipeline)
    next(iterator)
    sidecar = _sidecar_of(iterator)
    iterator.close()
    assert gone([sidecar.pid]) == []


def test_the_environment_chooses_the_python(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_PYTHON", "another-python")
    with pytest.raises(
        SidecarError, match=r"started with \['another-python', .*No such file.*Set PARQUETRY_PYTHON to a"
    ):
        next(iter(pipeline))


def test_a_sidecar_inherits_nothing_but_its_socket(pipeline: Pipeline) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    iterator = iter(pipeline)
    next(iterator)
    sidecar = _sidecar_of(iterator)
    assert os.readlink(f"/proc/self/fd/{reading}") not in open_files("pipe:", sidecar.pid)
    os.close(reading)
    os.close(writing)
    assert os.getpgid(sidecar.pid) == sidecar.pid  # Ctrl-C only reaches the trainer
    iterator.close()


@pytest.fixture
def sidecar_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the sidecar with a program, which finds its socket's number in ``fd``."""

    def use(program: str) -> None:
        path = tmp_path / "sidecar.py"
        path.write_text("import os, sys, time\nfd = int(sys.argv[-1])\n" + textwrap.dedent(program))
        monkeypatch.setattr(client, "python_command", lambda _, *arguments: [sys.executable, str(path), *arguments])

    return use


def test_the_death_of_a_sidecar_is_noticed_even_if_another_process_holds_its_connection(
    pipeline: Pipeline, sidecar_program: Callable[[str], None], tmp_path: Path
) -> None:
    sidecar_program(
        f"""
        other = os.fork()
        if other == 0:
            for stream in (0, 1, 2):
                os.close(stream)
            time.sleep({PATIENCE_S})
            os._exit(0)
        with open({str(tmp_path / "other")!r}, "w") as file:
            file.write(str(other))
        os._exit(3)
        """
    )
    with pytest.raises(SidecarError, match="died: exit status 3"):
        next(iter(pipeline.with_options(restarts=0)))
    other = int((tmp_path / "other").read_text())
    assert gone([other], within_s=0) == [other]
    os.kill(other, signal.SIGKILL)


def test_a_sidecars_output_is_forwarded_without_a_final_newline(
    pipeline: Pipeline, sidecar_program: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar_program("os.write(2, b'x' * 20_000 + b'\\r 50 % \\xc3'); os.write(2, b'\\xa9'); os._exit(4)")
    with pytest.raises(SidecarError, match=r"exit status 4. Last stderr output:\nx+\r 50 % é\nBegin a new") as caught:
        next(iter(pipeline.with_options(restarts=0)))
    assert capsys.readouterr().err == "x" * 20_000 + "\r 50 % é"
    assert len(str(caught.value)) < 10_000
