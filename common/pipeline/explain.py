"""Describes the plan of a pipeline in words: that of one dataset, or of a mix."""

from __future__ import annotations

import math
from textwrap import indent
from typing import Protocol

import numpy as np

from ..base.native.library import is_compiled
from ..base.text_table import counted
from ..dataset.file_schemas import types_text
from ..dataset.store_reads import fetched_ranges
from ..dataset.video.frames import EncodedFrames
from ..engine.columns.video_column import kept_bytes
from ..engine.read.fetch import Fetcher
from ..plan.block_reads import BlockKey
from ..plan.mixed_plan import Mixture
from ..plan.options import Options
from ..plan.order.quality import shuffle_quality
from ..plan.plan import BasePlan, Plan
from ..plan.selection.statistics import column_bytes
from ..plan.state import shares_read
from ..schema.element import OutputField
from ..stages.shard import Shard
from ..storage.temporary import temporary_directories, temporary_directory

_MOST_FIELDS = 40
_MOST_GROUPS = 2000
_MOST_NAMES = 20
_MOST_BLOCKS = 200
_MANY_SHARES = 2.0  # reading more than this is worth a remark


class Explained(Protocol):
    """The part of a pipeline that is explained."""

    @property
    def options(self) -> Options:
        """How the pipeline is read."""

    def plan(self) -> BasePlan:
        """The plan."""


def explain_mix(pipeline: Explained, mixture: Mixture) -> str:
    """Returns several lines of text: the plan of each source, how rows are drawn, fields."""
    parts = [str(pipeline)]
    for number, source in enumerate(mixture.sources):
        parts.append(f"source {number}:")
        parts.append(indent(source.explain(), "  "))
    return "\n".join([*parts, _mixing(mixture), *_elements(pipeline.plan())])


def explain_dataset(pipeline: Explained) -> str:
    """Returns several lines of text: files, row groups, what was pruned and why, bytes, rows, order, fields, steps."""
    plan = pipeline.plan()
    assert isinstance(plan, Plan)  # true for a pipeline over one dataset
    _ = plan.program  # fails if a stage does not fit its fields, which the selection would report less clearly
    return "\n".join(
        [
            str(pipeline),
            _in_words(plan),
            *_storage(plan),
            *_columns(plan),
            *_selection(plan),
            *_requests(plan),
            *_order(plan),
            *_memory(plan, pipeline.options.memory_bytes),
            *_decoding(plan),
            *_videos(plan, pipeline.options.memory_bytes),
            *_elements(plan),
        ]
    )


def _in_words(plan: Plan) -> str:
    """Says in one sentence what an epoch reads and gives. The figures follow."""
    stored, files = int(plan.dataset.row_groups.rows.sum()), len(plan.dataset.files)
    wanted = plan.selection.rows.total
    rows = f"all {stored:,} rows" if wanted == stored else f"{wanted:,} of {stored:,} rows"
    shuffle, shard = plan.order.shuffle, plan.order.shard
    order = "in the order of the files"
    if shuffle is not None:
        order = "in a new order" if shuffle.reshuffle_each_iteration else "shuffled, in the same order each time"
    shards = 1 if shard is None else shard.num_shards
    part = "" if shard is None or shards == 1 else f", of which part {shard.index} of {shards} is read"
    return f"An epoch reads {rows} of {counted(files, 'file')} {order}{part}, and gives {_given(plan)}."


def _storage(plan: Plan) -> list[str]:
    groups, files = plan.dataset.row_groups, len(plan.dataset.files)
    size = sum(file.size_bytes for file in plan.dataset.files)
    partitions = f", partitioned by {', '.join(plan.dataset.partitions)}" if plan.dataset.partitions else ""
    table = plan.dataset.table
    deleted = sum(map(len, plan.dataset.deleted.values()))
    shown = "" if table is None else f"{table}: "
    partitions += f", {deleted:,} of them deleted" if deleted else ""
    return [
        f"storage: {shown}{counted(files, 'file')}, {bytes_text(size)}, {len(groups):,} row groups, "
        f"{int(groups.rows.sum()):,} rows{partitions}"
    ]


