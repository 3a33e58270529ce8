"""Permutations drawn from a key, the same on every machine, platform, and numpy version.

The generator is Philox-4x64 (Salmon et al., SC'11), counter-based and keyed with 128 bits of BLAKE2b over the key's
parts. Only its raw stream is used, which numpy guarantees to be stable; ``Generator.permutation`` carries no such
promise.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np


def raw_words(count: int, *key: int) -> np.ndarray:
    """``count`` uniform 64-bit words (uint64) of the stream named by the integers of ``key``."""
    packed = struct.pack(f"<{len(key)}q", *(_as_signed(part) for part in key))
    digest = hashlib.blake2b(packed, digest_size=16, person=b"parquetry").digest()
    return np.random.Philox(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64)).random_raw(count)


def permutation(count: int, *key: int) -> np.ndarray:
    """A uniform permutation of ``0 .. count - 1`` (int64), a pure function of ``count`` and ``key``."""
    if count <= 1:
        return np.zeros(count, dtype=np.int64)
    return np.argsort(raw_words(count, *key))  # words are distinct but for a chance of count^2 / 2^65


def fraction(*key: int) -> float:
    """One uniform number in [0, 1), a pure function of the key."""
    return float(raw_words(1, *key)[0] >> np.uint64(11)) / float(1 << 53)


def _as_signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
