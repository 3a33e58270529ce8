"""Random numbers of items: a pure function of a seed, the pass, and where the item is stored.

`uniform` draws uniform numbers for `ItemKeys`, which hold one entry for each item. The numbers do not depend on the
worker count, executor, rank, batch size or restarts, and they differ between passes.

The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), used as a counter-based generator: its output function
is applied to a hash of the key plus a multiple of its increment. All items of a batch are drawn at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ...base.process.dataclass import dataclass
from ...plan.order.permutations import counted, generator, hashed, raw_words
from ...stages.image_base import Key

if TYPE_CHECKING:
    from numpy.random import Generator

_IMAGES_KEY = 0x696D6167


@dataclass(frozen=True, slots=True)
class ItemKeys:
    """Where items come from; int64 ``[items]`` each.

    Attributes:
        pass_number: the number of the pass over the dataset, counted over all iterators of the pipeline.
        source: the number of the pipeline in a mix.
        row_group: the row group of the item (for a window, of its first row).
    """

    pass_number: np.ndarray
    source: np.ndarray
    row_group: np.ndarray
    row: np.ndarray

    def take(self, index: np.ndarray) -> ItemKeys:
        return ItemKeys(self.pass_number[index], self.source[index], self.row_group[index], self.row[index])


def concat_keys(parts: Sequence[ItemKeys]) -> ItemKeys:
    """Concatenates keys."""
    return ItemKeys(
        np.concatenate([part.pass_number for part in parts]),
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.row_group for part in parts]),
        np.concatenate([part.row for part in parts]),
    )


def uniform(key: Key, items: ItemKeys, count: int) -> np.ndarray:
    """Returns ``count`` numbers in [0, 1) for each item: float64 ``[items, count]``."""
    return (counted(_hash_of(key, items), count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generators(key: Key, items: ItemKeys) -> Iterator[Generator]:
    """Yields a generator for each item, whose numbers no other item has."""
    for words in counted(_hash_of(key, items), 2):
        yield generator(words)


def _hash_of(key: Key, items: ItemKeys) -> np.ndarray:
    state = np.full(len(items.row), _start(key), dtype=np.uint64)
    return hashed(state, items.pass_number, items.source, items.row_group, items.row)


@lru_cache(maxsize=256)
def _start(key: Key) -> np.uint64:
    return np.uint64(raw_words(1, _IMAGES_KEY, *key)[0])
