"""Starts processes for tests, and waits for the end of processes that are not children."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil
import pytest

from parquetry.common.base import threads

PATIENCE_S = 300.0  # anything slower has hung, even on a busy machine
_Found = TypeVar("_Found")


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs this Python with arguments, such as ``"-c", code``, to its end. ``options`` go to `subprocess.run`."""
    command = [sys.executable, *map(str, arguments)]
    try:
        return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": PATIENCE_S, **options})
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)  # which pytest shows with the failure
        raise


_CALLED = """
import importlib.util, json, sys
folder, file, name, arguments = sys.argv[1:]
sys.path.insert(0, folder)
spec = importlib.util.spec_from_file_location("called", file)
sys.modules["called"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(getattr(module, name)(*json.loads(arguments))))
"""


def seed_frameworks() -> None:
    """Gives both frameworks a seed, as far as they are installed. A training then begins with the same weights."""
    if find_spec("torch"):
        import torch

        torch.manual_seed(0)
    if find_spec("tensorflow"):
        import keras

        keras.utils.set_random_seed(0)


def in_own_process(function: Callable[..., _Found], *arguments: Any) -> _Found:
    """Calls a function of a test module in a new process, whose memory no other test moves, and returns its result.

    JSON must be able to hold the arguments and the result.
    """
    code = function.__code__
    places = Path(__file__).parent, code.co_filename
    done = run_python("-W", "ignore", "-c", _CALLED, *places, code.co_name, json.dumps(arguments), check=True)
    found: _Found = json.loads(done.stdout.splitlines()[-1])
    return found


def exit_status_of_fork(work: Callable[[], object]) -> int:
    """Returns 0 if ``work`` gives something true in a forked child. A signal ends a child that hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE_S))
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def gone(pids: list[int], within_s: float = PATIENCE_S) -> list[int]:
    """Waits for the end of processes, without polling. Returns those that still run after ``within_s`` seconds."""
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
    while alive and (ended := poll.poll(max(0.0, end - time.monotonic()) * 1000)):
        for descriptor, _ in ended:
            poll.unregister(descriptor)
            alive.pop(descriptor)
    for descriptor in left:
        os.close(descriptor)
    return list(alive.values())


def unless_ended(look: Callable[..., _Found], *arguments: Any, otherwise: _Found) -> _Found:
    """Returns what ``look`` finds about a process; ``otherwise`` if the process has ended, or is a zombie."""
    try:
        return look(*arguments)
    except (psutil.Error, FileNotFoundError, ProcessLookupError, PermissionError):  # which only root has, at its end
        return otherwise


def command_of(process: psutil.Process) -> str:
    """Returns a process's command line, empty if it has ended."""
    return " ".join(unless_ended(process.cmdline, otherwise=[]))


def open_files(part: str = "", pid: int | str = "self") -> list[str]:
    """Returns a process's open files whose names contain ``part``; descriptors come and go meanwhile.

    There are none if the process has ended.
    """
    found = []
    numbers: list[str] = unless_ended(lambda: os.listdir(f"/proc/{pid}/fd"), otherwise=[])
    for number in numbers:
        # The listing's own, or one that was closed meanwhile.
        found.append(unless_ended(os.readlink, f"/proc/{pid}/fd/{number}", otherwise=""))
    return [name for name in found if name and part in name]


def eventually(holds: Callable[[], object]) -> bool:
    """Waits until ``holds()`` is true; returns ``False`` if it has not become true in `PATIENCE_S`."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def settled(count: Callable[[], int], most: int) -> int:
    """Waits until a count is at most ``most`` and returns it: threads release resources when they end."""
    found = count()

    def is_settled() -> bool:
        nonlocal found
        found = count()
        return found <= most

    eventually(is_settled)
    return found


def end_idle_threads() -> None:
    """Ends the threads of this process that wait for calls of any pool, so that the next call starts one."""
    while idle := [thread for thread in threading.enumerate() if thread.name == threads.IDLE_NAME]:
        for thread in idle:  # not only those in the list: after Ctrl-C, one may wait for a call that does not come
            cast(threads._Thread, thread).tasks.put(None)
            thread.join(0.01)
    for thread in [thread for thread in threads._idle if not thread.is_alive()]:
        threads._idle.remove(thread)


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


def python_that_gets(monkeypatch: pytest.MonkeyPatch, path: Path, name: str, times: int) -> Path:
    """Sidecars start through a program that gets a signal, this many times, before it runs Python.

    Returns the folder in which each start leaves a file.
    """
    starts, program = path / "starts", path / "python"
    starts.mkdir()
    lines = [
        f'n=$(ls "{starts}" | wc -l)',
        f'touch "{starts}/$$"',
        f'[ "$n" -lt {times} ] && kill -{name} $$',
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
