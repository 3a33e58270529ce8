"""Permutations drawn from a key. They are the same on every machine, platform, and numpy version.

The generator is Philox-4x64 (Salmon et al., SC'11), counter-based and keyed with 128 bits of BLAKE2b over the key's
parts. Only its raw stream is used, because numpy guarantees that it never changes. It gives no such guarantee for
``Generator.permutation``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...base.native.kernels import word_order
from ...base.process.forks import importing
from ...schema.ragged import ends_of
from ...storage.temporary import NoRoomError, TemporaryBuffer

if TYPE_CHECKING:
    from numpy.random import Generator, Philox

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FEW = 1 << 20  # with more words, the remaining bits collide too often
_PIECE = 1 << 20
_WORD_BITS = 64
_RANGE_BITS = 17  # each range has about as many words as sort fastest
_MOST_BITS = 16  # numpy sorts 16-bit numbers in linear time


def raw_words(count: int, *key: int) -> np.ndarray:
    """Returns ``count`` uniform 64-bit words (uint64) from the stream that ``key`` names."""
    words: np.ndarray = _stream(*key).random_raw(count)
    return words


def _stream(*key: int) -> Philox:
    packed = struct.pack(f"<{len(key)}q", *(_as_signed(part) for part in key))
    digest = hashlib.blake2b(packed, digest_size=16, person=b"parquetry").digest()
    return _keyed(np.frombuffer(digest, dtype="<u8").astype(np.uint64))


def _keyed(words: np.ndarray) -> Philox:
    return _philox()(_Key(words))  # type: ignore[arg-type]  # an ISeedSequence, which the stubs of numpy do not know


def generator(words: np.ndarray) -> Generator:
    """Returns numpy's generator whose key is two uint64. Only its raw stream is the same in every version of numpy."""
    stream = _keyed(words)
    from numpy.random import Generator  # imported with the stream

    return Generator(stream)


def _pieces(count: int, *key: int) -> Iterator[np.ndarray]:
    """Yields the words of `raw_words` in pieces."""
    stream = _stream(*key)
    for first in range(0, count, _PIECE):
        yield stream.random_raw(min(_PIECE, count - first))


@lru_cache(maxsize=1)
def _philox() -> type[Philox]:
    with importing():  # only pipelines that shuffle need it
        from numpy.random import Philox
        from numpy.random.bit_generator import ISeedSequence
    ISeedSequence.register(_Key)
    return Philox


class _Key:
    """The key of a stream, as numpy takes it from a seed. Given as ``key=``, numpy would also draw a random seed."""

    def __init__(self, words: np.ndarray) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: type[np.uint64]) -> np.ndarray:
        return self._words


def permutation(count: int, *key: int) -> np.ndarray:
    """Returns a uniform permutation of ``0 .. count - 1`` (int64), a pure function of ``count`` and ``key``.

    A large one is in a temporary file that is mapped, if there is room for it.
    """
    if count <= 1:
        return np.zeros(count, dtype=np.int64)
    if count > _FEW:
        with suppress(NoRoomError):
            return sorted_on_disk(_pieces(count, *key), count)
    words = raw_words(count, *key)
    order = word_order(words) if count <= _FEW else None
    return np.argsort(words) if order is None else order  # two words are equal with a probability of count^2 / 2^65


def hashed(state: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    """Returns a 64-bit hash (uint64) of each state and its integers: one round of SplitMix64 for each part."""
    for part in parts:
        state = mixed((state ^ part.astype(np.uint64)) + _INCREMENT)
    return state


def counted(state: np.ndarray, count: int) -> np.ndarray:
    """Returns ``count`` uniform words for each hash (uint64 ``[states, count]``), as SplitMix64 draws them."""
    return mixed(state[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _INCREMENT)


def mixed(state: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's output function (Stafford's variant 13 of the MurmurHash3 finaliser)."""
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    result: np.ndarray = state ^ (state >> np.uint64(31))
    return result


def _as_signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


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
            words_of_range = np.concatenate([words[part] for part in parts])
            numbers = np.concatenate(
                [
                    inside[part].astype(np.int64) + first
                    for part, first in zip(parts, bounds[:, 0].tolist(), strict=True)
                ]
            )
            order = word_order(words_of_range)
            result.append(numbers[np.argsort(words_of_range, kind="stable") if order is None else order].tobytes())
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
