"""The sidecar's messages: constants, packing and unpacking. `docs/protocol.md` describes them.

The functions are pure. The C++ side is ``tf_plugin/kernels/protocol.h`` and ``messages.cc``.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import numpy as np

from ...base.errors import SidecarError
from ...base.process.dataclass import dataclass
from ...plan.order.cursor import Cursor, Origin

MAGIC = 0x59525150
VERSION = 3
HEADER = struct.Struct("<IHHQQQII")
START = struct.Struct("<QQQQIIII")
STARTED = struct.Struct("<QQII")
BATCH = struct.Struct("<QQQIIQ")
ERROR = struct.Struct("<II")
MERGE = 1
"""Flag of START: a message may hold several batches."""
RESUME = 2
"""Flag of START: begin at the state that it carries."""
ENTRY_BYTES = 96
MAX_DIMS = 8
MAX_BODY_BYTES = 61_440
ALIGNMENT = 64
_HEAD_BYTES = 8_000
_CUT = b"\n[... cut ...]\n"


class MessageType(enum.IntEnum):
    """The type of a message. Types below 100 are sent to the sidecar."""

    OPEN = 1
    START = 2
    RELEASE = 3
    STOP = 4
    CLOSE = 5
    OPENED = 101
    STARTED = 102
    SLOT = 103
    BATCH = 104
    END = 105
    ERROR = 106
    STATE = 107


class Role(enum.IntEnum):
    """The role of a tensor in its field."""

    DENSE = 0
    STRING_OFFSETS = 1
    STRING_DATA = 2
    RAGGED_SHAPES = 3
    RAGGED_VALUES = 4
    VALID = 5


_TYPES = frozenset(int(kind) for kind in MessageType)
INFINITE = -1
UNKNOWN = -2

DTYPE_CODES: dict[str, int] = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
}

ENTRY = np.dtype(
    {
        "names": ["field", "role", "dtype", "ndim", "offset", "bytes", "dims"],
        "formats": ["<u2", "<u2", "<u2", "<u2", "<u8", "<u8", ("<i8", (MAX_DIMS,))],
        "offsets": [0, 2, 4, 6, 8, 16, 24],
        "itemsize": ENTRY_BYTES,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One packet. ``a`` and ``b`` are unsigned on the wire; `signed` reads them as i64."""

    type: MessageType
    generation: int = 0
    a: int = 0
    b: int = 0
    body: bytes = b""
    descriptor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The body of a START message.

    Attributes:
        cursor: where to begin, unless there is a ``state``.
        merge: whether a message may hold several batches.
        state: a saved state to continue from, as text that only the sidecar interprets.

    The memory for counters is the descriptor of the message.
    """

    cursor: Cursor
    merge: bool
    state: str | None = None

    def pack(self) -> bytes:
        state = b"" if self.state is None else self.state.encode()
        cursor, flags = self.cursor, MERGE * self.merge | RESUME * (self.state is not None)
        place = (cursor.iteration, cursor.origin.passes, cursor.origin.rows, cursor.start)
        return START.pack(*place, cursor.worker, cursor.workers, flags, len(state)) + state

    @classmethod
    def unpack(cls, body: bytes) -> Start:
        """The inverse of `pack`.

        Raises:
            SidecarError: the bytes are not such a body.
        """
        numbers, (state,) = _taken_apart(MessageType.START, START, body, texts=1)
        iteration, passes, rows, start, worker, workers, flags = numbers
        if worker >= workers or flags & ~(MERGE | RESUME):
            raise SidecarError(f"message START: expected one worker of several and known flags, got {numbers}.")
        origin = Origin(passes=passes, rows=rows)
        return cls(
            cursor=Cursor(iteration=iteration, origin=origin, start=start, worker=worker, workers=workers),
            merge=bool(flags & MERGE),
            state=state if flags & RESUME else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The body of a STARTED message.

    Attributes:
        iteration: the number of the iteration; a state may set it.
        most_slots: the maximum number of slots that the sidecar will use.
        before, after: the texts around the number of consumed elements in a state.
    """

    iteration: int
    most_slots: int
    before: str
    after: str

    def pack(self) -> bytes:
        before, after = self.before.encode(), self.after.encode()
        return STARTED.pack(self.iteration, self.most_slots, len(before), len(after)) + before + after

    @classmethod
    def unpack(cls, body: bytes) -> Started:
        """The inverse of `pack`.

        Raises:
            SidecarError: the bytes are not such a body.
        """
        (iteration, most_slots), (before, after) = _taken_apart(MessageType.STARTED, STARTED, body, texts=2)
        return cls(iteration=iteration, most_slots=most_slots, before=before, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteError:
    """The body of an ERROR message: the name of a class in `errors`, and the error's text."""

    name: str
    text: str

    def pack(self) -> bytes:
        """Returns the bytes of the body.

        A text that is too long loses its middle, never its end, which names the cause.
        """
        # A lone surrogate is not valid UTF-8, so it is escaped.
        name, text = self.name.encode(), self.text.encode(errors="backslashreplace")
        text = text.replace(b"\0", b"\\0")  # TensorFlow ends texts at a null byte
        room = MAX_BODY_BYTES - ERROR.size - len(name)
        if len(text) > room:
            head, tail = text[:_HEAD_BYTES], text[_HEAD_BYTES + len(_CUT) - room :]
            text = _whole_characters(head) + _CUT + _whole_characters(tail)
        return ERROR.pack(len(name), len(text)) + name + text

    @classmethod
    def unpack(cls, body: bytes) -> RemoteError:
        """The inverse of `pack`.

        Raises:
            SidecarError: the bytes are not such a body.
        """
        _, (name, text) = _taken_apart(MessageType.ERROR, ERROR, body, texts=2)
        return cls(name=name, text=text)


class BatchHeader(NamedTuple):
    """Describes elements of one size in a slot. The body of a BATCH message is one header, or several in a row."""

    slot_bytes: int
    table_offset: int
    first_element: int
    num_tensors: int
    num_elements: int
    num_rows: int

    def pack(self) -> bytes:
        return BATCH.pack(*self)

    @classmethod
    def unpack(cls, body: bytes) -> BatchHeader:
        """The inverse of `pack`.

        Raises:
            SidecarError: the bytes are not a header.
        """
        numbers, _ = _taken_apart(MessageType.BATCH, BATCH, body, texts=0)
        return cls(*numbers)

    @classmethod
    def unpack_all(cls, body: bytes) -> list[BatchHeader]:
        """Returns the headers in the body of a BATCH message. Raises like `unpack`."""
        ends = range(BATCH.size, max(len(body), BATCH.size) + BATCH.size, BATCH.size)
        return [cls.unpack(body[end - BATCH.size : end]) for end in ends]


def pack(message: Message) -> bytes:
    """Returns the packet of a message. Its descriptor is sent separately."""
    if len(message.body) > MAX_BODY_BYTES:
        raise SidecarError(
            f"message {message.type.name}: expected a body of at most {MAX_BODY_BYTES} bytes, got {len(message.body)}."
        )
    mask = (1 << 64) - 1
    header = HEADER.pack(
        MAGIC,
        VERSION,
        message.type,
        message.generation,
        message.a & mask,
        message.b & mask,
        len(message.body),
        0 if message.descriptor is None else 1,
    )
    return header + message.body


def unpack(packet: bytes, descriptors: list[int]) -> Message:
    """Returns the message in a packet.

    Raises:
        SidecarError: bytes that are not a message of this version.
    """
    if len(packet) < HEADER.size:
        raise SidecarError(f"sidecar message: expected at least {HEADER.size} bytes, got {len(packet)}.")
    magic, version, kind, generation, a, b, body_bytes, count = HEADER.unpack_from(packet)
    if magic != MAGIC or version != VERSION:
        raise SidecarError(
            f"sidecar message: expected protocol version {VERSION}, got magic {magic:#x} version {version}. "
            "Trainer and sidecar must run the same parquetry."
        )
    if kind not in _TYPES:
        raise SidecarError(f"sidecar message: expected one of the types {sorted(_TYPES)}, got {kind}.")
    body = packet[HEADER.size :]
    if len(body) != body_bytes or count != len(descriptors):
        raise SidecarError(
            f"sidecar message {kind}: expected {body_bytes} bytes and {count} descriptors, "
            f"got {len(body)} and {len(descriptors)}."
        )
    return Message(
        type=MessageType(kind),
        generation=generation,
        a=a,
        b=b,
        body=body,
        descriptor=descriptors[0] if descriptors else None,
    )


def _taken_apart(kind: MessageType, form: struct.Struct, body: bytes, *, texts: int) -> tuple[list[int], list[str]]:
    """Splits a body into its leading numbers and the texts after them.

    The last numbers are the lengths of the texts.
    """
    numbers = list(form.unpack_from(body)) if len(body) >= form.size else []
    lengths = numbers[len(numbers) - texts :]
    if not numbers or form.size + sum(lengths) != len(body):
        raise SidecarError(
            f"message {kind.name}: expected a body of {form.size} bytes and texts that fill it, got {len(body)} bytes "
            f"and texts of {lengths}."
        )
    parts, at = [], form.size
    for length in lengths:
        parts.append(body[at : at + length].decode(errors="replace"))
        at += length
    return numbers[: len(numbers) - texts], parts


def _whole_characters(text: bytes) -> bytes:
    """Removes partial characters from both ends of truncated UTF-8."""
    return text.decode(errors="ignore").encode()
