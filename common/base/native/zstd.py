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
def zstd_functions() -> tuple[int, int]:
    """Returns the addresses of ``ZSTD_decompress`` and ``ZSTD_findFrameCompressedSize``; zeros without a library."""
    with importing():
        for path in _libraries():
            try:
                library = ctypes.CDLL(path)
                decompress, frame_size = library.ZSTD_decompress, library.ZSTD_findFrameCompressedSize
            except (OSError, AttributeError):
                continue
            decompress.restype = frame_size.restype = ctypes.c_size_t
            decompress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
            frame_size.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
            out, size = ctypes.create_string_buffer(4), len(_FRAME)
            if frame_size(_FRAME, size) == size and decompress(out, 4, _FRAME, size) == 4 and out.raw == b"parq":
                return _address(decompress), _address(frame_size)
    return 0, 0


def has_zstd() -> bool:
    """Returns whether there is a library."""
    return zstd_functions()[0] != 0


def _address(function: ctypes._FuncPointer) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _libraries() -> Iterator[str]:
    yield "libzstd.so.1"
    spec = find_spec("PIL")
    if spec is not None and spec.origin is not None:
        yield from map(str, sorted((Path(spec.origin).parents[1] / "pillow.libs").glob("libzstd-*.so*")))
