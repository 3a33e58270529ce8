"""`sorted_on_disk` sorts random 64-bit words that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from ...base.native.kernels import word_order
from ...schema.ragged import ends_of
from ...storage.temporary import TemporaryBuffer

_WORD_BITS = 64
_RANGE_BITS = 17  # each range has about as many words as sort fastest
_MOST_BITS = 16  # numpy sorts 16-bit numbers in linear time


def sorted_on_disk(pieces: Iterable[np.ndarray], count: int) -> np.ndarray:
    """Returns the ``argsort`` (int64) of ``count`` words, given in pieces, in a temporary file that is mapped.

    Each piece is split into ranges of values, and written. Then each range is sorted by itself, which is also faster
    than to sort all words at once. Temporary files take up to 20 bytes per word.

    Raises:
        NoRoomError: there is no room for temporary files.
    """
    bits = min(max((count - 1).bit_length() - _RANGE_BITS, 1), _MOST_BITS)
    kept, places, result = TemporaryBuffer(), TemporaryBuffer(), TemporaryBuffer()
    try:
        bounds = _split(pieces, bits, kept, places)
        words = np.frombuffer(kept.mapped() or b"", np.uint64)
        inside = np.frombuffer(places.mapped() or b"", np.uint32)
        for ends in pairwise(bounds.T):  # the begin and the end of a range in each piece
            parts = [slice(begin, end) for begin, end in zip(*(each.tolist() for each in ends), strict=True)]
            mine = np.concatenate([words[part] for part in parts])
            numbers = np.concatenate(
                [
                    inside[part].astype(np.int64) + first
                    for part, first in zip(parts, bounds[:, 0].tolist(), strict=True)
                ]
            )
            order = word_order(mine)
            result.append(numbers[np.argsort(mine, kind="stable") if order is None else order].tobytes())
        return np.frombuffer(result.mapped() or b"", np.int64)
    finally:
        for buffer in (kept, places, result):
            buffer.close()


def _split(pieces: Iterable[np.ndarray], bits: int, kept: TemporaryBuffer, places: TemporaryBuffer) -> np.ndarray:
    """Writes the words of each piece by ranges, without their first ``bits``, which all words of a range share.

    Args:
        places: takes the place of each word in its piece; uint32.

    Returns:
        Where each range begins in each piece, and where the last one ends; int64 ``[pieces, ranges + 1]``.
    """
    first, bounds = 0, []
    for words in pieces:
        in_range = (words >> np.uint64(_WORD_BITS - bits)).astype(np.uint16)
        order = np.argsort(in_range, kind="stable")
        kept.append((words[order] << np.uint64(bits)).tobytes())
        places.append(order.astype(np.uint32).tobytes())
        bounds.append(first + ends_of(np.bincount(in_range, minlength=1 << bits)))
        first += len(words)
    return np.array(bounds)
