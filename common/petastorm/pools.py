"""The pools that load jobs: in the caller, in threads, or in processes; results come back as futures.

A pool is owned by one reader and closed with it. Processes are fresh interpreters, never forks; one that dies is
replaced once and its job done again, then the job's future holds a `SidecarError`.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import cloudpickle

from ..errors import PipelineError, SidecarError
from ..transport.processes.python_child import python_command
from .loading import Job, RowGroupLoader

_LENGTH = struct.Struct("<Q")
_PATIENCE_S = 5.0


class Pool(Protocol):
    """Loads jobs."""

    def submit(self, job: Job) -> Future[Any]:
        """Starts a job."""

    def close(self, *, wait: bool) -> None:
        """Ends all work; with ``wait`` returns only when it has ended. Idempotent."""


def make_pool(kind: str, workers: int, loader: RowGroupLoader) -> Pool:
    """The pool that a reader's ``reader_pool_type`` names."""
    if kind == "dummy":
        return InlinePool(loader.load)
    if kind == "thread":
        return ThreadPool(loader.load, workers)
    if kind == "process":
        return ProcessPool(loader, workers)
    raise PipelineError(f"Unknown reader_pool_type: expected 'thread', 'process' or 'dummy', got {kind!r}.")


class InlinePool:
    """Loads a job when it is submitted, in the caller's thread."""

    def __init__(self, load: Callable[[Job], Any]) -> None:
        self._load = load

    def submit(self, job: Job) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self._load(job))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self, *, wait: bool) -> None:
        pass


class ThreadPool:
    """Loads jobs in threads; started at the first job."""

    def __init__(self, load: Callable[[Job], Any], workers: int) -> None:
        self._load = load
        self._executor = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="parquetry-petastorm")

    def submit(self, job: Job) -> Future[Any]:
        return self._executor.submit(self._load, job)

    def close(self, *, wait: bool) -> None:
        self._executor.shutdown(wait=wait, cancel_futures=True)


class ProcessPool:
    """Loads jobs in processes of their own; a thread for each waits for its answers."""

    def __init__(self, loader: RowGroupLoader, workers: int) -> None:
        try:
            self._loader = cloudpickle.dumps(loader)
        except Exception as error:
            raise PipelineError(
                f"reader_pool_type='process': the predicate or transform cannot travel to another process: {error!r}. "
                "Keep open files, locks and sessions out of it, or use reader_pool_type='thread'."
            ) from error
        self._idle: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)  # started when a job first needs it
        self._running: set[WorkerProcess] = set()
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="parquetry-petastorm")

    def submit(self, job: Job) -> Future[Any]:
        return self._executor.submit(self._ask, job)

    def _ask(self, job: Job) -> Any:
        worker = self._idle.get()
        try:
            for attempt in range(2):
                if self._closed:
                    raise SidecarError("reader: a job was asked for after stop().")
                worker = worker or self._start()
                try:
                    return worker.ask(job)
                except WorkerDiedError as death:
                    self._running.discard(worker)
                    worker = None
                    if attempt:
                        raise SidecarError(
                            f"reader: a worker process died twice over row group {job.row_group} ({death}). If the "
                            "system killed it for memory, use fewer workers_count; else see its messages above."
                        ) from death
        finally:
            self._idle.put(worker)
        raise AssertionError("unreachable: the second death raises")

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(self._loader)
        self._running.add(worker)
        if self._closed:  # while it was being started
            worker.kill()
        return worker

    def close(self, *, wait: bool) -> None:
        self._closed = True
        for worker in list(self._running):
            worker.kill()
        self._executor.shutdown(wait=wait, cancel_futures=True)


class WorkerDiedError(Exception):
    """A worker process ended while it was asked."""


class WorkerProcess:
    """One interpreter that runs `worker`; ends when this object or the parent process does."""

    def __init__(self, loader: bytes) -> None:
        self._process = subprocess.Popen(
            python_command("parquetry.common.petastorm.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started = False
        self._loader = loader

    def ask(self, job: Job) -> Any:
        """The result of a job; raises what the job raised, or `WorkerDiedError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if not self._started:
                send(self._process.stdin, pickle.dumps(sys.path))
                send(self._process.stdin, self._loader)
                self._started = True
            send(self._process.stdin, pickle.dumps(job))
            answer = receive(self._process.stdout)
        except (OSError, EOFError, ValueError) as error:
            self.kill()
            raise WorkerDiedError(f"exit status {self._process.returncode}") from error
        succeeded, value = pickle.loads(answer)
        if succeeded:
            return value
        raise value

    def kill(self) -> None:
        """Ends the process at once. Idempotent."""
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                _close(stream)


def _close(stream: Any) -> None:
    with contextlib.suppress(OSError):  # what was not sent yet has no reader any more
        stream.close()


def send(stream: Any, data: bytes) -> None:
    """Writes one message."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: Any) -> bytes:
    """Reads one message; raises ``EOFError`` if the stream ends before it does."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("stream ended")
    size = _LENGTH.unpack(head)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("stream ended inside a message")
    return bytes(data)
