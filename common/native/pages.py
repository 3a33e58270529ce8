"""Decodes column chunks of numbers, byte strings, and lists of numbers with the compiled core."""

from __future__ import annotations

import numpy as np

from .library import library

CHUNK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("data", "size", "stored_bytes", "value_bytes", "compressed", "definition", "empty"),
            *("target", "capacity", "offsets", "offset_bytes", "validity", "nulls", "found"),
        )
    ]
)
"""``Chunk`` in pages.cc, which says what the fields are. Those that are pointers there are addresses here."""
SLACK = 8
"""How many bytes after a chunk, and after a page, may be read."""
ENTRY_BYTES = 16
"""What each byte string of a dictionary takes beside its bytes."""


def decode_chunks(chunks: np.ndarray, rows: int, *, checked: bool, page: np.ndarray, dictionary: np.ndarray) -> None:
    """Decodes column chunks of ``rows`` rows each, and sets ``found``, to -1 for those that it cannot decode.

    Args:
        chunks: of dtype `CHUNK`.
        checked: whether pages that do not match their checksums are not decoded.
        page: memory for a decompressed page, uint8. A chunk with a larger page is not decoded.
        dictionary: memory for a dictionary, uint8, aligned to 8 bytes.
    """
    core = library()
    if core is None:
        chunks["found"] = -1
        return
    memory = (page.ctypes.data, len(page) - SLACK, dictionary.ctypes.data, len(dictionary))
    scratch = np.array(memory, np.int64)  # `Scratch` in pages.cc
    core.parquetry_decode_chunks(chunks.ctypes.data, len(chunks), rows, int(checked), scratch.ctypes.data)
