"""`simulate` computes an epoch for each number of ranks: steps, balance, reads, memory, and shuffle quality.

The input is the number of rows in each row group (of a real or hypothetical dataset) and the settings of the chain. The
output is one `RankPlan` per number of ranks. It uses the same `EpochOrder` as training, and reads no data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import PipelineError
from ..order.epoch import EpochOrder, Even, OrderSpec
from ..order.quality import ShuffleQuality, shuffle_quality
from ..plan.plan import Plan
from ..process.dataclass import dataclass
from ..progress import progress
from ..schema.ragged import ends_of
from ..selection.statistics import column_bytes, decoded_bytes
from ..stages.shard import Shard
from .inspecting import Source, pipeline_of

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_SAMPLED_GROUPS = 200
_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The properties of a dataset and a chain that determine the order of rows.

    Attributes:
        items: rows (or windows) in each row group, int64 ``[row_groups]``.
        rows: stored rows in each row group, if a filter or windows make this differ from ``items``. Row groups are read
            whole. ``None`` = same as ``items``.
        stored_bytes, decoded_bytes: the mean size of the selected columns of one row, compressed and decompressed.
        batch_size: items in a batch of one rank.
        buffer_size: the ``buffer_size`` of the shuffle; ``None`` without a shuffle.
        canonical_shards: the setting of `Pipeline.shard`; ``None`` = as many as ranks.
        shard_first: whether ``shard`` comes before ``shuffle``, so that each rank keeps the same part.
    """

    items: np.ndarray
    stored_bytes: float
    decoded_bytes: float
    rows: np.ndarray | None = None
    batch_size: int = _BATCH
    buffer_size: int | None = None
    seed: int = 0
    even: Even = "pad"
    canonical_shards: int | None = None
    shard_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One epoch for one number of ranks.

    Attributes:
        ranks: the number of ranks.
        streams: the number of canonical streams in the order.
        items: the minimum and maximum number of items per rank.
        steps: the number of batches per rank.
        repeated: items that are read twice so that all ranks take the same number of steps.
        dropped: items that are not read for the same reason.
        row_groups: the minimum and maximum number of row groups that a rank reads. A large difference is an imbalance.
        amplification: row groups read by all ranks together, divided by the row groups in the dataset; 1 is best.
        read_bytes: the maximum number of stored bytes that a rank reads in an epoch.
        block_items, block_bytes: the size of the largest shuffle block, which a rank holds in memory.
        cache_bytes: the size of a rank's local ``cache()`` after one epoch, and after many.
        quality: the shuffle quality over global batches; ``None`` without a shuffle, or for more than 500,000 items.
    """

    ranks: int
    streams: int
    items: tuple[int, int]
    steps: int
    repeated: int
    dropped: int
    row_groups: tuple[int, int]
    amplification: float
    read_bytes: int
    block_items: int
    block_bytes: int
    cache_bytes: tuple[int, int]
    quality: ShuffleQuality | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The result of `simulate`: the size of the dataset, and a plan for each number of ranks."""

    items: int
    row_groups: int
    stored_bytes: int
    described: Described
    plans: tuple[RankPlan, ...]


