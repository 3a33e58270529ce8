"""Running out of files, threads or memory in a sidecar is an error in the trainer that names the limit and a fix."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import build, write_table
from memory_store import Store
from processes import end_idle_threads, run_python

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    Pipeline,
    Unischema,
    UnischemaField,
    write_dataset,
)
from parquetry.common.base.errors import DatasetError, ParquetryError, ResourceError, TransformError, limit_reached
from parquetry.common.engine.run import threads
from parquetry.common.engine.run.loop import JobLoop
from parquetry.common.parquet.footers import remedy
from parquetry.common.sidecar.connection import ClientConnection
from parquetry.common.storage import hedged_reads
from parquetry.common.transport.sidecar.channel import Channel
from parquetry.common.transport.sidecar.protocol import RemoteError


def test_a_sidecar_with_too_few_open_files_is_an_error_that_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path / "data", [[5]] * 20, names=("id", "image"))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n 16\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PARQUETRY_PYTHON", str(python))
    pipeline = built.pipeline("id", "image", executor="sidecar").shuffle(100, seed=1).batch(8)
    with pytest.raises(ParquetryError, match=r"may have 16 files open \(RLIMIT_NOFILE\)\. Run ulimit -n 65536"):
        list(pipeline)


_NO_FORK = """
import errno, os
def fork(): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = fork
"""
_ONE_FORK = f"""
import os
first = os.fork
def fork():
    pid = first()
    if not pid:
        exec({_NO_FORK!r}, {{}})
    return pid
os.fork = fork
"""
_NO_THREAD = """
import threading
def start(thread): raise RuntimeError("can't start new thread")
threading.Thread.start = start
"""


@pytest.mark.parametrize(
    ("at_start", "executor"),
    [(_NO_FORK, "workers"), (_ONE_FORK, "workers"), (_NO_THREAD, "threads")],
    ids=["no template", "no worker", "no thread"],
)
def test_a_sidecar_that_starts_with_too_few_processes_names_the_limit_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    at_start: str,
    executor: str,
) -> None:
    built = build(tmp_path / "data", [[5]], names=("id",))
    (tmp_path / "sitecustomize.py").write_text(at_start)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PARQUETRY_PYTHON", str(python))
    pipeline = built.pipeline("id", executor="sidecar", workers=1)
    if executor == "workers":
        pipeline = pipeline.transform(lambda row: row)
    with pytest.raises(ParquetryError, match=r"(unavailable|can't start new thread).*RLIMIT_NPROC"):
        list(pipeline)
    assert "Starting another" not in caplog.text
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (OSError(errno.EMFILE, "Too many open files"), r"files open \(RLIMIT_NOFILE\)\. Run ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files"), r"fs\.file-max"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "RLIMIT_NPROC"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), r"RLIMIT_AS, ulimit -v"),
        (MemoryError(), r"RLIMIT_AS, ulimit -v"),
        (RuntimeError("can't start new thread"), r"RLIMIT_NPROC"),
    ],
)
def test_an_error_of_a_sidecar_says_which_limit_it_met(error: Exception, limit: str) -> None:
    for raised, name in ((error, "SidecarError"), (TransformError("row 3: it failed."), "TransformError")):
        if raised is not error:
            raised.__cause__ = error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ClientConnection(Channel(theirs)).send_error(1, raised)
            message = Channel(ours).receive()
        assert message is not None
        told = RemoteError.unpack(message.body)
        assert told.name == name
        assert str(raised) in told.text
        assert re.search(limit, told.text)


_SHORT = """
import re, resource, sys, threading
from parquetry import Pipeline
from parquetry.common.base.errors import ParquetryError

def limit(spare):
    used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + spare if spare else resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def ids(url=sys.argv[1]):
    return [row["id"].item() for row in Pipeline(url, on_error="skip", executor="threads", workers=1)]

ids(sys.argv[2])  # small rows: code is loaded, and no memory is left over for the large ones
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
limit(40 << 20)
try:
    print(ids())
except ParquetryError as error:
    print(error)
