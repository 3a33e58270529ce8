"""`Child`, the parent's handle on a contender's process, and the slow store's process.

Threads: one. Lifetime: from `start` to `close`, which also kills every process the child has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from .catalog import ROOT, Contender
from .workloads import Case

_READY_S = 120.0  # opening a dataset may import TensorFlow and make a first pass over a slow store
_SLACK_S = 60.0


class ContenderError(Exception):
    """Raised for a contender that is not installed (``missing``) or that failed."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class Child:
    """A contender's process, ready for measurement.

    Args:
        cores: processors it may use.
        log: file that receives its output.

    Raises:
        ContenderError: the contender is not installed, failed to open the data, or took too long.
    """

    def __init__(self, contender: Contender, case: Case, *, cores: int, log: Path) -> None:
        if not contender.python.exists():
            raise ContenderError(f"there is no {contender.environment}; run: make bench-peers", missing=True)
        environment = {
            **os.environ,
            "PARQUETRY_CACHE_DIR": str(case.scratch / "parquetry"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "HF_HOME": str(case.scratch / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "TQDM_DISABLE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = [str(contender.python), "-m", "benchmarks.measure", contender.module, case.to_json()]
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [*command, "--cores", str(cores)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self.ready = self._answer(_READY_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def measure(self, warm_s: float, span_s: float) -> dict[str, Any]:
        """Measures one stretch."""
        return self._ask({"warm_s": warm_s, "span_s": span_s}, warm_s + span_s + _SLACK_S)

    def steps(self) -> dict[str, Any]:
        """Measures the individual steps."""
        return self._ask({}, _READY_S)

    def close(self) -> None:
        """Ends the process and its descendants."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]  # both are pipes
        self._log.close()

    def _ask(self, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer then says why
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise ContenderError(f"no answer within {timeout_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(f"the process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if answer["event"] in ("missing", "failed"):
            raise ContenderError(_last_error(answer["message"]), missing=answer["event"] == "missing")
        return answer


def _last_error(message: str) -> str:
    """Returns the error itself if a loader worker put a traceback into its message."""
    lines = [line for line in message.splitlines() if line and not line.startswith((" ", "Traceback", "Original"))]
    return (lines[-1] if lines else message)[:300]


class SlowStore:
    """A `benchmarks.slow_store` process that serves a folder at ``url``."""

    def __init__(self, folder: Path, *, latency_s: float) -> None:
        command = [sys.executable, "-m", "benchmarks.slow_store", str(folder), "--latency-s", str(latency_s)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def __enter__(self) -> SlowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
