"""One loader worker makes the batches of all, and the others pass them on.

Workers that each make their own batches do much of the work several times: every worker reads every row group, and puts
its rows in order. So worker 0 makes all batches of a pass (`Producer`), with as many threads as the loader has workers,
unless Python code needs processes (`most_waiting`). It sends each worker, itself included, the messages of that
worker's batches (`sent_batches`), which the worker passes to the trainer (`Relay`). The values stay in memory of
worker 0, which the trainer maps.

The elements and their order stay the same. If anything goes wrong (a batch fails, the producer dies, the workers are at
positions that do not fit together), each worker makes its own batches, from its position on.

Workers meet at a Unix socket with a name that only they know. A socket holds a few messages, so the producer is only a
few batches ahead. A single worker does the same: messages cost it less than tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from parquetry.common import Pipeline
from parquetry.common.base.errors import ParquetryError
from parquetry.common.base.metrics.counters import Counters
from parquetry.common.base.platform.memory_file import is_visible
from parquetry.common.base.platform.sockets import knows_peers, receive, user_of
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.transport.sidecar.runners import needs_workers

from ..torch_internals import is_told_to_end
from .loader_memory import make_for
from .mapped_regions import RegionMemory
from .sent_batches import Encoder, SentBatch, discard, regions_of, with_regions

_LOGGER = logging.getLogger(__name__)
_ADDRESS = "\0parquetry-relay-{}-{}"  # unix(7): the first byte says that there is no file
_LENGTH = struct.Struct("<q")
_TAKEN = b"\0"
_END = -1  # in place of a length: no more batches
_HELLO = struct.Struct("<16sqq")  # what all workers must agree on, the lane, the elements it has had
_MEETING_S = 10.0
_RETRY_S = 0.002
_LOOK_S = 0.1
_BUFFERED_BYTES = 512  # what the kernel counts for each message, beside the message itself
_READ_BYTES = 1 << 16
_LONGEST_LAG = 2  # by how many elements a worker may be behind another one
_OPEN_REGIONS = 256  # more than a worker has in use
_MOST_DESCRIPTORS = 64
_MOST_WAITING = 16  # about how many batches a socket holds
_MOST_LARGE_WAITING = 4  # of those that are not small: more take turns in more memory than caches hold
_SMALL_BYTES = 1 << 21
_SHARE_OF_MEMORY = 4  # batches that wait in sockets take at most this fraction of the memory limit


def most_waiting(pipeline: Pipeline, workers: int) -> int:
    """How many batches of each worker may wait if one worker makes those of all; 0 if each worker makes its own.

    Each makes its own if Python code is slow (user functions, codecs that hold the interpreter lock), because only
    processes run it side by side; and if a row may be left out, because each worker counts those of its own batches.
    """
    if not pipeline.element.batched or pipeline.source.served or pipeline.executor != "threads":
        return 0
    plan = pipeline.plan()
    alone = plan.skips or plan.program.drops or needs_workers(plan.program, workers * (pipeline.workers or 1))
    if alone or not is_visible():
        return 0
    most = _MOST_WAITING if plan.step_bytes <= _SMALL_BYTES else _MOST_LARGE_WAITING
    affordable = pipeline.options.memory_bytes // _SHARE_OF_MEMORY // (plan.step_bytes * workers)
    return max(1, min(affordable, most))


def most_in_run(pipeline: Pipeline, waiting: int) -> int:
    """How many batches a worker may send as one item, if ``waiting`` of them may wait for it."""
    return max(min(waiting, _SMALL_BYTES // pipeline.plan().step_bytes), 1)


def new_meeting(workers: int) -> str | None:
    """Returns a name under which the workers of a pass meet, and which nobody else can guess; ``None`` if they do not.

    Called in the training process. Workers are forked or unpickled with the name.
    """
    return secrets.token_hex(16) if workers > 0 and knows_peers() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """What a worker needs to take part.

    Attributes:
        name: of the meetings.
        is_producer: whether this worker makes the batches.
        pipeline: makes all batches.
        most_waiting: how many batches of a worker may wait.
        most_in_run: how many batches a worker may send as one item.
    """

    name: str
    is_producer: bool
    pipeline: Pipeline
    counters: Counters
    most_waiting: int
    most_in_run: int = 1

    def join(self, cursor: Cursor, state: Callable[[], dict[str, Any]]) -> Relay | None:
        """Meets the other workers. Returns ``None`` if they do not come.

        Args:
            cursor: this worker's part.
            state: returns its state; all workers must iterate the same.
        """
        try:
            same = {key: value for key, value in state().items() if key not in ("worker", "consumed")}
            agreed = hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=16).digest()
            address = _ADDRESS.format(self.name, cursor.iteration)
            if self.is_producer:
                Producer(self, address, agreed, cursor).start()
            return Relay(self, address, agreed, cursor)
        except (OSError, RuntimeError, ParquetryError):  # too many threads are a RuntimeError
            return None


class Relay:
    """A worker's end: yields its batches, to be passed on.

    Raises:
        OSError: there is no producer, or the loader has stopped.
    """

    def __init__(self, plan: RelayPlan, address: str, agreed: bytes, cursor: Cursor) -> None:
        connection = _connected(address)
        try:
            connection.sendall(_HELLO.pack(agreed, cursor.worker, cursor.start))
            _await_others(connection)
        except BaseException:
            connection.close()
            raise
        self._inbox = _Inbox(connection)
        self._regions: dict[int, _PassedRegion] = {}
        self._worker = cursor.worker
        self._close = weakref.finalize(self, _leave, self._inbox, cursor.worker)
        self._close.atexit = False
        self._counts = plan.most_waiting < _MOST_WAITING
        self._failed = False
        self.ended = False

    def take_received(self) -> SentBatch | None:
        """As `take`, but returns ``None`` if it would have to wait."""
        return self.take() if self._inbox.has_message() else None

    def take(self) -> SentBatch | None:
        """Returns the next batch, or ``None`` if there is none: then `ended` tells whether that was the last one."""
        message = None if self.ended or self._failed else self._inbox.message()
        if not message:
            self.ended = self.ended or message == b""
            return None
        own = [self._own(memory) for memory, _ in regions_of(message)]
        if self._counts:
            self._inbox.confirm()
        if None in own:
            self._failed = True
            with contextlib.suppress(ParquetryError):  # the producer is gone
                discard(message, self._worker)
            return None
        return SentBatch(with_regions(message, [each for each in own if each is not None]))

    def _own(self, memory: RegionMemory) -> RegionMemory | None:
        """Returns the region by a descriptor of this process, because the producer may end before the trainer maps it.

        ``None`` if there is no descriptor: this process has too many open files.
        """
        if memory.worker == os.getpid():
            return memory
        known = self._regions.get(memory.region)
        if known is None or known.sent != memory:
            descriptor = self._inbox.descriptor()
            if descriptor is None:
                return None
            known = self._regions[memory.region] = _PassedRegion(memory, descriptor)
            _keep_open(known)
        return known.own

    def close(self) -> None:
        """Leaves. Idempotent."""
        self._close()


class _PassedRegion:
    """A region of the producer, held open by this process."""

    def __init__(self, sent: RegionMemory, descriptor: int) -> None:
        self.sent = sent
        self.own = sent._replace(worker=os.getpid(), descriptor=descriptor)
        weakref.finalize(self, os.close, descriptor).atexit = False


_open_regions: dict[tuple[int, int], _PassedRegion] = {}
"""By producer and region. They stay open after the pass, because the trainer may still have to map them."""


def _keep_open(region: _PassedRegion) -> None:
    _open_regions[region.sent.worker, region.sent.region] = region  # the trainer has given back earlier memory of it
    if len(_open_regions) > _OPEN_REGIONS:
        del _open_regions[next(iter(_open_regions))]


class _Inbox:
    """Reads messages, and the descriptors of regions that came with them."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._bytes = bytearray()
        self._descriptors: deque[int] = deque()
        self._misses_some = False

    def message(self) -> bytes | None:
        """Returns the next message; an empty one after the last; ``None`` if the producer has left."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        return b"" if size == _END else self._read(size)

    def has_message(self) -> bool:
        """Whether a whole message, or the end, is here."""
        if self._is_whole():
            return True
        self._receive(socket.MSG_DONTWAIT)
        return self._is_whole()

    def _is_whole(self) -> bool:
        return (
            len(self._bytes) >= _LENGTH.size and len(self._bytes) - _LENGTH.size >= _LENGTH.unpack_from(self._bytes)[0]
        )

    def descriptor(self) -> int | None:
        """Returns the next descriptor; ``None`` if it was lost."""
        return None if self._misses_some or not self._descriptors else self._descriptors.popleft()

    def confirm(self) -> None:
        """Tells the producer that a message was taken."""
        with contextlib.suppress(OSError):
            self.socket.send(_TAKEN)

    def _read(self, size: int) -> bytes | None:
        while len(self._bytes) < size:
            if not self._receive():
                return None
        data = bytes(self._bytes[:size])
        del self._bytes[:size]
        return data

    def _receive(self, flags: int = 0) -> bool:
        """Returns whether more bytes came."""
        try:
            data, descriptors, message_flags = receive(self.socket, _READ_BYTES, _MOST_DESCRIPTORS, flags)
        except OSError:
            return False
        self._descriptors += descriptors
        if message_flags & socket.MSG_CTRUNC:  # some were lost: this process has too many open files
            self._misses_some = True
        self._bytes += data
        return bool(data)

    def close(self) -> None:
        """Closes the connection and all descriptors."""
        self.socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


class Producer:
    """Makes the batches of all workers, in a thread.

    Raises:
        OSError: there is no such address.
    """

    def __init__(self, plan: RelayPlan, address: str, agreed: bytes, cursor: Cursor) -> None:
        self._plan = plan
        self._agreed = agreed
        self._cursor = cursor
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(address)
            self._listener.listen(cursor.workers)
        except BaseException:
            self._listener.close()
            raise

    def start(self) -> None:
        """Starts the thread. It ends after the last batch, or when no worker listens.

        Raises:
            RuntimeError: this process may have no more threads.
        """
        try:
            threading.Thread(target=self._run, name="parquetry-relay", daemon=True).start()
        except RuntimeError:
            self._listener.close()
            raise

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._listener)
            lanes = self._meet(stack)
            self._listener.close()
            begin = min((lane.upcoming for lane in lanes), default=0)
            if not lanes or any(lane.upcoming - begin > lane.most_ahead for lane in lanes):
                _LOGGER.info("the loader workers did not all meet, or not at one position; each makes its own batches")
                return
            try:
                self._deal(lanes, begin)
            except Exception as error:  # an error of the data comes again in the worker that it concerns
                _LOGGER.info("loader worker 0 stopped making the batches of all; each makes its own: %r", error)

    def _meet(self, stack: contextlib.ExitStack) -> list[_Lane]:
        """Returns the workers in the order of their lanes, or none if some do not come, or do not agree."""
        deadline = time.monotonic() + _MEETING_S
        lanes: dict[int, _Lane] = {}
        with contextlib.suppress(OSError):
            while len(lanes) < self._cursor.workers:
                self._listener.settimeout(max(deadline - time.monotonic(), 0.001))
                connection = stack.enter_context(self._listener.accept()[0])
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                hello = connection.recv(_HELLO.size, socket.MSG_WAITALL) if _is_ours(connection) else b""
                if len(hello) < _HELLO.size:
                    continue
                agreed, number, start = _HELLO.unpack(hello)
                if agreed != self._agreed:
                    break
                connection.settimeout(None)
                lanes[number] = _Lane(connection, number, start, self._plan.most_waiting, self._cursor)
        everyone = range(self._cursor.workers)
        return [lanes[number] for number in everyone] if lanes.keys() == set(everyone) else []

    def _deal(self, lanes: list[_Lane], begin: int) -> None:
        make_for(len(lanes))
        pipeline = self._plan.pipeline
        steps = StepIterator(
            pipeline.with_options(workers=(pipeline.workers or 1) * len(lanes)),
            self._cursor.iteration,
            strict_nulls=True,
            converter=Encoder(pipeline.element),
            counters=self._plan.counters,
            waits=False,
        )
        steps.begin_at(replace(self._cursor, worker=0, workers=1, start=begin))
        try:
            for index in itertools.count(begin):
                step = next(steps, None)
                if step is None:
                    for lane in lanes:
                        lane.end()
                    return
                lanes[index % len(lanes)].send(index, step[1])
                if not any(lane.is_open for lane in lanes):
                    return
        finally:
            steps.close()


class _Lane:
    """The producer's end of a worker."""

    def __init__(self, connection: socket.socket, number: int, start: int, most_waiting: int, own: Cursor) -> None:
        self.upcoming = start * own.workers + number
        self._own = own.worker
        self._is_own = number == own.worker
        self._most_waiting = most_waiting
        self._waiting = 0
        self._known: dict[int, RegionMemory] = {}
        self.most_ahead = _LONGEST_LAG * own.workers
        self.is_open = True
        self._socket = connection

    def send(self, index: int, message: bytes) -> None:
        """Sends a batch, unless the worker had it before, has left, or cannot be sent any more."""
        if self.is_open and index >= self.upcoming:
            try:
                self._send(_LENGTH.pack(len(message)) + message, self._new_descriptors(message))
                return
            except OSError:
                self._give_up()
        discard(message, self._own)

    def _give_up(self) -> None:
        """Lets the worker make its own batches, after those that it was sent: it may wait for the next one."""
        self.is_open = False
        with contextlib.suppress(OSError):  # it has left
            self._socket.shutdown(socket.SHUT_WR)

    def _new_descriptors(self, message: bytes) -> list[int]:
        """Returns the descriptors of regions that the worker does not know yet."""
        new = [each for each, _ in regions_of(message) if self._known.get(each.region) != each]
        self._known.update({each.region: each for each in new})
        return [each.descriptor for each in new]

    def _send(self, data: bytes, descriptors: list[int]) -> None:
        while _MOST_WAITING > self._most_waiting <= self._waiting:
            taken = len(self._socket.recv(_MOST_WAITING))
            if not taken:
                raise BrokenPipeError
            self._waiting -= taken
        if not self._waiting:  # the kernel doubles the number, to have room for what it counts
            size = self._most_waiting * (len(data) + _BUFFERED_BYTES) // 2
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self._waiting += 1
        if descriptors and not self._is_own:
            data = data[socket.send_fds(self._socket, [data], descriptors) :]
        if data:  # even sending nothing fails after the worker has left, but then it has the message
            self._socket.sendall(data)

    def end(self) -> None:
        """Tells the worker that there are no more batches."""
        with contextlib.suppress(OSError):
            self._socket.sendall(_LENGTH.pack(_END))


