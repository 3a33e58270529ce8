"""Makes tensors of another library over memory of this process, many in one call.

`torch.from_numpy` makes one tensor at a time, from an array that has to be made before. Whoever frees the tensor then
takes the interpreter lock to free the array. Tensors that are made together here share one reference to their memory.

Source: `DLPackExchangeAPI` in DLPack 1.3, an interface between libraries in C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .library import CORE, address_of

_FUNCTIONS = (
    "PyList_New",
    "PyList_SetItem",
    "PyErr_NoMemory",
    "Py_IncRef",
    "Py_DecRef",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "Py_IsInitialized",
)
_CAPSULE = b"dlpack_exchange_api"
_MAJOR = 1
_TO_OBJECT = 4  # which word of the interface is the function that makes a tensor
_NUMBER_BYTES = 8
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # numpy's kinds of dtypes, DLPack's codes
_NAMES = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
DTYPES = frozenset(map(np.dtype, _NAMES))
"""The dtypes of tensors that can be made."""


def exchange_of(tensor_class: type) -> int | None:
    """Returns the address of the function that makes a library's tensors.

    Returns ``None`` if the library has none that we know.

    Args:
        tensor_class: the class of its tensors, such as `torch.Tensor`.
    """
    capsule = getattr(tensor_class, "__dlpack_c_exchange_api__", None)
    python = ctypes.pythonapi  # its items, unlike its attributes, are not shared with other packages
    is_valid, pointer = python["PyCapsule_IsValid"], python["PyCapsule_GetPointer"]
    is_valid.argtypes = pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    pointer.restype = c_void_p
    if not is_valid(capsule, _CAPSULE):
        return None
    interface = pointer(capsule, _CAPSULE)
    if ctypes.c_uint32.from_address(interface).value != _MAJOR:
        return None
    return c_void_p.from_address(interface + _TO_OBJECT * ctypes.sizeof(c_void_p)).value


class TensorLayout:
    """Dtypes and shapes of some tensors that are made together, again and again.

    Args:
        dtypes: some of `DTYPES`.
        shapes: one for each dtype.
        owners: for each tensor, which of the objects given to `maker` holds its memory. The first one unless given.
    """

    def __init__(
        self, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]], owners: Sequence[int] | None = None
    ) -> None:
        words: list[int] = []
        for dtype, shape, owner in zip(dtypes, shapes, owners or [0] * len(dtypes), strict=True):
            words += (owner, _CODES[dtype.kind], dtype.itemsize * 8, len(shape), *shape)
        self.count = len(dtypes)
        self._words = _numbers(words)

    def maker(self, exchange: int, owners: Sequence[object]) -> Callable[..., list[Any]]:
        """Returns the core's function, which still takes the memory: see `parquetry_tensors` in ``dlpack.cc``.

        Args:
            exchange: see `exchange_of`.
            owners: objects that hold the memory, and have to exist when the function is called. Each is then kept until
                the last of its tensors is freed.
        """
        make, python = _maker()
        held = (c_void_p * len(owners))(*map(id, owners))
        return partial(make, python, exchange, held, len(owners), self._words, self.count)


class TensorRun:
    """Tensors over equal parts of some arrays.

    Args:
        exchange: see `exchange_of`.
        arrays: `[N, ...]`; each `is_exchanged`.
        count: the number of parts.
    """

    def __init__(self, exchange: int, arrays: Sequence[np.ndarray], count: int) -> None:
        owners = [_owner_of(array) for array in arrays]
        self._owners = {id(owner): owner for owner in owners}
        numbers = {name: number for number, name in enumerate(self._owners)}
        layout = _layout(
            tuple([array.dtype for array in arrays]),
            tuple([(len(array) // count, *array.shape[1:]) for array in arrays]),
            tuple([numbers[id(owner)] for owner in owners]),
        )
        begins = _numbers([address_of(array) for array in arrays])
        steps = _numbers([array.nbytes // count for array in arrays])
        self._make = partial(layout.maker(exchange, [*self._owners.values()]), None, -1, begins, steps)

    def tensors(self, part: int) -> list[Any]:
        """Returns a tensor over this part of each array. They keep the memory."""
        return self._make(part)


def tensors_in(exchange: int, layout: TensorLayout, memory: ctypes.Array[Any], message: bytes, begin: int) -> list[Any]:
    """Returns tensors in ``memory``, which is kept until the last of them is freed.

    Args:
        exchange: see `exchange_of`.
        message, begin: holds the offset of each, as int64, from ``begin`` on.

    Raises:
        ValueError: the message is too short, or a tensor would not lie in the memory.
    """
    if begin + layout.count * _NUMBER_BYTES > len(message):
        raise ValueError(f"tensors: expected {layout.count} offsets, got {len(message) - begin} bytes.")
    make = layout.maker(exchange, [memory])
    size = ctypes.sizeof(memory)
    made = make(ctypes.addressof(memory), size, address_of(memoryview(message)) + begin, None, 0)
    if len(made) < layout.count:
        raise ValueError(f"tensors: expected them in {size} bytes of memory, got an offset outside.")
    return made


def is_exchanged(array: np.ndarray) -> bool:
    """Whether tensors can be made over parts of an array: writeable, C-contiguous, of numbers in native byte order."""
    flags = array.flags
    return array.dtype in DTYPES and flags.writeable and flags.c_contiguous


def _owner_of(array: np.ndarray) -> object:
    """Returns what holds the memory of an array: the object that other arrays may view, too, or an array."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


_layout = lru_cache(maxsize=64)(TensorLayout)


def _numbers(values: Sequence[int]) -> ctypes.Array[c_int64]:
    return (c_int64 * len(values))(*values)


@lru_cache(maxsize=1)
def _maker() -> tuple[Any, Any]:
    """Returns the core's function, which is called with the interpreter lock, and Python's functions for it."""
    make = ctypes.PyDLL(CORE._name).parquetry_tensors
    described, memory = (c_void_p, c_int64), (c_void_p, c_int64)
    make.restype = ctypes.py_object
    make.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, *described, *memory, c_void_p, c_void_p, c_int64)
    addresses = [ctypes.cast(ctypes.pythonapi[name], c_void_p).value for name in _FUNCTIONS]
    return make, (c_void_p * len(_FUNCTIONS))(*addresses)
