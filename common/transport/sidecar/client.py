"""The Python client of the sidecar. It starts the process, maps its slots, and returns batches without a copy."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import json
import mmap
import os
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ...base.errors import ParquetryError, PipelineError, SidecarError, error_class, limit_reached
from ...base.memory.arena import SMALL_BYTES
from ...base.metrics.tracing import ENVIRONMENT
from ...base.platform.memory_file import memory_file
from ...base.platform.sockets import packet_pair
from ...engine.columns.batch import Column
from ...plan.order.cursor import SkipState
from ...schema.element import OutputField
from ..children import how_it_ended, start_child
from ..processes import SHARED, python_command
from ..stalls import StallWatch, is_stopped
from .channel import Channel
from .protocol import BatchHeader, Message, MessageType, RemoteError, Start, Started
from .request import may_share_process
from .slots import read_table

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
        ours, theirs = packet_pair()
        shared = [SHARED] if self._shared else []
        self._stderr = ""
        command: Sequence[str] = ()
        try:
            command = python_command("parquetry.common.sidecar", *shared, "--fd", str(theirs.fileno()))
            self._process, self._drain = start_child(
                command,
                meanwhile=self._drain_stderr,
                hands_over=theirs,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so Ctrl-C reaches only the trainer
            )
        except (OSError, RuntimeError) as error:
            ours.close()
            theirs.close()
            if isinstance(error, ParquetryError):
                raise
            raise SidecarError(
                f"sidecar could not be started with {command}: {error}. "
                + (limit_reached(error) or "Set PARQUETRY_PYTHON to a Python in which parquetry is installed.")
            ) from error
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
        self._ends_wait = False
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

    def start(self, start: Start, counters: int | None = None) -> None:
        """Begins an iteration. ``counters`` is the descriptor of the memory in which it counts."""
        self._generation += 1
        self.skipped = deque()
        body = start.pack()
        self._send(Message(type=MessageType.START, generation=self._generation, body=body, descriptor=counters))
        message = self._next(MessageType.STARTED)
        with self._held_to_protocol():
            self._most_slots = Started.unpack(message.body).most_slots

    def next_batches(self, outputs: tuple[OutputField, ...]) -> list[tuple[BatchHeader, list[Column]]] | None:
        """Returns the batches of the next message as views into their slot, or ``None`` at the end."""
        while (message := self._next(MessageType.BATCH, MessageType.END, MessageType.STATE)).type == MessageType.STATE:
            with self._held_to_protocol():
                self.skipped.append((message.a, SkipState.from_json(json.loads(b"{" + message.body[1:]))))
        if message.type == MessageType.END:
            return None
        with self._held_to_protocol():
            headers = BatchHeader.unpack_all(message.body)
            lease = self._slots[message.a].lease(max(header.slot_bytes for header in headers))
            self._outstanding.add(message.a)
            scarce = self._most_slots - len(self._outstanding) <= 1
            weakref.finalize(lease, self._give_back, message.a).atexit = False
            # If the consumer keeps many batches, these are copied, so that the sidecar never runs out of slots.
            return [
                (
                    header,
                    read_table(lease, header, outputs, copied_bytes=header.slot_bytes if scarce else SMALL_BYTES),
                )
                for header in headers
            ]

    @property
    def reusable(self) -> bool:
        """Returns whether the sidecar may run another iteration. It may not after a user function was interrupted."""
        return self.alive and not self._interrupted

    def end_wait(self) -> None:
        """Makes the thread that waits for a message raise `PipelineError` soon. It must then call `stop`."""
        self._ends_wait = True

    def stop(self) -> None:
        """Ends the iteration and keeps the sidecar."""
        self._ends_wait = False
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
        except BaseException as error:
            if not isinstance(error, Exception):  # interrupted: a process that is still starting would read nothing
                self._process.kill()
            self.close()
            raise
        finally:
            os.close(descriptor)

    def _next(self, *kinds: MessageType) -> Message:
        """Returns the next message of this generation, which must have one of these types.

        Raises:
            ParquetryError: an error that the sidecar reports.
            SidecarError: the sidecar is gone, or violates the protocol.
        """
        with self._held_to_protocol():
            message = self._receive(*kinds, MessageType.ERROR)
            problem = RemoteError.unpack(message.body) if message.type == MessageType.ERROR else None
        if problem is None:
            return message
        self.failed_at = message.b if message.a else None
        raise error_class(problem.name)(problem.text)

    def _receive(self, *kinds: MessageType) -> Message:
        """Returns the next message of this generation that is not about slots."""
        watch: StallWatch | None = None

        def is_over() -> bool:
            nonlocal watch
            if self._ends_wait:
                return True
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
                if self._ends_wait and self._process.poll() is None:
                    raise PipelineError("iteration was closed.")
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
                if message.type not in kinds or message.generation > self._generation:
                    names = " or ".join(kind.name for kind in kinds)
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
        except PipelineError:  # the iteration was closed
            raise
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
