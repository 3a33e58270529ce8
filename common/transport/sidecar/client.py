"""The Python client of the sidecar. It starts the process, maps its slots, and returns batches without a copy.

`SidecarSource` returns the steps of one iteration. After an iteration, the sidecar stays idle for a while and serves
the next one.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import ctypes
import json
import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...counting.counters import Count
from ...counting.tracing import ENVIRONMENT
from ...engine.columns.batch import Column, leading
from ...engine.run.step_run import NO_STEPS, Converter, StepRun
from ...errors import ELEMENT_ERRORS, SidecarError, error_class, limit_reached
from ...memory.arena import SMALL_BYTES
from ...order.cursor import SkipState
from ...plan.options import RESTARTS
from ...plan.state import state_of
from ...schema.element import OutputField
from ..children import start_child
from ..exit_status import how_it_ended
from ..processes import SHARED, python_command
from ..source import StepRequest
from .channel import Channel, memory_file
from .protocol import BatchHeader, Message, MessageType, RemoteError, Start, Started
from .request import may_share_process, open_request
from .slots import read_table
from .stalls import StallWatch, is_stopped

_LOGGER = logging.getLogger(__name__)
IDLE_S = 30.0
"""How long a sidecar waits for the next iteration, unless ``PARQUETRY_SIDECAR_IDLE_S`` says otherwise."""
FEWEST_KEPT = 4
"""The number of idle sidecars that are always kept, because training and validation alternate."""
_DEATH_S = 2.0
_TAIL_CHARACTERS = 8192


class SidecarDiedError(SidecarError):
    """A sidecar died. Callers of the client see a plain `SidecarError`, and only if restarting did not help."""


class SidecarClient:
    """One connection to one sidecar process.

    Args:
        request: the OPEN request, JSON.
        stall_timeout: the option of that name.

    Raises:
        SidecarError: the process could not be started, or died.
        ParquetryError: an error from planning.
    """

    def __init__(self, request: bytes, stall_timeout: float | None = None) -> None:
        self.request = request
        self.pid = os.getpid()
        self._shared = may_share_process(request.decode())
        self._surroundings = _surroundings()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shared = [SHARED] if self._shared else []
        self._stderr = ""
        command = python_command("parquetry.common.sidecar", *shared, "--fd", str(theirs.fileno()))
        try:
            self._process, self._drain = start_child(
                command,
                meanwhile=self._drain_stderr,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so Ctrl-C reaches only the trainer
            )
        except (OSError, RuntimeError) as error:
            ours.close()
            raise SidecarError(
                f"sidecar could not be started with {command}: {error}. "
                + (limit_reached(error) or "Set PARQUETRY_PYTHON to a Python in which parquetry is installed.")
            ) from error
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._generation = 0
        self._most_slots = 0
        self._slots: dict[int, _MappedSlot] = {}
        self._outstanding: set[int] = set()  # slots that the user holds; add and discard need no lock
        self._closed = False
        self._stall_s: float | None = None  # how long the process may stay inactive
        self._stalled: str | None = None
        self.failed_at: int | None = None  # the position after the element whose error was raised last
        self._interrupted = False
        self.skipped: deque[tuple[int, SkipState]] = deque()  # (position, what is left out from there on)
        self._open(request, stall_timeout)

    def may_open(self, request: bytes) -> bool:
        """Returns whether `open` may be called.

        That needs the same surroundings that a new process would get, and no slots in use.
        """
        free = self._shared and not self._outstanding
        return free and may_share_process(request.decode()) and self._surroundings == _surroundings()

    def open(self, request: bytes, stall_timeout: float | None) -> bool:
        """Opens another request in the same process. Returns ``False`` if that fails; the process has then ended.

        Raises:
            ParquetryError: an error from planning; the process has then ended, too.
        """
        self._generation += 1
        try:
            self._open(request, stall_timeout)
        except SidecarError:
            return False
        return True

    def start(self, wanted: Start, counters: int | None = None) -> None:
        """Begins an iteration. ``counters`` is the descriptor of the memory in which it counts."""
        self._generation += 1
        self.skipped.clear()
        body = wanted.pack()
        self._send(Message(type=MessageType.START, generation=self._generation, body=body, descriptor=counters))
        message = self._next(MessageType.STARTED)
        with self._held_to_protocol():
            self._most_slots = Started.unpack(message.body).most_slots

    def next_batch(self, outputs: tuple[OutputField, ...]) -> tuple[BatchHeader, list[Column]] | None:
        """Returns the next batch as views into its slot, or ``None`` at the end."""
        while (message := self._next(MessageType.BATCH, MessageType.END, MessageType.STATE)).type == MessageType.STATE:
            with self._held_to_protocol():
                self.skipped.append((message.a, SkipState.from_json(json.loads(b"{" + message.body[1:]))))
        if message.type == MessageType.END:
            return None
        with self._held_to_protocol():
            header = BatchHeader.unpack(message.body)
            lease = self._slots[message.a].lease(header.slot_bytes)
            self._outstanding.add(message.a)
            scarce = self._most_slots - len(self._outstanding) <= 1
            weakref.finalize(lease, self._give_back, message.a).atexit = False
            # If the consumer keeps many batches, this one is copied, so that the sidecar never runs out of slots.
            return header, read_table(lease, header, outputs, copied_bytes=header.slot_bytes if scarce else SMALL_BYTES)

    @property
    def reusable(self) -> bool:
        """Returns whether the sidecar may run another iteration. It may not after a user function was interrupted."""
        return self.alive and not self._interrupted

    def stop(self) -> None:
        """Ends the iteration and keeps the sidecar."""
        with contextlib.suppress(OSError):
            self._channel.send(Message(type=MessageType.STOP, generation=self._generation))
        self._generation += 1

    @property
    def alive(self) -> bool:
        """Returns whether the process runs and may be used by this object."""
        return not self._closed and self.pid == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """Ends the sidecar at once. Idempotent. Batches that the user holds stay valid."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        if self.pid != os.getpid():
            return
        if is_stopped(self._process.pid):
            self._process.kill()
        try:
            self._process.wait(timeout=_DEATH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A process that waits for a disk ends only when the disk answers.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_DEATH_S)
        self._drain.join(timeout=_DEATH_S)
        for slot in self._slots.values():
            slot.close()

    def _open(self, request: bytes, stall_timeout: float | None) -> None:
        self.request = request
        # The reader replaces stalled workers, and gets the time to do so.
        self._stall_s = None if stall_timeout is None else 1 + 1.25 * stall_timeout
        descriptor = memory_file("request")
        try:
            os.write(descriptor, request)
            message = Message(type=MessageType.OPEN, generation=self._generation, a=len(request), descriptor=descriptor)
            self._send(message)
            self._next(MessageType.OPENED)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(descriptor)

    def _next(self, *wanted: MessageType) -> Message:
        """Returns the next message of this generation, which must have one of these types.

        Raises:
            ParquetryError: an error that the sidecar reports.
            SidecarError: the sidecar is gone, or violates the protocol.
        """
        with self._held_to_protocol():
            message = self._receive(*wanted, MessageType.ERROR)
            problem = RemoteError.unpack(message.body) if message.type == MessageType.ERROR else None
        if problem is None:
            return message
        self.failed_at = message.b if message.a else None
        raise error_class(problem.name)(problem.text)

    def _receive(self, *wanted: MessageType) -> Message:
        """Returns the next message of this generation that is not about slots."""
        watch: StallWatch | None = None

        def is_over() -> bool:
            nonlocal watch
            watch = watch or StallWatch("the trainer", self._process.pid, timeout_s=self._stall_s, group=True)
            if self._stalled is None and (stalled := watch.stalled()) is not None:
                self._stalled = stalled
                self._process.kill()
            # Another process may hold the other end of the connection, so its closing alone may go unnoticed.
            return self._stalled is not None or self._process.poll() is not None

        while True:
            try:
                message = self._channel.receive(is_over)
            except KeyboardInterrupt:
                self._interrupted = True
                raise
            if message is None:
                raise self._death()
            if message.type == MessageType.SLOT and message.descriptor is not None:
                if message.a in self._slots:
                    self._slots[message.a].close()
                self._slots[message.a] = _MappedSlot(message.descriptor)
            elif message.type == MessageType.BATCH and message.generation != self._generation:
                self._release(message.a)
            elif message.generation >= self._generation or (
                message.type == MessageType.ERROR and not message.generation
            ):
                if message.type not in wanted or message.generation > self._generation:
                    names = " or ".join(kind.name for kind in wanted)
                    raise SidecarError(
                        f"expected {names} of generation {self._generation}, got {message.type.name} of "
                        f"generation {message.generation}."
                    )
                return message

    @contextlib.contextmanager
    def _held_to_protocol(self) -> Iterator[None]:
        """Ends a sidecar that violates the protocol."""
        try:
            yield
        except (SidecarError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            if self._closed:  # it died, and the error says so
                raise
            self.close()
            what = error if isinstance(error, SidecarError) else f"{error!r}."
            raise SidecarError(
                f"sidecar (process {self._process.pid}) broke the protocol: {what} Begin a new iteration to start "
                "another; resume from a saved state if you have one."
            ) from error

    def _give_back(self, slot: int) -> None:
        # A finaliser may run in any thread at any point, so it takes no lock.
        self._outstanding.discard(slot)
        self._release(slot)

    def _release(self, slot: int) -> None:
        if not self._closed and self.pid == os.getpid():
            with contextlib.suppress(OSError):
                self._channel.send(Message(type=MessageType.RELEASE, generation=self._generation, a=slot))

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError as error:
            raise self._death() from error

    def _death(self) -> SidecarDiedError:
        try:
            code = self._process.wait(timeout=_DEATH_S)
            how = self._stalled or how_it_ended(code)
        except subprocess.TimeoutExpired:
            how = self._stalled or "connection closed"
        self._drain.join(timeout=_DEATH_S)
        self.close()
        return SidecarDiedError(
            f"sidecar (process {self._process.pid}) died: {how}. Last stderr output:\n"
            f"{self._stderr.rstrip() or '(none)'}\n"
            "Begin a new iteration to start another; resume from a saved state if you have one."
        )

    def _drain_stderr(self, process: subprocess.Popen[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        assert process.stderr is not None
        with process.stderr as pipe:
            while chunk := os.read(pipe.fileno(), 4096):  # not by lines, because progress bars write no line ends
                text = decoder.decode(chunk)
                self._stderr = (self._stderr + text)[-_TAIL_CHARACTERS:]
                with contextlib.suppress(Exception):
                    print(text, end="", file=sys.stderr, flush=True)


class _MappedSlot:
    """The client's view of a slot."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None

    def lease(self, size: int) -> Any:
        """Returns the slot's memory. The slot is in use as long as this object or a view of it lives."""
        if self._memory is None or len(self._memory) < size:
            self._memory = mmap.mmap(self._descriptor, size)
        return (ctypes.c_uint8 * len(self._memory)).from_buffer(self._memory)

    def close(self) -> None:
        """Closes the descriptor. A mapping ends with the last array that uses it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._memory = None


def _surroundings() -> tuple[dict[str, str], str]:
    """Returns what a new process would inherit: the environment and the working directory."""
    try:
        return {**os.environ, ENVIRONMENT: ""}, os.getcwd()  # START names the trace
    except FileNotFoundError:  # it was removed
        return {**os.environ, ENVIRONMENT: ""}, ""


def idle_seconds() -> float:
    """Returns how long a sidecar may wait for the next iteration."""
    try:
        seconds = float(os.environ.get("PARQUETRY_SIDECAR_IDLE_S", IDLE_S))
    except ValueError:
        return IDLE_S
    return seconds if 0 <= seconds < threading.TIMEOUT_MAX else IDLE_S


class RecentMost:
    """The largest number noted recently."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque()  # times ascend, numbers descend

    def note(self, number: int, now: float) -> None:
        """Adds a number."""
        while self._noted and self._noted[-1][1] <= number:
            self._noted.pop()
        self._noted.append((now, number))

    def within(self, seconds: float, now: float) -> int:
        """Returns the largest number of the last ``seconds``, or 0 if there is none."""
        while self._noted and self._noted[0][0] < now - seconds:
            self._noted.popleft()
        return self._noted[0][1] if self._noted else 0


class IdlePool:
    """Idle sidecars, kept for the next iteration of the same request, and ended after `idle_seconds`.

    The pool holds as many as were recently in use at once. When it is full, the oldest one opens the next different
    request, or is ended when another one is returned.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[float, SidecarClient]] = []  # oldest first
        self._used: weakref.WeakSet[SidecarClient] = weakref.WeakSet()
        self._most_used = RecentMost()
        self._lock = threading.RLock()  # reentrant: the finalizer of an iterator may call `give` in any method here
        self._timer: threading.Timer | None = None

    def take(self, request: bytes, stall_timeout: float | None) -> SidecarClient:
        """Returns an idle sidecar for this request, or a new one."""
        while True:
            with self._lock:
                found = next((item for item in self._idle if item[1].request == request), None) or self._spare(request)
                if found is not None and not self._removed(found):
                    continue
            if found is None:
                return self._lend(SidecarClient(request, stall_timeout))
            client = found[1]
            if client.alive and (client.request == request or client.open(request, stall_timeout)):
                return self._lend(client)
            client.close()

    def give(self, client: SidecarClient) -> None:
        """Returns a sidecar to the pool."""
        idle_s = idle_seconds()
        with self._lock:
            self._most_used.note(len(self._used), time.monotonic())
            self._used.discard(client)
        if not client.reusable or not idle_s:
            client.close()
            return
        with self._lock:
            now, dropped = time.monotonic(), []
            self._idle.append((now + idle_s, client))
            while len(self._idle) > self._most_kept(idle_s, now):
                dropped.append(self._idle.pop(0))
            self._arm()
        for _, oldest in dropped:
            oldest.close()

    def close(self) -> None:
        """Ends all idle sidecars. Idempotent."""
        with self._lock:
            left, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for _, client in left:
            client.close()

    def forget(self) -> None:
        """Drops all sidecars in a forked child, because they belong to the parent."""
        self._idle = []
        self._used = weakref.WeakSet()
        self._timer = None
        self._lock = threading.RLock()

    def _removed(self, item: tuple[float, SidecarClient]) -> bool:
        """Removes an idle sidecar; returns ``False`` if a finalizer has dropped it meanwhile."""
        with contextlib.suppress(ValueError):
            self._idle.remove(item)
            return True
        return False

    def _spare(self, request: bytes) -> tuple[float, SidecarClient] | None:
        """Returns the oldest sidecar that may open a request, if the pool is full."""
        if len(self._idle) < self._most_kept(idle_seconds(), time.monotonic()):
            return None
        return next((item for item in self._idle if item[1].may_open(request)), None)

    def _most_kept(self, idle_s: float, now: float) -> int:
        return max(FEWEST_KEPT, self._most_used.within(idle_s, now))

    def _lend(self, client: SidecarClient) -> SidecarClient:
        with self._lock:
            self._used.add(client)
            self._most_used.note(len(self._used), time.monotonic())
        return client

    def _arm(self) -> None:
        if self._timer is None and self._idle:
            delay = max(0.1, min(due for due, _ in self._idle) - time.monotonic())
            self._timer = threading.Timer(delay, self._sweep)
            self._timer.daemon = True
            self._timer.start()

    def _sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._timer = None
            due = [item for item in list(self._idle) if item[0] <= now and self._removed(item)]
            self._arm()
        for _, client in due:
            client.close()


IDLE = IdlePool()
atexit.register(IDLE.close)
os.register_at_fork(after_in_child=IDLE.forget)


class SidecarSource:
    """The steps of one iteration, produced by a sidecar."""

    def __init__(self, wanted: StepRequest, converter: Converter) -> None:
        self._converter = converter
        element, cursor = wanted.plan.element, wanted.cursor
        self._outputs = element.leaves
        self._counters = wanted.counters
        self._batched = element.batched
        self.skipped = cursor.skipped
        self._run = NO_STEPS
        self.position = cursor.start
        request = open_request(
            wanted.describe(), wanted.versions(), wanted.plan, wanted.threads, strict_nulls=wanted.strict_nulls
        )
        self._request = request.encode()
        self._plan = wanted.plan
        self._cursor = cursor
        self._restarts = RESTARTS if wanted.options.restarts is None else wanted.options.restarts
        self._stall_timeout = wanted.options.stall_timeout
        self._restarted = 0  # in a row
        self._died_at = -1
        self._closed = False
        self._client: SidecarClient | None = None
        try:
            self._begin()
        except SidecarDiedError as error:
            self._begin_again(error)

    def _begin(self) -> None:
        """Begins after the last step that was returned."""
        self._client = IDLE.take(self._request, self._stall_timeout)
        try:
            cursor = replace(self._cursor, start=self.position, skipped=self.skipped)
            state = state_of(self._plan, cursor).to_json() if self.skipped else None
            self._client.start(Start(cursor=cursor, merge=True, state=state), self._counters.descriptor)
        except BaseException:
            self._release()
            raise
        if self._closed:  # closed by another thread in the meantime
            self._release()

    def _begin_again(self, death: SidecarError) -> None:
        """Replaces a sidecar that died.

        Raises:
            SidecarError: it died too often at this element.
            ParquetryError: an error from planning.
        """
        error = death
        while not self._closed:
            self._release()
            if self.position != self._died_at:
                self._died_at, self._restarted = self.position, 0
            if self._restarted >= self._restarts:
                often = f"\nIt was started again {self._restarted} times at element {self.position}."
                raise SidecarError(f"{error}{often if self._restarted else ''}") from error
            self._restarted += 1
            self._counters.row()[Count.RESTARTS] += 1
            _LOGGER.warning(
                "%s Starting another at element %d, %d of %d in a row.",
                str(error).partition(" Last stderr output")[0],
                self.position,
                self._restarted,
                self._restarts,
            )
            try:
                self._begin()
            except SidecarError as again:
                error = again
            else:
                return

    def __next__(self) -> tuple[int, Any]:
        while not (run := self._run).left:
            self._receive()
        step = run.take()
        self.position += 1 if self._batched else run.rows
        self._note_skipped()
        return run.rows, step

    @property
    def ready(self) -> int:
        """As `StepSource`."""
        return self._run.left

    def _receive(self) -> None:
        """Waits for a message and splits it into steps, if it has any. Raises ``StopIteration`` at the end."""
        client = self._client
        if client is None:
            raise StopIteration
        try:
            received = client.next_batch(self._outputs)
        except ELEMENT_ERRORS:
            if client.failed_at is None:
                self.close()
            else:
                self.position = client.failed_at
                self._note_skipped()
            raise
        except SidecarDiedError as error:
            if self._closed:
                raise SidecarError(str(error)) from error
            self._begin_again(error)
            return
        if received is None:
            self.close()
            raise StopIteration
        header, columns = received
        self._counters.row()[Count.DELIVERED_BYTES] += header.table_offset
        self.position = header.first_element
        begin = time.perf_counter()
        if self._batched:
            steps = header.num_elements
            self._run = StepRun(self._converter, [(columns, steps, leading(columns[0]) // steps)])
        else:
            self._run = StepRun(self._converter, [(columns, 1, header.num_elements)])
        self._counters.row()[Count.HAND_OVER_S] += time.perf_counter() - begin

    def _note_skipped(self) -> None:
        told = () if self._client is None else self._client.skipped
        while told and told[0][0] <= self.position:
            _, self.skipped = told.popleft()

    def close(self) -> None:
        """Ends the iteration and keeps the sidecar for the next one. Idempotent."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        client, self._client = self._client, None
        if client is not None and client.pid == os.getpid():
            client.stop()
            IDLE.give(client)