def _connected(address: str) -> socket.socket:
    """Returns a connection to the producer, which may not have come yet.

    Raises:
        OSError: it does not come, or the loader has stopped.
    """
    deadline = time.monotonic() + _MEETING_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
            if not _is_ours(connection):
                raise PermissionError("expected a process of this user.")
            return connection
        except ConnectionRefusedError:
            connection.close()
            if time.monotonic() >= deadline or is_told_to_end():
                raise
            time.sleep(_RETRY_S)
        except BaseException:
            connection.close()
            raise


def _await_others(connection: socket.socket) -> None:
    """Waits for the first message, which comes when all workers have met, or for the producer to leave.

    Raises:
        OSError: the loader has stopped, so some may never come.
    """
    connection.settimeout(_LOOK_S)
    while True:
        try:
            connection.recv(1, socket.MSG_PEEK)
            break
        except TimeoutError:
            if is_told_to_end():
                raise
    connection.settimeout(None)


def _is_ours(connection: socket.socket) -> bool:
    return user_of(connection) == os.getuid()


def _leave(inbox: _Inbox, worker: int) -> None:
    """Closes a worker's end, and gives back the memory of batches that it was sent and did not take."""
    with contextlib.closing(inbox), contextlib.suppress(OSError):
        inbox.socket.shutdown(socket.SHUT_RD)
        while message := inbox.message():
            with contextlib.suppress(ParquetryError):  # the producer is gone
                discard(message, worker)
