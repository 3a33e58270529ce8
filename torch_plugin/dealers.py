"""Trainers of others that take a loader's dataset and deal or count the rows themselves.

Accelerate, and the Hugging Face Trainer over it, take a dataset that gives every row on every rank: a dispatcher reads
on rank 0 and sends the others their part, or a wrapper keeps each rank's part and drops the rest. Neither tells the
dataset, and both ask it for its length. So whoever begins a pass, or asks for a length, is looked for: by its class, in
the loader or on the stack. Lightning deals nothing, but knows the epoch, also where it asks for new loaders.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from torch.utils.data import default_collate

from parquetry.common import Pipeline
from parquetry.common.errors import PipelineError

from .placement import rank_here

Batch = TypeVar("Batch")


def as_is(batch: Batch) -> Batch:
    """The batch itself: ``DataLoader(pipe, batch_size=None, collate_fn=as_is)``.

    Without it the loader looks at each value of each batch for arrays to convert, text by text. There are none: a pipe
    gives tensors, strings, and lists of them.
    """
    return batch


_ASKING = 12  # frames between a trainer's wrapper and the length of its dataset
_LOOPS = ("_FitLoop", "_TrainingEpochLoop", "_EvaluationLoop", "_PredictionLoop")  # Lightning's
_CYCLING = "_MaxSizeCycle"
_PLAIN_COLLATES = {default_collate, as_is}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealer:
    """Who deals the rows of a pass.

    Attributes:
        dispatches: whether one rank reads, and sends the others what it has collated.
        collates: whether the loader makes batches by torch's own function.
        rows: how many elements it takes of one loader worker before it turns to the next; ``None`` = batches as they
            are.
        processes: ranks that it deals to.
    """

    dispatches: bool
    collates: bool
    rows: int | None
    processes: int

    def check(self, pipeline: Pipeline, num_shards: int, workers: int) -> None:
        """Holds a dataset to what can be dealt; called on every rank before one of them reads.

        Args:
            num_shards: of the dataset's own shard; 1 without one.
            workers: processes that read for the loader.

        Raises:
            PipelineError: it would lose rows, or stop one rank and leave the others waiting.
        """
        for refused in (
            self._refused_shard(num_shards),
            self._refused_batches(pipeline, workers),
            self._refused_fields(pipeline),
        ):
            if refused is not None:
                raise PipelineError(f"Accelerate: {refused}")

    def dealt_at_once(self, pipeline: Pipeline, workers: int) -> int | None:
        """How many rows go to one loader worker before the next one gets some; ``None`` = each element by itself."""
        return self.rows if workers > 1 and not pipeline.element.batched and self.rows != 1 else None

    def _refused_shard(self, num_shards: int) -> str | None:
        if num_shards == 1 or self.processes == 1:
            return None
        return (
            f"expected every row on each of {self.processes} ranks, which it deals them to, got a pipeline with "
            "shard(). Leave out shard()."
        )

    def _refused_batches(self, pipeline: Pipeline, workers: int) -> str | None:
        batched = pipeline.element.batched
        if batched and self.rows is None and not self.dispatches:
            return (
                "expected rows, which dispatch_batches=False deals to ranks, got batches. "
                "Leave out batch(), and write DataLoader(dataset, batch_size=...)."
            )
        if batched and self.rows is not None and (self.collates or (workers > 1 and self.rows > 1)):
            return (
                "expected rows for a loader that makes batches, got batches. "
                "Leave out batch(), or write DataLoader(dataset, batch_size=None) with dispatch_batches=True."
            )
        if workers > 1 and self.rows not in (None, 1) and not batched and pipeline.plan().program.drops:
            return (
                "expected rows that can be counted for several loader workers, got transform(drops=True). "
                "Write DataLoader(..., num_workers=1)."
            )
        return None

    def _refused_fields(self, pipeline: Pipeline) -> str | None:
        if not self.dispatches or not self.collates or self.processes == 1:
            return None
        element = pipeline.element
        names = [
            "/".join(map(str, output.path))
            for output in element.outputs
            if output.kind != "dense" or (element.batched and None in output.shape and not output.padded)
        ]
        if not names:
            return None
        return (
            f"expected fields of one shape, which dispatch_batches=True can send to other ranks, got {names}. Leave "
            "them out by select(), make tensors of them in collate_fn, or write "
            "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEpoch:
    """The epoch that a trainer is in.

    Attributes:
        trainer: which trainer, as long as it lives.
        cycling: the loader is begun again in this epoch, because another one is longer.
    """

    number: int
    trainer: weakref.ref[Any]
    cycling: bool

    def is_same(self, other: TrainerEpoch | None) -> bool:
        """Whether ``other`` is this epoch of this trainer."""
        return other is not None and (self.number, self.trainer()) == (other.number, other.trainer())


def dealer_of(loader: Any) -> Dealer | None:
    """Who deals the rows of the pass that this loader begins."""
    collates = loader.collate_fn in _PLAIN_COLLATES or loader.batch_size is None
    wrapper = loader.dataset
    if _is(wrapper, "IterableDatasetShard"):
        return Dealer(
            dispatches=False, collates=collates, rows=_dealt_at_once(wrapper), processes=wrapper.num_processes
        )
    for frame in _frames(sys._getframe(1)):
        trainer = frame.f_locals.get("self")
        reads = getattr(trainer, "base_dataloader", None) if _is(trainer, "DataLoaderDispatcher") else None
        if reads is not None and id(reads) == id(loader):
            return Dealer(dispatches=True, collates=collates, rows=loader.batch_size, processes=rank_here()[0])
    return None


def length_for_dealer(rows: Callable[[], int]) -> int | None:
    """What to say to a trainer that asks for the length in order to deal; ``None`` = nobody does.

    Args:
        rows: counts what there is to deal.

    Raises:
        TypeError: it computes another number of batches than it gives, whatever it is told.
    """
    for number, frame in zip(range(_ASKING), _frames(sys._getframe(1)), strict=False):
        asking = frame.f_locals.get("self")
        if _is(asking, "IterableDatasetShard"):
            return _length_for_shard(asking, rows())
        hugging_face = number < 4 and str(frame.f_globals.get("__name__")).startswith("transformers.trainer")
        if hugging_face or _is(asking, "DataLoaderDispatcher"):
            return rows()
    return None


def trainer_epoch() -> TrainerEpoch | None:
    """The epoch of the Lightning trainer that begins a pass over training data."""
    cycling = False
    for frame in _frames(sys._getframe(1)):
        loop: Any = frame.f_locals.get("self")
        name = type(loop).__name__
        cycling = cycling or (name == _CYCLING and frame.f_code.co_name == "__next__")
        if name in _LOOPS and type(loop).__module__.startswith(("lightning.", "pytorch_lightning.")):
            if name in _LOOPS[2:]:
                return None
            trainer = loop.trainer
            return TrainerEpoch(number=int(trainer.current_epoch), trainer=weakref.ref(trainer), cycling=cycling)
    return None


def _dealt_at_once(shard: Any) -> int | None:
    if shard.batch_size is None:
        return None
    return int(shard.batch_size * (1 if getattr(shard, "split_batches", False) else shard.num_processes))


def _length_for_shard(shard: Any, rows: int) -> int:
    """Accelerate rounds to ``batch_size * num_processes`` rows, also where it deals ``batch_size`` rows at a time."""
    at_once = _dealt_at_once(shard)
    if at_once is None or not getattr(shard, "split_batches", False):
        return rows
    steps = rows // at_once if shard.drop_last else -(-rows // at_once)
    if steps % shard.num_processes:
        each = shard.batch_size // shard.num_processes
        raise TypeError(
            f"len(): Accelerate with split_batches=True and dispatch_batches=False would say another number of batches "
            f"than the {steps} that it gives. Write DataLoader(..., batch_size={each}) and split_batches=False, which "
            "gives the same batches."
        )
    return steps * at_once


def _is(value: object, name: str) -> bool:
    kind = type(value)  # loaders of Accelerate say another __class__
    return kind.__name__ == name and kind.__module__.startswith(("accelerate.", "transformers."))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
