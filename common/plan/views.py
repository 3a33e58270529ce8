"""Views: ``shard``, ``take``, ``skip`` and ``repeat`` over the rows, or the batches, of an epoch."""

from __future__ import annotations

from collections.abc import Sequence

from ..order.positions import BatchView, Repeat, RowView, Shard, Slice
from ..stages.base import Stage
from ..stages.repeat import Repeat as RepeatStage
from ..stages.shard import Shard as ShardStage
from ..stages.take import Cut


def rows_viewed(stages: Sequence[Stage], view: RowView) -> RowView:
    """The rows after each of the stages."""
    for stage in stages:
        view = viewed(stage, view)  # type: ignore[assignment]  # rows over rows
    return view


def viewed(stage: Stage, inner: RowView | BatchView) -> RowView | BatchView:
    """What a stage leaves of rows or batches."""
    match stage:
        case Cut():
            return Slice(inner, *stage.bounds)
        case RepeatStage():
            return Repeat(inner, stage.count)
        case ShardStage():
            return Shard(inner, stage.num_shards, stage.index, stage.even)  # type: ignore[arg-type]  # rows over rows
    raise AssertionError(f"{stage.verb} is no view")