def describe(rows: int, row_group_rows: int, row_bytes: float, **options: Any) -> Described:
    """Describes a hypothetical dataset with row groups of equal size, except for a smaller last one.

    Args:
        row_bytes: stored bytes per row.
        options: other attributes of `Described`.

    Raises:
        PipelineError: a number is out of range.
    """
    if rows < 1 or row_group_rows < 1 or row_bytes <= 0:
        raise PipelineError(
            f"simulate: expected numbers above 0, got {rows} rows, {row_group_rows} rows per row group, and "
            f"{row_bytes} bytes per row."
        )
    items = np.full(-(-rows // row_group_rows), row_group_rows, np.int64)
    items[-1] = rows - row_group_rows * (len(items) - 1)
    return Described(items=items, stored_bytes=row_bytes, decoded_bytes=row_bytes, **options)


def described_by(source: Source, *, storage_options: Mapping[str, Any] | None = None) -> Described:
    """Describes the dataset and chain of a pipeline. The rank count of its ``shard`` is ignored.

    Raises:
        PipelineError: the pipeline is mixed or served, or combines rows.
    """
    plan = pipeline_of(source, storage_options).plan()
    if not isinstance(plan, Plan) or plan.program.join is not None or plan.order.makes_batches:
        raise PipelineError(
            "simulate: expected rows or windows of one dataset. Leave concat, pack_rows and bucket out."
        )
    names = [field.name for field in plan.program.fields]
    items = np.diff(plan.items.items_before(0))
    found = np.flatnonzero(items)
    sampled = (
        found[np.linspace(0, len(found) - 1, min(len(found), _SAMPLED_GROUPS)).astype(int)] if len(found) else found
    )
    stored = plan.dataset.row_groups.rows
    rows = max(int(stored[sampled].sum()), 1)
    shuffle, shard = plan.order.shuffle, plan.order.shard
    return Described(
        items=items,
        rows=stored,
        stored_bytes=sum(column_bytes(plan.dataset, int(group), names) for group in sampled) / rows,
        decoded_bytes=sum(decoded_bytes(plan.dataset, int(group), names) for group in sampled) / rows,
        batch_size=plan.element.batch_size or _BATCH,
        buffer_size=None if shuffle is None else shuffle.buffer_size,
        seed=0 if shuffle is None or shuffle.seed is None else shuffle.seed,
        even="pad" if shard is None else shard.even,
        canonical_shards=shard.canonical_shards if isinstance(shard, Shard) else None,
        shard_first=plan.order.shard_first,
    )


def simulate(described: Described, ranks: Sequence[int] = RANKS) -> Simulation:
    """Simulates one epoch for each number of ranks.

    >>> simulate(describe(1_000_000, 1_000, 100_000, buffer_size=10_000), [8]).plans[0].amplification
    1.0

    Raises:
        PipelineError: there are no items, or a number of ranks is below 1.
    """
    if not described.items.sum():
        raise PipelineError("simulate: expected at least one item, got none. Loosen the filter, or check the URL.")
    if not ranks or min(ranks) < 1 or described.batch_size < 1:
        raise PipelineError(
            f"simulate: expected ranks and batch size >= 1, got ranks {list(ranks)} and batches of "
            f"{described.batch_size} rows."
        )
    counts = sorted(set(map(int, ranks)))
    return Simulation(
        items=int(described.items.sum()),
        row_groups=int(np.count_nonzero(described.items)),
        stored_bytes=int(_rows_read(described).sum() * described.stored_bytes),
        described=described,
        plans=tuple(_plan(described, count) for count in progress(counts, "simulating", len(counts), unit="plan")),
    )


def _rows_read(described: Described) -> np.ndarray:
    """Returns the stored rows to read from each row group; 0 for row groups without items."""
    rows = described.items if described.rows is None else described.rows
    return np.where(described.items > 0, rows, 0)


def _plan(described: Described, ranks: int) -> RankPlan:
    streams = described.canonical_shards or ranks
    before = ends_of(described.items)
    spec = OrderSpec(
        seed=described.seed,
        buffer_size=described.buffer_size,
        streams=streams,
        even=described.even,
        shard_first=described.shard_first,
    )
    order = EpochOrder(before, spec, 0)
    total, groups = int(before[-1]), int(np.count_nonzero(described.items))
    least, most, given = _shares(total, ranks, described.even)
    blocks = [order.stream(stream) for stream in range(streams)]
    reads = np.array([len(np.unique(stream.row_group)) for stream in blocks])
    rows = _rows_read(described)
    touched = np.array([int(rows[np.unique(stream.row_group)].sum()) for stream in blocks])
    common = math.gcd(ranks, streams)  # rank r reads the streams s with s % common == r % common
    per_rank = reads.reshape(-1, common).sum(axis=0)
    rows_per_rank = touched.reshape(-1, common).sum(axis=0)
    largest = max((int(np.diff(stream.block_position).max(initial=0)) for stream in blocks), default=0)
    read = int(rows_per_rank.max() * described.stored_bytes)
    everything = int(rows.sum() * described.stored_bytes)
    stays = described.shard_first or described.buffer_size is None
    return RankPlan(
        ranks=ranks,
        streams=streams,
        items=(least, most),
        steps=-(-most // described.batch_size),
        repeated=max(given - total, 0),
        dropped=max(total - given, 0),
        row_groups=(int(per_rank.min()), int(per_rank.max())),
        amplification=float(reads.sum() * (ranks // common) / max(groups, 1)),
        read_bytes=read,
        block_items=largest,
        block_bytes=int(largest * described.decoded_bytes),
        cache_bytes=(read, read if stays or ranks == 1 else everything),
        quality=None if described.buffer_size is None else _quality(order, before, described, ranks),
    )


def _quality(order: EpochOrder, before: np.ndarray, described: Described, ranks: int) -> ShuffleQuality | None:
    found = shuffle_quality(order, before, described.batch_size * ranks)
    finite = found is not None and not math.isnan(found.rank_correlation)
    return found if finite or found is None else replace(found, rank_correlation=0.0)


def _shares(total: int, ranks: int, even: Even) -> tuple[int, int, int]:
    """Returns the minimum and maximum items per rank, and the items of all ranks together."""
    if even == "pad":
        most = -(-total // ranks)
        return most, most, most * ranks
    least = total // ranks
    return (least, least, least * ranks) if even == "drop" else (least, -(-total // ranks), total)
