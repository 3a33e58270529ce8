"""`Verbs`: every verb of `Pipeline`, shared by all that carry one: `ParquetDataset`, `ParquetIterable`, and the others.

A verb makes a stage and adds it; a face says how, in ``_with_stage``. The verbs on fields and on images stand in
`field_verbs` and `image_verbs`; those here decide which rows come, in which order, and in what groups.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ParquetryError, PipelineError
from ..predicates.column_predicates import hash_split
from ..ranks import resolve_rank
from ..schema.field import UnischemaField
from ..schema.plain import integer
from ..stages.base import FieldNames, names_of, required_names
from ..stages.batch import Batch
from ..stages.bucket import Bucket
from ..stages.cache import Cache
from ..stages.concat import Concat, Remainder
from ..stages.ngram import Ngram, normalise_gap, offsets_of
from ..stages.pack_rows import Overlong, PackRows, Strategy
from ..stages.repeat import Repeat
from ..stages.shard import Even, Shard
from ..stages.shuffle import Shuffle
from ..stages.take import Skip, Take
from ..stages.tokens import by_field, token_fields
from ..stages.weigh import ClassWeights, Weigh, weights_of
from ..stages.where import filter_of
from ..tracebacks import did_you_mean
from .image_verbs import ImageVerbs, seed_or_drawn

if TYPE_CHECKING:
    from typing_extensions import Self

# fmt: off
_INTERNAL = frozenset({
    "by_number", "check_movable", "drawn_seed", "hold_to", "leaves", "length_in_loader", "mixture", "pass_begins",
    "resumed", "shard_given_later", "table", "versions", "with_canonical_shards", "with_seed", "with_stages",
    "functions", "getstate_hook", "reduce_ex_hook", "register_datapipe_as_function", "register_function", "repr_hook",
    "set_getstate_hook", "set_reduce_ex_hook", "str_hook", "apply_sharding", "is_shardable", "set_seed",
    "set_shuffle",
})
# fmt: on
"""Public for other parts of parquetry, and of torch: what tab completion leaves out."""


class Verbs(ImageVerbs):
    """The verbs; each returns a new value of its own class.

    Their examples read ``drive``, a pipeline of 40 rows: ``id`` (0, 1, ...), ``drive`` (two of them), the nullable
    ``name`` and ``speed``, ``points`` of shape ``(0 to 3, 3)``, ``tags``, ``image`` of shape ``(4, 5, 3)``, ``price``;
    and ``texts``, 40 rows with ``tokens``: number ``n`` has ``n % 4`` times the token ``n``, so the first has none.
    They hold for every face.
    """

    def __dir__(self) -> list[str]:
        kept = {name for name in super().__dir__() if not name.startswith("_") or name.endswith("__")}
        return sorted(kept - _INTERNAL)

    def _repr_html_(self) -> str:
        """What a notebook shows: the chain, the fields, the first rows with their images, and the plan.

        It reads those rows, and plans them first as iterating does.
        """
        from .notebook import notebook_html  # only in notebooks

        pipeline: Any = None
        with suppress(ParquetryError):  # where only the running graph knows it
            pipeline = getattr(self, "pipeline", self)
        return notebook_html(repr(self), pipeline)

    if not TYPE_CHECKING:  # for type checkers there is no other name

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            if hasattr(cls, name):  # a property that failed by an error of this kind
                return object.__getattribute__(self, name)
            with suppress(AttributeError):
                return super().__getattr__(name)  # of torch's DataPipes
            near = "" if name.startswith("_") else did_you_mean(name, set(dir(cls)) - _INTERNAL)
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}.{near}", name=name)

    def where(self, predicate: object, fields: Sequence[str] | None = None, *, batched: bool = False) -> Self:
        """Only the rows for which ``predicate`` is true (null is not true).

            >>> [int(row["id"]) for row in drive.where(pc.field("speed") > 18)]
            [37, 38, 39]
            >>> [int(row["id"]) for row in drive.where(lambda row: row["id"] % 15 == 2, fields=["id"])]
            [2, 17, 32]

        Args:
            predicate: a ``pyarrow.compute.Expression``, DNF tuples such as ``[("speed", ">", 3)]``, a column predicate
                (`contains`, `hash_split`), or a function.
            fields: for a function: the fields that it reads; only these are loaded and decoded.
            batched: the function gets a dict of arrays and returns a bool array.

        Raises:
            PipelineError: a function without ``fields``; a field that an earlier stage changed.
        """
        return self._with_stage(filter_of(predicate, fields, batched=batched))

    def hash_split(self, field: str, fractions: Sequence[float], index: int, seed: int | None = None) -> Self:
        """Part ``index`` of a train/validation split: rows are dealt by a hash of ``field``, so each keeps its part.

            >>> parts = [drive.hash_split("id", [0.8, 0.2], part) for part in (0, 1)]
            >>> sum(len(part) for part in parts)
            40

        Args:
            fractions: the share of each part; they sum to at most 1.
            seed: another seed gives another split.

        Raises:
            PipelineError: no such part.
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
    ) -> Self:
        """Windows over consecutive rows.

            >>> windows = drive.ngram({0: ["id"], 1: ["id", "name"]}, group_by="drive")
            >>> first = next(iter(windows))
            >>> int(first[0]["id"]), int(first[1]["id"]), str(first[1]["name"])
            (0, 1, 'n1')
            >>> next(iter(drive.ngram(["image"], length=3).batch(2)))["image"].shape
            (2, 3, 4, 5, 3)

        Args:
            fields: ``{offset: [names or regexes]}`` gives ``{offset: {name: value}}``; with ``length`` every field (or
                those of a list) is stacked to ``[T, ...]``.
            timestamp: the field whose values must not decrease inside a sequence.
            max_gap: largest difference of adjacent time stamps inside a window (inclusive): a number in the field's own
                unit, or a ``timedelta``.
            group_by: fields whose change ends a sequence, and whose equality continues it across files.
            stride: rows between the starts that are tried, from the first row of each sequence.
            overlap: whether windows may share rows.
            span_row_groups: whether windows cross row-group boundaries.

        Raises:
            PipelineError: arguments that do not go together; a second ``ngram``.
        """
        if integer(fields) is not None:
            raise PipelineError(
                f"ngram: expected fields={{offset: [names]}} or names, got {fields!r}. For windows of {fields} rows, "
                f"write ngram(length={fields})."
            )
        base = self if fields is None or isinstance(fields, Mapping) else self.select(*names_of(fields))
        return base._with_stage(
            Ngram(
                length=length,
                offsets=offsets_of(fields) if isinstance(fields, Mapping) else (),
                timestamp=timestamp.name if isinstance(timestamp, UnischemaField) else timestamp,
                max_gap=normalise_gap(max_gap),
                group_by=() if group_by is None else names_of(group_by),
                stride=stride,
                overlap=overlap,
                span_row_groups=span_row_groups,
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
        """Part ``index`` of ``num_shards``; every part has the same number of rows.

            >>> [len(drive.shard(3, rank)) for rank in range(3)]
            [14, 14, 14]
            >>> [len(drive.shard(3, rank, even="none")) for rank in range(3)]
            [14, 13, 13]

        Args:
            num_shards, index: if neither is given, taken from the launcher's environment: ``WORLD_SIZE`` and ``RANK``
                (torchrun), ``TF_CONFIG``, Horovod, Open MPI, MPICH or Slurm. Given ones that cannot fit it warn.
            even: ``"pad"`` repeats a few rows, ``"drop"`` leaves a few out, ``"none"`` lets parts differ by one.
            canonical_shards: streams of the global order; keep it when the number of ranks changes, and the rows of
                each global batch stay the same.
            policy: ``"rowgroup_modulo"`` deals whole row groups as Petastorm does: row group ``i`` of the dataset,
                whatever is filtered, belongs to part ``i % num_shards`` (a window to that of its first row). Parts are
                then as long as their row groups are; ``even`` and ``canonical_shards`` do not apply.

        Raises:
            PipelineError: no such part; a second ``shard``.
        """
        return self._with_stage(Shard.of(*resolve_rank(num_shards, index), even, canonical_shards, policy))

    def shuffle(
        self, buffer_size: int = 10_000, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Self:
        """A new order in every epoch: row groups permuted globally, rows among at least ``buffer_size`` neighbours.

            >>> shuffled = drive.shuffle(40, seed=7)
            >>> sorted(int(row["id"]) for row in shuffled) == list(range(40))
            True

        Args:
            seed: ``None`` draws one here and keeps it (in PyTorch, one that loader workers, resumed runs, and the ranks
                of a process group share); 0 is a seed like any other.
            reshuffle_each_iteration: ``False`` gives every epoch the same order.

        Raises:
            PipelineError: a second ``shuffle``, or one after ``batch``.
        """
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(Shuffle(buffer_size, chosen, reshuffle_each_iteration, drawn))

    def weigh(self, weights: object, num_items: int | None = None, seed: int | None = None) -> Self:
        """Draws rows by weight: in each epoch exactly ``num_items``, some rows several times and others not at all.

            >>> weighted = drive.weigh({"drive": {"d0": 1, "d1": 3}}, num_items=80, seed=7)
            >>> [row["drive"] for row in weighted].count("d1")
            60

        A row whose share of the items is 2.4 comes 2 or 3 times, in each epoch anew; equal weights give each row once.
        The draw depends on the seed and the epoch alone, so that ``shuffle``, ``shard``, ``repeat`` and states work as
        they do without. Random image stages draw numbers of their own for each time that a row comes.

        Args:
            weights: a field's name; an expression; the weights of a field's values, such as
                ``{"label": {0: 1.0, 1: 3.0}}`` (``None`` for null); or an array with a weight for each row of the
                dataset in storage order, before any filter: a filter takes along those of the rows that it leaves.
                Weights are finite numbers from 0.
            num_items: how many; ``None`` = as many as there are rows.
            seed: ``None`` follows the shuffle's seed, or draws one here and keeps it.

        Raises:
            PipelineError: weights of another form, or 0 for every row; ``ngram``; a filter that comes later.
            DatasetError: a stored weight that is null, negative or not finite; says in which file and row.
        """
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(Weigh(weights_of(weights), num_items, chosen, drawn))

    def balance(self, field: str | UnischemaField, num_items: int | None = None, seed: int | None = None) -> Self:
        """Draws rows so that each value of ``field`` comes equally often: `weigh` by the inverse of how many have it.

            >>> uneven = drive.where(pc.field("id") < 25)
            >>> labels = [row["drive"] for row in uneven.balance("drive", num_items=40, seed=7)]
            >>> labels.count("d0"), labels.count("d1")
            (20, 20)

        Args:
            field: of plain values without nulls.
            num_items, seed: as for `weigh`.

        Raises:
            DatasetError: a null; says in which file and row.
        """
        name = field.name if isinstance(field, UnischemaField) else field
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(Weigh(ClassWeights(name), num_items, chosen, drawn))

    def take(self, rows: int) -> Self:
        """The first elements only (rows; batches after ``batch()``).

            >>> [int(row["id"]) for row in drive.take(3)]
            [0, 1, 2]

        Raises:
            PipelineError: a number below 0.
        """
        return self._with_stage(Take(rows))

    def skip(self, rows: int) -> Self:
        """All but the first elements (rows; batches after ``batch()``).

            >>> [int(row["id"]) for row in drive.skip(37)]
            [37, 38, 39]

        Raises:
            PipelineError: a number below 0.
        """
        return self._with_stage(Skip(rows))

    def repeat(self, count: int | None = None) -> Self:
        """``count`` passes (``None`` or -1: endless).

            >>> len(drive.repeat(3))
            120

        Raises:
            PipelineError: another number below 0.
        """
        return self._with_stage(Repeat(None if count == -1 else count))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Groups rows under a leading axis: a dict of arrays, or of the framework's tensors.

            >>> [len(batch["id"]) for batch in drive.batch(16)]
            [16, 16, 8]
            >>> len(drive.batch(16, drop_remainder=True))
            2

        Raises:
            PipelineError: a size below 1; a second ``batch``.
        """
        return self._with_stage(Batch(batch_size, drop_remainder))

    def concat(
        self,
        length: int,
        *fields: str | UnischemaField,
        separator: float | Mapping[str, float] | None = None,
        positions: bool = False,
        remainder: Remainder = "drop",
        pad_value: float | Mapping[str, float] = 0,
    ) -> Self:
        """Token lists end to end, in the order of the rows, cut into items of exactly ``length`` tokens.

            >>> first = next(iter(texts.concat(8, "tokens", separator=-1, positions=True)))
            >>> first["tokens"].tolist()
            [-1, 1, -1, 2, 2, -1, 3, 3]
            >>> first["segment_ids"].tolist(), first["position_ids"].tolist()
            ([1, 2, 2, 3, 3, 3, 4, 4], [0, 0, 1, 0, 1, 2, 0, 1])
            >>> next(iter(texts.shuffle(20, seed=7).concat(16, "tokens").batch(2)))["tokens"].shape
            (2, 16)

        An epoch has the same number of items each time, and each token comes in it exactly once, but for the remainder.
        ``shuffle`` belongs before it; ``shard``, ``repeat``, ``take`` and ``batch`` may stand behind it and then count
        items. A row on the border of two canonical streams (`shard`) is cut there.

        Args:
            fields: the token lists (any integer or float list), and lists that go in step with them, such as a loss
                mask. Only these fields remain, each as ``[length]``.
            separator: a token between each row and the next, which belongs to the row before it; a number, or
                ``{field: number}``.
            positions: adds ``segment_ids`` (1, 2, ... inside each item, one for each row in it) and ``position_ids``
                (from 0 where a row begins in the item), int32 ``[length]``; see `cu_seqlens`.
            remainder: the last tokens of an epoch, fewer than ``length``, are left out (``"drop"``) or padded
                (``"pad"``) with ``pad_value`` (a number, or ``{field: number}``); there both ids are 0.

        Raises:
            PipelineError: a field that is no list of numbers, or a number that it cannot hold.
            NullValueError, DecodeError: a null, or lists of different lengths in a row; names file and row.
        """
        names = token_fields("concat", fields)
        between = None if separator is None else by_field(separator, names, "concat", "separator")
        padding = by_field(pad_value, names, "concat", "pad_value")
        return self._with_stage(Concat(length, names, between, positions, remainder, padding))

    def pack_rows(
        self,
        length: int,
        *fields: str | UnischemaField,
        strategy: Strategy = "best_fit",
        overlong: Overlong = "cut",
        pad_value: float | Mapping[str, float] = 0,
    ) -> Self:
        """Token lists packed whole into items of exactly ``length`` tokens, which are padded where no row has room.

            >>> first = next(iter(texts.pack_rows(8, "tokens", pad_value=-1)))
            >>> first["tokens"].tolist()
            [3, 3, 3, 7, 7, 7, 2, 2]
            >>> first["segment_ids"].tolist(), first["position_ids"].tolist()
            ([1, 1, 1, 2, 2, 2, 3, 3], [0, 1, 2, 0, 1, 2, 0, 1])

        ``segment_ids`` (1, 2, ... inside each item, one for each row in it) and ``position_ids`` (from 0 at each row's
        start), int32 ``[length]``, tell rows apart; both are 0 in padding. `explain` says how full items are.

        Rows are packed among those of at least ``buffer_size`` rows (`shuffle`). Which lengths share an item is the
        same in every epoch, and so is the number of items; rows of one length change places. ``shuffle`` belongs before
        it; ``shard``, ``repeat``, ``take`` and ``batch`` may stand behind it and then count items.

        Args:
            fields: as of `concat`.
            strategy: the longest rows come first, each into the fullest item that has room (``"best_fit"``) or into the
                first one (``"first_fit"``).
            overlong: rows longer than ``length`` are cut into several (``"cut"``), left out (``"drop"``), or an error.
            pad_value: a number, or ``{field: number}``.

        Raises:
            PipelineError: a field that is no list of numbers, or a number that it cannot hold.
            NullValueError, DecodeError: a null, lists of different lengths in a row, or a row that is too long under
                ``"error"``; names file and row.
        """
        names = token_fields("pack_rows", fields)
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
        """Batches of rows of like length, padded: less padding, and with ``max_tokens`` batches of equal cost.

            >>> batches = drive.select("id", "tags").bucket("tags", [1, 2], batch_size=8)
            >>> [batch["tags"].shape for batch in batches]
            [(8, 1), (8, 1), (8, 1), (3, 1), (8, 2), (5, 2)]
            >>> sum(len(batch["id"]) for batch in batches)
            40

        Rows of one bucket share a batch, among ``buffer_size`` rows of the shuffle (10,000 without one), and other ones
        in each epoch; then batches are shuffled. Each row comes once in an epoch, every epoch has equally many batches,
        and so has every rank. What follows counts batches. The first axis of a batch differs from batch to batch.

        Args:
            field: whose length counts: of a list, of a text in bytes, or as an integer field says.
            boundaries: ascending: the greatest length of each bucket; one more bucket has the rows that are longer.
            buckets: instead of ``boundaries``: how many, with about equally many rows each.
            batch_size: rows of each batch, but for the last ones of a bucket.
            batch_sizes: one for each bucket.
            max_tokens: as many rows as make this many tokens when each is as long as its bucket allows.
            pad_to: ``"bucket"`` pads to the boundary of the bucket, so that few shapes occur (rows longer than all
                boundaries to the longest of the batch); ``"longest"`` to the longest of each batch. ``None`` =
                ``"bucket"`` where there are boundaries.
            fields: those that are padded, each with its lengths as ``<name>__length``; ``None`` = ``field``.
            pad_value: what they are padded with; ``None`` = 0, or an empty text.

        Raises:
            PipelineError: arguments that do not go together; ``batch``, ``shuffle`` or a filter that comes later.
            DecodeError: a row longer than ``max_tokens``; says in which file and row.
        """
        return self._with_stage(
            Bucket(
                field.name if isinstance(field, UnischemaField) else field,
                () if boundaries is None else boundaries,  # type: ignore[arg-type]  # made a tuple there
                buckets,
                max_tokens,
                batch_size,
                () if batch_sizes is None else batch_sizes,  # type: ignore[arg-type]
                pad_to or ("longest" if boundaries is None else "bucket"),
                None if fields is None else required_names("bucket", fields),
                pad_value,
            )
        )

    def cache(self, directory: str | os.PathLike[str], max_bytes: int | None = None) -> Self:
        """Keeps fetched columns in a local directory: read once, shared by processes, bounded by ``max_bytes``.

            >>> with tempfile.TemporaryDirectory() as directory:
            ...     len(list(drive.cache(directory)))
            40

        Raises:
            PipelineError: ``max_bytes`` below 1; a mix.
        """
        return self._with_stage(Cache(os.path.abspath(os.path.expanduser(os.fspath(directory))), max_bytes))