limit(0)
print(ids())
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", [CompressedImageCodec("webp"), CompressedImageCodec("png"), CompressedNdarrayCodec()])
def test_a_short_lack_of_memory_makes_no_bad_rows(tmp_path: Path, codec: Any) -> None:
    schema = Unischema("s", [UnischemaField("id", np.int64), UnischemaField("x", np.uint8, (None, 3_000, 3), codec)])
    for name, height in (("data", 6_000), ("small", 1)):
        x = np.zeros((height, 3_000, 3), np.uint8)
        write_dataset(tmp_path / name, schema, [{"id": number, "x": x} for number in range(3)])
    script = tmp_path / "short.py"
    script.write_text(_SHORT)
    environment = {**os.environ, "PARQUETRY_CACHE_DIR": str(tmp_path / "kept")}
    for _ in range(2):
        done = run_python(script, tmp_path / "data", tmp_path / "small", env=environment, check=True)
        short, whole = done.stdout.strip().splitlines()
        assert "RLIMIT_AS" in short
        assert whole == "[0, 1, 2]"


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EMFILE, "many")]
)
def test_an_iterator_that_meets_a_limit_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pipeline = build(tmp_path, [[5]], names=("id",)).pipeline("id", executor="threads")
    monkeypatch.setattr(JobLoop, "_top_up", Mock(side_effect=error))
    with pytest.raises(ResourceError, match=r"batch: .*(RLIMIT_NOFILE|RLIMIT_AS)"):
        next(iter(pipeline))


@pytest.mark.parametrize("files", [1, 3])
def test_a_lack_of_threads_is_not_taken_for_a_bad_file(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    store = Store(name=f"few threads {files}", says="tag")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(5)}), sink)
    for number in range(files):
        store.put_file_bytes(f"data/{number}.parquet", sink.getvalue().to_pybytes())
    pipeline = Pipeline("data", filesystem=store, executor="threads")
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("parquetry"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    end_idle_threads()
    monkeypatch.setattr(hedged_reads, "_idle", hedged_reads._Idle())
    with pytest.raises(ResourceError, match=r"thread parquetry.*can't start new thread.*RLIMIT_NPROC") as raised:
        len(pipeline)
    assert "Parquet file" not in str(raised.value)


def test_an_odd_error_of_a_job_is_not_hidden_by_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = build(tmp_path, [[5]], names=("id",)).pipeline("id", executor="threads")
    monkeypatch.setattr(threads, "assemble", Mock(side_effect=RuntimeError("an odd error")))
    with pytest.raises(RuntimeError, match="an odd error"):
        next(iter(pipeline))


def test_an_interrupt_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(build(tmp_path, [[5]], names=("id",)).pipeline("id", executor="threads"))
    monkeypatch.setattr(JobLoop, "_top_up", Mock(side_effect=KeyboardInterrupt))
    try:
        raise MemoryError
    except MemoryError:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)


def test_a_header_that_is_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    field = UnischemaField("x", np.float32, (None,), NdarrayCodec())
    header = b"-" * 7_000 + b"1"
    deep = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    good = bytes(field.storage.encode(field, np.zeros(2, np.float32)))
    values = pa.array([good, deep, good], pa.binary())
    url = write_table(tmp_path / "rows", pa.table({"id": range(3), "x": values}))
    rows = Pipeline(url, ["id", field], executor="threads", on_error="skip")
    assert [row["id"].item() for row in rows] == [0, 2]


@pytest.mark.parametrize(("limit", "first"), [(1 << 30, "There is not enough memory"), (-1, "Write it again")])
def test_memory_that_ran_out_under_a_limit_is_named_before_damage(
    limit: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    told = remedy(pa.ArrowMemoryError("malloc of size 1000000 failed"), "Write it again.")
    assert told.startswith(first)
    assert "Write it again." in told
    assert "RLIMIT_AS" in told


def test_other_errors_name_no_limit() -> None:
    assert (
        limit_reached(ValueError("x")) == limit_reached(OSError(errno.ENOENT, "no file")) == limit_reached(None) == ""
    )


@pytest.mark.slow
def test_files_in_memory_are_not_taken_for_missing_ones(tmp_path: Path) -> None:
    built = build(tmp_path, [[5]], names=("id",))
    memory = fsspec.filesystem("memory")
    for file in os.scandir(tmp_path):
        memory.pipe(f"/few_resources/{file.name}", Path(file.path).read_bytes())
    assert len(Pipeline("memory://few_resources", executor="threads")) == len(built.rows)
    with pytest.raises(DatasetError, match=r"found nothing there.*No other process \(a sidecar.*executor='threads'"):
        list(Pipeline("memory://few_resources", executor="sidecar"))
