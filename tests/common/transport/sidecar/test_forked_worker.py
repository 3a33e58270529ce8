"""Workers forked from the reader: as isolated, supervised and killable as freshly started ones."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from builders import Built, built_once
from processes import command_of, eventually, gone, in_own_process, open_files, run_python, settled, unless_ended

from benchmarks.faults import workers_of
from parquetry.common import Pipeline, UnischemaField
from parquetry.common.transport.sidecar.forked_worker import TEMPLATE_NAME, Template, _close_all_but
from parquetry.common.transport.sidecar.idle_pool import IDLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are started afresh")

READER = "parquetry.common.sidecar"
WORKER = "parquetry.common.transport.sidecar.worker"
TEMPLATE = "parquetry.common.transport.sidecar.forked_worker"  # its replacement

_BEGUN: list[Any] = []
built = built_once([[20, 13], [30]], names=("id", "image"))


@pytest.fixture(autouse=True)
def _own_sidecar() -> Iterator[None]:
    IDLE.close()
    yield
    while _BEGUN:  # including those of a failed test
        _BEGUN.pop().close()
    IDLE.close()


def _descriptors_left() -> list[bool]:
    """Closes all descriptors but that of a connection, without ``/proc``. Returns which ones are still open."""

    def refuse(path: str) -> list[str]:
        raise FileNotFoundError(path)

    (before, connection), (after, _) = socket.socketpair(), os.pipe()
    os.listdir = refuse  # type: ignore[assignment]
    _close_all_but(connection)
    numbers = (0, 1, 2, before.fileno(), connection.fileno(), after)
    return [os.path.exists(f"/proc/self/fd/{number}") for number in numbers]


def test_a_template_keeps_its_connection_alone_also_without_proc() -> None:
    assert in_own_process(_descriptors_left) == [True, True, True, False, True, False]


def begun(built: Built, **options: Any) -> tuple[Any, psutil.Process]:
    """Returns an endless iterator and its reader, with two workers."""
    before = set(psutil.Process().children())
    iterator = iter(Pipeline(built.url, executor="sidecar", workers=2, **options).repeat().batch(4))
    _BEGUN.append(iterator)
    for _ in range(20):
        next(iterator)
    # It has delivered an element, so it has its own command line. Other children may be starting or ending.
    (reader,) = (child for child in set(psutil.Process().children()) - before if runs(child, READER))
    return iterator, reader


def runs(process: psutil.Process, module: str) -> bool:
    return module in command_of(process).split()


def runs_afresh(worker: psutil.Process) -> bool:
    """Whether a worker was started directly and is up: until then, it has its parent's command line, or none."""
    return runs(worker, WORKER)


def sockets(process: psutil.Process) -> set[str]:
    """Returns the open sockets of a process, by inode."""
    return set(open_files("socket:", process.pid))


# --- in a sidecar ---


def test_workers_are_copies_of_the_reader(built: Built) -> None:
    iterator, reader = begun(built)
    workers = workers_of(reader)
    assert [worker.cmdline() for worker in workers] == [reader.cmdline()] * 2
    iterator.close()


def test_a_worker_holds_its_own_connection_and_no_other(built: Built) -> None:
    iterator, reader = begun(built)

    def held_by_workers() -> list[set[str]]:
        return [sockets(worker) for worker in workers_of(reader)]

    assert eventually(lambda: [len(own) for own in held_by_workers()] == [1, 1])  # shortly after the fork
    held = held_by_workers()
    assert not held[0] & held[1]
    assert not (held[0] | held[1]) & sockets(reader)
    iterator.close()


def test_workers_end_when_the_reader_is_killed(built: Built) -> None:
    iterator, reader = begun(built)
    workers = [worker.pid for worker in workers_of(reader)]
    assert len(workers) == 2
    reader.kill()
    assert gone(workers) == []
    iterator.close()


def test_one_that_is_killed_is_reported_reaped_and_replaced(built: Built, capfd: pytest.CaptureFixture[str]) -> None:
    iterator, reader = begun(built)
    first = {worker.pid for worker in workers_of(reader)}
    for worker in workers_of(reader):
        worker.send_signal(signal.SIGKILL)
    assert gone(list(first)) == []
    for _ in iterator:  # until both have received a request; it is endless
        (template,) = reader.children()
        workers = template.children()  # a zombie would be one of them
        if len(workers) == 2 and not first & {worker.pid for worker in workers}:
            break
    assert not any(map(runs_afresh, workers))
    assert gone(list(first)) == []
    iterator.close()
    IDLE.close()  # the reader's last output has been read
    assert "decode worker died (killed by SIGKILL)" in capfd.readouterr().err


def _worker_without_template() -> list[str]:
    """Kills a template, and starts a worker before another one is ready. Returns what is logged, if it runs afresh."""
    logged: list[str] = []
    logging.getLogger().addHandler(handler := logging.Handler())
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    template = Template(in_child=bool)
    (process,) = psutil.Process().children()
    process.kill()
    worker = template.start()
    assert eventually(lambda: runs_afresh(psutil.Process(worker.process.pid)))
    worker.end()
    template.close()
    assert psutil.Process().children() == []
    return logged


def test_without_its_template_a_worker_is_started_by_itself() -> None:
    (said,) = in_own_process(_worker_without_template)
    assert said == "the process that decode workers are forked from is gone; starting a worker without it."


def test_workers_are_replaced_without_their_template(built: Built, capfd: pytest.CaptureFixture[str]) -> None:
    iterator, reader = begun(built)
    (template,) = reader.children()
    first = workers_of(reader)
    template.kill()
    next(iterator)
    for worker in first:
        worker.kill()
    for _ in iterator:
        workers = workers_of(reader)
        if len(workers) == 2 and not set(first) & set(workers):
            break
    assert template not in reader.children()  # and it left no zombie
    iterator.close()
    IDLE.close()
    assert "decode worker died (exit status unknown)" in capfd.readouterr().err


