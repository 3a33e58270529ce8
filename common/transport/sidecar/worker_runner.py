"""`WorkerRunner`: runs the reader's jobs in worker processes, replaces those that die, and repeats their jobs."""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from ...base.errors import PipelineError, SidecarError
from ...base.metrics.counters import Count, Counters, add
from ...base.platform.processes import killed_for_memory
from ...base.progress import CancelToken
from ...engine.read.large_blocks import BlockColumns
from ...engine.run.block_loader import BlockLoader
from ...engine.run.block_store import BlockHandle, all_loaded, block_slice
from ...engine.run.failing import describe_rows
from ...engine.run.jobs import Job, UnfinishedJobError
from ...plan.block_reads import BlockRows
from ...plan.program import ElementProgram, MixedProgram
from ...stages.functions import pickle_with_files
from ..children import how_it_ended
from ..processes import start_vital
from ..stalls import StallWatch
from .protocol import BatchHeader
from .shared_blocks import ExportedBlock, export_block
from .slots import MadeSlot, Slot
from .worker_process import StreamChannel, WorkerProcess

_LOGGER = logging.getLogger(__name__)
_MOST_DEATHS = 3
"""The number of fresh workers that a job may end. After that, the job itself is at fault, and is repeated in halves. A
half of several elements may end one.
"""
_MOST_KILLS = 30
"""The number of workers that may be killed from outside while a job of one element runs, before it is given up. Larger
jobs are repeated in halves after one kill, because halves are more likely to finish before the next.
"""
_LOOK_S = 0.5
"""How often a working process is checked."""
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM}
"""Signals that a job does not cause itself. The system sends them when memory runs out."""


class WorkerRunner:
    """Runs jobs in worker processes, with one dispatching thread for each worker."""

    def __init__(
        self,
        loaders: Sequence[BlockLoader],
        program: ElementProgram | MixedProgram,
        *,
        workers: int,
        start: Callable[[], WorkerProcess],
        started: Sequence[WorkerProcess],
        stall_timeout: float | None,
    ) -> None:
        self._loaders = loaders
        self._request = {
            "do": "open",
            "sys_path": list(sys.path),
            "program": pickle_with_files(program),
            "memory_bytes": (loaders[0].memory_bytes or 0) // workers,
        }
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._numbers = iter(range(1 << 62))
        self._lock = threading.Lock()
        self._closed = False
        self._counters = Counters()
        self._killed_for_memory = killed_for_memory()
        processes = [*started, *(start() for _ in range(workers - len(started)))]
        self._workers = [_Worker(self._request, start, process, stall_timeout) for process in processes]
        for worker in self._workers:
            start_vital(partial(self._dispatch, worker), name="parquetry-dispatch")

    def finish(self, source: int, rows: BlockRows, parts: BlockColumns) -> Any:
        with self._lock:
            number = next(self._numbers)
        return export_block(number, rows, parts, self._loaders[source].places(rows.row_groups), source)

    def order_of(self, source: int, rows: BlockRows) -> None:
        """Returns ``None``: workers look up rows as they are stored."""

    def discard(self, block: Any) -> None:
        block.close()
        for worker in self._workers:
            worker.stale.append(block.number)

    def begin(self, counters: Counters, token: CancelToken) -> None:
        self._counters = counters

    def _memory_ran_out(self) -> bool:
        """Returns whether the system has killed processes for lack of memory since the last call."""
        before, self._killed_for_memory = self._killed_for_memory, killed_for_memory()
        return self._killed_for_memory != before

    def submit(self, job: Job, handles: list[BlockHandle], slot: Slot) -> Future[MadeSlot]:
        future: Future[MadeSlot] = Future()
        self._jobs.put((future, job, handles, slot))
        return future

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            worker.close()

    def _dispatch(self, worker: _Worker) -> None:
        while True:
            task = self._jobs.get()
            if task is None:
                return
            future, *arguments = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._make(worker, *arguments))
            except BaseException as error:
                future.set_exception(error)

    def _make(self, worker: _Worker, job: Job, handles: list[BlockHandle], slot: Slot) -> MadeSlot:
        self._counters.bind()
        blocks: list[ExportedBlock] = all_loaded(handles)
        held = [block for block in blocks if block.hold()]
        try:
            if len(held) < len(blocks):
                raise PipelineError("iteration was closed.")
            return MadeSlot(slot, [self._run(worker, job, blocks, slot)])
        finally:
            for block in held:
                block.release()
                if block.closed:
                    worker.stale.append(block.number)  # it may have been sent after it was discarded

    def _run(self, worker: _Worker, job: Job, blocks: Sequence[ExportedBlock], slot: Slot) -> BatchHeader:
        message = {
            "do": "job",
            "slot": slot.number,
            "count": job.count,
            "first_element": job.first,
            "num_elements": job.elements,
            "sources": [
                block_slice(read, each.rows, each.number) for each, read in zip(blocks, job.reads, strict=True)
            ],
        }
        deaths = kills = 0
        most_deaths = 1 if job.is_suspect and job.has_halves else _MOST_DEATHS
        most_kills = 1 if job.has_halves else _MOST_KILLS
        while deaths < most_deaths and kills < most_kills:
            alone = worker.begin()
            answer = worker.run(job, blocks, slot, message, self._counters)
            if answer is not None:
                return answer
            if self._closed:
                break
            _LOGGER.warning("decode worker died (%s) in job %d; starting another.", worker.status, job.number)
            add(Count.RETRIES, 1)
            if worker.was_killed and not self._memory_ran_out():
                kills += 1
            else:
                deaths += alone
        where = describe_rows(job.reads, [block.rows for block in blocks], self._loaders)
        died = f"decode worker died {deaths + kills} times in one batch ({worker.status}), for {where}"
        kind = SidecarError if worker.stalled or self._closed else UnfinishedJobError
        if worker.was_killed:
            raise kind(
                f"{died}. Either the system kills workers because memory runs out (use fewer workers or a lower "
                "memory_limit), or another program does."
            )
        if worker.stalled:
            raise kind(
                f"{died}. A function that waits longer than stall_timeout is the usual cause; raise stall_timeout, or "
                "run with executor='threads' to see where it waits."
            )
        raise kind(
            f"{died}. A user function or codec that ends its process is the usual cause; run with executor='threads' "
            "to see it."
        )