def _columns(plan: Plan) -> list[str]:
    """Says which files lack columns that are read or have other types, and which columns are left out."""
    dataset = plan.dataset
    missing = dataset.missing
    lines = [
        f"columns: '{field.name}' is not in {missing[field.name]}, so it is null there"
        for field in plan.program.fields
        if field.name in missing
    ]
    lines += [f"columns: '{name}' is left out: {reason}" for name, reason in dataset.not_added.items()]
    differing = dataset.differing
    for field in plan.program.fields:
        if field.name in differing:
            cast = plan.casts.get(field.name)
            how = f"read as {dataset.types[field.name]}" if cast is None else f"cast to {cast} from each"
            lines.append(f"columns: '{field.name}' is {types_text(differing[field.name])}, and {how}")
    hidden = dataset.undeclared
    shown = ", ".join(hidden[:_MOST_NAMES]) + (", ..." if len(hidden) > _MOST_NAMES else "")
    return [*lines, *([f"columns: the schema in the metadata leaves out {shown}"] if hidden else [])]


def _selection(plan: Plan) -> list[str]:
    selection = plan.selection
    lines = []
    for report in selection.reports:
        pruned = f", {report.pruned:,} pruned ({report.pruned_by})" if report.pruned else ""
        proven = f", {report.proven:,} proven without a read" if report.proven else ""
        read = f", {report.read:,} read ({bytes_text(report.read_bytes)})" if report.read else ", none read"
        lines.append(
            f"selection: {report.step}: {report.rows_before:,} -> {report.rows_after:,} of {report.row_groups:,} row "
            f"groups{pruned}{proven}{read}"
        )
        lines += [report.note] if report.note else []
    row_groups = np.flatnonzero(np.diff(selection.items_before) > 0)
    names = [field.name for field in plan.program.fields]
    everything = _stored_bytes(plan, np.arange(len(plan.dataset.row_groups)), names)
    selected = _stored_bytes(plan, row_groups, names)
    what = "windows" if selection.starts is not None else "rows"
    lines.append(
        f"selection: {selection.num_items:,} {what} in {len(row_groups):,} row groups; an epoch reads "
        f"{bytes_text(selected)} of {len(names)} columns, saving {bytes_text(everything - selected)} by pruning"
    )
    return lines


def _requests(plan: Plan) -> list[str]:
    """Says what is fetched from a store, if the footers are at hand: a listing of the requests needs them."""
    dataset = plan.dataset
    row_groups = np.flatnonzero(np.diff(plan.selection.items_before) > 0)
    if not dataset.remote or dataset.table is not None or dataset.index is not None or not len(row_groups):
        return []
    names = dataset.read_names([field.name for field in plan.program.fields])
    names = [name for name in names if name not in dataset.partitions]
    sample = row_groups[np.unique(np.linspace(0, len(row_groups) - 1, _MOST_BLOCKS).astype(int))].tolist()
    ranges = [fetched_ranges(dataset, [row_group], names, frozenset(names)) for row_group in sample]
    fetched = sum(end - first for each in ranges for first, end in each)
    needed = sum(column_bytes(dataset, row_group, names) for row_group in sample)
    return [
        f"store: {sum(map(len, ranges)) / len(sample):,.1f} requests a row group, which fetch "
        f"{fetched / max(1, needed):.2f} times the bytes that are needed"
    ]


def _stored_bytes(plan: Plan, row_groups: np.ndarray, names: list[str]) -> int:
    """Stored bytes of some columns: exact for small datasets, extrapolated from evenly spaced row groups otherwise."""
    if len(row_groups) == 0:
        return 0
    sample = (
        row_groups
        if len(row_groups) <= _MOST_GROUPS
        else row_groups[np.linspace(0, len(row_groups) - 1, _MOST_GROUPS).astype(int)]
    )
    total = sum(column_bytes(plan.dataset, int(row_group), names) for row_group in sample)
    return int(total * len(row_groups) / len(sample))


