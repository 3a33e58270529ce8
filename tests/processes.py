"""Starts processes for tests, and waits for the end of processes that are not children."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

WITHIN_S = 20.0  # two seconds are promised; a busy machine gets more, but less than sidecars may idle
PATIENCE_S = 300.0  # anything slower has hung, even on a busy machine


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs this Python with arguments, such as ``"-c", code``, to its end. ``options`` go to `subprocess.run`."""
    command = [sys.executable, *map(str, arguments)]
    try:
        return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": PATIENCE_S, **options})
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)  # which pytest shows with the failure
        raise


def gone(pids: list[int], within_s: float) -> list[int]:
    """Returns the processes still running after a while; waits without polling."""
    left = {}
    for pid in pids:
        try:
            left[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    poll = select.poll()
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    end = time.monotonic() + within_s
    alive = dict(left)
    while alive and time.monotonic() < end:
        for descriptor, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000):
            poll.unregister(descriptor)
            alive.pop(descriptor)
    for descriptor in left:
        os.close(descriptor)
    return list(alive.values())


def open_files(part: str = "", pid: int | str = "self") -> list[str]:
    """Returns a process's open files whose names contain ``part``; descriptors come and go meanwhile."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the listing's own, or one that another thread closed
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return [name for name in found if part in name]


def settled(count: Callable[[], int], most: int) -> int:
    """Waits until a count is at most ``most`` and returns it: threads release resources when they end."""
    end = time.monotonic() + WITHIN_S
    while (found := count()) > most and time.monotonic() < end:
        time.sleep(0.01)
    return found


def free_ports(count: int) -> list[int]:
    """Returns ports for servers that take a while to start.

    They lie below the range from which the system gives ports to connections and to servers that ask for any:
    until the server listens, no other process is given one by chance.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.SystemRandom().sample(range(first - 12_000, first), 12_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"expected {count} free ports below {first}, got {len(found)}")


def python_that_gets(monkeypatch: pytest.MonkeyPatch, path: Path, signal: str, times: int) -> Path:
    """Sidecars start through a program that gets a signal, this many times, before it runs Python.

    Returns the folder in which each start leaves a file.
    """
    starts, program = path / "starts", path / "python"
    starts.mkdir()
    lines = [
        f'n=$(ls "{starts}" | wc -l)',
        f'touch "{starts}/$$"',
        f'[ "$n" -lt {times} ] && kill -{signal} $$',
        f'exec "{sys.executable}" "$@"',
    ]
    program.write_text("\n".join(["#!/bin/sh", *lines]))
    program.chmod(0o755)
    monkeypatch.setenv("PARQUETRY_PYTHON", str(program))
    return starts


class Trainer:
    """A process that runs a script and reports through a FIFO, whose path is the script's first argument."""

    def __init__(self, source: str, directory: Path, *arguments: str) -> None:
        fifo, script, self._errors = directory / "fifo", directory / "train.py", directory / "errors"
        os.mkfifo(fifo)
        script.write_text(source)
        self._told = os.open(fifo, os.O_RDWR)  # also for writing, so there is no end of file between two writers
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(fifo), *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._told)

    def told(self) -> list[int]:
        """Returns the processes named in the script's next line, except the script's own."""
        ended = os.pidfd_open(self.process.pid)
        try:
            ready, _, _ = select.select([self._told, ended], [], [], PATIENCE_S)
        finally:
            os.close(ended)
        assert self._told in ready, f"nothing was told; standard error ends with: {self.errors()[-4000:]}"
        return [int(number) for number in os.read(self._told, 100).split() if int(number) != self.process.pid]

    def output(self) -> str:
        """Waits for the script to end and returns its output."""
        return self.process.communicate(timeout=PATIENCE_S)[0]

    def errors(self) -> str:
        """Returns its standard error so far."""
        return self._errors.read_text()
