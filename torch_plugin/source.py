"""`PipelineSource`: iteration, state, and placement of a `ParquetPipe`.

In: a pipeline, and what loaders say (epochs, seeds, parts). Out: iterators over dicts of tensors. What always holds:
an iterator is the part of the rank and of the loader worker that it runs in, each element goes to exactly one of them,
and the order depends on (seed, epoch) alone.
"""

from __future__ import annotations

import json
import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.utils.data import IterDataPipe, get_worker_info
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from typing_extensions import Self

from parquetry.common import Pipeline
from parquetry.common.errors import PipelineError, StateError
from parquetry.common.state import canonical_shards_of, parse_state, plan_hash

from .epochs import EpochCounter
from .iterator import ElementIterator, Progress, parse
from .placement import (
    Group,
    Placement,
    place,
    shard_of,
    shuffle_of,
    with_shard,
    with_shuffle,
    without_shuffle,
)
from .process_end import end_with_trainer
from .verbs import PipelineVerbs

_LOG = logging.getLogger(__name__)
_SEEDS = 1 << 62
_BUFFER_ROWS = 10_000


class PipelineSource(PipelineVerbs):
    """What `ParquetPipe` is beside a DataPipe.

    ``__iter__`` stands in a base of its own because the metaclass of DataPipes wraps the one that it finds in a class
    body, so that a second iterator would invalidate the first. Iterators of a `ParquetPipe` know nothing of each other.
    """

    _pipeline: Pipeline

    def _start(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._epochs = EpochCounter()
        self._groups: dict[int, Group] = {}
        self._seed_shared = False  # a drawn seed was replaced by the one of a state, or of all ranks
        self._sharding = False  # the shard stage is a place kept by sharding_filter()
        self._only_group: int | None = None
        self._shuffling = True
        self._resume: dict[str, Any] | None = None  # a state for the next iterator
        self._resume_announced = False  # ... which the workers of an announced epoch have been given
        self._progress: Progress | None = None
        self._canonical_shards: int | None = None  # of a state, where nobody chose how many
        self._parts: dict[Any, Pipeline] = {}

    @property
    def pipeline(self) -> Pipeline:
        """What is iterated, as an immutable value."""
        return self._pipeline

    def __iter__(self) -> ElementIterator:
        """The next epoch; inside a loader worker, that worker's part of it."""
        self._adopt(self._epochs.sync())
        placement, in_loader = self._placement(), get_worker_info() is not None
        if in_loader:
            end_with_trainer()
        result = ElementIterator(
            self._part(placement),
            iteration=self._epochs.begin(),
            worker=placement.worker,
            workers=placement.workers,
            resumer=self,
            sent=in_loader,
        )
        if self._resume is not None:
            result.load_state_dict(self._resume)
            self._resume = None
        self._progress = result.progress
        return result

    def __len__(self) -> int:
        """Elements that the next iterator gives, exact.

        Raises:
            TypeError: the pipeline is endless, or a function that may leave rows out hides its length.
        """
        placement = self._placement()
        return max(0, -(-(len(self._part(placement)) - placement.worker) // placement.workers))

    def length_in_loader(self) -> int:
        """Elements that a ``DataLoader`` of this rank gives with any number of workers."""
        return len(self._part(replace(self._loader_placement(), worker=0, workers=1)))

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """How far the latest iterator of this process has come; after its end, the beginning of the next epoch.

        Iterators in loader workers are unknown here; see `state_after`, and ``StatefulDataLoader``.
        """
        if self._progress is not None and not self._progress.finished:
            return self._progress.state_dict()
        return self._beginning()

    def state_after(self, elements: int) -> dict[str, Any]:
        """The state when a ``DataLoader`` with workers has given ``elements`` elements of its latest epoch.

        For stock loaders, whose progress only the training loop knows. It counts from the first element that the loader
        gave, also where that went on from a state. Exact for elements that come in the single-process order: batches of
        the pipe (``batch_size=None``), or rows that one worker reads.

        Raises:
            StateError: a function that leaves rows out hides which rows the elements were made of.
        """
        if self._pipeline.plan().recipe.drops:
            raise StateError(
                "state_after: expected a pipeline whose elements can be counted, got transform(drops=True). "
                "Use StatefulDataLoader."
            )
        begun = self._beginning()
        return {**begun, "consumed": begun["consumed"] + elements}

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        """The next iterator, or all loader workers of the next epoch together, go on where the state was taken.

        It works in place, and returns the pipe.

        In a process group, the pipe that a loader is going to shard is held to the state of this rank.

        Args:
            strict: ``False`` takes a state of a pipeline with other fields or transforms, if the order is the same.

        Raises:
            StateError: the state belongs to another dataset, pipeline, or part.
        """
        state, at = parse(state_dict), self._loader_placement()
        self._adopt_streams(canonical_shards_of(self._part(at).plan(), state))
        plan = self._part(at).plan()
        found = parse_state(plan, state, worker=at.worker, workers=at.workers, strict=strict)
        self._adopt(found.seed)
        self._epochs.set(found.iteration)
        self._resume = json.loads(replace(found, pipeline=plan_hash(plan)).to_json())
        self._resume_announced, self._progress = False, None
        return self

    def resumed(self, progress: Progress) -> None:
        """An iterator was restored: later epochs count on from it."""
        seed = progress.pipeline.drawn_seed
        self._adopt(seed)
        self._epochs.resumed(progress.iteration, seed, tell=self._resume is None)

    def _beginning(self) -> dict[str, Any]:
        """The state before the first element of the next epoch, or of the one that loader workers are in."""
        if self._resume is not None:
            return dict(self._resume)
        at = self._loader_placement()
        fresh = Progress(pipeline=self._part(at), iteration=self._epochs.next, worker=at.worker, workers=at.workers)
        return fresh.state_dict()

    # --- what loaders call ---

    def set_epoch(self, epoch: int) -> None:
        """The next iterator is epoch ``epoch`` (counted from 0). Persistent workers that run count by themselves.

        It goes on from a loaded state if that was taken in this epoch, and begins at the start otherwise.
        """
        if self._resume is not None and self._resume["iteration"] != epoch:
            self._resume = None
        self._epochs.set(epoch)

    def set_seed(self, seed: int) -> Self:
        """A loader announces an epoch (``apply_random_seed``).

        The order stays a function of the shuffle's own seed and the epoch. Only where ``shuffle()`` (or ``mix()``) was
        given no seed, and there are several ranks, the loader's seed is taken once, because all ranks share it.
        """
        announced = self._epochs.announcements
        self._adopt(self._epochs.announce())
        if self._epochs.is_owner:
            if self._epochs.announcements > announced:
                if self._resume_announced:  # it was for the workers of the epoch before
                    self._resume = None
                self._resume_announced = self._resume is not None
            if not self._seed_shared and _world_size() > 1:
                self._adopt(seed % _SEEDS)
            with suppress(Exception):  # whatever is wrong is raised where elements are read
                _ = self._pipeline.plan().length  # selects rows once here, not in every worker
        return self

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """What ``DataLoader(shuffle=...)`` says: ``False`` = natural order; ``True`` adds a shuffle where none is."""
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
        """Takes part ``instance_id`` of ``num_of_instances``; a pipeline with a shard of its own keeps it.

        Raises:
            PipelineError: no such part.
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
        return shard_of(self._pipeline) is not None and not self._sharding

    def _placement(self) -> Placement:
        info = get_worker_info()
        return place(self._groups, None if info is None else (info.id, info.num_workers), fixed=self._is_fixed)

    def _loader_placement(self) -> Placement:
        """The placement that a loader of this process will say."""
        unsaid = not self._groups and get_worker_info() is None and not self._is_fixed
        if unsaid and _world_size() > 1:
            return Placement(num_shards=_world_size(), shard=dist.get_rank())
        return self._placement()

    def _part(self, at: Placement) -> Pipeline:
        """The pipeline that this rank and worker iterates; kept, so that it is planned once."""
        in_worker = get_worker_info() is not None
        key = (at.num_shards, at.shard, in_worker)
        if key not in self._parts:
            self._parts[key] = self._make_part(at, in_worker)
        return self._parts[key]

    def _make_part(self, at: Placement, in_worker: bool) -> Pipeline:
        pipeline = self._pipeline if self._shuffling else without_shuffle(self._pipeline)
        if at.num_shards > 1:
            _LOG.info("%s: part %d of %d, as the loader says", self._pipeline.urls[0], at.shard, at.num_shards)
            pipeline = with_shard(pipeline, at.num_shards, at.shard)
            if pipeline.drawn_seed is not None and not self._seed_shared and _world_size() < 2:
                verb = "shuffle" if pipeline.mixture is None else "mix"
                _LOG.warning("%s() without seed= drew one in this process; ranks must be given the same seed.", verb)
        if self._canonical_shards is not None:
            pipeline = pipeline.with_canonical_shards(self._canonical_shards)
        if in_worker:  # the loader's workers are the parallelism
            pipeline = pipeline.with_options(workers=pipeline.workers or 1, executor=pipeline.executor or "threads")
        return pipeline

    def _adopt(self, seed: int | None) -> None:
        """Takes the seed of a state, or of all ranks, where nobody chose one."""
        own = self._pipeline.drawn_seed
        if seed is None or own is None:
            return
        self._seed_shared = True
        if seed != own:
            self._pipeline = self._pipeline.with_seed(seed)
            self._parts.clear()

    def _adopt_streams(self, canonical_shards: int | None) -> None:
        """Takes the canonical shards of a state, where nobody chose them: the epochs that follow are cut alike."""
        if canonical_shards is not None:
            self._canonical_shards = canonical_shards
            self._parts.clear()

    def __getstate__(self) -> Any:
        state = {**self.__dict__, "_progress": None, "_parts": {}}
        hook = IterDataPipe.getstate_hook  # how torch finds the DataPipes inside a DataPipe
        return state if hook is None else hook(state)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
