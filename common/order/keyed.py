"""Permutations drawn from a key. They are the same on every machine, platform, and numpy version.

The generator is Philox-4x64 (Salmon et al., SC'11), counter-based and keyed with 128 bits of BLAKE2b over the key's
parts. Only its raw stream is used, because numpy guarantees that it never changes. It gives no such guarantee for
``Generator.permutation``.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..process.forks import importing

if TYPE_CHECKING:
    from numpy.random import Philox

_FEW = 1 << 18  # with more words, the remaining bits collide so often that this does not pay


def raw_words(count: int, *key: int) -> np.ndarray:
    """Returns ``count`` uniform 64-bit words (uint64) from the stream that ``key`` names."""
    packed = struct.pack(f"<{len(key)}q", *(_as_signed(part) for part in key))
    digest = hashlib.blake2b(packed, digest_size=16, person=b"parquetry").digest()
    words: np.ndarray = _philox()(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64)).random_raw(count)
    return words


@lru_cache(maxsize=1)
def _philox() -> type[Philox]:
    with importing():  # only pipelines that shuffle need it
        from numpy.random import Philox
    return Philox


def permutation(count: int, *key: int) -> np.ndarray:
    """Returns a uniform permutation of ``0 .. count - 1`` (int64), a pure function of ``count`` and ``key``."""
    if count <= 1:
        return np.zeros(count, dtype=np.int64)
    words = raw_words(count, *key)
    order = sorted_numbers(words) if count <= _FEW else None
    return np.argsort(words) if order is None else order  # two words are equal with a probability of count^2 / 2^65


def sorted_numbers(words: np.ndarray) -> np.ndarray | None:
    """Returns the ``argsort`` of 64-bit words in a third of its time, or ``None`` if words are too similar.

    The lowest bits of each word are replaced by its index, so sorting the words also sorts the indices.
    """
    low = np.uint64((1 << (len(words) - 1).bit_length()) - 1)
    numbered = words & ~low
    numbered |= np.arange(len(words), dtype=np.uint64)
    numbered.sort()
    if ((numbered[1:] ^ numbered[:-1]) <= low).any():  # the replaced bits might decide the order
        return None
    numbered &= low
    return numbered.view(np.int64)


def _as_signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
