"""Finds Zstandard's own library, with which the compiled core decompresses pages: the system's, or Pillow's.

Python packages of Arrow contain one, too, but do not export it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ..process.forks import importing

_FRAME = bytes.fromhex("28b52ffd200421000070617271")
"""The bytes ``parq``, compressed."""


@lru_cache(maxsize=1)
def zstd_decompress() -> int:
    """Returns the address of ``ZSTD_decompress``, or 0 if there is no library."""
    with importing():
        for path in _libraries():
            try:
                function = ctypes.CDLL(path).ZSTD_decompress
            except (OSError, AttributeError):
                continue
            function.restype = ctypes.c_size_t
            function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
            out = ctypes.create_string_buffer(4)
            if function(out, len(out), _FRAME, len(_FRAME)) == len(out) and out.raw == b"parq":
                return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _libraries() -> Iterator[str]:
    yield "libzstd.so.1"
    spec = find_spec("PIL")
    if spec is not None and spec.origin is not None:
        yield from map(str, sorted((Path(spec.origin).parents[1] / "pillow.libs").glob("libzstd-*.so*")))
