"""Reads the pickles in a Petastorm dataset as plain data, without ever importing or calling what they name.

In: the bytes of a pickle, protocol 0 to 5, of Python 2 or 3. Out: scalars, tuples, lists, dicts and sets of Python, and
for everything else `Global` (a name) and `InertObject` (a name with its arguments and state). Always holds: a name
outside an exact list, any call but the few of `petastorm_calls`, and a pickle too large, too deep or cyclic raise
`SchemaError`; time and memory are bounded by `MAX_BYTES` and `MAX_STEPS`.

This interprets the opcodes itself instead of deriving from ``pickle.Unpickler``, whose REDUCE and BUILD act on live
objects whatever ``find_class`` returns.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from typing import Any

from ..errors import SchemaError
from .petastorm_calls import CALLS
from .petastorm_names import CLASSES, DTYPE, KEY_TYPES, RENAMED_MODULES, SYMBOLS, Global, InertObject, describe
from .petastorm_opcodes import OPCODES

MAX_BYTES = 64 << 20
MAX_STEPS = 2_000_000  # opcodes, plus items and characters that a call copies; an index takes 13 for each value
MAX_DEPTH = 64  # of open marks, and of the result

_ALLOWED = CLASSES | SYMBOLS | frozenset(CALLS)
_OPCODE_NAMES = {opcode.code.encode("latin1"): opcode.name for opcode in pickletools.opcodes}
_KIND_NAMES = {Global: "a name", InertObject: "an object"}
_INTEGERS = range(-(2**63), 2**64)  # without larger ones, few integer keys can share a hash


def load_inert(data: bytes, *, where: str) -> Any:
    """The value that a pickle describes, as plain data; ``where`` names the file in errors.

    Raises:
        SchemaError: a damaged or oversized pickle, or one that holds anything but Petastorm's own metadata.
    """
    machine = Machine(data, where)
    if len(data) > MAX_BYTES:
        raise machine.refuse(f"at most {MAX_BYTES} bytes", f"{len(data)}")
    try:
        result = machine.run()
    except SchemaError:
        raise
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise machine.refuse("a complete pickle", f"{type(error).__name__} ({str(error)[:80]})") from error
    machine.check_extent(result)
    return result


class Machine:
    """The stack, the marks and the memo of one pickle while it is read; used once."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.position = 0
        self.steps = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def refuse(self, expected: str, got: str) -> SchemaError:
        """The error for the opcode just read."""
        return SchemaError(
            f"Petastorm pickle of {self.where}, byte {self.position}: expected {expected}, got {got}. "
            "Nothing that a file names is imported or called; if you trust the file, write its metadata again."
        )

    def run(self) -> Any:
        """The value that is on top of the stack when the pickle ends."""
        while (code := self.take(1)) != pickle.STOP:
            self.spend(1)
            opcode = OPCODES.get(code)
            if opcode is None:
                raise self.refuse("opcodes that only build data", f"opcode {_OPCODE_NAMES.get(code, repr(code))}")
            opcode(self)
        return self.stack.pop()

    def spend(self, steps: int) -> None:
        """Charges the budget of time and memory."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise self.refuse(f"at most {MAX_STEPS} steps", "more")

    def expect(self, size_bytes: int) -> None:
        """Raises unless that many bytes are left."""
        left = len(self.data) - self.position
        if not 0 <= size_bytes <= left:
            raise self.refuse(f"{size_bytes} more bytes", f"{left}")

    def take(self, size_bytes: int) -> bytes:
        """The next bytes."""
        self.expect(size_bytes)
        self.position += size_bytes
        return self.data[self.position - size_bytes : self.position]

    def number(self, layout: str) -> int:
        """The next little-endian integer, in a layout of ``struct``."""
        return int(struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))[0])

    def line(self) -> bytes:
        """The bytes up to the next newline, which is taken too."""
        return self.take(self.data.index(b"\n", self.position) + 1 - self.position)[:-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_int(self, value: int) -> None:
        if value not in _INTEGERS:
            raise self.refuse("an integer of 64 bits", "a larger one")
        self.stack.append(value)

    def mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            raise self.refuse(f"at most {MAX_DEPTH} open marks", "more")
        self.marks.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        """The values pushed since the last mark."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def remember(self, index: int) -> None:
        if index >= MAX_STEPS:
            raise self.refuse(f"a memo number below {MAX_STEPS}", f"{index}")
        self.memo[index] = self.stack[-1]

    def find(self, module: Any, name: Any) -> None:
        """Pushes a name if it is on the exact list."""
        self.typed(module, str), self.typed(name, str)
        found = Global(RENAMED_MODULES.get(module, module), name)
        if found not in _ALLOWED:
            raise self.refuse("names of Petastorm's own metadata", f"the global {describe(f'{module}.{name}')}")
        self.push(found)

    def call(self) -> None:
        """A name with arguments becomes data."""
        args, function = self.typed(self.stack.pop(), tuple), self.typed(self.stack.pop(), Global)
        if function in CLASSES:
            self.push(InertObject(function, args))
        elif function in CALLS:
            self.push(CALLS[function](self, args))
        else:
            raise self.refuse("calls that only build data", f"a call of {function}")

    def build(self) -> None:
        """Gives an inert object its state, which is only kept."""
        state, target = self.stack.pop(), self.typed(self.stack[-1], InertObject)
        if target.state is not None:
            raise self.refuse("one state for each object", f"two for {target.cls}")
        target.state = self.typed(state, tuple if target.cls == DTYPE else dict)

    def set_items(self, items: list[Any]) -> None:
        target = self.typed(self.stack[-1], dict)
        if len(items) % 2:
            raise self.refuse("pairs of key and value", f"{len(items)} items")
        target.update((self.key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def key(self, value: Any) -> Any:
        """A dict key or set item: a scalar, whose hash costs little and runs no code of the file's choice."""
        if type(value) not in KEY_TYPES:
            raise self.refuse("text, bytes or a number as key", describe(value))
        return value

    def typed(self, value: Any, *kinds: type) -> Any:
        if type(value) not in kinds:
            raise self.refuse(" or ".join(_KIND_NAMES.get(kind, kind.__name__) for kind in kinds), describe(value))
        return value

    def check_extent(self, root: Any) -> None:
        """Walks the result as a tree, so that its users need not fear cycles, depth, or shared parts that explode."""
        pending, values = [(root, 1)], 1
        while pending:
            value, depth = pending.pop()
            children = _children(value)
            values += len(children)
            if depth > MAX_DEPTH or values > MAX_STEPS:
                raise self.refuse(f"at most {MAX_DEPTH} levels and {MAX_STEPS} values", "more")
            pending.extend((child, depth + 1) for child in children)


def _children(value: Any) -> list[Any] | tuple[Any, ...]:
    if type(value) is dict:
        return list(value.values())
    if type(value) is InertObject:
        return (value.args, value.state)
    return list(value) if type(value) in (list, tuple, set, frozenset) else ()
