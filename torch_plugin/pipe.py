"""`ParquetPipe`: a `ParquetIterable` that is also a DataPipe; DataPipe verbs are pushed down into the read plan."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow.compute as pc
from torch.utils.data import IterDataPipe, get_worker_info
from torch.utils.data.datapipes.datapipe import DataChunk
from torch.utils.data.datapipes.iter.combinatorics import ShufflerIterDataPipe
from torch.utils.data.datapipes.iter.combining import ConcaterIterDataPipe
from torch.utils.data.datapipes.iter.grouping import BatcherIterDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.pipeline.pipeline_iterator import ElementT
from parquetry.common.stages.batch import Batch
from parquetry.common.stages.concat import Remainder

from .combining import check_combined
from .elementwise import ElementwiseVerbs
from .iterable import SEEDS, ParquetIterable
from .loader_passes import Pass
from .placement import Placement, rank_here, shuffle_of, with_shard_at_end, with_shuffle, without_shuffle
from .torch_internals import serialization_wrapper

_BUFFER_ROWS = 10_000
_Wrapper: Any = serialization_wrapper()


class _OwnIterator:
    """Forwards the state, epochs and length of a `ParquetPipe` to loaders and trainers.

    ``DataLoader`` and ``StatefulDataLoader`` put every DataPipe into a torch wrapper before they iterate it. The
    wrapper's iterator hides ``state_dict`` and ``load_state_dict``: the loader would resume by replaying from the
    start, in the wrong epoch. The wrapper also hides ``set_epoch``, which trainers call. The pipes of this package get
    a wrapper that forwards these methods; all other pipes get torch's.

    This is a plain class, because the DataPipe metaclass would wrap the iterator again.
    """

    _datapipe: Any

    def __iter__(self) -> Iterator[Any]:
        return iter(self._datapipe)

    def __len__(self) -> int:
        return self.length_in_loader()

    def length_in_loader(self) -> int:
        return int(self._datapipe.length_in_loader())

    def set_epoch(self, epoch: int) -> None:
        self._datapipe.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._datapipe.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Any:
        self._datapipe.load_state_dict(state_dict, strict=strict)
        return self


if _Wrapper is not None:

    class StatefulWrapper(_OwnIterator, _Wrapper):  # a class that may be missing
        """Torch's wrapper with the pipe's own iterator, which has state."""


def _install_wrapper() -> None:
    """Chooses the wrapper by the pipe it wraps. Idempotent; has no effect if torch has no such wrapper."""
    if _Wrapper is not None and "__new__" not in vars(_Wrapper):
        _Wrapper.__new__ = _choose


def _choose(cls: type, datapipe: object = None, *args: object, **kwargs: object) -> Any:
    has_state = hasattr(type(datapipe), "length_in_loader") and hasattr(type(datapipe), "state_dict")
    return object.__new__(StatefulWrapper if cls is _Wrapper and has_state else cls)


_install_wrapper()


class ParquetPipe(ElementwiseVerbs, ParquetIterable[ElementT], IterDataPipe[ElementT]):  # type: ignore[misc]  # `map`
    """A `ParquetIterable` with the DataPipe verbs.

        >>> pipe = ParquetPipe(url, ["id"]).shuffle(buffer_size=16, seed=7).sharding_filter().batch(8)
        >>> pipe = pipe.map(operator.itemgetter("id"))  # torch's own verb
        >>> next(iter(DataLoader(pipe, batch_size=None))).shape
        torch.Size([8])

    ``filter``, ``shuffle``, ``sharding_filter`` and ``batch`` are pushed down into the plan where the semantics match;
    otherwise, and for verbs that this class does not define (``zip``, ...), torch's own run.

    In ranks and workers, it yields the same part as a `ParquetIterable`, unless ``apply_sharding`` sets another.

    ``__iter__`` is defined in the base class because the DataPipe metaclass wraps any ``__iter__`` in a class body, and
    a second iterator would then invalidate the first. Iterators of a `ParquetPipe` are independent.

    Args:
        url_or_urls, fields, filesystem, storage_options, address, mesh: as for `ParquetIterable`.
        workers, memory_limit, executor, verify, max_value_bytes, on_error, max_errors: as for `ParquetIterable`.
    """

    _wrapped_by_loaders = True

    def _start(self, pipeline: Pipeline) -> None:
        super()._start(pipeline)
        self._groups: dict[int, Group] = {}
        self._sharding = False  # the shard stage is a placeholder from sharding_filter()
        self._only_group: int | None = None
        self._shuffling = True

    if TYPE_CHECKING:

        def as_tuple(self, *parts: object) -> ParquetPipe[Any]: ...

    # --- DataPipe verbs (where torch's own run, they return torch's pipes; type checkers see this class) ---

    def filter(  # type: ignore[override]  # torch's own arguments
        self, filter_fn: object, input_col: object = None, *, fields: Sequence[str] | None = None, batched: bool = False
    ) -> Any:
        """Keeps only the elements for which ``filter_fn`` is true.

        Args:
            filter_fn: a ``pyarrow.compute.Expression`` or DNF tuples (pushed down), or a function.
            input_col: for a function of an element's tensors: the key or keys to call it with.
            fields: makes ``filter_fn`` a function of stored values, which is pushed down and reads only these fields.
            batched: the pushed-down function gets a dict of arrays.
        """
        if callable(filter_fn) and not isinstance(filter_fn, pc.Expression) and fields is None:
            return super().filter(filter_fn, input_col)
        return self.where(filter_fn, fields, batched=batched)

    def shuffle(  # torch's own may take over
        self,
        buffer_size: int = _BUFFER_ROWS,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        *,
        unbatch_level: int = 0,
    ) -> Self:
        """Shuffles again for every epoch: row groups globally, rows among at least ``buffer_size`` neighbors.

        ``seed=None`` draws a seed that workers, resumed runs, and the ranks of a process group share. After ``batch()``
        or another shuffle, and with ``unbatch_level``, this is torch's own shuffle of elements.
        """
        if unbatch_level or (seed is None and not self.pipeline.accepts("shuffle")):
            return ShufflerIterDataPipe(self, buffer_size=buffer_size, unbatch_level=unbatch_level)  # type: ignore[return-value]
        return super().shuffle(buffer_size, seed, reshuffle_each_iteration)

    def sharding_filter(self, sharding_group_filter: SHARDING_PRIORITIES | None = None) -> Self:
        """Sets the place in the chain where elements are split across ranks; the default is before ``batch()``.

        Before ``shuffle()``, a rank keeps its part; after it, the rank gets a new part in every epoch. Has no effect on
        a pipe that is already sharded or batched.

        Args:
            sharding_group_filter: the only sharding priority to follow; ``None`` = all. A loader worker always takes
                its part.
        """
        result = self._with(self.pipeline)
        if self.pipeline.accepts("shard"):
            result = self._with(with_shard_at_end(self.pipeline))
            result._sharding = True
        result._only_group = sharding_group_filter
        return result

    def batch(  # type: ignore[override]  # torch's own may take over
        self,
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: type[DataChunk] | None = None,
        *,
        drop_remainder: bool | None = None,
    ) -> Self:
        """Groups rows under a leading axis: a dict of batched tensors.

        On batches, and with ``wrapper_class``, this is torch's own batch: lists of elements.
        """
        drop = drop_last if drop_remainder is None else drop_remainder
        if wrapper_class is not None or not self.pipeline.accepts("batch"):
            return BatcherIterDataPipe(self, batch_size, drop, wrapper_class or DataChunk)  # type: ignore[return-value]
        return super().batch(batch_size, drop)

    def concat(  # type: ignore[override]  # torch's own may take over
        self,
        length: int | IterDataPipe,
        *fields: Any,
        separator: float | Mapping[str, float] | None = None,
        positions: bool = False,
        remainder: Remainder = "drop",
        pad_value: float | Mapping[str, float] = 0,
    ) -> Self:
        """Joins token lists end to end and cuts them into items of exactly ``length`` tokens.

        See `ParquetIterable.concat`. With other pipes, this is torch's own: the elements of this pipe, then theirs.
        """
        if isinstance(length, IterDataPipe):
            return ConcaterIterDataPipe(self, length, *fields)  # type: ignore[return-value]
        return super().concat(
            length, *fields, separator=separator, positions=positions, remainder=remainder, pad_value=pad_value
        )

    def unbatch(self, unbatch_level: int = 1) -> Self:
        """Undoes ``batch()``, if that is the last verb.

        Raises:
            PipelineError: ``batch()`` is not the last verb, or it drops the last rows.
        """
        *before, last = self.pipeline.stages or (None,)
        if not isinstance(last, Batch) or last.drop_remainder or unbatch_level not in (1, -1):
            raise PipelineError(
                "unbatch: expected a pipe whose last verb is batch(n), and unbatch_level=1, got "
                f"{[stage.verb for stage in self.pipeline.stages]} and unbatch_level={unbatch_level}. "
                "Put verbs that work on rows before batch(), and use take(n) in place of drop_remainder."
            )
        return self._with(self.pipeline.with_stages(before))

    def cycle(self, count: int | None = None) -> Self:
        """Repeats the pipe; the same as ``repeat``."""
        return self.repeat(count)

    def header(self, limit: int | None = 10) -> Self:
        """Keeps the first ``limit`` elements (``None`` = all)."""
        return self._with(self.pipeline) if limit is None else self.take(limit)

    # --- called by loaders and torch.utils.data.graph_settings ---

    def pass_begins(self, begun: Pass) -> None:
        """Called when a loader is about to iterate the pipe.

        Raises:
            PipelineError: a ``zip`` or ``concat`` with a pipe that is split in a different way.
        """
        check_combined(begun.dataset, begun.workers)
        super().pass_begins(begun)

    def set_seed(self, seed: int) -> Self:
        """For ``apply_random_seed``: sets a seed that all ranks share, if a shuffle or mix has none."""
        if get_worker_info() is None and rank_here()[0] > 1 and not self._seed_shared:
            self._agree_on_seed(seed)
            if not self._seed_shared:
                self._adopt(seed % SEEDS)
        return self

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """For ``DataLoader(shuffle=...)``: ``False`` = natural order; ``True`` adds a shuffle if there is none."""
        if shuffle and shuffle_of(self._pipeline) is None:
            self._pipeline = with_shuffle(self._pipeline, _BUFFER_ROWS, secrets.randbits(62))
        self._shuffling = bool(shuffle)
        self._parts.clear()
        return self

    def is_shardable(self) -> bool:
        """Whether `apply_sharding` decides the part."""
        return True

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: int = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Takes part ``instance_id`` of ``num_of_instances``; a pipeline with its own shard keeps its own part.

        Raises:
            PipelineError: there is no such part.
        """
        if not 0 <= instance_id < num_of_instances:
            raise PipelineError(f"apply_sharding: expected instance_id in [0, {num_of_instances}), got {instance_id}.")
        if self._only_group is not None and sharding_group != self._only_group:
            return
        in_worker = get_worker_info() is not None
        self._groups[sharding_group] = Group(instances=num_of_instances, index=instance_id, in_worker=in_worker)

    # --- parts ---

    @property
    def _is_fixed(self) -> bool:
        return super()._is_fixed and not self._sharding

    def _placement(self) -> Placement:
        unsaid = super()._placement()
        if self._trainer_sharding is not None:
            return unsaid
        if self._mesh_part is None:
            return place(self._groups, unsaid, fixed=self._is_fixed)
        shards, shard = self._mesh_part  # torch's loaders deal to all ranks
        return replace(place(self._groups, unsaid, fixed=True), num_shards=shards, shard=shard)

    def _ranks(self) -> tuple[int, int]:
        """Returns ``(1, 0)`` if the pipe follows only the sharding of workers, and has no mesh."""
        workers_only = self._only_group == SHARDING_PRIORITIES.MULTIPROCESSING and self._mesh_part is None
        return (1, 0) if workers_only else super()._ranks()

    def _make_part(self, at: Placement, in_worker: bool) -> Pipeline:
        part = super()._make_part(at, in_worker)
        return part if self._shuffling else without_shuffle(part)

    # --- copies ---

    def _with(self, pipeline: Pipeline) -> Self:
        result = super()._with(pipeline)
        result._groups = dict(self._groups)
        result._sharding = self._sharding
        result._only_group = self._only_group
        result._shuffling = self._shuffling
        return result

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        hook = IterDataPipe.getstate_hook  # how torch finds the DataPipes inside a DataPipe
        return state if hook is None else hook(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The arguments of one ``apply_sharding`` call by ``torch.utils.data.graph_settings``.

    Attributes:
        instances, index: this is part ``index`` of ``instances``.
        in_worker: it was called in a loader worker.
    """

    instances: int
    index: int
    in_worker: bool


def place(groups: Mapping[int, Group], unsaid: Placement, *, fixed: bool) -> Placement:
    """Combines the ``apply_sharding`` calls into one placement.

    Args:
        groups: the calls, by sharding priority.
        unsaid: supplies whatever the calls do not set.
        fixed: whether the pipeline has its own shard stage, which is left unchanged.
    """
    result, workers = unsaid, unsaid.workers
    distributed, default = groups.get(SHARDING_PRIORITIES.DISTRIBUTED), groups.get(SHARDING_PRIORITIES.DEFAULT)
    if distributed is not None:
        result = replace(result, num_shards=distributed.instances, shard=distributed.index)
    elif default is not None and not default.in_worker:
        result = replace(result, num_shards=default.instances, shard=default.index)
    elif default is not None and default.instances % workers == 0:
        # The loader's own call: ranks and workers in one number, with ranks varying fastest. Whatever order the caller
        # counts in, this split gives each part to exactly one of them.
        ranks = default.instances // workers
        result = replace(result, num_shards=ranks, shard=default.index % ranks, worker=default.index // ranks)
    elif default is not None and not fixed:
        result = Placement(num_shards=default.instances, shard=default.index)
    local = groups.get(SHARDING_PRIORITIES.MULTIPROCESSING)
    if local is not None:
        result = replace(result, worker=local.index, workers=local.instances)
    return replace(result, num_shards=1, shard=0) if fixed else result
