"""`ParquetIterable`: a Parquet dataset as a plain ``IterableDataset``; the core of the other iterable classes.

It takes a pipeline, and what loaders announce (passes, seeds). Each iterator yields the elements of its own rank and
loader worker as dicts of tensors. Each element goes to exactly one of them, and the order depends only on (seed,
epoch).
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError, StateError
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.base.process.exit_watch import end_with_trainer
from parquetry.common.base.urls import url_without_secrets, without_signature
from parquetry.common.engine.read.shared_tables import SharedReads
from parquetry.common.pipeline.pipeline_iterator import ElementT
from parquetry.common.pipeline.resumes import PlainProgress, ResumeWatch, elements_at_end, is_at_end
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.plan.state import (
    check_position,
    plan_at,
    plan_hash,
    read_state,
    resume,
    state_of,
)

from . import loader_passes
from .epochs import EpochCounter, epoch_number, warn_of_dropped_state
from .iterable_carrier import IterableCarrier
from .iterator import ElementIterator, Progress, lane_of, parse
from .loader_passes import LoaderAware, LoaderPosition, Pass
from .loader_workers.relay import RelayPlan, most_in_run, most_waiting, new_meeting
from .loader_workers.runs import RunIterator
from .meshes import warn_of_model_parallel
from .pass_counters import PassCounters
from .placement import Placement, on_these_ranks, rank_here, shard_of, shared_number, with_shard
from .stateful_ranks import continue_on_other_ranks
from .torch_internals import keeps_workers
from .trainer_sharding import TrainerEpoch, TrainerSharding, length_for_trainer

_LOG = logging.getLogger(__name__)
SEEDS = 1 << 62
_SHARE_OF_MEMORY = 4  # all workers together share at most this fraction of the memory limit of one
_AGREED: dict[int, int] = {}  # the seed a shuffle drew -> the seed this process uses for it
_MADE_IN_WORKER: Counter[str] = Counter()  # the datasets without a seed that were made in this loader worker

loader_passes.install()


class ParquetIterable(IterableCarrier, LoaderAware, IterableDataset[ElementT]):
    """Rows of a Parquet dataset as dicts of tensors (see `parquetry.torch_plugin.tensors` for the form of each field).

        >>> dataset = ParquetIterable(url, ["id", "image"]).shuffle(16, seed=7).batch(8)
        >>> batch = next(iter(DataLoader(dataset, batch_size=None)))
        >>> batch["id"].shape, batch["image"].shape
        (torch.Size([8]), torch.Size([8, 4, 5, 3]))

    It wraps a `Pipeline` and has its verbs; each returns a new dataset. Pass it to any ``DataLoader``, alone or
    inside another dataset. Each pass of a loader, and each iterator outside a loader, is a new epoch.

    In a ``DataLoader`` worker, it yields that worker's part. In a process group, it yields the rank's part: the part
    of its own ``shard()`` if it has one (``shard(1, 0)`` = everything), else the part along ``mesh``, else part
    ``rank`` of ``world_size``.

    Args:
        url_or_urls: a URL or local path of a directory or a Parquet file, a pattern such as
            ``"data/2024-*.parquet"``, or a list of these; or a `Pipeline`.
        fields: names or regexes of the fields to read; ``None`` = all.
        filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
        storage_options: options for an fsspec filesystem.
        workers: number of decoding threads or processes; ``None`` = one per processor, one in a ``DataLoader`` worker.
        memory_limit: bytes of fetched data in flight; ``None`` = 1 GiB. Larger row groups are read in slices, into
            temporary files.
        executor: ``"threads"`` or ``"sidecar"``; ``None`` = threads, or the sidecar for pipelines with user functions
            that are not iterated in a ``DataLoader`` worker.
        on_error: ``"raise"`` (the default), or ``"skip"`` to skip rows that fail, see ``docs/bad-rows.md``.
        max_errors: with ``"skip"``, how many rows of an epoch may fail: a number, or a fraction (0.0 to 1.0).
        verify: which page checksums are verified: ``"written"`` (= ``None``), those present; ``"always"``, all, and a
            page without one is an error; ``"never"``, none.
        restarts: how many times in a row a dead sidecar is restarted, see `Options`; ``None`` = 3.
        stall_timeout: seconds after which a stalled sidecar process is replaced, see `Options`; ``None`` = never.
        max_value_bytes: limit for one decoded value; variable-shape values of one field may use 16 times this per
            batch. ``None`` = 1 GiB.
        address: a server that makes the batches, in place of a URL; see `Pipeline`.
        mesh: the data-parallel dimensions of a ``DeviceMesh``, such as ``device_mesh["dp"]``. Rows are split along
            them, after the shuffle; ranks that differ in other dimensions read the same rows. See `shard`.

    Raises:
        PipelineError: arguments out of range, or a mesh that rows cannot be split along, see `shard`. Checks that need
            the dataset run when it is first used.
    """

    _wrapped_by_loaders = False  # loaders ask for `length_in_loader`, by torch's wrapper of DataPipes

    def _start(self, pipeline: Pipeline) -> None:
        super()._start(pipeline)
        self._epochs = EpochCounter()
        self._seed_shared = False  # the drawn seed was replaced by a state's, or by the one all ranks share
        self._seed_is_own = False  # only this process agreed on the seed
        self._sent_ranks = (1, 0)  # world size and rank of the process that sent this to a loader worker
        self._resume: dict[str, Any] | None = None  # a state for the next iterator
        self._resume_announced = False  # the workers of an announced epoch already have that state
        self._progress: Progress | None = None
        self._running: weakref.ref[Any] | None = None  # the latest iterator of a loader that gave an element
        self._begun: Progress | None = None  # where this process's latest iterator began; None once a loader announced
        self._streams: int | None = None  # canonical streams from a state, if the pipeline does not set them
        self._deals_itself = False  # a single process resumed from a state of several ranks
        self._parts: dict[Any, Pipeline] = {}
        self._trainer_sharding: TrainerSharding | None = None  # for the pass a loader announced
        self._warned_of_batches = False
        self._read_by_workers = False  # workers read the latest pass, so this process does not know their progress
        self._mixed_by_workers = False  # each batch of the latest pass has the rows of one worker
        self._resumes = ResumeWatch()
        self._at_once = 1  # how many elements the loader of the latest pass makes one batch of
        self._in_workers: PlainProgress | None = None  # what the loop has taken of a pass that loader workers resumed
        self._restored_by_loader = False  # workers of the latest pass began at states of their own
        self._restores_end = False  # the loader of the latest pass restores the end of one
        self._counting = PassCounters()
        self._sharing = SharedReads()
        self._meeting: str | None = None  # where the workers of the announced pass meet, if they do
        self._in_runs = False  # whether they may send several batches as one item

    if TYPE_CHECKING:

        def as_tuple(self, *parts: object) -> ParquetIterable[Any]: ...

    def __iter__(self) -> ElementIterator[ElementT]:
        """Iterates over the next epoch; in a loader worker, over that worker's part of it."""
        self._adopt(self._epochs.sync())
        in_loader = get_worker_info() is not None
        if in_loader:
            end_with_trainer()
        elif not self._epochs.is_awaited:
            self._trainer_sharding, self._at_once, self._restores_end = None, 1, False
        self._agree_on_seed()
        placement = self._placement()
        self._warn_of_unset_seed_or_epoch(placement)
        part = self._part(placement)
        waited_for = in_loader or self._epochs.is_awaited  # the loader measures the wait, not the iterator
        counting = self._counting
        result: ElementIterator[ElementT] = ElementIterator(
            part,
            iteration=self._epochs.begin(),
            worker=placement.worker,
            workers=placement.workers,
            resumer=self,
            sent=in_loader,
            by_rows=part.element.batched and not self.element.batched,
            counters=counting.of_worker() if in_loader else counting.of_iterator(announced=waited_for),
            waits=not waited_for,
            shared=self._sharing.of_worker(placement.worker, placement.workers, _sharable_bytes(part))
            if in_loader
            else None,
        )
        counting.iterates(result)
        if self._resume is not None:
            result.load_state_dict(self._resume)
            self._resume = None
        self._read_by_workers = self._mixed_by_workers = self._restored_by_loader = False
        self._progress = result.progress
        self._begun = copy.copy(result.progress)
        return result

    def _wrap_for_worker(self, elements: Iterator[Any]) -> Iterator[Any]:
        if get_worker_info() is None or not isinstance(elements, ElementIterator):
            return elements
        placement = self._placement()
        relay = self._relay_plan(self._part(placement), placement)
        if relay is not None:
            elements.take_part(relay)
        if not self._in_runs:
            return elements
        return RunIterator(elements, placement.worker, 1 if relay is None else relay.most_in_run)

    def __len__(self) -> int:
        """Returns the exact number of elements in the next iterator.

        Raises:
            TypeError: the pipeline is endless, or a function or ``on_error="skip"`` may drop rows. Batches with
                ``on_error="skip"`` have no length here, because a ``DataLoader`` asks for it and each of its workers
                may end with a partial batch.
        """
        placement = self._placement()
        if not self._wrapped_by_loaders:
            self._check_that_batches_are_full(placement)
        return max(0, -(-(self._length(placement) - placement.worker) // placement.workers))

    def length_in_loader(self) -> int:
        """Returns the number of elements that a ``DataLoader`` on this rank yields, for any number of workers.

        Raises:
            TypeError: as for `__len__`; also for batches with ``on_error="skip"``, where each worker ends with a
                partial batch.
        """
        at = replace(self._placement(), worker=0, workers=1)
        self._check_that_batches_are_full(at)
        return self._length(at)

    def batches_in_loader(self, batch_size: int, workers: int, *, drop_last: bool) -> int:
        """Returns the number of batches of a ``DataLoader`` whose workers collate elements, each those of its own part.

        Raises:
            TypeError: as for `__len__`; also if ``on_error="skip"`` may leave elements out of any worker's part.
        """
        if self._part(replace(self._placement(), worker=0, workers=1)).plan().loses_elements:
            raise TypeError(
                "len(): unknown, because with on_error='skip' it is unknown which loader worker leaves rows out of its "
                "batches. Use num_workers=1, or batch() in the dataset and batch_size=None in the loader."
            )
        elements = self.length_in_loader()
        parts = (-(-(elements - worker) // workers) for worker in range(workers))
        return sum(part // batch_size if drop_last else -(-part // batch_size) for part in parts)

    def _check_that_batches_are_full(self, at: Placement) -> None:
        plan = self._part(at).plan()
        if plan.loses_elements and plan.element.batched:
            raise TypeError(
                "len(): unknown, because with on_error='skip' each loader worker may end with a short batch."
            )

    def __getitem__(self, index: object) -> Any:
        """Not supported: rows of an iterable have no index.

        Raises:
            PipelineError: always; ``random_split`` and ``Subset`` call this.
        """
        raise PipelineError(
            f"{type(self).__name__}: expected iteration, got a request for row {index!r}. In place of random_split(), "
            'write dataset.hash_split("id", [0.8, 0.2], 0) for one part and the same with 1 for the other, where "id" '
            "identifies a row. In place of Subset(), use take() and skip(). For samplers, use a ParquetMap."
        )

    def _length(self, at: Placement) -> int:
        everything = replace(at, num_shards=1, shard=0)
        asked = length_for_trainer(lambda: self._part(everything).length_where(strict_nulls=True))
        return self._part(at).length_where(strict_nulls=True) if asked is None else asked

    def stats(self) -> LoaderStats:
        """Returns statistics of the running or latest epoch, and which side is slow: the loader or the model.

        Adds up all ``DataLoader`` workers and sidecars. Your wait is measured where you iterate the loader.

        Raises:
            PipelineError: nothing was iterated in this process.
        """
        return self._counting.stats(self._part(self._placement()))

    def _check_begun(self, iterator: object) -> None:
        self._running = weakref.ref(iterator)
        if self._resume is not None and not self._resume_announced and not self._epochs.is_awaited:
            raise StateError(
                "load_state_dict: expected a state before the loader begins its pass, got one after. iter(loader) "
                "begins a pass, and so does the state_dict() of a StatefulDataLoader, which "
                "torch.distributed.checkpoint calls before it loads. Make a new loader after load_state_dict()."
            )

    def _waited(self, begin: float, end: float) -> None:
        """Records that the consumer of the loader waited for an element from ``begin`` to ``end``."""
        self._counting.waited(begin, end)
        if self._in_workers is not None:
            self._in_workers.consumed += self._at_once

    def _copied(self, seconds: float) -> None:
        """Records that the consumer also waited for the copy of an element to a device."""
        self._counting.copied(seconds)

    def _position(self) -> LoaderPosition | None:
        progress = self._progress
        return None if progress is None else (progress.cursor.iteration, progress.consumed, progress.skipped)

    def _rewind_to(self, position: LoaderPosition | None) -> None:
        progress = self._progress
        if position is not None and progress is not None and position[0] == progress.cursor.iteration:
            _, progress.consumed, progress.skipped = position
        self._allow_loading()  # the traceback keeps the loader's iterator, which may never be used again

    def _allow_loading(self) -> None:
        """Notes that a state may be loaded, unless the loader's workers stay, and would not get it."""
        if not keeps_workers(self._running_loader):
            self._running = None

    @property
    def _running_loader(self) -> object:
        """The iterator of the loader whose pass has begun in this process, while it exists; otherwise ``None``."""
        return None if self._running is None or get_worker_info() is not None else self._running()

    def _check_may_load(self) -> None:
        running = self._running_loader
        if running is None:
            return
        if keeps_workers(running):
            raise StateError(
                "load_state_dict: expected a state before the loader starts its workers, got one after: with "
                "persistent_workers=True they go on with the dataset that they have. Drop the loader, load the state, "
                "and make a new loader."
            )
        if type(running).__module__.startswith("torchdata."):
            return  # a StatefulDataLoader keeps its iterator, also when nobody uses it
        raise StateError(
            "load_state_dict: expected a state before the loader begins its pass, got one while the pass runs, which "
            "would go on from where it is. Load the state before iter(loader), or leave the loop (and drop its "
            "iterator) first."
        )

    def _ended(self) -> None:
        """Called in the training process when a loader's pass has ended."""
        self._allow_loading()
        self._counting.ended(url_without_secrets(self._pipeline.urls[0]))
        if self._in_workers is not None:
            self._in_workers.finished = True

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this process's latest iterator; after its end, the beginning of the next epoch.

        This process does not know the positions of iterators in loader workers; see `state_after`, and
        ``StatefulDataLoader``.
        """
        self._warn_of_hidden_progress()
        if self._progress is not None and not self._progress.finished:
            return self._progress.state_dict()
        return self._beginning()

    def state_after(self, elements: int) -> dict[str, Any]:
        """Returns the state after ``elements`` elements of a ``DataLoader``'s latest epoch, with or without workers.

        Use it with stock loaders, because only the training loop knows their progress. Counts from the first element
        that the loader returned, even if it resumed from a state. Exact if elements arrive in the single-process order:
        batches of the pipe (``batch_size=None``), or rows read by one worker.

        Raises:
            StateError: there are fewer elements; or it is unknown which rows they hold, because a function or
                ``on_error="skip"`` drops rows, because several loader workers make batches of them, or because a
                ``StatefulDataLoader`` restored a state of its own.
        """
        plan = self._pipeline.plan()
        if plan.program.drops or plan.skips:
            got = "on_error='skip'" if plan.skips else "transform(drops=True)"
            raise StateError(
                f"state_after: expected a pipeline whose elements can be counted, got {got}. Use StatefulDataLoader."
            )
        if self._mixed_by_workers:
            raise StateError(
                "state_after: expected a loader whose elements are those of the dataset, got one whose workers make "
                "batches of them. Call batch() on the dataset and pass batch_size=None, or use StatefulDataLoader."
            )
        if self._restored_by_loader:
            raise StateError(
                "state_after: expected a pass that began at a state of the dataset, got one whose loader restored its "
                "own. Use the loader's state_dict()."
            )
        begun = self._beginning() if self._begun is None else self._begun.state_dict()
        if operator.index(elements) < 0:
            raise StateError(f"state_after: expected a number of elements >= 0, got {elements}.")
        state = {**begun, "consumed": begun["consumed"] + operator.index(elements)}
        if plan.hashes is None:  # otherwise the server has the plan
            at = read_state(state)
            check_position(plan_at(plan, at) if self._begun is None else self._begun.pipeline.plan(), at)
        return state

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        """Resumes from a state: the next iterator, or the loader workers of the next epoch together, continue from it.

        Works in place and returns the pipe. In a process group, the state must belong to this rank's part. The epoch is
        that of the state, whatever `set_epoch` said before.

        Args:
            strict: ``False`` accepts a state from a pipeline with other fields or transforms, if the order is the same.

        Raises:
            StateError: the state belongs to another dataset, pipeline, or part; or a loader is in the middle of a pass.
        """
        self._check_may_load()
        return self._take_state(state_dict, strict=strict)

    def _take_state(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        at = self._placement()
        part, state = on_these_ranks(self._part(at), parse(state_dict))
        if at.num_shards == 1 and part is not self._part(at):
            self._deals_itself = True
            self._parts.clear()
        lane, part = lane_of(state, at.worker, at.workers), self._part(at)
        part, parsed = resume(part, lambda made: made.plan(), state, worker=lane, workers=at.workers, strict=strict)
        self._adopt_streams(parsed.streams)
        self._adopt(parsed.seed)
        self._epochs.set(parsed.iteration)
        self._resume = json.loads(replace(parsed, pipeline=plan_hash(part.plan())).to_json())
        self._resume_announced, self._progress, self._begun = False, None, None
        self._read_by_workers = self._restored_by_loader = False
        return self

    def resumed(self, progress: Progress) -> None:
        """Called when an iterator was restored: later epochs count from its epoch."""
        seed = progress.pipeline.drawn_seed
        self._adopt(seed)
        self._epochs.resumed(progress.cursor.iteration, seed, tell=self._resume is None)
        if progress is self._progress:
            self._begun = copy.copy(progress)
        if get_worker_info() is None and not self._restores_end:
            total = elements_at_end(progress.pipeline.plan(), progress.cursor)
            self._resumes.took_state(progress, total, at_once=self._at_once)

    def begins(self, progress: Progress) -> None:
        """Called when an iterator gives its first element: warns if a state was used up by another one."""
        if get_worker_info() is None:
            self._resumes.begins(progress)

    def _begins_in_workers(self, begun: Pass) -> None:
        """Does what `begins` does for a pass that loader workers read."""
        taken = PlainProgress()
        states = [read_state(state) for state in begun.restored or ([] if self._resume is None else [self._resume])]
        if not states:
            self._resumes.begins(taken)
            return
        taken.consumed = sum(state.consumed for state in states)
        total = elements_at_end(plan_at(self._part(self._placement()).plan(), states[0]), states[0].cursor(0, 1))
        self._resumes.took_state(taken, total, at_once=begun.at_once * begun.workers)
        self._in_workers = taken

    def _beginning(self) -> dict[str, Any]:
        """Returns the state before the first element of the next epoch, or of the epoch that loader workers read."""
        if self._resume is not None:
            return dict(self._resume)
        self._agree_on_seed()
        at = self._placement()
        first = Cursor(iteration=self._epochs.upcoming, worker=at.worker, workers=at.workers)
        return Progress(pipeline=self._part(at), cursor=first).state_dict()

    # --- called by loaders ---

    @property
    def _is_plain(self) -> bool:  # type: ignore[override]
        return type(self).__iter__ is ParquetIterable.__iter__

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass epoch ``epoch`` (counted from 0), in running workers too.

        If a state was loaded before, the pass resumes from it if it is from that epoch. Otherwise it starts at the
        beginning, and a warning says that the state is dropped, unless it is the end of the epoch before.

        Raises:
            PipelineError: the epoch is not an integer of at least 0.
        """
        epoch = epoch_number(epoch)
        if self._resume is not None and self._resume["iteration"] != epoch:
            if not self._resume_announced:
                state, plan, at = read_state(self._resume), self._part(self._placement()).plan(), self._placement()
                ended = is_at_end(plan_at(plan, state), state.cursor(at.worker, at.workers), state.consumed)
                warn_of_dropped_state(state.iteration, epoch, ended=ended)
            self._resume = None
        self._epochs.set(epoch)
        self._begun = None

    def _continues(self, loader: DataLoader, trainer: TrainerEpoch | None) -> Callable[[], None] | None:
        return continue_on_other_ranks(loader, self, trainer)

    def _ranks_of(self, state: dict[str, Any]) -> tuple[int, int]:
        """Returns the number of ranks that a state is from, and the number of ranks now."""
        return read_state(state).shards[1], state_of(self._part(self._placement()).plan(), Cursor()).shards[1]

    def _on_these_ranks(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns a state as one of this number of ranks, and prepares for iterators that get it."""
        own, self._resume = self._take_state(state)._resume, None
        return {} if own is None else own

    def _elements_after(self, state: dict[str, Any] | None) -> int | None:
        """Returns how many elements this rank has left in an epoch, or has in all; ``None`` = unknown."""
        plan = self._part(self._placement()).plan()
        at = None if state is None else read_state(state)
        length = plan.length if at is None else plan_at(plan, at).elements_from(at.start)
        return length if at is None or length is None else max(0, length - at.consumed)

    def pass_begins(self, begun: Pass) -> None:
        """Called when a loader is about to iterate: begins the next epoch, and drops a state the last one used."""
        self._adopt(self._epochs.sync())
        self._epochs.follow(begun.trainer)
        self._adopt(self._epochs.announce(begun))
        self._begun = None
        self._read_by_workers = begun.workers > 0
        self._mixed_by_workers = begun.workers > 1 and begun.at_once > 1
        self._restored_by_loader = begun.workers > 0 and bool(begun.restored)
        self._trainer_sharding = begun.trainer_sharding
        self._counting.announce(begun.workers, alone=begun.alone)
        self._sharing.announce(begun.workers)
        self._in_runs = begun.in_runs
        self._meeting = new_meeting(begun.workers) if begun.untouched and self._is_plain else None
        if begun.trainer_sharding is not None:
            own = shard_of(self._pipeline)
            shards, _ = self._mesh_part or (own.num_shards if self._is_fixed and own else 1, 0)
            begun.trainer_sharding.check(self._pipeline, shards, begun.workers)
        if self._resume_announced:
            self._resume = None
        self._resume_announced = self._resume is not None
        self._at_once, self._in_workers, self._restores_end = begun.at_once, None, begun.ended
        self._agree_on_seed(begun.seed)
        self._warn_of_batches_of_batches(begun)
        with suppress(Exception):  # errors are raised where elements are read
            _ = self._pipeline.plan().length  # selects rows once here, not in every worker
            if begun.workers:
                self._begins_in_workers(begun)

    # --- parts ---

    @property
    def _is_fixed(self) -> bool:
        """Whether the pipeline has its own shard stage, which is left unchanged."""
        return shard_of(self._pipeline) is not None

    def _placement(self) -> Placement:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        ranks, rank = (1, 0) if self._is_fixed or self._trainer_sharding is not None else self._ranks()
        return Placement(num_shards=ranks, shard=rank, worker=worker, workers=workers)

    def _ranks(self) -> tuple[int, int]:
        """Returns the part along the mesh, or world size and rank.

        A spawned loader worker has no process group and uses those it was sent.
        """
        if self._mesh_part is not None:
            return self._mesh_part
        here = rank_here()
        return self._sent_ranks if here[0] == 1 and get_worker_info() is not None else here

    def _part(self, at: Placement) -> Pipeline:
        """Returns the pipeline that this rank and worker iterate; cached, so it is planned only once."""
        in_worker = get_worker_info() is not None
        key = (at.num_shards, at.shard, in_worker, self._trainer_sharding if in_worker else None)
        if key not in self._parts:
            self._parts[key] = self._make_part(at, in_worker)
        return self._parts[key]

    def _make_part(self, at: Placement, in_worker: bool) -> Pipeline:
        pipeline, own = self._pipeline, shard_of(self._pipeline)
        if not in_worker and self._mesh_part is None:
            warn_of_model_parallel(own.num_shards if self._is_fixed and own is not None else at.num_shards)
        if at.num_shards > 1 or (self._deals_itself and not self._is_fixed):
            _LOG.info("%s: part %d of %d", url_without_secrets(self._pipeline.urls[0]), at.shard, at.num_shards)
            pipeline = with_shard(pipeline, at.num_shards, at.shard)
        if self._streams is not None:
            pipeline = pipeline.with_streams(self._streams, None)
        if in_worker:  # the loader's workers are the parallelism
            pipeline = pipeline.with_options(workers=pipeline.workers or 1, executor=pipeline.executor or "threads")
            at_once = (
                None if self._trainer_sharding is None else self._trainer_sharding.rows_per_turn(pipeline, at.workers)
            )
            pipeline = pipeline if at_once is None else pipeline.batch(at_once)
        return pipeline

    def _relay_plan(self, part: Pipeline, at: Placement) -> RelayPlan | None:
        """In a loader worker: returns how the workers let one of them make the batches, if that costs less."""
        info, name = get_worker_info(), self._meeting
        if info is None or name is None or self._trainer_sharding is not None:
            return None
        waiting = most_waiting(part, at.workers)
        if not waiting:
            return None
        most = most_in_run(part, waiting) if self._in_runs else 1
        return RelayPlan(
            name=name,
            is_producer=info.id == 0,
            pipeline=part,
            counters=self._counting.of_worker(),
            most_waiting=waiting,
            most_in_run=most,
        )

    # --- seeds and streams ---

    def _agree_on_seed(self, proposed: int | None = None) -> None:
        """Picks one seed if you set none: for all ranks of a group, all workers of a loader, and all datasets derived
        from one shuffle. It comes from torch's random numbers, or from the loader's ``generator``.

        Loader workers that make datasets of their own must make and begin the same ones, in the same order: datasets
        that look alike are told apart by their number.
        """
        own, info = self._pipeline.drawn_seed, get_worker_info()
        if own is None or self._seed_shared:
            return
        if info is not None:
            if self._epochs.is_owner:  # made in the worker, where each worker drew its own seed
                if own not in _AGREED:
                    _AGREED[own] = _seed_in_worker(info.seed - info.id, _description(self._pipeline))
                self._adopt(_AGREED[own])
            return
        if own not in _AGREED:
            drawn = int(torch.empty((), dtype=torch.int64).random_()) if proposed is None else proposed
            agreed: int | None = drawn % SEEDS
            if rank_here()[0] > 1:
                agreed = shared_number(f"seed/{_description(self._pipeline)}", drawn % SEEDS)
            if agreed is None:
                return
            _AGREED[own] = agreed
        self._adopt(_AGREED[own])
        self._seed_is_own = rank_here()[0] == 1

    def _adopt(self, seed: int | None) -> None:
        """Takes the seed of a state or of all ranks, if you set none."""
        own = self._pipeline.drawn_seed
        if seed is None or own is None:
            return
        self._seed_shared, self._seed_is_own = True, False
        if seed != own:
            self._pipeline = self._pipeline.with_seed(seed)
            self._parts.clear()

    def _adopt_streams(self, streams: int) -> None:
        """Takes the canonical streams of a state, if you set none: later epochs are cut the same way."""
        if streams != self._streams:
            self._streams = streams
            self._parts.clear()

    def _warn_of_unset_seed_or_epoch(self, at: Placement) -> None:
        alone = self._seed_is_own or not self._seed_shared
        if at.num_shards > 1 and alone and self._pipeline.drawn_seed is not None:
            verb = "mix" if self._pipeline.source.mixed else "shuffle"
            _LOG.warning("%s() picked a random seed in this process; pass the same seed= on all ranks.", verb)
        if get_worker_info() is not None and not self._epochs.is_announced:
            _LOG.warning(
                "%s: no loader announced this pass, so it is epoch %d each time a worker starts. Make the dataset in "
                "the training process and keep it inside the loader's dataset, or call set_epoch().",
                url_without_secrets(self._pipeline.urls[0]),
                self._epochs.upcoming,
            )

    def _warn_of_batches_of_batches(self, begun: Pass) -> None:
        dealt = begun.trainer_sharding
        made_of = begun.batch_size or (0 if dealt is None or dealt.rows == 1 else dealt.rows)
        if not made_of or self._warned_of_batches or not self.element.batched:
            return
        self._warned_of_batches = True
        _LOG.warning(
            "the loader makes batches of %d from elements that batch() already batched: tensors get a leading axis of "
            "%d. Write DataLoader(dataset, batch_size=None).",
            made_of,
            made_of,
        )

    def _warn_of_hidden_progress(self) -> None:
        if not self._read_by_workers:
            return
        self._read_by_workers = False  # once per pass
        _LOG.warning(
            "state_dict(): DataLoader workers read the latest pass, and this process does not know how far they got: "
            "this is the state at the beginning of their epoch. Write state_after(elements), with the number of "
            "elements you took from the loader, or use StatefulDataLoader."
        )

    # --- copies ---

    def _with(self, pipeline: Pipeline) -> Self:
        result = super()._with(pipeline)
        result._seed_shared = self._seed_shared
        result._seed_is_own = self._seed_is_own
        result._streams = self._streams
        result._deals_itself = self._deals_itself
        return result

    def __getstate__(self) -> Any:
        fresh: dict[str, Any] = {"_progress": None, "_begun": None, "_running": None, "_parts": {}}
        fresh["_resumes"] = ResumeWatch()
        return {**self.__dict__, **fresh, "_sent_ranks": self._ranks()}


def _seed_in_worker(base: int, description: str) -> int:
    """Returns the seed of the next dataset of this description that a loader worker makes; ``base`` is the loader's."""
    number = _MADE_IN_WORKER[description]
    _MADE_IN_WORKER[description] += 1
    digest = hashlib.blake2b(f"{base} {description} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEEDS


def _sharable_bytes(part: Pipeline) -> int:
    return part.options.memory_bytes // _SHARE_OF_MEMORY


def _description(pipeline: Pipeline) -> str:
    """Returns a hash that is the same on every rank, whichever seed and signatures of URLs the rank has."""
    text = json.dumps([list(map(without_signature, pipeline.urls)), [stage.verb for stage in pipeline.stages]])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