@pytest.mark.slow
def test_another_template_takes_over_from_one_that_was_killed(built: Built) -> None:
    iterator, reader = begun(built)
    (template,) = reader.children()
    first = workers_of(reader)  # they are orphans without the template
    template.kill()
    for worker in first:
        worker.kill()
    for _ in iterator:  # the next template imports meanwhile
        templates = [child for child in reader.children() if runs(child, TEMPLATE)]
        if any(unless_ended(child.name, otherwise="") == TEMPLATE_NAME for child in templates):
            break
    (template,) = templates
    for _ in iterator:
        workers = workers_of(reader)
        if len(workers) == 2 and all(runs(worker, TEMPLATE) for worker in workers):
            break
        for worker in filter(runs_afresh, workers):  # so copies of the next template replace them
            worker.kill()
    assert [worker.parent() for worker in workers] == [template] * 2
    # A worker closes the sockets of its template shortly after the fork.
    assert settled(lambda: len(sockets(workers[0]) & sockets(workers[1])), 0) == 0
    reader.kill()
    assert gone([template.pid, *(worker.pid for worker in workers)]) == []
    iterator.close()


@pytest.mark.slow
def test_nothing_adds_up_over_iterations(built: Built) -> None:
    iterator, reader = begun(built)
    iterator.close()
    pipeline = Pipeline(built.url, executor="sidecar", workers=2).repeat().batch(4)

    def rounds(count: int) -> tuple[int, list[int], list[int]]:
        for _ in range(count):
            iterator = iter(pipeline)
            next(iterator)
            iterator.close()
        workers = workers_of(reader)
        eventually(lambda: all(len(sockets(worker)) == 1 for worker in workers))
        return reader.num_fds(), [worker.pid for worker in workers], [len(sockets(worker)) for worker in workers]

    before, after = rounds(8), rounds(40)
    assert after[0] <= before[0] + 8  # windows in use at the moment of counting
    assert after[1:] == before[1:] == (after[1], [1, 1])


def test_functions_draw_their_own_numbers_and_multiply_in_every_worker(built: Built) -> None:
    def drawn(row: dict[str, Any]) -> dict[str, Any]:
        import random

        size = 200 if row["id"] < 2 else 1  # OpenBLAS lost its threads in the fork and creates new ones
        wide = np.ones((size, size)) @ np.ones((size, size))
        return {"numpy": np.random.random(), "python": random.random(), "sum": wide.sum(), "worker": os.getpid()}

    outputs = [UnischemaField(name, np.float64) for name in ("numpy", "python", "sum")]
    outputs.append(UnischemaField("worker", np.int64))
    pipeline = Pipeline(built.url, "id", executor="sidecar", workers=2).repeat(30)  # several jobs
    rows = list(pipeline.transform(drawn, outputs, remove=["id"]))
    assert len({row["worker"] for row in rows}) == 2
    assert {row["sum"] for row in rows} == {1, 200.0**3}
    for name in ("numpy", "python"):
        assert len({row[name] for row in rows}) == len(rows)


def test_a_reader_that_has_threads_already_starts_its_workers_afresh(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    iterator, reader = begun(built)
    for _ in iterator:  # the second may still be starting when the first has made a batch
        if all(map(runs_afresh, workers := workers_of(reader))):
            break
    assert len(workers) == 2
    iterator.close()


# --- alone, in a process with one thread ---

ALONE = """
import os, signal, socket, subprocess, sys
import numpy.random
from parquetry.common.transport.sidecar import forked_worker

def work(connection):
    names = [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)]
    others = [int(name) for name in names if int(name) > 2 and int(name) != connection.fileno()]
    connection.sendall(repr((others, numpy.random.random())).encode())
    order = connection.recv(100)
    if order == b"raise":
        raise KeyError("a bug in the worker")
    os._exit(int(order or 0))

forked_worker.work = work
ours, theirs = socket.socketpair()
stray = os.open(os.devnull, os.O_RDONLY)
print("written once")
template = forked_worker.Template(in_child=theirs.close)
workers = [template.start() for _ in range(5)]
said = [eval(worker.connection.recv(1000)) for worker in workers]
assert [others for others, _ in said] == [[]] * 5, said
assert len({number for _, number in said}) == 5, said
try:
    workers[0].process.wait(timeout=0.01)
except subprocess.TimeoutExpired:
    print("still runs")
workers[0].connection.sendall(b"7")
workers[1].connection.close()
workers[2].process.kill()
workers[3].connection.sendall(b"raise")
print([worker.exit_code() for worker in workers[:4]])
workers[2].process.kill()  # of a process that is gone, and whose number may be another's
workers[4].end()
workers[4].end()
template.close()
template.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


def alone(before: str = "") -> tuple[list[str], str]:
    """Returns the program's output lines and its stderr."""
    done = run_python("-W", "error::DeprecationWarning", "-c", before + textwrap.dedent(ALONE))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_how_a_worker_ended_is_known_and_no_zombie_is_left() -> None:
    lines, errors = alone()
    assert lines == [
        "written once",
        "still runs",
        "[7, 0, -9, 1]",
        "no child is left",
    ]
    assert errors.rstrip().endswith("KeyError: 'a bug in the worker'")


def test_an_end_is_noticed_even_where_children_cannot_be_waited_for() -> None:
    lines, _ = alone("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    assert lines[2:] == ["[7, 0, -9, 1]", "no child is left"]
