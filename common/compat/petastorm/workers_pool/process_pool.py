"""Pools that load jobs in processes, in worker threads, or in the calling thread: the makers of a reader's loop.

Each pool belongs to one reader and is closed with it. Processes are new interpreters, never forks. If a process dies,
it is replaced and its job runs again; if that process dies too, the job's future holds a `SidecarError`.
"""

from __future__ import annotations

import pickle
import queue
import sys
from contextlib import suppress
from typing import Any

from ....base.errors import PipelineError, SidecarError
from ....base.process.forks import leave_to_parent
from ....engine.run.row_group_loop import RowGroupMaker
from ....stages.functions import pickle_with_files
from ....transport.sidecar.worker_process import StreamChannel, WorkerProcess, start_worker
from ..loading import LoadJob, RowGroupLoader
from ..module_names import install, is_installed

_THREAD_NAME = "parquetry-petastorm"


def make_pool(kind: str, workers: int, loader: RowGroupLoader) -> RowGroupMaker:
    """Makes the pool for a reader's ``reader_pool_type``."""
    if kind == "process":
        return ProcessPool(loader, workers)
    return RowGroupMaker(loader.load, threads=workers if kind == "thread" else 0, name=_THREAD_NAME)


class ProcessPool(RowGroupMaker):
    """Loads jobs in sidecar workers, each with its own thread here. A worker starts when a job first needs it."""

    def __init__(self, loader: RowGroupLoader, workers: int) -> None:
        try:
            function = pickle_with_files(loader.load)
            if is_installed():
                function = pickle.dumps(_WithPetastorm(function))
        except Exception as error:
            raise PipelineError(
                f"reader_pool_type='process': the predicate or transform cannot travel to another process: {error!r}. "
                "Keep open files, locks and sessions out of it, or use reader_pool_type='thread'."
            ) from error
        self._request = {"do": "function", "sys_path": list(sys.path), "function": function}
        self._idle: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._running: set[WorkerProcess] = set()
        self._closed = False
        super().__init__(self._load_there, threads=workers, name=_THREAD_NAME)
        leave_to_parent(self)

    def forget_elements(self) -> object:
        """As `HoldsElements`: a forked child that closes the pool ends none of its parent's workers."""
        workers, self._running = self._running, set()
        return workers

    def _load_there(self, job: LoadJob) -> Any:
        """Returns the result of a job; raises the job's error."""
        worker = self._idle.get()
        try:
            for _ in range(2):
                if self._closed:
                    raise SidecarError("reader: a job was submitted after stop().")
                worker = worker or self._start()
                answer = _ask(worker, {"do": "call", "argument": job})
                if answer is not None:
                    if "failed" in answer:
                        raise answer["failed"]
                    return answer["done"]
                worker.end()
                self._running.discard(worker)
                status, worker = worker.process.wait(), None
        finally:
            self._idle.put(worker)
        raise SidecarError(
            f"reader: a worker process died twice over row group {job.row_group} (exit status {status}). If the system "
            "killed it for memory, lower workers_count; otherwise see its messages above."
        )

    def shutdown(self, *, wait: bool) -> None:
        self._closed = True
        for worker in list(self._running):
            worker.end()
        super().shutdown(wait=wait)

    def _start(self) -> WorkerProcess:
        worker = start_worker()
        self._running.add(worker)
        if self._closed:  # closed while the worker was starting
            worker.end()
        with suppress(OSError):  # it died; sending the next message detects that
            StreamChannel(worker.connection).send(self._request)
        return worker


class _WithPetastorm:
    """A pickle that is loaded where its functions, and the modules that they are in, can import ``petastorm``."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_with_petastorm, (self._pickled,)


def _load_with_petastorm(pickled: bytes) -> Any:
    install()
    return pickle.loads(pickled)


def _ask(worker: WorkerProcess, message: dict[str, Any]) -> dict[str, Any] | None:
    """Sends a message; returns the worker's answer, or ``None`` if the worker died."""
    channel = StreamChannel(worker.connection)
    try:
        channel.send(message)
    except OSError:
        return None
    received = channel.receive()
    return None if received is None else received[0]
