"""The stack machine that runs a Petastorm pickle. It builds plain data and nothing else.

It executes the opcodes of one pickle and returns scalars, containers, `Global` and `InertObject`. `MAX_STEPS` and
`MAX_DEPTH` bound time and memory, keys and set items are scalars, and names are never resolved to objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..base.errors import SchemaError
from .petastorm_names import CLASSES, DTYPE, KEY_TYPES, RENAMED_MODULES, SYMBOLS, Global, InertObject, Stored, describe

MAX_STEPS = 2_000_000  # opcodes, plus items and characters that a call copies; an index takes 13 per value
MAX_DEPTH = 64  # limits open marks and the nesting of the result

_KIND_NAMES = {Global: "a name", InertObject: "an object"}
_INTEGERS = range(-(2**63), 2**64)  # with this limit, few integer keys can share a hash

Calls = Mapping[Global, Callable[["Machine", tuple[Any, ...]], Any]]


class Machine:
    """The stack, the marks and the memo for reading one pickle. Use each instance once.

    Args:
        where: the file name for errors.
        calls: the functions that a pickle may call, each with a replacement that builds data.

    Attributes:
        position: the byte position of the opcode that was read last.
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
        """Returns the error for the opcode that was read last."""
        return SchemaError(
            f"Petastorm pickle of {self.where}, byte {self.position}: expected {expected}, got {got}. "
            "parquetry never imports or calls what a file names. If you trust the file, write its metadata again."
        )

    def spend(self, steps: int) -> None:
        """Charges steps to the budget for time and memory."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise self.refuse(f"at most {MAX_STEPS} steps", "more")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def push_int(self, value: int) -> None:
        if value not in _INTEGERS:
            raise self.refuse("a 64-bit integer", "a larger one")
        self.stack.append(value)

    def pop(self) -> None:
        """Drops the top value, or the mark if there is no value above it."""
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
        """Pops the last mark and returns the values pushed since."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def push_tuple(self, size: int) -> None:
        """Replaces the last ``size`` values by a tuple of them."""
        if len(self.stack) < size:
            raise self.refuse(f"{size} values on the stack", f"{len(self.stack)}")
        self.stack[-size:] = [tuple(self.stack[-size:])]

    def remember(self, index: int) -> None:
        if not 0 <= index < MAX_STEPS:
            raise self.refuse(f"a memo number below {MAX_STEPS}", f"{index}")
        self.memo[index] = self.stack[-1]

    def find(self, module: object, name: object) -> None:
        """Pushes a name if it is on the list of allowed names."""
        home, called = self.typed(module, str), self.typed(name, str)
        symbol = Global(RENAMED_MODULES.get(home, home), called)
        if not (symbol in CLASSES or symbol in SYMBOLS or symbol in self.calls):
            raise self.refuse("names of Petastorm's own metadata", f"the global {describe(f'{module}.{name}')}")
        self.push(symbol)

    def call(self) -> None:
        """Pops a name and its arguments, and pushes the data that they stand for."""
        args, function = self.typed(self.stack.pop(), tuple), self.typed(self.stack.pop(), Global)
        if function in CLASSES:
            self.push(InertObject(function, args))
        elif function in self.calls:
            self.push(self.calls[function](self, args))
        else:
            raise self.refuse("calls that only build data", f"a call of {function}")

    def build(self) -> None:
        """Attaches state to an inert object. The state is stored, never executed."""
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
        """Checks a dict key or set item. Only scalars are allowed: they hash cheaply and run no code from the file."""
        if type(value) not in KEY_TYPES:
            raise self.refuse("text, bytes or a number as key", describe(value))
        return value

    def typed(self, value: object, *kinds: type) -> Any:
        if type(value) not in kinds:
            raise self.refuse(" or ".join(_KIND_NAMES.get(kind, kind.__name__) for kind in kinds), describe(value))
        return value

    def check_extent(self, root: object) -> None:
        """Walks the result as a tree. Refuses cycles, excessive depth, and shared parts that expand exponentially."""
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
