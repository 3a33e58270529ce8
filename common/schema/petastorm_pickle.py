"""Reads the pickles in a Petastorm dataset as plain data, without ever importing or calling what they name.

Takes the bytes of a pickle (protocol 0 to 5, from Python 2 or 3). Returns Python scalars, tuples, lists, dicts and
sets, and represents everything else as `Global` (a name) or `InertObject` (a name with its arguments and state). A name
outside an exact list, a call outside `petastorm_calls`, and a pickle that is too large, too deep or cyclic raise
`SchemaError`. `MAX_BYTES` and the machine's budget bound time and memory.

``pickletools`` reads the opcodes and their arguments; this module executes them. ``pickle.Unpickler`` is not an option,
because its REDUCE and BUILD act on live objects whatever ``find_class`` returns. Opcodes that are not in `OPCODES`
(persistent ids, extension codes, INST, OBJ, NEWOBJ_EX, out-of-band buffers, byte arrays) are refused.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any

from ..base.errors import SchemaError
from .petastorm_calls import CALLS
from .petastorm_machine import Machine
from .petastorm_names import describe

MAX_BYTES = 64 << 20
_KNOWN = {opcode.code.encode("latin1"): opcode for opcode in pickletools.opcodes}
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"'": b"'", b'"': b'"'}


def load_inert(data: bytes, *, where: str) -> Any:
    """Returns the value that a pickle describes, as plain data. ``where`` names the file in errors.

    Raises:
        SchemaError: the pickle is damaged or oversized, or holds anything but Petastorm's own metadata.
    """
    machine = Machine(where, CALLS)
    if len(data) > MAX_BYTES:
        raise machine.refuse(f"at most {MAX_BYTES} bytes", f"{len(data)}")
    try:
        result = _run(machine, data)
    except SchemaError:
        raise
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise machine.refuse("a complete pickle", f"{type(error).__name__} ({str(error)[:80]})") from error
    machine.check_extent(result)
    return result


def _run(machine: Machine, data: bytes) -> Any:
    """Runs the pickle and returns the value on top of the stack at its end."""
    stream = io.BytesIO(data)
    while True:
        machine.position = stream.tell()
        code = stream.read(1)
        opcode = _KNOWN.get(code)
        name = repr(code) if opcode is None else opcode.name
        if name == "STOP":
            return machine.stack.pop()
        if not code:
            raise machine.refuse("1 more bytes", "0")
        if opcode is None or name not in OPCODES:
            raise machine.refuse("opcodes that only build data", f"opcode {name}")
        machine.spend(1)
        argument = None
        if opcode.arg is not None:
            argument = _ARGUMENTS.get(name, _plain)(machine, stream, opcode)
        OPCODES[name](machine, argument)


def _plain(machine: Machine, stream: io.BytesIO, opcode: pickletools.OpcodeInfo) -> Any:
    """Reads an argument with ``pickletools``, after checking its declared length against the remaining bytes."""
    argument = opcode.arg
    assert argument is not None
    if argument.n < pickletools.UP_TO_NEWLINE or opcode.name == "FRAME":  # prefixed by its length
        start, layout = stream.tell(), _LENGTHS[opcode.name]
        size = struct.unpack(layout, stream.read(struct.calcsize(layout)))[0]
        if opcode.name in ("LONG1", "LONG4") and size > 9:
            raise machine.refuse("a 64-bit integer", f"one of {size} bytes")
        left = len(stream.getbuffer()) - stream.tell()
        if not 0 <= size <= left:
            raise machine.refuse(f"{size} more bytes", f"{left}")
        stream.seek(start)
    return argument.reader(stream)


def _number_line(machine: Machine, stream: io.BytesIO, opcode: pickletools.OpcodeInfo) -> Any:
    """Reads a decimal number, after checking its syntax so that an overlong one is never converted."""
    start = stream.tell()
    text = stream.readline().rstrip(b"\n")
    what, pattern = _NUMBERS[opcode.name]
    if not re.fullmatch(pattern, text):
        raise machine.refuse(what, describe(text))
    stream.seek(start)
    return _plain(machine, stream, opcode)


def _name_lines(machine: Machine, stream: io.BytesIO, opcode: pickletools.OpcodeInfo) -> str:
    """Reads module and name and joins them with a space. ``pickletools`` would look for escapes in them."""
    module, name = stream.readline(), stream.readline()
    if not (module + name).isascii() or not name.endswith(b"\n"):
        raise machine.refuse("two lines of ASCII", f"{describe(module)} and {describe(name)}")
    return (module[:-1] + b" " + name[:-1]).decode("ascii")


def _string_line(machine: Machine, stream: io.BytesIO, opcode: pickletools.OpcodeInfo) -> str:
    """Reads a Python 2 string literal as latin1. ``pickletools`` accepts ASCII only."""
    text = stream.readline().strip()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise machine.refuse("a quoted string", describe(text))

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes([int(escape[1:], 16)]) if len(escape) == 3 else _ESCAPES[escape]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", unescape, text[1:-1], flags=re.DOTALL).decode("latin1")


_NUMBERS = {
    "INT": ("a 64-bit integer", rb"[+-]?[0-9]{1,20}"),
    "LONG": ("a 64-bit integer", rb"[+-]?[0-9]{1,20}L?"),
    "FLOAT": ("a float", rb".{1,40}"),
    "PUT": ("a memo number", rb"[0-9]{1,10}"),
    "GET": ("a memo number", rb"[0-9]{1,10}"),
}
_ARGUMENTS = {**dict.fromkeys(_NUMBERS, _number_line), "STRING": _string_line, "GLOBAL": _name_lines}
_LENGTHS = {
    "FRAME": "<Q",
    "LONG1": "<B",
    "LONG4": "<i",
    "BINSTRING": "<i",
    "SHORT_BINSTRING": "<B",
    "BINBYTES": "<I",
    "SHORT_BINBYTES": "<B",
    "BINBYTES8": "<Q",
    "BINUNICODE": "<I",
    "SHORT_BINUNICODE": "<B",
    "BINUNICODE8": "<Q",
}


def _protocol(machine: Machine, version: int) -> None:
    if version > 5:
        raise machine.refuse("pickle protocol 0 to 5", f"{version}")


def _int(machine: Machine, value: int) -> None:
    if isinstance(value, bool):  # INT 00 and 01
        machine.push(value)
    else:
        machine.push_int(value)


def _text(machine: Machine, value: str) -> None:
    """Pushes text. Joins the surrogate pairs that narrow builds of Python 2 wrote, and refuses lone surrogates."""
    machine.push(value.encode("utf-16-le", "surrogatepass").decode("utf-16-le"))


def _global(machine: Machine, names: str) -> None:
    module, _, name = names.partition(" ")
    machine.find(module, name)


def _stack_global(machine: Machine, _: None) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.find(module, name)


def _dict(machine: Machine, _: None) -> None:
    items = machine.pop_mark()
    machine.push({})
    machine.set_items(items)


def _pop_mark(machine: Machine, _: None) -> None:
    machine.pop_mark()


def _set_item(machine: Machine, _: None) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


OPCODES: dict[str, Callable[[Machine, Any], None]] = {
    "PROTO": _protocol,
    "FRAME": lambda machine, size: None,
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": _pop_mark,
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    # scalars
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"), _int),
    **dict.fromkeys(("FLOAT", "BINFLOAT"), Machine.push),
    # text and bytes; Python 2 strings are read as latin1
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), Machine.push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _text),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), Machine.push),
    # containers
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "LIST": lambda machine, _: machine.push(machine.pop_mark()),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.pop_mark()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "DICT": _dict,
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "EMPTY_SET": lambda machine, _: machine.push(set()),
    "ADDITEMS": lambda machine, _: machine.add(machine.pop_mark()),
    "FROZENSET": lambda machine, _: machine.push(frozenset(machine.key(item) for item in machine.pop_mark())),
    # the memo
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.remember),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.push(machine.memo[index])),
    # names, calls and objects
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}
