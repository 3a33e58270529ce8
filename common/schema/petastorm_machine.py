"""The stack machine that a Petastorm pickle runs on: it builds plain data, and nothing else.

In: what the opcodes of one pickle ask for. Out: scalars, containers, `Global` and `InertObject`. Always holds: time and
memory are bounded by `MAX_STEPS` and `MAX_DEPTH`, keys and set items are scalars, and a name is never more than a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SchemaError
from .petastorm_names import CLASSES, DTYPE, KEY_TYPES, RENAMED_MODULES, SYMBOLS, Global, InertObject, Stored, describe

MAX_STEPS = 2_000_000  # opcodes, plus items and characters that a call copies; an index takes 13 for each value
MAX_DEPTH = 64  # of open marks, and of the result

_KIND_NAMES = {Global: "a name", InertObject: "an object"}
_INTEGERS = range(-(2**63), 2**64)  # without larger ones, few integer keys can share a hash

Calls = Mapping[Global, Callable[["Machine", tuple[Any, ...]], Any]]


class Machine:
    """The stack, the marks and the memo of one pickle while it is read; used once.

    Args:
        where: names the file in errors.
        calls: the functions that a pickle may call, each as one that builds data.

    Attributes:
        position: of the opcode just read, in bytes.
    """

    def __init__(self, where: str, calls: Calls) -> None:
        self.where = where
        self.calls = calls
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

    def spend(self, steps: int) -> None:
        """Charges the budget of time and memory."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise self.refuse(f"at most {MAX_STEPS} steps", "more")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def push_int(self, value: int) -> None:
        if value not in _INTEGERS:
            raise self.refuse("an integer of 64 bits", "a larger one")
        self.stack.append(value)

    def pop(self) -> None:
        """Drops the value on top, or the mark if there is none above it."""
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            raise self.refuse(f"at most {MAX_DEPTH} open marks", "more")
        self.marks.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        """The values pushed since the last mark."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def push_tuple(self, size: int) -> None:
        """Puts the last ``size`` values into a tuple."""
        if len(self.stack) < size:
            raise self.refuse(f"{size} values on the stack", f"{len(self.stack)}")
        self.stack[-size:] = [tuple(self.stack[-size:])]

    def remember(self, index: int) -> None:
        if not 0 <= index < MAX_STEPS:
            raise self.refuse(f"a memo number below {MAX_STEPS}", f"{index}")
        self.memo[index] = self.stack[-1]

    def find(self, module: object, name: object) -> None:
        """Pushes a name if it is on the exact list."""
        home, called = self.typed(module, str), self.typed(name, str)
        found = Global(RENAMED_MODULES.get(home, home), called)
        if not (found in CLASSES or found in SYMBOLS or found in self.calls):
            raise self.refuse("names of Petastorm's own metadata", f"the global {describe(f'{module}.{name}')}")
        self.push(found)

    def call(self) -> None:
        """A name with arguments becomes data."""
        args, function = self.typed(self.stack.pop(), tuple), self.typed(self.stack.pop(), Global)
        if function in CLASSES:
            self.push(InertObject(function, args))
        elif function in self.calls:
            self.push(self.calls[function](self, args))
        else:
            raise self.refuse("calls that only build data", f"a call of {function}")

    def build(self) -> None:
        """Gives an inert object its state, which is only kept."""
        state, target = self.stack.pop(), self.typed(self.stack[-1], InertObject)
        if target.state is not None:
            raise self.refuse("one state for each object", f"two for {target.cls}")
        target.state = self.typed(state, tuple if target.cls == DTYPE else dict)

    def append(self, items: list[Any]) -> None:
        self.typed(self.stack[-1], list).extend(items)

    def add(self, items: list[Any]) -> None:
        self.typed(self.stack[-1], set).update(self.key(item) for item in items)

    def set_items(self, items: list[Any]) -> None:
        target = self.typed(self.stack[-1], dict)
        if len(items) % 2:
            raise self.refuse("pairs of key and value", f"{len(items)} items")
        target.update((self.key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))

    def key(self, value: object) -> Any:
        """A dict key or set item: a scalar, whose hash costs little and runs no code of the file's choice."""
        if type(value) not in KEY_TYPES:
            raise self.refuse("text, bytes or a number as key", describe(value))
        return value

    def typed(self, value: object, *kinds: type) -> Any:
        if type(value) not in kinds:
            raise self.refuse(" or ".join(_KIND_NAMES.get(kind, kind.__name__) for kind in kinds), describe(value))
        return value

    def check_extent(self, root: object) -> None:
        """Walks the result as a tree, so that its users need not fear cycles, depth, or shared parts that explode."""
        pending, values = [(root, 1)], 1
        while pending:
            value, depth = pending.pop()
            children = _children(value)
            values += len(children)
            if depth > MAX_DEPTH or values > MAX_STEPS:
                raise self.refuse(f"at most {MAX_DEPTH} levels and {MAX_STEPS} values", "more")
            pending.extend((child, depth + 1) for child in children)


def _children(value: Stored) -> list[Stored] | tuple[Stored, ...]:
    if type(value) is dict:
        return list(value.values())
    if type(value) is InertObject:
        return (value.args, value.state)
    return list(value) if type(value) in (list, tuple, set, frozenset) else ()
