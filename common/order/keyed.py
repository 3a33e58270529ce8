"""Permutations drawn from a key, the same on every machine, platform, and numpy version.

The generator is Philox-4x64 (Salmon et al., SC'11), counter-based and keyed with 128 bits of BLAKE2b over the key's
parts. Only its raw stream is used, which numpy guarantees to be stable; ``Generator.permutation`` carries no such
promise.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from ..forks import importing

_FEW = 1 << 18  # of more words, two are so often alike in what is left that it does not pay


def raw_words(count: int, *key: int) -> np.ndarray:
    """``count`` uniform 64-bit words (uint64) of the stream named by the integers of ``key``."""
    packed = struct.pack(f"<{len(key)}q", *(_as_signed(part) for part in key))
    digest = hashlib.blake2b(packed, digest_size=16, person=b"parquetry").digest()
    with importing():
        from numpy.random import Philox  # not where nothing is shuffled
    return Philox(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64)).random_raw(count)


def permutation(count: int, *key: int) -> np.ndarray:
    """A uniform permutation of ``0 .. count - 1`` (int64), a pure function of ``count`` and ``key``."""
    if count <= 1:
        return np.zeros(count, dtype=np.int64)
    words = raw_words(count, *key)
    order = sorted_numbers(words) if count <= _FEW else None
    return np.argsort(words) if order is None else order  # words are distinct but for a chance of count^2 / 2^65


def sorted_numbers(words: np.ndarray) -> np.ndarray | None:
    """What ``argsort`` gives for 64-bit words, in a third of its time; ``None`` where words are too much alike.

    Each word gives its lowest bits up for its own number, so that sorting the words brings the numbers along.
    """
    low = np.uint64((1 << (len(words) - 1).bit_length()) - 1)
    numbered = words & ~low
    numbered |= np.arange(len(words), dtype=np.uint64)
    numbered.sort()
    if ((numbered[1:] ^ numbered[:-1]) <= low).any():  # the bits that were given up might decide
        return None
    numbered &= low
    return numbered.view(np.int64)


def fraction(*key: int) -> float:
    """One uniform number in [0, 1), a pure function of the key."""
    return float(raw_words(1, *key)[0] >> np.uint64(11)) / float(1 << 53)


def _as_signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
