"""Measures how well a shuffle mixes, compared to a full permutation.

The rank correlation is Spearman's, between position and storage order: 0 for a perfect shuffle, 1 for none. The
displacement is the mean distance that an item moves, divided by N / 3, the value for a full permutation.
"""

from __future__ import annotations

import numpy as np

from ...base.process.dataclass import dataclass
from .epoch import EpochOrder

_MOST_ITEMS = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """The measures of one epoch.

    Attributes:
        rank_correlation: absolute, 0 to 1.
        displacement: 1 for a full permutation.
        row_groups_per_batch: the mean number of distinct row groups in a batch; ``_least`` is the least number in a
            full batch, and ``_full`` the mean for a full permutation.
    """

    rank_correlation: float
    displacement: float
    row_groups_per_batch: float
    row_groups_per_batch_least: int
    row_groups_per_batch_full: float


def shuffle_quality(order: EpochOrder, items_before: np.ndarray, batch_size: int) -> ShuffleQuality | None:
    """Measures the order of an epoch. Returns ``None`` for fewer than two items, or too many to list."""
    total = int(items_before[-1])
    if not 2 <= total <= _MOST_ITEMS:
        return None
    items = epoch_items(order)
    position = np.arange(total)
    correlation = abs(float(np.corrcoef(position, items)[0, 1])) if total > 2 else 0.0
    row_group = np.searchsorted(items_before, items, side="right") - 1
    batch_size = min(batch_size, total)
    distinct = np.bincount(np.unique(np.stack([position // batch_size, row_group]), axis=1)[0])
    counts = np.diff(items_before)
    share = np.minimum(1.0, batch_size / total)
    full = float(np.sum(1.0 - (1.0 - share) ** counts[counts > 0]))
    return ShuffleQuality(
        rank_correlation=correlation,
        displacement=float(np.mean(np.abs(position - items)) / (total / 3)),
        row_groups_per_batch=float(distinct.mean()),
        row_groups_per_batch_least=int(distinct[: total // batch_size].min()),
        row_groups_per_batch_full=full,
    )


def epoch_items(order: EpochOrder) -> np.ndarray:
    """Returns every item of an epoch in order, without padding or dropping (int64)."""
    streams = order.spec.streams
    lists = []
    for stream in range(streams):
        blocks = len(order.stream(stream).block_segment) - 1
        parts = [order.block_items(stream, block) for block in range(blocks)]
        lists.append(np.concatenate(parts) if parts else np.zeros(0, np.int64))
    result = np.empty(sum(len(part) for part in lists), dtype=np.int64)
    for stream, part in enumerate(lists):
        result[stream::streams] = part
    return result
