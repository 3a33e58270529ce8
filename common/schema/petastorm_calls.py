"""The few calls that occur in Petastorm's pickles, each reimplemented as a function that builds plain data.

Each function takes the arguments from the pickle and returns dicts, sets, bytes, Python scalars, or an `InertObject`.
Whatever a call copies is charged to the machine's budget, and keys and set items are scalars. A wrong number of
arguments raises ``ValueError``, which the machine turns into its own error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .petastorm_machine import Machine
from .petastorm_names import CLASSES, DTYPE, FIELD, Global, InertObject, describe, dtype_of

Arguments = tuple[Any, ...]


def _items(machine: Machine, args: Arguments) -> list[Any]:
    """Returns the items of the single list that a container is built from, or no items if there is no argument."""
    if len(args) > 1:
        raise machine.refuse("a call with one list", f"{len(args)} arguments")
    items = machine.typed(args[0], list, tuple) if args else []
    machine.spend(len(items))
    return list(items)


def _set(machine: Machine, args: Arguments) -> set[Any]:
    return {machine.key(item) for item in _items(machine, args)}


def _frozenset(machine: Machine, args: Arguments) -> frozenset[Any]:
    return frozenset(_set(machine, args))


def _ordered_dict(machine: Machine, args: Arguments) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for pair in _items(machine, args):
        key, value = machine.typed(pair, tuple, list)
        result[machine.key(key)] = value
    return result


def _default_dict(machine: Machine, args: Arguments) -> dict[Any, Any]:
    (factory,) = args
    if machine.typed(factory, Global) not in (Global("builtins", "set"), Global("builtins", "list")):
        raise machine.refuse("defaultdict(set)", f"defaultdict({factory})")
    return {}


def _reconstructor(machine: Machine, args: Arguments) -> InertObject:
    """``copyreg._reconstructor(cls, base, value)``, which protocols 0 and 1 use for objects and named tuples."""
    cls, base, value = args
    if machine.typed(cls, Global) not in CLASSES:
        raise machine.refuse("a class of Petastorm or a Spark type", str(cls))
    if machine.typed(base, Global) == Global("builtins", "tuple"):
        return InertObject(cls, machine.typed(value, tuple))
    if base != Global("builtins", "object") or value is not None:
        raise machine.refuse("an object or a tuple", f"{base} of {describe(value)}")
    return InertObject(cls)


def _restore(machine: Machine, args: Arguments) -> InertObject:
    """``pyspark.serializers._restore(name, fields, values)``, which restores a named tuple that Spark pickled."""
    name, fields, values = args
    if machine.typed(name, str) != FIELD.name:
        raise machine.refuse(f"the named tuple {FIELD.name}", describe(name))
    machine.spend(len(machine.typed(fields, tuple)))
    by_name = {
        machine.typed(field, str): value for field, value in zip(fields, machine.typed(values, tuple), strict=True)
    }
    required = tuple(by_name[field] for field in ("name", "numpy_dtype", "shape"))
    return InertObject(FIELD, (*required, by_name.get("codec"), by_name.get("nullable", False)))


def _encode(machine: Machine, args: Arguments) -> bytes:
    """``_codecs.encode(text, "latin1")``, which Python 3 uses for bytes in protocols 0 to 2."""
    text, encoding = args
    if machine.typed(encoding, str) not in ("latin1", "latin-1"):
        raise machine.refuse("the encoding latin1", describe(encoding))
    machine.spend(len(machine.typed(text, str)))
    return str(text).encode("latin1")


def _empty_bytes(machine: Machine, args: Arguments) -> bytes:
    if args:
        raise machine.refuse("bytes() without arguments", f"{len(args)}")
    return b""


def _dtype(machine: Machine, args: Arguments) -> InertObject:
    return InertObject(DTYPE, args)


def _scalar(machine: Machine, args: Arguments) -> Any:
    """``numpy.core.multiarray.scalar(dtype, bytes)``, returned as a Python scalar."""
    described, raw = args
    if machine.typed(described, InertObject).cls != DTYPE:
        raise machine.refuse("a numpy dtype", describe(described))
    dtype = dtype_of(described)
    if dtype.kind not in "biufSU":
        raise machine.refuse("a number or a string", f"a numpy scalar of {dtype}")
    machine.spend(len(machine.typed(raw, bytes, str)))
    data = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 has one type for str and bytes
    if len(data) != dtype.itemsize:
        raise machine.refuse(f"{dtype.itemsize} bytes of {dtype}", f"{len(data)}")
    if dtype.kind == "S":
        return data.rstrip(b"\0")
    if dtype.kind == "U":  # numpy fails on invalid code points
        return data.decode("utf-32-le" if (sys.byteorder == "little") == dtype.isnative else "utf-32-be").rstrip("\0")
    return np.frombuffer(data, dtype)[0].item()


CALLS: dict[Global, Callable[[Machine, Arguments], Any]] = {
    DTYPE: _dtype,
    Global("numpy.core.multiarray", "scalar"): _scalar,
    Global("copyreg", "_reconstructor"): _reconstructor,
    Global("pyspark.serializers", "_restore"): _restore,
    Global("_codecs", "encode"): _encode,
    Global("collections", "OrderedDict"): _ordered_dict,
    Global("collections", "defaultdict"): _default_dict,
    Global("builtins", "set"): _set,
    Global("builtins", "frozenset"): _frozenset,
    Global("builtins", "bytes"): _empty_bytes,
}
