"""`Verbs`: all verbs of `Pipeline`, shared by all dataset classes: `ParquetDataset`, `ParquetIterable`, and others.

A verb creates a stage and adds it with ``_with_stage``, which each dataset class implements. Verbs on fields and images
are in `field_verbs` and `image_verbs`. The verbs in this module choose rows, order them, and group them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ..base.errors import ParquetryError, PipelineError
from ..base.other_names import did_you_mean, instead_of
from ..base.process.ranks import resolve_rank
from ..schema.field import UnischemaField
from ..schema.plain import integer, is_utf_8, plain
from ..stages.base import FieldNames, listed, names_of, required_names
from ..stages.batch import Batch
from ..stages.bucket import Bucket
from ..stages.cache import Cache
from ..stages.concat import Concat, Remainder
from ..stages.ngram import Edges, Ngram, field_offsets_of, normalize_gap, offsets_of
from ..stages.pack_rows import Overlong, PackRows, Strategy
from ..stages.predicates.column_predicates import hash_split
from ..stages.repeat import Repeat
from ..stages.shard import Even, Shard
from ..stages.shuffle import Shuffle
from ..stages.take import Skip, Take
from ..stages.tokens import by_field
from ..stages.weigh import ClassWeights, Weigh, weights_of
from ..stages.where import filter_of
from ..storage.filesystem import absolute
from .field_verbs import seed_or_drawn
from .image_verbs import ImageVerbs
from .number_verbs import NumberVerbs

if TYPE_CHECKING:
    from typing import Self

# fmt: off
_INTERNAL = frozenset({
    "by_number", "check_movable", "drawn_seed", "require_versions", "leaves", "length_in_loader", "pass_begins",
    "resumed", "shard_given_later", "source", "versions", "with_seed", "with_stages", "with_streams",
    "functions", "getstate_hook", "reduce_ex_hook", "register_datapipe_as_function", "register_function", "repr_hook",
    "set_getstate_hook", "set_reduce_ex_hook", "str_hook", "apply_sharding", "is_shardable", "set_seed",
    "set_shuffle",
})
# fmt: on
"""Names hidden from tab completion: they are public only for other parts of parquetry or torch."""


class Verbs(NumberVerbs, ImageVerbs):
    """All verbs. Each returns a new object of the same class.

    The examples read ``drive``, a pipeline of 40 rows with ``id`` (0, 1, ...), ``drive`` (two values), the nullable
    ``name`` and ``speed``, ``points`` of shape ``(0 to 3, 3)``, ``tags``, ``image`` of shape ``(4, 5, 3)``, and
    ``price``. ``texts`` has 40 rows with ``tokens``: in row ``n``, token ``n`` is repeated ``n % 4`` times (row 0 is
    empty). The examples work with every dataset class.
    """

    def __dir__(self) -> list[str]:
        kept = {name for name in super().__dir__() if not name.startswith("_") or name.endswith("__")}
        return sorted(kept - _INTERNAL)

    def _repr_html_(self) -> str:
        """Renders the chain, the fields, the first rows with their images, and the plan for a notebook.

        This makes the plan and reads those rows.
        """
        from .notebook import notebook_html  # only in notebooks

        pipeline: Any = None
        with suppress(ParquetryError):  # if only the running graph knows it
            pipeline = getattr(self, "pipeline", self)
        return notebook_html(repr(self), pipeline)

    if not TYPE_CHECKING:  # type checkers must still report unknown names

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            if hasattr(cls, name):  # a property that raised an AttributeError
                return object.__getattribute__(self, name)
            with suppress(AttributeError):
                return super().__getattr__(name)  # defined by torch's DataPipes
            public = [each for each in dir(self) if not each.startswith("_")]
            if name in dir(vars(self).get("_pipeline")):
                near = f" Its pipeline has it: .pipeline.{name}."
            else:
                near = "" if name.startswith("_") else instead_of(name) or did_you_mean(name, public)
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}.{near}", name=name)

    def where(self, predicate: object, fields: Sequence[str] | None = None, *, batched: bool = False) -> Self:
        """Keeps only the rows for which ``predicate`` is true (null counts as false).

            >>> [int(row["id"]) for row in drive.where(pc.field("speed") > 18)]
            [37, 38, 39]
            >>> [int(row["id"]) for row in drive.where(lambda row: row["id"] % 15 == 2, fields=["id"])]
            [2, 17, 32]

        Args:
            predicate: a ``pyarrow.compute.Expression``, DNF tuples such as ``[("speed", ">", 3)]``, a column predicate
                (`contains`, `hash_split`), or a function. pyarrow takes plain integers above ``2**63 - 1`` in tuples
                alone; in an expression, write ``pa.scalar(2**63, pa.uint64())``.
            fields: for a function, the fields that it reads; only these are loaded and decoded.
            batched: whether the function takes a dict of arrays, up to 8,192 rows at a time, and returns a bool array.

        Raises:
            PipelineError: a function was given without ``fields``, or an earlier stage changed one of the fields.
        """
        return self._with_stage(filter_of(predicate, fields, batched=batched))

    def hash_split(self, field: str, fractions: Sequence[float], index: int, seed: int | None = None) -> Self:
        """Selects one part of a train/validation split.

        Rows are assigned by a hash of ``field``, so a row always stays in the same part.

            >>> parts = [drive.hash_split("id", [0.8, 0.2], part) for part in (0, 1)]
            >>> sum(len(part) for part in parts)
            40

        Args:
            fractions: the fraction of each part; they sum to at most 1.
            index: the number of the part, from 0.
            seed: each seed gives a different split. Without one, a split of a part of another split is independent of
                it, so the parts of the part have their fractions. Give one where two chains with different numbers of
                splits must agree on a part.

        Raises:
            PipelineError: there is no such part.
        """
        return self.where(hash_split(field, fractions, index, seed))

    def ngram(
        self,
        fields: Mapping[int, Sequence[str]] | Sequence[str] | None = None,
        timestamp: str | UnischemaField | None = None,
        max_gap: object = None,
        group_by: str | Sequence[str] | None = None,
        stride: int = 1,
        overlap: bool = True,
        span_row_groups: bool = True,
        *,
        length: int | None = None,
        last: FieldNames = (),
        offsets: Mapping[str, int | Sequence[int]] | None = None,
        edges: Edges = "drop",
    ) -> Self:
        """Makes windows of consecutive rows.

            >>> labeled = next(iter(drive.select("id", "speed").ngram(length=3, last="speed")))
            >>> labeled["id"].tolist(), labeled["speed"].shape
            ([0, 1, 2], ())
            >>> around = drive.ngram(offsets={"id": [-2, 0], "drive": 0}, group_by="drive", edges="clamp")
            >>> first = next(iter(around))
            >>> first["id"].tolist(), first["id__is_pad"].tolist(), str(first["drive"])
            ([0, 0], [True, False], 'd0')
            >>> len(around) == len(drive)
            True
            >>> windows = drive.ngram({0: ["id"], 1: ["id", "name"]}, group_by="drive")
            >>> first = next(iter(windows))
            >>> int(first[0]["id"]), int(first[1]["id"]), str(first[1]["name"])
            (0, 1, 'n1')
            >>> next(iter(drive.ngram(["image"], length=3).batch(2)))["image"].shape
            (2, 3, 4, 5, 3)

        Args:
            fields: ``{offset: [names or regexes]}`` returns ``{offset: {name: value}}``; with ``length``, every field
                (or those in a list) is stacked to ``[T, ...]``.
            timestamp: the field whose values must not decrease within a sequence.
            max_gap: the largest difference (inclusive) between adjacent timestamps in a window: a number in the field's
                own unit, or a ``timedelta``.
            group_by: fields that identify a sequence: it ends when one of them changes, and continues across files
                while they are equal. If the rows of a group are not adjacent, no window spans the pieces, and a warning
                is logged; sort the dataset by these fields.
            stride: rows between candidate starts, counted from the first row of each sequence.
            overlap: whether windows may share rows.
            span_row_groups: whether windows may cross row-group boundaries.
            length: steps T of a window.
            last: with ``length``, the fields of which a window has only the last step, without a time axis.
            offsets: the steps of each field, counted in rows from the row that the window belongs to: a list is stacked
                to ``[T, ...]`` in its order, a number has no time axis. Fields are named by name or regex; the first
                entry that matches a field counts, and other fields are left out.
            edges: ``"drop"`` has only whole windows. With ``"clamp"``, every row has a window (every ``stride``-th
                one, or one in each window's length without ``overlap``): beyond the ends of its group, file or part
                between gaps, it repeats the row there, and each field with a time axis gets ``<name>__is_pad``, bool
                ``[T]``, which is true for repeated steps. A window of ``length`` begins at its row.

        Raises:
            PipelineError: the arguments contradict each other, the pipeline already has an ``ngram``, or there is a
                field ``<name>__is_pad`` already. Rename that one before.
        """
        if integer(fields) is not None:
            raise PipelineError(
                f"ngram: expected fields={{offset: [names]}} or names, got {fields!r}. For windows of {fields} rows, "
                f"write ngram(length={fields})."
            )
        ends = () if last is None else names_of("ngram", last)
        base = self if fields is None or isinstance(fields, Mapping) else self.select([*listed("ngram", fields), *ends])
        return base._with_stage(
            Ngram(
                length=length,
                offsets=offsets_of(fields) if isinstance(fields, Mapping) else (),
                timestamp=timestamp.name if isinstance(timestamp, UnischemaField) else timestamp,
                max_gap=normalize_gap(max_gap),
                group_by=() if group_by is None else names_of("ngram", group_by),
                stride=stride,
                overlap=overlap,
                span_row_groups=span_row_groups,
                last=ends,
                field_offsets=() if offsets is None else field_offsets_of(offsets),
                edges=edges,
            )
        )

    def shard(
        self,
        num_shards: int | None = None,
        index: int | None = None,
        even: Even = "pad",
        canonical_shards: int | None = None,
        policy: Literal["global", "rowgroup_modulo"] = "global",
    ) -> Self:
        """Keeps shard ``index`` of ``num_shards``. By default, all shards have equal length.

            >>> [len(drive.shard(3, rank)) for rank in range(3)]
            [14, 14, 14]
            >>> [len(drive.shard(3, rank, even="none")) for rank in range(3)]
            [14, 13, 13]

        Args:
            num_shards, index: if neither is given, taken from the launcher's environment, such as ``WORLD_SIZE`` and
                ``RANK`` (torchrun), ``TF_CONFIG``, Horovod, MPI, Slurm or a TPU pod. If your values contradict the
                environment, a warning is logged.
            even: ``"pad"`` repeats a few rows, ``"drop"`` leaves a few out, ``"none"`` lets parts differ by one.
            canonical_shards: number of streams in the global order. Keep it fixed to get the same global batches on a
                different number of ranks.
            policy: ``"rowgroup_modulo"`` assigns whole row groups as Petastorm does: row group ``i`` of the dataset,
                regardless of filters, belongs to part ``i % num_shards``, and a window belongs to the part of its first
                row. Parts then differ in length, and ``even`` and ``canonical_shards`` do not apply.

        Raises:
            PipelineError: there is no such part, or the pipeline already has a ``shard``.
        """
        return self._with_stage(Shard.of(*resolve_rank(num_shards, index), even, canonical_shards, policy))

    def shuffle(
        self, buffer_size: int = 10_000, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Self:
        """Shuffles each epoch differently: permutes row groups, then rows in blocks of at least ``buffer_size`` rows.

            >>> shuffled = drive.shuffle(40, seed=7)
            >>> sorted(int(row["id"]) for row in shuffled) == list(range(40))
            True

        Args:
            seed: ``None`` picks a random seed now and stores it (in PyTorch, loader workers, resumed runs, and the
                ranks of a process group share it); 0 is an ordinary seed.
            reshuffle_each_iteration: ``False`` gives every epoch the same order.

        Raises:
            PipelineError: the pipeline already has a ``shuffle`` or a ``batch``.
        """
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(Shuffle(buffer_size, chosen, reshuffle_each_iteration, drawn))

    def weigh(self, weights: object, num_items: int | None = None, seed: int | None = None) -> Self:
        """Draws exactly ``num_items`` rows per epoch by weight, some several times and others not at all.

            >>> weighted = drive.weigh({"drive": {"d0": 1, "d1": 3}}, num_items=80, seed=7)
            >>> [row["drive"] for row in weighted].count("d1")
            60

        A row whose expected number of copies is 2.4 appears 2 or 3 times, chosen again in each epoch; with equal
        weights, each row appears once. The draw depends only on the seed and the epoch, so ``shuffle``, ``shard``,
        ``repeat`` and saved states work as usual. Random image stages draw separately for each copy of a row.

        Args:
            weights: a field's name; an expression; the weights of a field's values, such as
                ``{"label": {0: 1.0, 1: 3.0}}`` (``None`` for null); or an array with one weight per row of the dataset
                in storage order, before any filter (filters keep each remaining row's weight). Weights are finite
                numbers >= 0.
            num_items: items per epoch; ``None`` = as many as there are rows.
            seed: ``None`` follows the shuffle's seed, or picks a random seed now and stores it.

        Raises:
            PipelineError: the weights have a different form or are all 0, the pipeline has an ``ngram``, or a filter
                follows.
            DatasetError: a stored weight is null, negative or not finite; the message names file and row.
        """
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(Weigh(weights_of(weights), num_items, chosen, drawn))

    def balance(self, field: str | UnischemaField, num_items: int | None = None, seed: int | None = None) -> Self:
        """Draws rows so that each value of ``field`` appears equally often: `weigh` with inverse frequencies.

            >>> uneven = drive.where(pc.field("id") < 25)
            >>> labels = [row["drive"] for row in uneven.balance("drive", num_items=40, seed=7)]
            >>> labels.count("d0"), labels.count("d1")
            (20, 20)

        Args:
            field: a field of plain values without nulls.
            num_items, seed: as for `weigh`.

        Raises:
            DatasetError: a value is null; the message names file and row.
        """
        name = field.name if isinstance(field, UnischemaField) else field
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(Weigh(ClassWeights(name), num_items, chosen, drawn))

    def take(self, rows: int) -> Self:
        """Keeps only the first elements: rows, or batches after ``batch()``.

            >>> [int(row["id"]) for row in drive.take(3)]
            [0, 1, 2]

        After ``shuffle()``, these are other rows in each epoch, and a warning says so: ``take`` and ``skip`` there are
        no train/validation split. Use `hash_split`.

        Raises:
            PipelineError: the number is below 0.
        """
        return self._with_stage(Take(rows))

    def skip(self, rows: int) -> Self:
        """Skips the first elements: rows, or batches after ``batch()``.

            >>> [int(row["id"]) for row in drive.skip(37)]
            [37, 38, 39]

        After ``shuffle()``, it skips other rows in each epoch; see `take`.

        Raises:
            PipelineError: the number is below 0.
        """
        return self._with_stage(Skip(rows))

    def repeat(self, count: int | None = None) -> Self:
        """Makes ``count`` passes over the data; ``None`` or -1 repeats forever.

            >>> len(drive.repeat(3))
            120

        Raises:
            PipelineError: ``count`` is below -1.
        """
        return self._with_stage(Repeat(None if integer(count) == -1 else count))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Groups rows along a new leading axis, into a dict of arrays or of the framework's tensors.

            >>> [len(batch["id"]) for batch in drive.batch(16)]
            [16, 16, 8]
            >>> len(drive.batch(16, drop_remainder=True))
            2

        Raises:
            PipelineError: the size is below 1, or the pipeline already has a ``batch``.
        """
        return self._with_stage(Batch(batch_size, drop_remainder))

    def concat(
        self,
        length: int,
        *fields: FieldNames,
        separator: float | Mapping[str, float] | None = None,
        positions: bool = False,
        remainder: Remainder = "drop",
        pad_value: float | Mapping[str, float] = 0,
    ) -> Self:
        """Joins token lists end to end, in row order, and cuts them into items of exactly ``length`` tokens.

            >>> first = next(iter(texts.concat(8, "tokens", separator=-1, positions=True)))
            >>> first["tokens"].tolist()
            [-1, 1, -1, 2, 2, -1, 3, 3]
            >>> first["segment_ids"].tolist(), first["position_ids"].tolist()
            ([1, 2, 2, 3, 3, 3, 4, 4], [0, 0, 1, 0, 1, 2, 0, 1])
            >>> next(iter(texts.shuffle(20, seed=7).concat(16, "tokens").batch(2)))["tokens"].shape
            (2, 16)

        Every epoch has the same number of items and contains each token exactly once, except for the remainder. Call
        ``shuffle`` before it. ``shard``, ``repeat``, ``take`` and ``batch`` may follow it and then count items. A row
        that straddles two canonical streams (`shard`) is split between them.

        Args:
            fields: the token lists (any integer or float list), and parallel lists of the same lengths, such as a loss
                mask. Only these fields remain, each of shape ``[length]``.
            separator: a token inserted between rows; it counts as part of the preceding row. A number, or
                ``{field: number}``.
            positions: whether to add ``segment_ids`` (1, 2, ... for the rows in each item) and ``position_ids``
                (counted from 0 where a row begins in the item), int32 ``[length]``; see `cu_seqlens`.
            remainder: whether to leave out the last tokens of an epoch, fewer than ``length`` (``"drop"``), or pad them
                (``"pad"``) with ``pad_value`` (a number, or ``{field: number}``); both ids are 0 in the padding.

        Raises:
            PipelineError: a field is not a list of numbers, or cannot hold the separator or padding.
            NullValueError, DecodeError: a value is null, or lists in a row differ in length; the message names file and
                row. With ``on_error="skip"``, such rows are left out.
        """
        names = required_names("concat", fields)
        between = None if separator is None else by_field(separator, names, "concat", "separator")
        padding = by_field(pad_value, names, "concat", "pad_value")
        return self._with_stage(Concat(length, names, between, positions, remainder, padding))

    def pack_rows(
        self,
        length: int,
        *fields: FieldNames,
        strategy: Strategy = "best_fit",
        overlong: Overlong = "cut",
        pad_value: float | Mapping[str, float] = 0,
    ) -> Self:
        """Packs whole token lists into items of exactly ``length`` tokens, and pads an item if no other row fits.

            >>> first = next(iter(texts.pack_rows(8, "tokens", pad_value=-1)))
            >>> first["tokens"].tolist()
            [3, 3, 3, 7, 7, 7, 2, 2]
            >>> first["segment_ids"].tolist(), first["position_ids"].tolist()
            ([1, 1, 1, 2, 2, 2, 3, 3], [0, 1, 2, 0, 1, 2, 0, 1])

        ``segment_ids`` (1, 2, ... for the rows in each item) and ``position_ids`` (counted from 0 at each row's start),
        int32 ``[length]``, tell rows apart; both are 0 in the padding. `explain` shows how full the items are.

        Rows are packed within blocks of at least ``buffer_size`` rows (`shuffle`). Every epoch has the same number of
        items and the same combinations of lengths; rows of equal length change places from epoch to epoch. Call
        ``shuffle`` before it. ``shard``, ``repeat``, ``take`` and ``batch`` may follow it and then count items.

        Args:
            fields: as for `concat`.
            strategy: places rows, longest first, into the fullest item with room (``"best_fit"``) or into the first
                item with room (``"first_fit"``).
            overlong: what to do with rows longer than ``length``: ``"cut"`` them into several, ``"drop"`` them, or
                raise an ``"error"``.
            pad_value: a number, or ``{field: number}``.

        Raises:
            PipelineError: a field is not a list of numbers, or cannot hold the padding.
            NullValueError, DecodeError: a value is null, lists in a row differ in length, or a row is too long under
                ``"error"``; the message names file and row.
        """
        names = required_names("pack_rows", fields)
        padding = by_field(pad_value, names, "pack_rows", "pad_value")
        return self._with_stage(PackRows(length, names, strategy, overlong, padding))

    def bucket(
        self,
        field: str | UnischemaField,
        boundaries: Sequence[int] | None = None,
        *,
        buckets: int | None = None,
        batch_size: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        max_tokens: int | None = None,
        pad_to: Literal["bucket", "longest"] | None = None,
        fields: FieldNames | None = None,
        pad_value: object = None,
    ) -> Self:
        """Makes padded batches of rows of similar length. With ``max_tokens``, batches have about equal cost.

            >>> batches = drive.select("id", "tags").bucket("tags", [1, 2], batch_size=8)
            >>> [batch["tags"].shape for batch in batches]
            [(8, 1), (8, 1), (8, 1), (3, 1), (8, 2), (5, 2)]
            >>> sum(len(batch["id"]) for batch in batches)
            40

        Each batch holds rows of one bucket. Rows are grouped within shuffle blocks (10,000 rows without ``shuffle``),
        differently in each epoch; then the batches are shuffled. Each row appears once per epoch, and all
        epochs and all ranks have the same number of batches. Later stages count batches. Batches may have different
        numbers of rows.

        Args:
            field: the field whose length counts: a list, a string (in bytes), or an integer field that holds a length.
            boundaries: ascending; the largest length in each bucket. One more bucket holds all longer rows.
            buckets: instead of ``boundaries``, the number of buckets, with about equally many rows each.
            batch_size: rows per batch, except for the last ones of a bucket.
            batch_sizes: rows per batch, one number for each bucket.
            max_tokens: tokens per batch; a batch has as many rows as fit if each is as long as its bucket allows.
            pad_to: ``"bucket"`` pads to the boundary of the bucket, so that few shapes occur (rows longer than all
                boundaries are padded to the longest of the batch); ``"longest"`` pads to the longest row of each batch.
                ``None`` = ``"bucket"`` if there are boundaries, else ``"longest"``.
            fields: the fields to pad, each with its lengths as ``<name>__length``; ``None`` = ``field``.
            pad_value: the value to pad with; ``None`` = 0, or an empty string.

        Raises:
            PipelineError: the arguments contradict each other, ``batch``, ``shuffle`` or a filter follows, or there is
                a field ``<name>__length`` already. Rename that one before.
            DecodeError: a row is longer than ``max_tokens``; the message names file and row. With ``on_error="skip"``,
                such rows are left out.
        """
        return self._with_stage(
            Bucket(
                field.name if isinstance(field, UnischemaField) else field,
                () if boundaries is None else boundaries,  # type: ignore[arg-type]  # made a tuple there
                buckets,
                max_tokens,
                batch_size,
                () if batch_sizes is None else batch_sizes,  # type: ignore[arg-type]
                ("longest" if boundaries is None else "bucket") if pad_to is None else pad_to,
                None if fields is None else required_names("bucket", fields),
                pad_value,
            )
        )

    def cache(self, directory: str | os.PathLike[str], max_bytes: int | None = None) -> Self:
        """Caches fetched columns in a local directory, shared by processes and limited to ``max_bytes``.

            >>> with tempfile.TemporaryDirectory() as directory:
            ...     len(list(drive.cache(directory)))
            40

        Raises:
            PipelineError: the directory is not a path, ``max_bytes`` is below 1, or the pipeline is a mix.
        """
        path = plain(directory)
        if not isinstance(path, str) or not path or "\0" in path or not is_utf_8(path):
            raise PipelineError(f"cache: expected a directory, got {directory!r}.")
        return self._with_stage(Cache(absolute(path), max_bytes))
