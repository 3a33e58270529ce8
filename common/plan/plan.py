"""`Plan`: everything about a pipeline that is decided before the first row is decoded.

From the stored dataset and the stages, it derives the element's description (from the schema alone), the exact
selection, the order, and, for any element, the blocks it needs and the rows it takes from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import EmptySelectionError, FieldNotFoundError, ParquetryError, SchemaError, StateError
from ..base.process.forks import cached_property
from ..dataset.dataset import StoredDataset
from ..schema.codecs import ReadListCodec
from ..schema.dtypes import FieldDtype, delivered_dtype, is_string_like
from ..schema.element import Element, about_row_bytes
from ..schema.field import UnischemaField
from ..schema.ragged import concat_ranges
from ..schema.vocabulary import Vocabulary
from ..stages.base import Decision, Stage, drawn_seed, with_seed, with_streams
from ..stages.columns import ResolveFields
from ..stages.recut import Recut
from ..stages.repeat import Repeat
from ..stages.shard import Shard
from .block_reads import BlockKey, BlockRead, BlockRows, BlockSize
from .fields import build_program, casts_in_file, declared_as
from .items import RowItems, by_block, distinct
from .joined_items import items_of
from .order.cursor import START, Cursor, Origin
from .order.epoch import REST, EpochOrder, OrderSpec, RowGroupSizes
from .order.leftovers import Leftovers, items_left
from .order.positions import (
    Batches,
    BatchView,
    Consecutive,
    Epoch,
    RepeatView,
    Resumed,
    RowView,
    ShardView,
    Slice,
    Strided,
    WorkerView,
    pass_numbers,
    rows_viewed,
    viewed,
)
from .program import ElementProgram
from .selection.rows import RowSet
from .selection.selection import Selection
from .selection.statistics import column_bytes, decoded_bytes
from .stage_order import StageOrder, order_stages

Select = Callable[[StoredDataset, Sequence[Stage], ResolveFields], Selection]
"""Evaluates the stages of a selection. This may read files, so the engine implements it and passes it to the plan."""
_CHUNK_BYTES = 4 << 20
_MAX_CHUNK_ROWS = 256
_MERGED_BYTES = 8 << 20
_MERGED_FIELD_BYTES = 3 << 18  # a job with many fields makes more batches, because each of its fields costs time
_MOST_MERGED_BYTES = 32 << 20
_LARGE_JOB_BYTES = 16 << 20
_MOST_MERGED = 128


INFINITE = -1
UNKNOWN = -2


class BasePlan:
    """The part shared by plans of one dataset and plans of a mix: the element, and the steps as views over rows.

    Subclasses define the rows (``program``, ``row_view``) and their location (``reads`` and the ``block_`` methods).
    """

    stages: tuple[Stage, ...]
    order: StageOrder
    program: ElementProgram
    row_view: RowView
    hashes: tuple[str, str] | None = None
    """Hashes of all stages, and of those that decide the order, if another process has the stages; see `state`."""
    skips: bool = False
    """Whether failing rows are left out (``on_error="skip"``). A state then records how many."""

    @cached_property
    def element(self) -> Element:
        """The element that one step yields."""
        batch = self.order.batch
        if batch is None:
            varying = self.order.makes_batches
            return Element(outputs=self.program.outputs, form=self.program.form, varying_batch=varying)
        endless = False
        for view in self.order.row_views:
            endless = view.endless_after(endless)
        static = batch.drop_remainder or endless
        outputs, form = self.program.outputs, self.program.form
        return Element(outputs=outputs, batch_size=batch.batch_size, static_batch=static, form=form)

    @cached_property
    def batch_view(self) -> BatchView | None:
        """The batches of this rank, or ``None`` for an unbatched pipeline."""
        return self._batches(self.row_view)

    def _batches(self, rows: RowView) -> BatchView | None:
        batch = self.order.batch
        if self.order.makes_batches:
            return Batches(rows, 1, False)
        if batch is None or self.program.drops:  # then batches are made of the rows that remain; see `engine.rebatch`
            return None
        result: BatchView = Batches(rows, batch.batch_size, batch.drop_remainder)
        for stage in self.order.batch_views:
            result = viewed(stage, result)  # type: ignore[assignment]  # batches over batches
        return result

    @property
    def length(self) -> int | None:
        """Elements in one iteration; ``None`` = endless. If a function drops rows, the number of its input rows."""
        view = self.batch_view
        return self.row_view.length if view is None else view.length

    @cached_property
    def row_bytes(self) -> int:
        """About how many bytes a decoded row takes. Variable sizes are guessed."""
        return about_row_bytes(self.element.outputs)

    @cached_property
    def chunk_rows(self) -> int:
        """Rows in a chunk of an unbatched pipeline. It affects only speed and memory."""
        row_bytes = max([self.row_bytes, *(part.stored_row_bytes for part in self.parts)])
        return int(np.clip(_CHUNK_BYTES // row_bytes, 1, _MAX_CHUNK_ROWS))

    @property
    def step_bytes(self) -> int:
        """About how many bytes a step takes, which is a batch or a chunk of rows."""
        return self.row_bytes * (self.element.batch_size or self.chunk_rows)

    def rows_of_reads(self, reads: Sequence[BlockRead], items: int) -> int:
        """Returns the number of rows in the reads of ``items`` items. It is ``items``, unless items are batches."""
        return sum(len(read.items) for read in reads) if self.order.makes_batches else items

    def item_rows(self, iteration: int, passes: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Returns the number of rows of each item (int64), which is 1 unless items are batches.

        The arguments are those of `Plan.reads`.
        """
        return np.ones(len(index), np.int64)

    @property
    def cardinality(self) -> int:
        """Elements in one iteration, in the encoding of the protocol: -1 = endless, -2 = unknown."""
        return self.cardinality_of(self.length)

    def cardinality_of(self, length: int | None) -> int:
        """Returns a number of elements in the encoding of the protocol."""
        if length is None:
            return INFINITE
        return UNKNOWN if self.program.drops or self.loses_elements else length

    @property
    def numbered(self) -> bool:
        """Whether each element has a number, under which it can be read without those before it."""
        return not (self.program.drops or self.skips)

    @property
    def keeps_step(self) -> bool:
        """Whether every rank must yield equally many elements. A rank that left rows out repeats its first elements."""
        shard = self.order.shard
        return shard is not None and shard.num_shards > 1 and shard.even != "none"

    @property
    def joined(self) -> bool:
        """Whether rows are joined to items (``concat``, ``pack_rows``, ``bucket``), in any source of a mix."""
        joins = [part.order.join for part in self.parts]
        return any(join is not None and join.decides is Decision.JOINS for join in joins)

    @property
    def loses_elements(self) -> bool:
        """Whether an epoch may have fewer elements than planned, because failing rows are left out of it.

        Joined tokens cannot fail: rows that would fail are filtered out beforehand.
        """
        if not self.skips or self.keeps_step:
            return False
        return not self.joined or self.order.makes_batches or len(self.parts) > 1 or bool(self.program.item_steps)

    def lane(self, cursor: Cursor, rank: int | None = None) -> RowView:
        """Returns the rows of a loader worker's part in order, including those after its last full batch.

        Args:
            cursor: says which loader worker.
            rank: the rank; ``None`` = this one.
        """
        rows, batch = self.rows_from(cursor.origin, rank), None if self.program.drops else self.order.batch
        if cursor.workers == 1:
            return rows
        if batch is None:
            return ShardView(rows, cursor.workers, cursor.worker, "none")
        return WorkerView(rows, batch.batch_size, cursor.worker, cursor.workers)

    def rows_from(self, origin: Origin, rank: int | None = None) -> RowView:
        """Returns the rows of a rank (``None`` = this one) that remain after a global position.

        Raises:
            StateError: the stages (``take``, ``skip``) give ranks no common position.
        """
        if origin == START:
            return self.row_view if rank is None else self.row_view_of(rank)
        shard, whole = of_rank(self._elastic_shard(), rank), self.one_pass
        left = None if self.turns is None else self.turns - origin.passes - 1
        here = self.pass_from(origin)
        # Nothing is left after the last pass.
        rest = rows_viewed(shard, here if left is None or left >= 0 else Slice(here, 0, 0))
        ends = whole.length is None or (left is not None and left <= 0)
        later = None if ends else RepeatView(rows_viewed(shard, whole), left, origin.passes + 1)
        return Resumed(RepeatView(rest, 1, origin.passes), later)

    @cached_property
    def turns(self) -> int | None:
        """How often all views together repeat `one_pass`; ``None`` = endlessly."""
        views = (*self.order.row_views, *self.order.batch_views)
        counts = [stage.count for stage in views if isinstance(stage, Repeat)]
        return None if None in counts else math.prod(count or 0 for count in counts)

    def global_passes(self, iteration: int, passes: np.ndarray) -> np.ndarray:
        """Returns the numbers that passes of an iterator have among those of all iterators of the pipeline (int64)."""
        return pass_numbers(iteration, passes, self.batch_view or self.row_view)

    def origin_after(self, origin: Origin, num_shards: int, rows: int) -> Origin:
        """Returns the global position after each of ``num_shards`` ranks took ``rows`` rows from ``origin``."""
        self._elastic_shard()
        whole, here = self.one_pass, self.pass_from(origin)
        even = "none" if self.order.shard is None else self.order.shard.even
        first = ShardView(here, num_shards, 0, even).length
        if first is None or rows < first:
            return Origin(passes=origin.passes, rows=origin.rows + rows * num_shards)
        assert whole.length is not None
        assert here.length is not None
        later = self.turns is None or self.turns > origin.passes + 1
        if even == "none" and later and here.length % num_shards:
            raise StateError(
                "state: expected even='pad' or 'drop' to resume with another number of ranks or another batch size "
                "after the first pass: with even='none', ranks whose passes differ in length are at different rows."
            )
        each = max(ShardView(whole, num_shards, 0, even).length or 0, 1)
        passes, left = divmod(rows - first, each)
        return Origin(passes=origin.passes + 1 + passes, rows=left * num_shards)

    def pass_from(self, origin: Origin) -> RowView:
        """Returns the rows of a pass from a global position on, for all ranks together."""
        return Slice(self.one_pass, origin.rows, None)

    def _elastic_shard(self) -> list[Stage]:
        """Returns the shard, if there is one. Raises `StateError` for views other than a shard and a repeat."""
        rows = self.order.row_views
        shard = [stage for stage in rows if stage.decides is Decision.PART]
        repeat = [stage for stage in rows if stage.decides is Decision.PASSES]
        if self.order.batch_views or rows != [*shard, *repeat] or len(repeat) > 1 or self.order.part:
            raise StateError(
                "state: expected only shard(), repeat() and batch() after shuffle() to resume with another number of "
                "ranks or another batch size; take(), skip(), and anything after batch() give ranks no "
                "common position."
            )
        return shard

    def elements_from(self, origin: Origin) -> int | None:
        """Returns the number of elements that remain after a global position; ``None`` = endless."""
        if origin == START:
            return self.length
        rows = self.rows_from(origin)
        batches = self._batches(rows)
        return rows.length if batches is None else batches.length

    def steps(self, cursor: Cursor) -> BatchView:
        """Returns the steps that the engine runs from a cursor on: batches, or chunks of rows.

        A loader worker takes every ``workers``-th batch (or row), starting with number ``worker``.
        """
        rows = self.rows_from(cursor.origin)
        batches, start = self._batches(rows), cursor.start
        if batches is not None:
            own_batches = batches if cursor.workers == 1 else Strided(batches, cursor.worker, cursor.workers)
            return Slice(own_batches, start, None) if start else own_batches
        part: RowView = rows if cursor.workers == 1 else ShardView(rows, cursor.workers, cursor.worker, "none")
        return Batches(Slice(part, start, None) if start else part, self.chunk_rows, False)

    @cached_property
    def has_uneven_batches(self) -> bool:
        """Whether batches that are made in one job may differ in size.

        They do if a stage makes them by the size of their rows, or a step pads each to its largest value.
        """
        return self.order.makes_batches or any(step.needs_whole_batch for step in self.program.item_steps)

    def merged_steps(self, most_bytes: int, workers: int = 1) -> int:
        """How many full batches the engine makes in one job if they are small. It affects only the speed.

        It is 1 if a user function gets whole batches. If batches differ in size, it is also 1 with any other user
        function, or if decoding is costly.

        Args:
            most_bytes: the memory that is left for them.
            workers: the number of loader workers. Each worker's batches, and so their blocks, are that far apart.
        """
        if self.batch_view is None or (self.has_uneven_batches and (self.program.has_user_code or self.program.costly)):
            return 1
        most = _MOST_MERGED // 4 if self._is_slow else _MOST_MERGED
        return int(np.clip(self.merged_bytes(most_bytes, workers) // self.step_bytes, 1, most))

    def merged_bytes(self, most_bytes: int, workers: int = 1) -> int:
        """How many bytes the steps may take that the engine makes at once. See `merged_steps`."""
        field_bytes = min(_MERGED_FIELD_BYTES * len(self.element.outputs), _MOST_MERGED_BYTES)
        bytes_at_once = _MERGED_BYTES // 2 if self._is_slow else max(field_bytes, _MERGED_BYTES)
        return min(bytes_at_once // workers, most_bytes)

    def makes_large_jobs(self, steps: int) -> bool:
        """Whether jobs of this many merged steps are so large that fewer of them should be ready at a time."""
        return steps > 1 and steps * self.step_bytes > _LARGE_JOB_BYTES

    @property
    def _is_slow(self) -> bool:
        """Whether making a step takes long, so that other steps should not wait for it."""
        return self.program.costly or self.program.has_user_code

    @property
    def seed(self) -> int | None:
        """The seed in a state: that of the shuffle; for a mix, the one from which all generated seeds are derived."""
        return drawn_seed(self.stages) if self.order.shuffle is None else self.order.shuffle.seed

    @property
    def seed_is_drawn(self) -> bool:
        """Whether the seed was generated instead of given, so that it differs between processes."""
        shuffle = self.order.shuffle
        return self.seed is not None if shuffle is None else shuffle.drawn

    # --- implemented by subclasses ---

    @property
    def one_pass(self) -> RowView:
        """The rows of one pass over the data, for all ranks together."""
        raise NotImplementedError

    def row_view_of(self, rank: int) -> RowView:
        """Returns the ``row_view`` of another rank, if this plan has its rows, and otherwise that of this one."""
        raise NotImplementedError

    def with_seed(self, seed: int) -> BasePlan:
        """Returns the same plan with another seed."""
        raise NotImplementedError

    def with_streams(self, count: int, recut: Recut | None) -> BasePlan:
        """Returns the same plan, in which a shard without ``canonical_shards`` has the streams of a state."""
        raise NotImplementedError

    @property
    def undivided(self) -> str | None:
        """Why what is left of a pass cannot be cut into other streams; ``None`` if it can."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the data, independent of their location."""
        raise NotImplementedError

    def check_not_empty(self) -> None:
        """Raises `EmptySelectionError` if the pipeline is empty, and not because of ``take`` or ``skip``."""
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Checks the remote files that were read, at the end of an epoch; see `StoredDataset.check_unchanged`."""
        for part in self.parts:
            part.dataset.check_unchanged()

    @property
    def parts(self) -> Sequence[Plan]:
        """The single-dataset plans of this plan."""
        raise NotImplementedError

    @property
    def remote(self) -> bool:
        """Whether files are on remote storage, so that many reads must run at once."""
        raise NotImplementedError

    def reads(self, iteration: int, passes: np.ndarray, index: np.ndarray) -> list[BlockRead]:
        """Returns where the rows of one element come from.

        Args:
            iteration: the number of the iterator of the pipeline, from 0.
            passes, index: as returned by `BatchView.rows`.
        """
        raise NotImplementedError

    def reads_between(self, iteration: int, rows: Consecutive) -> list[BlockRead] | None:
        """Returns what `reads` returns for consecutive rows, or ``None`` if only `reads` can find that."""
        return None

    def block_rows(self, key: BlockKey) -> BlockRows:
        """Returns the rows that a block needs, each once, in storage order."""
        raise NotImplementedError

    def block_size(self, key: BlockKey) -> BlockSize:
        """Returns the size of a block, as far as footers say."""
        raise NotImplementedError

    def block_row_groups(self, key: BlockKey) -> list[int]:
        """Returns the row groups of a block, ascending. Windows may also need rows of the following ones."""
        raise NotImplementedError

    def next_block(self, key: BlockKey) -> BlockKey | None:
        """Returns the next block in the same stream and epoch, or ``None`` after the last."""
        raise NotImplementedError


class Plan(BasePlan):
    """The plan of one pipeline. Every part is computed once, on first use.

    Raises:
        ParquetryError: the stages and the dataset do not match. It is raised before anything is decoded.
    """

    def __init__(self, dataset: StoredDataset, stages: Sequence[Stage], select: Select) -> None:
        self._stored = dataset
        self._select = select
        self.vocabularies: dict[tuple[str, tuple[Stage, ...]], Vocabulary] = {}
        """The vocabularies learned so far, by stored field and the stages that selected the rows."""
        self.stages = tuple(stages)
        self.order: StageOrder = order_stages(stages)
        self._epoch_order = lru_cache(maxsize=3)(self._make_epoch_order)
        self.row_group_bytes = lru_cache(maxsize=65536)(self._bytes_of_row_group)
        """Returns about how many bytes the encoded columns of a row group take in memory."""
        self.read_bytes = lru_cache(maxsize=65536)(self._stored_bytes)
        """Returns the stored (compressed) bytes of the columns that are read from a row group."""
        self._block_shares = lru_cache(maxsize=256)(self._shares_of_block)

    # --- from the schema alone ---

    @cached_property
    def dataset(self) -> StoredDataset:
        """The dataset, with columns whose files differ in the types that the pipeline declares."""
        declared, stored = self.order.declared, self._stored
        refused = [name for name in stored.refused if self.order.cast_of(name) is not None] if self.order.casts else []
        return stored.declaring(declared.values(), refused) if declared or refused else stored

    @cached_property
    def casts(self) -> dict[str, np.dtype[Any]]:
        """The fields that are cast as they are read, from the type of each file, with their dtypes.

        Files store them in different types, and that of the dataset may not represent the values of all.
        """
        if not self.order.casts or self.dataset.table is not None:
            return {}
        names = [name for name in self.dataset.strained if name not in self.order.declared]
        dtypes = {name: self.order.cast_of(name) for name in names if name in self.dataset.schema.fields}
        return {
            name: dtype
            for name, dtype in dtypes.items()
            if dtype is not None and casts_in_file(self.dataset.schema[name], dtype)
        }

    def _resolve_cast(self, patterns: Sequence[str] | None) -> list[UnischemaField]:
        """Returns what `resolve` does, with the dtypes of `casts`."""
        casts = self.casts
        fields = self.resolve(patterns)
        return [field.replace(dtype=casts[field.name]) if field.name in casts else field for field in fields]

    @cached_property
    def program(self) -> ElementProgram:  # type: ignore[override]  # computed once
        """How rows become elements."""
        program = build_program(self.order.fields, self._resolve_cast, self.seed)
        join = [] if self.order.join is None or self.order.making else [self.order.join]
        learning = [each.stage for each in self.order.learning]
        for stage in (*self.order.selection, *join, *learning):
            stage.check_fields(self.resolve)
        limit = self.dataset.max_value_bytes
        for field in program.fields:
            item = 1 if is_string_like(field.dtype) else delivered_dtype(field.dtype).itemsize
            if field.is_fixed and item * math.prod(axis or 0 for axis in field.shape) > limit:
                raise SchemaError(
                    f"field '{field.name}' of {', '.join(self.dataset.roots)}: expected values of at most {limit} "
                    f"bytes, got shape {field.shape}. If the shape is right, pass a larger max_value_bytes to Pipeline."
                )
        return replace(program, max_value_bytes=limit)

    def resolve(self, patterns: Sequence[str] | None) -> list[UnischemaField]:
        """Returns the stored fields that patterns select (``None`` = all), in schema order."""
        return [self._field(name) for name in self.dataset.match(patterns)]

    def _field(self, name: str) -> UnischemaField:
        """Returns a field as the pipeline declares it, or else as the dataset does."""
        stored = self.dataset.field(name)
        declared = self.order.declared.get(name)
        if name in self.dataset.image_bytes and (declared is None or declared.codec is None):
            raise FieldNotFoundError(
                f"field '{name}': expected a codec, because it is a struct of bytes and a path, got none. "
                f"Give fields=[UnischemaField('{name}', np.uint8, (None, None, 3), CompressedImageCodec('jpeg'))], or "
                f"name '{name}.bytes'."
            )
        return stored if declared is None else declared_as(stored, self.dataset.types[name], declared)

    # --- the selection ---

    @cached_property
    def selection(self) -> Selection:
        """The exact rows or windows that are wanted."""
        selection = self.whole_selection
        return self._fixed_part(selection) if self.order.part else selection

    def rows_of(self, stages: Sequence[Stage]) -> RowSet:
        """Returns the rows that remain after the first stages of the selection."""
        if list(stages) == self.order.selection and not len(self.whole_selection.refused):
            return self.whole_selection.rows
        return self._select(self.dataset, stages, self.resolve).rows

    @cached_property
    def whole_selection(self) -> Selection:
        """The selection before ``shard().take()`` cuts a fixed part out of it."""
        return self._select(self.dataset, self.selecting, self.resolve)

    @cached_property
    def selecting(self) -> list[Stage]:
        """The stages of the selection, followed by the measure of the selected rows."""
        stages, measure = self.order.selected, self.order.measure
        if not self.skips or measure is None:
            return stages
        allowed = {
            field.name
            for field in self.program.fields
            if isinstance(field.storage, ReadListCodec) and field.storage.nulls != "error"
        }
        strict = [] if self.order.makes_batches else [name for name in measure.lists if name not in allowed]
        return [*stages[:-1], measure.leaving_out(strict)]

    def _fixed_part(self, selection: Selection) -> Selection:
        """Cuts the selection to the part in natural order that ``shard().take()`` fixed before the shuffle."""
        shard = self.order.shard
        assert shard is not None
        spec = OrderSpec(streams=shard.streams, even=shard.even)
        epoch = EpochOrder(selection.items_before, spec, 0)
        view = _row_view(self.order.part, selection.num_items, spec)
        _, index = view.resolve(np.arange(view.length or 0, dtype=np.int64))
        items = np.empty(len(index), dtype=np.int64)
        for stream, block, local, places in by_block(epoch, index):
            items[slice(None) if places is None else places] = epoch.block_items(stream, block)[local]
        items.sort()
        return replace(selection, starts=items if selection.starts is None else selection.starts[items])

    # --- the order ---

    @cached_property
    def items(self) -> RowItems:
        """The items of an epoch, and the rows that they are made of."""
        if self.order.join is None:
            return RowItems(self.selection, self._row_group_sizes)
        return items_of(self.order.join, self.selection, self.order.shuffle, self.seed)

    @property
    def _row_group_sizes(self) -> RowGroupSizes | None:
        """The sizes of row groups, if the schema says them: those of numbers in local files, read as they are stored.

        No value of these can keep a block from loading. A block that does not load is an error of all its items. In a
        store, blocks are read in the same requests anyway.
        """
        types, partitions = self.dataset.types, self.dataset.partitions
        fields = [field for field in self.program.fields if field.name not in partitions]
        if self.remote or not all(_is_number(field.dtype, types.get(field.name)) for field in fields):
            return None
        groups = self.dataset.row_groups
        return RowGroupSizes(file=groups.file, num_bytes=groups.rows * self._numbers[2])

    @cached_property
    def order_spec(self) -> OrderSpec:
        """The parameters of the global order."""
        shuffle, shard = self.order.shuffle, None if self.order.part else self.order.shard
        before = self.order.views[: self.order.views.index(shard)] if shard is not None else []
        # The rows that take() and skip() cut off before the shard must not depend on the number of shards.
        cut = any(view.decides is Decision.CUT for view in before)
        return OrderSpec(
            seed=0 if shuffle is None else shuffle.seed,
            buffer_size=None if shuffle is None else shuffle.buffer_size,
            streams=1 if shard is None else shard.canonical_shards or (1 if cut else shard.streams),
            even=shard.even if shard is not None and self.order.views[:1] == [shard] else "none",
            shard_first=self.order.shard_first,
        )

    @cached_property
    def row_view(self) -> RowView:  # type: ignore[override]  # computed once
        """The rows of this rank, over all passes, before batching."""
        return _row_view(self.order.row_views, self.items.num_items, self.order_spec)

    def row_view_of(self, rank: int) -> RowView:
        return _row_view(of_rank(self.order.row_views, rank), self.items.num_items, self.order_spec)

    def check_not_empty(self) -> None:
        """Raises `EmptySelectionError` if the pipeline is empty, and not because of ``take`` or ``skip``."""
        files, groups = len(self.dataset.files), len(self.dataset.row_groups)
        if self.selection.matched == 0:
            reports = self.selection.reports
            steps = "".join(f" {report.step} left {report.rows_after} of {report.rows_before}." for report in reports)
            notes = "".join(f" {report.note}" for report in reports if report.note)
            remedy = "Loosen the filter" if reports else "Check the URL"
            if self.selection.rows.total and self.selection.starts is not None:
                remedy = "Form shorter windows, or allow a larger max_gap"
            raise EmptySelectionError(
                f"pipeline: expected at least one item, got none from {_number_of(files, 'file')} with "
                f"{_number_of(groups, 'row group')} and {_number_of(int(self.dataset.row_groups.rows.sum()), 'row')}."
                f"{steps}{notes} {remedy}. explain() shows the plan."
            )
        if self.order.join is not None and self.selection.num_items and not self.items.num_items:
            raise EmptySelectionError(
                f"{self.order.join.verb}: expected at least one item, got {'; '.join(self.items.explained)}. Give "
                "another length, or keep the data that is left out."
            )
        shard = self.order.shard
        if shard is not None and shard.even == "drop" and self.items.num_items and self.row_view.length == 0:
            shards = max(self.order_spec.streams, shard.num_shards)
            why = f"{self.items.num_items} items are fewer than {shards} shards. Use even='pad', or fewer shards."
            if shards <= self.items.num_items:
                why = "take() or skip() leaves out all items of a shard. Take more, or skip fewer."
            raise EmptySelectionError(f"pipeline: even='drop' leaves nothing, because {why}")

    @property
    def fingerprint(self) -> str:
        return self.dataset.fingerprint

    def with_seed(self, seed: int) -> Plan:
        return self.with_stages(with_seed(self.stages, seed))

    def with_streams(self, count: int, recut: Recut | None) -> Plan:
        return self.with_stages(with_streams(self.stages, count, recut))

    @property
    def undivided(self) -> str | None:
        if self.order.shard is not None and self.order.shard.canonical_shards is not None:
            return "canonical_shards is given, so global batches stay what they are"
        join = self.order.join
        return f"the items of {join.verb}() span rows" if join is not None and join.spans_rows else None

    @property
    def recut(self) -> Recut | None:
        """How a state cuts one pass; ``None`` if it does not."""
        return None if self.order.shard is None else self.order.shard.recut

    def with_stages(self, stages: Sequence[Stage]) -> Plan:
        """Returns a plan of the same rows with other stages, whose filters are the same."""
        plan = Plan(self._stored, stages, self._select)
        plan.skips = self.skips
        return plan

    @property
    def remote(self) -> bool:
        return self.dataset.remote

    @property
    def parts(self) -> Sequence[Plan]:
        return [self]

    def epoch_order(self, epoch: int) -> EpochOrder:
        """Returns the global order of an epoch; of `REST`, the order of the pass that a state cuts."""
        return self._epoch_order(epoch)

    def _make_epoch_order(self, epoch: int) -> EpochOrder:
        spec, recut = self.order_spec, self.recut
        if epoch != REST or recut is None:
            return self.items.order(spec, epoch)
        epoch, before = self._epoch_of(recut.iteration, recut.passes), 0
        order = self.items.order(replace(spec, streams=recut.streams), epoch)
        for rows, streams in recut.cuts:
            order = self.items.order(replace(spec, streams=streams), epoch, Leftovers(order, rows - before))
            before = rows
        return order

    def pass_from(self, origin: Origin) -> RowView:
        recut, spec = self.recut, self.order_spec
        if recut is None or origin.passes != recut.passes or origin.rows < recut.cuts[-1][0]:
            return super().pass_from(origin)
        items, before, streams = self.items.num_items, 0, recut.streams
        for rows, following in recut.cuts:
            items, before, streams = int(items_left(items, streams, rows - before).sum()), rows, following
        return Slice(Epoch(items, streams, spec.even), origin.rows - before, None)

    @property
    def one_pass(self) -> RowView:
        return Epoch(self.items.num_items, self.order_spec.streams, self.order_spec.even)

    def epoch_of(self, iteration: int, passes: int) -> int:
        """Returns the epoch of one pass of the ``iteration``-th iterator (both counted from 0), or `REST`."""
        recut = self.recut
        if recut is not None and (iteration, passes) == (recut.iteration, recut.passes):
            return REST
        return self._epoch_of(iteration, passes)

    def _epoch_of(self, iteration: int, passes: int) -> int:
        shuffle = self.order.shuffle
        same = not self.items.differ if shuffle is None else not shuffle.reshuffle_each_iteration
        return 0 if same else self._pass_number(iteration, passes)

    def _pass_number(self, iteration: int, passes: int) -> int:
        each = (self.batch_view or self.row_view).passes
        if each is not None:  # the usual case, without arrays
            return iteration * each + passes
        return int(self.global_passes(iteration, np.array([passes]))[0])

    # --- elements ---

    def reads(self, iteration: int, passes: np.ndarray, index: np.ndarray) -> list[BlockRead]:
        """Returns where the rows of one element come from.

        Args:
            iteration: the number of the iterator of the pipeline, from 0.
            passes, index: as returned by `BatchView.rows`.
        """
        result = []
        for number, chosen in distinct(passes):
            order = self.epoch_order(self.epoch_of(iteration, number))
            pass_number = self._pass_number(iteration, number)
            if chosen is None:
                result += self.items.reads(order, pass_number, index)
                continue
            places = chosen
            if self.order.makes_batches:
                rows = self.item_rows(iteration, passes, index)
                places = concat_ranges((np.cumsum(rows) - rows)[chosen], rows[chosen])
            for read in self.items.reads(order, pass_number, index[chosen]):
                result.append(replace(read, places=places if read.places is None else places[read.places]))
        return result

    def reads_between(self, iteration: int, rows: Consecutive) -> list[BlockRead] | None:
        order = self.epoch_order(self.epoch_of(iteration, rows.pass_number))
        pass_number = self._pass_number(iteration, rows.pass_number)
        return self.items.reads_between(order, pass_number, rows.first, rows.last)

    def item_rows(self, iteration: int, passes: np.ndarray, index: np.ndarray) -> np.ndarray:
        rows = np.empty(len(index), np.int64)
        for number, chosen in distinct(passes):
            places = slice(None) if chosen is None else chosen
            rows[places] = self.items.rows_of(self.epoch_order(self.epoch_of(iteration, number)), index[places])
        return rows

    def block_rows(self, key: BlockKey) -> BlockRows:
        """Returns the rows that a block needs, each once, in storage order."""
        rows = self.items.block_rows(self.epoch_order(key.epoch), key)
        return replace(rows, lengths=self._lengths_of(rows)) if self.order.making else rows

    def _lengths_of(self, rows: BlockRows) -> np.ndarray:
        """Returns the measured lengths of the rows of a block."""
        selected, measured = self.selection.rows, self.selection.measured
        assert measured is not None
        parts = zip(rows.row_groups, rows.rows, strict=True)
        places = [selected.before[group] + np.searchsorted(selected.of(group), np.asarray(n)) for group, n in parts]
        lengths: np.ndarray = measured[np.concatenate([np.zeros(0, np.int64), *places])]
        return lengths

    def block_size(self, key: BlockKey) -> BlockSize:
        """Returns the size of a block, as far as footers say."""
        rows = self.dataset.row_groups.rows
        num_bytes = largest = 0
        for row_group, count in self._block_shares(key):
            whole_bytes = self.row_group_bytes(row_group)
            num_bytes += int(whole_bytes * count / max(int(rows[row_group]), 1))
            largest = max(largest, whole_bytes)
        return BlockSize(num_bytes, largest)

    def block_row_groups(self, key: BlockKey) -> list[int]:
        """Returns the row groups of a block, ascending. Windows may also need rows of the following ones."""
        return [row_group for row_group, _ in self._block_shares(key)]

    def _shares_of_block(self, key: BlockKey) -> list[tuple[int, float]]:
        return self.items.block_shares(self.epoch_order(key.epoch), key)

    def next_block(self, key: BlockKey) -> BlockKey | None:
        """Returns the next block in the same stream and epoch, or ``None`` after the last."""
        blocks = len(self.epoch_order(key.epoch).stream(key.stream).block_segment) - 1
        return key._replace(block=key.block + 1) if key.block + 1 < blocks else None

    def _bytes_of_row_group(self, row_group: int) -> int:
        """Numbers in dictionaries take more memory than footers say, so they count with their full width."""
        numbers, others, width = self._numbers
        number_bytes = width * int(self.dataset.row_groups.rows[row_group])
        stored_bytes, other_bytes = (decoded_bytes(self.dataset, row_group, names) for names in (numbers, others))
        return max(stored_bytes, number_bytes) + other_bytes

    @cached_property
    def stored_row_bytes(self) -> int:
        """About how many bytes a row of the first row group takes before it is decoded.

        0 if that is not needed: the size of all values is known from the schema, or rows are batched or joined.
        """
        fixed = all(field.is_fixed and not is_string_like(field.dtype) for field in self.program.fields)
        if fixed or self.order.batch is not None or self.order.join is not None or not len(self.dataset.row_groups):
            return 0
        with suppress(ParquetryError):  # a footer that cannot be read is an error when its rows are wanted
            return self.row_group_bytes(0) // max(int(self.dataset.row_groups.rows[0]), 1)
        return 0

    @cached_property
    def _numbers(self) -> tuple[list[str], list[str], int]:
        """The fields that are stored as numbers of one shape, the others, and the bytes of a row of the numbers."""
        numbers: list[str] = []
        others: list[str] = []
        width = 0
        for field in self.program.fields:
            if field.name in self.dataset.partitions:
                continue
            if field.is_fixed and not field.storage.coded and not is_string_like(field.dtype):
                numbers.append(field.name)
                width += delivered_dtype(field.dtype).itemsize * math.prod(axis or 0 for axis in field.shape)
            else:
                others.append(field.name)
        return numbers, others, width

    def _stored_bytes(self, row_group: int) -> int:
        return column_bytes(self.dataset, row_group, [field.name for field in self.program.fields])


def of_rank(stages: Sequence[Stage], rank: int | None) -> list[Stage]:
    """Returns views with the part of a rank; ``None`` = the one that they have."""
    return [replace(stage, index=rank) if rank is not None and isinstance(stage, Shard) else stage for stage in stages]


def _is_number(dtype: FieldDtype, stored: pa.DataType | None) -> bool:
    """Whether the values of a field are stored as the numbers that they are."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf" and stored == pa.from_numpy_dtype(dtype)


def _row_view(stages: Sequence[Stage], items: int, spec: OrderSpec) -> RowView:
    return rows_viewed(stages, Epoch(items, spec.streams, spec.even))


def _number_of(count: int, what: str) -> str:
    """Formats a count with its noun: ``1 file``, ``2 files``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
