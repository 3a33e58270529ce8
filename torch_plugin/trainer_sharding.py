"""Third-party trainers that deal or count the rows of a loader's dataset themselves.

Accelerate, and the Hugging Face Trainer built on it, expect a dataset that gives every row on every rank: a dispatcher
reads on rank 0 and sends the others their part, or a wrapper keeps each rank's part and drops the rest. Neither tells
the dataset, and both ask it for its length. So this module looks for the caller that begins a pass or asks for a
length: by its class, in the loader or on the stack. Lightning deals nothing, but knows the epoch, even when it asks for
new loaders.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from torch.utils.data import default_collate

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.dataclass import dataclass

from .collation import as_is
from .placement import rank_here

_LOG = logging.getLogger(__name__)
_ASKING = 12  # frames between a trainer's wrapper and the length of its dataset
_LOOPS = ("_FitLoop", "_TrainingEpochLoop", "_EvaluationLoop", "_PredictionLoop")  # Lightning's
_CYCLING = "_MaxSizeCycle"
_LIGHTNING = ("lightning.", "pytorch_lightning.")
_HUGGING_FACE = ("accelerate.", "transformers.")
_PLAIN_COLLATES = (default_collate, as_is)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSharding:
    """How a trainer shards the rows of a pass among its ranks.

    Attributes:
        dispatches: whether one rank reads, and sends collated batches to the others.
        collates: whether the loader makes batches with torch's own function.
        rows: how many elements it takes from one loader worker before the next; ``None`` = batches as they are.
        processes: number of ranks it deals to.
        is_stateful: whether the loader that it reads saves states.
        saves_ahead: whether such a state counts batches that no rank has received yet.
    """

    dispatches: bool
    collates: bool
    rows: int | None
    processes: int
    is_stateful: bool = False
    saves_ahead: bool = False

    def check(self, pipeline: Pipeline, num_shards: int, workers: int) -> None:
        """Checks that a dataset can be dealt; called on every rank before any of them reads.

        Args:
            num_shards: of the dataset's own shard; 1 without one.
            workers: processes that read for the loader.

        Raises:
            PipelineError: dealing it would lose rows, or stop one rank and leave the others waiting.
        """
        for refused in (
            self._refused_shard(num_shards),
            self._refused_state(),
            self._refused_batches(pipeline, workers),
            self._refused_fields(pipeline),
        ):
            if refused is not None:
                raise PipelineError(f"Accelerate: {refused}")
        if self.dispatches and self.is_stateful and self.processes > 1:
            _warn_of_save_state()

    def rows_per_turn(self, pipeline: Pipeline, workers: int) -> int | None:
        """Returns how many rows one loader worker gets before the next one; ``None`` = one element each."""
        return self.rows if workers > 1 and not pipeline.element.batched and self.rows != 1 else None

    def _refused_shard(self, num_shards: int) -> str | None:
        if num_shards == 1 or self.processes == 1:
            return None
        return (
            f"expected every row on each of {self.processes} ranks, because it splits them, got a pipeline with "
            "shard(). Leave out shard()."
        )

    def _refused_state(self) -> str | None:
        if not self.saves_ahead or self.processes == 1:
            return None
        return (
            f"expected a loader whose state counts the batches that the {self.processes} ranks received, got "
            "use_stateful_dataloader=True with dispatch_batches=True and split_batches=False. That state counts up to "
            f"{self.processes - 1} more, whose rows would be lost. Write split_batches=True and batches "
            f"{self.processes} times as large, which gives the same rows; or leave out use_stateful_dataloader and "
            "resume with skip_first_batches(loader, steps)."
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
            f"expected fields of one shape, which dispatch_batches=True can send to other ranks, got {names}. Drop "
            "them with select(), make tensors of them in collate_fn, or write "
            "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEpoch:
    """The epoch that a trainer is in.

    Attributes:
        trainer: a weak reference to the trainer.
        cycling: the loader is restarted within this epoch, because another loader is longer.
    """

    number: int
    trainer: weakref.ref[Any]
    cycling: bool

    def is_same(self, other: TrainerEpoch | None) -> bool:
        """Whether ``other`` is this epoch of this trainer."""
        return other is not None and (self.number, self.trainer()) == (other.number, other.trainer())

    def recount(self, steps: int) -> None:
        """Makes a trainer that continues an epoch take ``steps`` steps as done; it ends the epoch by their number."""
        loop = getattr(self.trainer(), "fit_loop", None)
        if loop is None or not loop.restarting or self.cycling:
            return
        done = loop.epoch_loop.batch_progress.current
        more = steps - done.processed
        for name in ("ready", "started", "processed", "completed"):  # a step may be ready, or not completed
            setattr(done, name, max(0, getattr(done, name) + more))


def trainer_sharding_of(loader: Any) -> TrainerSharding | None:
    """Returns the trainer that deals the rows of the pass this loader begins; ``None`` = no trainer does."""
    collates = loader.collate_fn in _PLAIN_COLLATES or loader.batch_size is None
    wrapper = loader.dataset
    if _is(wrapper, "IterableDatasetShard"):
        return TrainerSharding(
            dispatches=False, collates=collates, rows=_rows_per_turn(wrapper), processes=wrapper.num_processes
        )
    for frame in _frames(sys._getframe(1)):
        trainer = _self_of(frame)
        reads = getattr(trainer, "base_dataloader", None) if _is(trainer, "DataLoaderDispatcher") else None
        if reads is not None and id(reads) == id(loader):
            return TrainerSharding(
                dispatches=True,
                collates=collates,
                rows=loader.batch_size,
                processes=rank_here()[0],
                is_stateful=hasattr(loader, "state_dict"),
                saves_ahead=hasattr(loader, "state_dict") and not _splits_batches(trainer, frame),
            )
    return None


def length_for_trainer(rows: Callable[[], int]) -> int | None:
    """Returns the length for a trainer that asks for it in order to deal; ``None`` = no trainer asks.

    Args:
        rows: counts the rows to deal.

    Raises:
        TypeError: the trainer would compute a wrong number of batches from any length.
    """
    for number, frame in zip(range(_ASKING), _frames(sys._getframe(1)), strict=False):
        asking = _self_of(frame)
        if _is(asking, "IterableDatasetShard"):
            return _length_for_shard(asking, rows())
        hugging_face = number < 4 and str(frame.f_globals.get("__name__")).startswith("transformers.trainer")
        if hugging_face or _is(asking, "DataLoaderDispatcher"):
            return rows()
    return None


def trainer_epoch() -> TrainerEpoch | None:
    """Returns the epoch of the Lightning trainer that begins a pass over training data."""
    cycling = False
    for frame in _frames(sys._getframe(1)):
        loop = _self_of(frame)
        name = type(loop).__name__
        cycling = cycling or (name == _CYCLING and frame.f_code.co_name == "__next__")
        if name in _LOOPS and type(loop).__module__.startswith(_LIGHTNING):
            if name in _LOOPS[2:]:
                return None
            trainer = loop.trainer
            return TrainerEpoch(number=int(trainer.current_epoch), trainer=weakref.ref(trainer), cycling=cycling)
    return None


@lru_cache(maxsize=1)
def _warn_of_save_state() -> None:
    _LOG.warning(
        "Accelerate: accelerator.save_state() lets every rank write its loader's state to the same file, and with "
        "dispatch_batches=True only rank 0 has read anything, so load_state() may begin the epoch again. Save "
        "loader.state_dict() of rank 0 yourself, or resume with skip_first_batches(loader, steps)."
    )


def _splits_batches(dispatcher: object, frame: FrameType) -> bool:
    """Whether a dispatcher splits each batch of its loader, also while ``frame`` is part of its constructor."""
    known = vars(dispatcher).get("split_batches")
    if known is None and frame.f_back is not None:
        known = frame.f_back.f_locals.get("split_batches")
    return bool(known)


def _rows_per_turn(shard: Any) -> int | None:
    if shard.batch_size is None:
        return None
    return int(shard.batch_size * (1 if getattr(shard, "split_batches", False) else shard.num_processes))


def _length_for_shard(shard: Any, rows: int) -> int:
    """Accelerate rounds to ``batch_size * num_processes`` rows, even if it deals ``batch_size`` rows at a time."""
    at_once = _rows_per_turn(shard)
    if at_once is None or not getattr(shard, "split_batches", False):
        return rows
    steps = rows // at_once if shard.drop_last else -(-rows // at_once)
    if steps % shard.num_processes:
        each = shard.batch_size // shard.num_processes
        raise TypeError(
            f"len(): Accelerate with split_batches=True and dispatch_batches=False would report a number of batches "
            f"other than the {steps} it gives. Write DataLoader(..., batch_size={each}) and split_batches=False, which "
            "gives the same batches."
        )
    return steps * at_once


def _is(value: object, name: str) -> bool:
    kind = type(value)  # Accelerate's loaders override __class__
    return kind.__name__ == name and kind.__module__.startswith(_HUGGING_FACE)


def _self_of(frame: FrameType) -> Any:
    """Returns the object whose method a frame of a trainer's package runs, or ``None``.

    It leaves your own functions alone: before Python 3.13, a frame whose variables are looked at keeps their values
    alive until it ends, such as a model that you delete to free its memory.
    """
    of_trainer = str(frame.f_globals.get("__name__")).startswith((*_HUGGING_FACE, *_LIGHTNING))
    return frame.f_locals.get("self") if of_trainer and "self" in frame.f_code.co_varnames else None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