def _order(plan: Plan) -> list[str]:
    shuffle, shard = plan.order.shuffle, plan.order.shard
    lines = [f"order: {line}" for line in plan.items.explained]
    if shuffle is None:
        lines.append("order: as stored")
    else:
        again = "a new order each epoch" if shuffle.reshuffle_each_iteration else "the same order each epoch"
        lines.append(
            f"order: row groups permuted, rows in blocks of at least {shuffle.buffer_size:,}, "
            f"{_seed(shuffle.seed, drawn=shuffle.drawn)}, {again}"
        )
        batch = plan.element.batch_size or 64
        rows = plan.program.join is None and not plan.order.makes_batches
        quality = shuffle_quality(plan.epoch_order(0), plan.items.items_before(0), batch) if rows else None
        if quality is not None:
            lines.append(
                f"order: mean displacement {quality.displacement:.0%} of a full permutation's, rank correlation "
                f"{quality.rank_correlation:.3f}, {quality.row_groups_per_batch:.1f} row groups meet in {batch} rows, "
                f"at least {quality.row_groups_per_batch_least} (a full permutation: "
                f"{quality.row_groups_per_batch_full:.1f})"
            )
    if shard is not None:
        lines.append(
            f"order: shard {shard.index} of {shard.num_shards}, even={shard.even!r}, "
            f"{plan.order_spec.streams} canonical streams; {_seen(plan, shard)}"
        )
    if plan.order.cache is not None:
        lines.append(f"cache: {plan.order.cache.directory}")
    return lines


def _seen(plan: Plan, shard: Shard) -> str:
    """Says which rows a rank sees in an epoch and over epochs, and how much it reads for them."""
    ranks, streams, shuffle = shard.num_shards, plan.order_spec.streams, plan.order.shuffle
    if ranks == 1:
        return "the rank sees all rows in each epoch"
    fixed = shuffle is None or not shuffle.reshuffle_each_iteration or plan.order.shard_first or bool(plan.order.part)
    over = "the same ones in each" if fixed else "others in the next, and all over epochs"
    seen = f"a rank sees {1 / ranks:.1%} of the rows in an epoch, {over}"
    common = math.gcd(ranks, streams)
    if (times := shares_read(streams, ranks)) > 1:
        return f"{seen}; it reads about {times} shares, because {_misfit(shard, streams, ranks)}"
    own = range(shard.index % common, streams, common)
    if plan.order.part or len(own) > _MOST_BLOCKS:
        return seen
    order, items = plan.epoch_order(0), np.diff(plan.items.items_before(0))
    row_groups = np.unique(np.concatenate([order.stream(stream).row_group for stream in own]))
    shares = float(items[row_groups].sum() / max(items.sum() / ranks, 1))
    if shares <= _MANY_SHARES:
        return seen
    why = "because ranks share row groups: write smaller ones (parquetry rewrite)"
    return f"{seen}; it reads {shares:.1f} shares, {why}"


def _misfit(shard: Shard, streams: int, ranks: int) -> str:
    """Says why ranks share streams."""
    if shard.canonical_shards is None:
        return f"rows are dealt from {streams} streams to {ranks} ranks"
    return f"canonical_shards={streams} is not a multiple of {ranks} ranks"


def _memory(plan: Plan, memory_limit: int) -> list[str]:
    """Says what happens to blocks that are too large. Looks at the first stream, and at a sample of many blocks."""
    blocks = len(plan.epoch_order(0).stream(0).block_segment) - 1
    if blocks < 1:
        return []
    sample = np.unique(np.linspace(0, blocks - 1, min(blocks, _MOST_BLOCKS)).astype(int)).tolist()
    sizes = [plan.block_size(BlockKey(epoch=0, stream=0, block=block)) for block in sample]
    largest = max(size.largest_row_group_bytes for size in sizes)
    if largest > memory_limit:
        return [
            f"memory: a row group takes about {bytes_text(largest)}, more than memory_limit "
            f"({bytes_text(memory_limit)}), and is "
            + (
                "read into memory, which takes up to three times as much, because cache() keeps whole row groups: "
                "write smaller ones (parquetry rewrite)"
                if plan.order.cache is not None
                else f"{_sliced(largest)}: smaller ones are faster (parquetry rewrite)"
            )
        ]
    size = max(size.num_bytes for size in sizes)
    if size <= memory_limit:
        return []
    block = (
        f"memory: a block takes about {bytes_text(size)}, more than memory_limit ({bytes_text(memory_limit)}), and is"
    )
    if plan.order.cache is not None:
        return [f"{block} read into memory, because cache() keeps whole row groups: shuffle fewer rows"]
    return [f"{block} {_sliced(size)}: shuffling fewer rows is faster"]


