"""`items_of`: the items of an epoch and the rows that they are made of. A stage may join rows to items, or draw rows.

A new stage of this kind has its items in a module of its own, and a function here.
"""

from __future__ import annotations

from functools import singledispatch

from ..stages.base import Stage
from ..stages.bucket import Bucket
from ..stages.concat import Concat
from ..stages.pack_rows import PackRows
from ..stages.shuffle import Shuffle
from ..stages.weigh import Weigh
from .bucket_items import BucketItems
from .items import RowItems
from .packed_items import PackedItems
from .selection.selection import Selection
from .token_items import TokenItems
from .weighted_items import WeightedItems

_GROUP_ROWS = 10_000  # without a shuffle, batches of similar length are formed among this many rows


@singledispatch
def items_of(join: Stage, selection: Selection, shuffle: Shuffle | None, seed: int | None) -> RowItems:
    """Returns the items of an epoch that a stage makes of the selected rows.

    Args:
        shuffle: the shuffle of the pipeline; rows are joined among as many rows as it permutes.
        seed: the pipeline's seed, for stages that were given none.
    """
    raise NotImplementedError(join)


@items_of.register
def _tokens(join: Concat, selection: Selection, shuffle: Shuffle | None, seed: int | None) -> RowItems:
    separated, padded = join.separator is not None, join.remainder == "pad"
    return TokenItems(selection, join.length, separated=separated, padded=padded)


@items_of.register
def _buckets(join: Bucket, selection: Selection, shuffle: Shuffle | None, seed: int | None) -> RowItems:
    return BucketItems(
        selection,
        join.buckets or join.boundaries,
        join.batch_size or join.batch_sizes or None,
        join.max_tokens,
        _GROUP_ROWS if shuffle is None else shuffle.buffer_size,
    )


@items_of.register
def _drawn_rows(join: Weigh, selection: Selection, shuffle: Shuffle | None, seed: int | None) -> RowItems:
    chosen = join.seed if not join.drawn or seed is None else seed
    weights_of_classes = join.weights.of_classes if join.weights.by_class else None
    return WeightedItems(selection, weights_of_classes, join.num_items, chosen)


@items_of.register
def _packed(join: PackRows, selection: Selection, shuffle: Shuffle | None, seed: int | None) -> RowItems:
    best, cut = join.strategy == "best_fit", join.overlong == "cut"
    rows = 1 if shuffle is None else shuffle.buffer_size
    return PackedItems(selection, join.length, best=best, cut=cut, group_rows=rows)
