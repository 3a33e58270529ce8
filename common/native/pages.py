"""Decodes column chunks of numbers with the compiled core."""

from __future__ import annotations

import numpy as np

from .library import library

CHUNK = np.dtype(
    [
        (name, np.int64)
        for name in ("data", "size", "stored_bytes", "value_bytes", "compressed", "optional", "target", "done")
    ]
)
"""``Chunk`` in pages.cc."""
SLACK = 8
"""How many bytes after a chunk may be read."""


def decode_chunks(chunks: np.ndarray, rows: int, *, checked: bool, page: np.ndarray, dictionary: np.ndarray) -> None:
    """Decodes column chunks of ``rows`` values each, and sets ``done`` for those that it can decode.

    Args:
        chunks: of dtype `CHUNK`. ``data`` and ``target`` are addresses; `SLACK` more bytes than the chunk are readable,
            and the target has room for all rows.
        checked: whether pages that do not match their checksums stay undone.
        page: memory for a decompressed page, uint8. A chunk with a larger page stays undone.
        dictionary: memory for the values of a dictionary, uint8, aligned to 8 bytes.
    """
    core = library()
    if core is None:
        return
    scratch = np.array(
        (page.ctypes.data, len(page) - SLACK, dictionary.ctypes.data, len(dictionary)), np.int64
    )  # `Scratch` in pages.cc
    core.parquetry_decode_chunks(chunks.ctypes.data, len(chunks), rows, int(checked), scratch.ctypes.data)