def _sliced(size_bytes: int) -> str:
    """Says where a large row group is read to."""
    directory = temporary_directory(size_bytes)
    if directory is not None:
        return f"read in slices into a temporary file in {directory}"
    return f"read into memory, because there is no room for a temporary file in {' or '.join(temporary_directories())}"


def _decoding(plan: Plan) -> list[str]:
    """Describes what happens to stored columns on their way into the batch."""
    lines = [f"decode: {each.step}" for each in plan.program.inputs if each.step is not None]
    by = "the compiled core" if is_compiled() else "numpy; run `parquetry doctor` to see why not by the compiled core"
    return [*lines, f"rows copied by: {by}"]


def _videos(plan: Plan, memory_limit: int) -> list[str]:
    """Says what it costs to decode frames of videos, as in the first row group of the selection."""
    fields = [field for field in plan.program.fields if not field.storage.in_column]
    row_groups = np.flatnonzero(np.diff(plan.selection.items_before) > 0)
    if not fields or not len(row_groups):
        return []
    columns = Fetcher(plan.dataset, fields).fetch(int(row_groups[0]), None).columns
    frames = [part for part in columns if isinstance(part, EncodedFrames)]
    kept = bytes_text(kept_bytes(fields, memory_limit))
    return [
        f"video: '{field.name}' decodes {part.decoded / max(part.needed, 1):.1f} frames for each one that is needed, "
        f"and keeps up to {kept} of them for later items of a block"
        for field, part in zip(fields, frames, strict=True)
    ]


def _mixing(mixture: Mixture) -> str:
    """Describes how the next source is drawn, and where the mix ends."""
    phases = [
        f"{'/'.join(f'{weight / sum(weights):.0%}' for weight in weights)} from row {start:,}"
        for start, weights in mixture.phases
    ]
    ends = "when a drawn source has no more rows" if mixture.stop == "first" else "when all are used up"
    seed = _seed(mixture.seed, drawn=mixture.drawn)
    return f"order: rows of the sources drawn {', '.join(phases)}, {seed}; it ends {ends}"


def _seed(seed: int, *, drawn: bool) -> str:
    return f"no seed (drew {seed})" if drawn else f"seed {seed}"


def _given(plan: BasePlan) -> str:
    """Says how many elements of which kind an epoch has."""
    element = plan.element
    length = plan.length
    items = "windows" if isinstance(plan, Plan) and plan.selection.starts is not None else "rows"
    if isinstance(plan, Plan) and plan.program.join is not None:
        items = f"items of {plan.program.join.length:,} tokens"
    size = f"{element.batch_size} " if element.batch_size else ""
    kind = f"{'batch' if length == 1 else 'batches'} of {size}{items}" if element.batched else items
    many = "endless" if length is None else f"{length:,}"
    if plan.program.drops:
        many = f"an unknown number (a function may leave out some of {many} rows) of"
    return f"{many} {kind}"


def _elements(plan: BasePlan) -> list[str]:
    element = plan.element
    lines = [f"gives: {_given(plan)}"]
    if plan.skips:
        again = "; this rank's first rows are repeated in their place at the end" if plan.keeps_step else ""
        lines.append(f"  rows that fail are left out (on_error='skip'){again}")
    lines += [f"  {_describe(output)}" for output in element.outputs[:_MOST_FIELDS]]
    if len(element.outputs) > _MOST_FIELDS:
        lines.append(f"  ... and {len(element.outputs) - _MOST_FIELDS} more fields")
    return lines


def _describe(output: OutputField) -> str:
    dtype, shape, about, null = output.about
    value = f"{dtype} {shape}" if shape else dtype
    return f"{output.name}: {value}{f' or {null}' if null else ''}{f', {about}' if about else ''}"


def bytes_text(count: float) -> str:
    """Formats a number of bytes for people, such as ``1.5 KiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
