"""The pickle opcodes that only build data, each as a function on the machine's stack.

Always holds: opcodes that are not in `OPCODES` (persistent ids, extension codes, INST, OBJ, NEWOBJ_EX, out-of-band
buffers, byte arrays) are refused. Source of the layouts: ``pickletools`` of the standard library.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .petastorm_names import describe

if TYPE_CHECKING:
    from .petastorm_pickle import Machine

Opcode = Callable[["Machine"], None]

_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"'": b"'", b'"': b'"'}


def _protocol(machine: Machine) -> None:
    version = machine.number("B")
    if version > 5:
        raise machine.refuse("pickle protocol 0 to 5", f"{version}")


def _int_line(machine: Machine) -> None:
    text = machine.line()
    if text in (b"00", b"01"):
        return machine.push(text == b"01")
    if not re.fullmatch(rb"[+-]?[0-9]{1,20}L?", text):
        raise machine.refuse("an integer of 64 bits", describe(text))
    return machine.push_int(int(text.rstrip(b"L")))


def _long(machine: Machine, size: int) -> None:
    if size > 9:
        raise machine.refuse("an integer of 64 bits", f"one of {size} bytes")
    machine.push_int(int.from_bytes(machine.take(size), "little", signed=True))


def _float_line(machine: Machine) -> None:
    text = machine.line()
    if len(text) > 40:
        raise machine.refuse("a float", describe(text))
    machine.push(float(text))


def _memo_line(machine: Machine) -> int:
    text = machine.line()
    if not re.fullmatch(rb"[0-9]{1,10}", text):
        raise machine.refuse("a memo number", describe(text))
    return int(text)


def _string_line(machine: Machine) -> None:
    """A string literal of Python 2."""
    text = machine.line().strip()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise machine.refuse("a quoted string", describe(text))

    def unescape(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return bytes([int(found[1:], 16)]) if len(found) == 3 else _ESCAPES[found]

    machine.push(re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", unescape, text[1:-1], flags=re.DOTALL).decode("latin1"))


def _unicode_line(machine: Machine) -> None:
    text = machine.line().decode("raw-unicode-escape")
    machine.push(
        text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    )  # narrow Python 2 writes surrogate pairs


def _bytes(layout: str) -> Opcode:
    return lambda machine: machine.push(machine.take(machine.number(layout)))


def _text(layout: str, encoding: str) -> Opcode:
    return lambda machine: machine.push(machine.take(machine.number(layout)).decode(encoding))


def _append(machine: Machine, items: list[Any]) -> None:
    machine.typed(machine.stack[-1], list).extend(items)


def _add(machine: Machine, items: list[Any]) -> None:
    machine.typed(machine.stack[-1], set).update(machine.key(item) for item in items)


def _tuple(size: int) -> Opcode:
    def build(machine: Machine) -> None:
        if len(machine.stack) < size:
            raise machine.refuse(f"{size} values on the stack", f"{len(machine.stack)}")
        machine.stack[-size:] = [tuple(machine.stack[-size:])]

    return build


def _dict(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.push({})
    machine.set_items(items)


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


def _pop_mark(machine: Machine) -> None:
    machine.pop_mark()


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.find(module, name)


OPCODES: dict[bytes, Opcode] = {
    pickle.PROTO: _protocol,
    pickle.FRAME: lambda machine: machine.expect(machine.number("Q")),
    pickle.MARK: lambda machine: machine.mark(),
    pickle.POP: _pop,
    pickle.POP_MARK: _pop_mark,
    pickle.DUP: lambda machine: machine.push(machine.stack[-1]),
    # scalars
    pickle.NONE: lambda machine: machine.push(None),
    pickle.NEWTRUE: lambda machine: machine.push(True),
    pickle.NEWFALSE: lambda machine: machine.push(False),
    pickle.INT: _int_line,
    pickle.LONG: _int_line,
    pickle.BININT: lambda machine: machine.push(machine.number("i")),
    pickle.BININT1: lambda machine: machine.push(machine.number("B")),
    pickle.BININT2: lambda machine: machine.push(machine.number("H")),
    pickle.LONG1: lambda machine: _long(machine, machine.number("B")),
    pickle.LONG4: lambda machine: _long(machine, machine.number("i")),
    pickle.FLOAT: _float_line,
    pickle.BINFLOAT: lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    # text and bytes; the strings of Python 2 are read as latin1
    pickle.STRING: _string_line,
    pickle.BINSTRING: _text("i", "latin1"),
    pickle.SHORT_BINSTRING: _text("B", "latin1"),
    pickle.UNICODE: _unicode_line,
    pickle.BINUNICODE: _text("I", "utf-8"),
    pickle.SHORT_BINUNICODE: _text("B", "utf-8"),
    pickle.BINUNICODE8: _text("Q", "utf-8"),
    pickle.BINBYTES: _bytes("I"),
    pickle.SHORT_BINBYTES: _bytes("B"),
    pickle.BINBYTES8: _bytes("Q"),
    # containers
    pickle.EMPTY_TUPLE: lambda machine: machine.push(()),
    pickle.TUPLE: lambda machine: machine.push(tuple(machine.pop_mark())),
    pickle.TUPLE1: _tuple(1),
    pickle.TUPLE2: _tuple(2),
    pickle.TUPLE3: _tuple(3),
    pickle.EMPTY_LIST: lambda machine: machine.push([]),
    pickle.LIST: lambda machine: machine.push(machine.pop_mark()),
    pickle.APPEND: lambda machine: _append(machine, [machine.stack.pop()]),
    pickle.APPENDS: lambda machine: _append(machine, machine.pop_mark()),
    pickle.EMPTY_DICT: lambda machine: machine.push({}),
    pickle.DICT: _dict,
    pickle.SETITEM: _set_item,
    pickle.SETITEMS: lambda machine: machine.set_items(machine.pop_mark()),
    pickle.EMPTY_SET: lambda machine: machine.push(set()),
    pickle.ADDITEMS: lambda machine: _add(machine, machine.pop_mark()),
    pickle.FROZENSET: lambda machine: machine.push(frozenset(machine.key(item) for item in machine.pop_mark())),
    # the memo
    pickle.PUT: lambda machine: machine.remember(_memo_line(machine)),
    pickle.BINPUT: lambda machine: machine.remember(machine.number("B")),
    pickle.LONG_BINPUT: lambda machine: machine.remember(machine.number("I")),
    pickle.MEMOIZE: lambda machine: machine.remember(len(machine.memo)),
    pickle.GET: lambda machine: machine.push(machine.memo[_memo_line(machine)]),
    pickle.BINGET: lambda machine: machine.push(machine.memo[machine.number("B")]),
    pickle.LONG_BINGET: lambda machine: machine.push(machine.memo[machine.number("I")]),
    # names, and what is made of them
    pickle.GLOBAL: lambda machine: machine.find(machine.line().decode("utf-8"), machine.line().decode("utf-8")),
    pickle.STACK_GLOBAL: _stack_global,
    pickle.REDUCE: lambda machine: machine.call(),
    pickle.NEWOBJ: lambda machine: machine.call(),
    pickle.BUILD: lambda machine: machine.build(),
}