class _Worker:
    """A worker process, as seen by its dispatching thread."""

    def __init__(
        self,
        request: dict[str, Any],
        start: Callable[[], WorkerProcess],
        process: WorkerProcess,
        stall_timeout: float | None,
    ) -> None:
        self._request = request
        self._stall_timeout = stall_timeout
        self._start = start
        self.stale: deque[int] = deque()
        self.status = "not started"
        self.was_killed = False
        self._lock = threading.Lock()  # protects the process, which is replaced here and ended elsewhere
        self._closed = False
        self._use(process)

    def _use(self, process: WorkerProcess) -> None:
        self._process = process
        self._channel = StreamChannel(process.connection)
        self._blocks: set[int] = set()
        self._slots: set[int] = set()
        self._opened = False
        self._died = False
        self._stalled: str | None = None
        self._counters: Counters | None = None

    @property
    def stalled(self) -> bool:
        """Whether the process was killed because it stalled."""
        return self._stalled is not None

    def begin(self) -> bool:
        """Replaces a dead process. Returns whether the current one is fresh."""
        if self._died:
            self._channel.close()
            process = self._start()
            with self._lock:
                self._use(process)
                if self._closed:
                    process.end()
        return not self._opened

    def run(
        self, job: Job, blocks: Sequence[ExportedBlock], slot: Slot, message: dict[str, Any], counters: Counters
    ) -> BatchHeader | None:
        """Runs a job. Returns ``None`` if the process died.

        Raises:
            ParquetryError: the error that the job raised.
        """
        try:
            self._prepare(blocks, slot, counters)
            self._channel.send(message)
            received = self._answer(f"job {job.number} ({job.count} rows)")
        except OSError:
            received = None
        if received is None:
            self._note_death()
            return None
        answer = received[0]
        if "failed" in answer:
            raise answer["failed"]
        result: BatchHeader | None = answer["done"]
        return result

    def _prepare(self, blocks: Sequence[ExportedBlock], slot: Slot, counters: Counters) -> None:
        if not self._opened:
            self._channel.send(self._request)
            received = self._answer("a new decode worker")
            if received is None:
                raise ConnectionError("worker died at start")
            if "failed" in received[0]:
                raise received[0]["failed"]
            self._opened = True
        forget = [number for number in [self.stale.popleft() for _ in range(len(self.stale))] if number in self._blocks]
        if forget:
            self._channel.send({"do": "forget", "ids": forget})
            self._blocks.difference_update(forget)
        for block in blocks:
            if block.number not in self._blocks:
                self._channel.send({"do": "block", "id": block.number, "source": block.source}, block.descriptor)
                self._blocks.add(block.number)
        if slot.number not in self._slots:
            self._channel.send({"do": "slot", "id": slot.number}, slot.memory.descriptor)
            self._slots.add(slot.number)
        if counters is not self._counters and counters.descriptor is not None:
            self._channel.send({"do": "count"}, counters.descriptor)
            self._counters = counters

    def _answer(self, waiting: str) -> tuple[dict[str, Any], int | None] | None:
        """Returns the answer to a message, or ``None`` if the process is gone or was killed because it stalled."""
        watch: StallWatch | None = None
        while not self._channel.wait(_LOOK_S):
            process = self._process.process
            watch = watch or StallWatch(waiting, process.pid, timeout_s=self._stall_timeout)
            if self._stalled is None and (stalled := watch.stalled()) is not None:
                self._stalled = stalled
                process.kill()
        return self._channel.receive()

    def _note_death(self) -> None:
        code = self._process.exit_code()
        self.status = how_it_ended(code)
        self.was_killed = (code is None or -code in _FROM_OUTSIDE) and self._stalled is None
        self.status = self._stalled or self.status
        self._died = True

    def close(self) -> None:
        """Ends the process. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._process.end()
