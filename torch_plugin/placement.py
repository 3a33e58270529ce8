"""The part of the data an iterator takes, as a value and in the stages of a pipeline.

The functions are pure. A rank's part is a ``shard`` stage; a loader worker's part within its rank is every
``workers``-th element, so that the workers together give each element once, and batches in the single-process order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.plan.stage_order import order_stages
from parquetry.common.plan.state import State, plan_hash, read_state
from parquetry.common.stages.base import Decision, Stage
from parquetry.common.stages.shard import Shard
from parquetry.common.stages.shuffle import Shuffle

from .torch_internals import default_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Part ``shard`` of ``num_shards``, and within it every ``workers``-th element from ``worker``."""

    num_shards: int = 1
    shard: int = 0
    worker: int = 0
    workers: int = 1


def with_shard(pipeline: Pipeline, num_shards: int, index: int) -> Pipeline:
    """Returns the pipeline of one rank: replaces the shard stage, or adds one before the rows are batched."""
    stages, shard = list(pipeline.stages), Shard(num_shards, index)
    for number, stage in enumerate(stages):
        if stage.decides in (Decision.PART, Decision.ROW_GROUPS):
            stages[number] = shard
            return pipeline.with_stages(stages)
    end = _end_of_rows(stages)
    while end and stages[end - 1].decides not in (Decision.ORDER, Decision.CUT):
        end -= 1  # the same rows, but each pass is dealt evenly, and a function may drop rows afterwards
    return pipeline.with_stages([*stages[:end], shard, *stages[end:]])


def on_these_ranks(part: Pipeline, given: dict[str, Any]) -> tuple[Pipeline, dict[str, Any]]:
    """Returns the part of a rank and the state, adjusted so that they fit if the state is from another number of ranks.

    In a process group, a dataset without ``shard()`` is split among the ranks; a single process reads all of it. To
    resume from a state of several ranks (or of a single process that resumed from one), a single process therefore gets
    a shard stage. A state gets the names of this part's pipeline if it is from the same pipeline without the shard
    stage, or with the stage at another place that gives the same order.

    Raises:
        StateError: not a state.
    """
    state, shard = read_state(given), shard_of(part)
    if shard is not None and shard not in part.stages:
        return part, given
    own = _with_free_streams(part, shard)
    if _names(own) == (state.order, state.pipeline):
        return part, given
    of_ranks = state.canonical_shards > 1 or state.shards[1] > 1 or bool(state.cuts)
    if shard is None:
        dealt = with_shard(part, 1, 0)
        names = _names(dealt)
        if names is not None and (of_ranks or names[0] == state.order):
            return dealt, _renamed(given, state, dealt, _with_shard_anywhere(part))
        return part, given
    whole = part.with_stages([stage for stage in part.stages if stage is not shard])
    dealt = with_shard(whole, shard.num_shards, shard.index)
    own_names, names = _names(own), _names(dealt)
    if own_names is None or names is None or own_names[0] != names[0]:
        return part, given  # you wrote shard() elsewhere, which may give another order
    names = None if of_ranks else _names(whole)
    if names is None or names[0] != state.order:
        return part, _renamed(given, state, own, [dealt])
    return part, {
        **given,
        "order": own_names[0],
        "pipeline": own_names[1] if names[1] == state.pipeline else state.pipeline,
    }


def _with_free_streams(part: Pipeline, shard: Shard | None) -> Pipeline:
    """Returns the pipeline with a shard stage whose canonical shards are not set."""
    if shard is None or shard.canonical_shards is None:
        return part
    free = replace(shard, canonical_shards=None)
    return part.with_stages([free if stage is shard else stage for stage in part.stages])


def _names(pipeline: Pipeline) -> tuple[str, str] | None:
    """Returns a state's names for a pipeline's order and for all its stages; ``None`` if the pipeline is not valid."""
    try:
        plan = pipeline.plan()
    except PipelineError:
        return None
    return plan_hash(plan, order_only=True), plan_hash(plan)


def _with_shard_anywhere(part: Pipeline) -> Iterator[Pipeline]:
    """Yields the pipeline with a shard stage at each place before its rows are batched."""
    for number in range(_end_of_rows(part.stages) + 1):
        yield part.with_stages([*part.stages[:number], Shard(1, 0), *part.stages[number:]])


def _renamed(given: dict[str, Any], state: State, own: Pipeline, others: Iterable[Pipeline]) -> dict[str, Any]:
    """Returns the state under the name of ``own``, if it names another pipeline with exactly the same order."""
    own_names = _names(own)
    if own_names is None or own_names[0] != state.order:
        return given
    is_one = any(_names(other) == (state.order, state.pipeline) for other in others)
    return {**given, "pipeline": own_names[1]} if is_one else given


def with_shard_at_end(pipeline: Pipeline) -> Pipeline:
    """Adds a placeholder shard stage at the end of the pipeline."""
    return pipeline.with_stages([*pipeline.stages, Shard(1, 0)])


def without_shuffle(pipeline: Pipeline) -> Pipeline:
    """Returns the pipeline with its rows in natural order."""
    return pipeline.with_stages([stage for stage in pipeline.stages if stage.decides is not Decision.ORDER])


def with_shuffle(pipeline: Pipeline, buffer_size: int, seed: int) -> Pipeline:
    """Adds a shuffle with a drawn seed, before the rows are batched."""
    end = _end_of_rows(pipeline.stages)
    return pipeline.with_stages(
        [*pipeline.stages[:end], Shuffle(buffer_size, seed, drawn=True), *pipeline.stages[end:]]
    )


def shard_of(pipeline: Pipeline) -> Shard | None:
    """Returns the pipeline's shard stage. For a mix without one, returns that of a sharded source."""
    own = next((stage for stage in pipeline.stages if stage.decides in (Decision.PART, Decision.ROW_GROUPS)), None)
    if own is not None:
        return own  # type: ignore[return-value]  # these stages are shards
    shards = (shard_of(source) for source in pipeline.source.sources)
    return next((stage for stage in shards if stage is not None and stage.num_shards > 1), None)


def shuffle_of(pipeline: Pipeline) -> Shuffle | None:
    """Returns the shuffle stage."""
    return order_stages(pipeline.stages).shuffle


def _end_of_rows(stages: list[Stage] | tuple[Stage, ...]) -> int:
    return next((number for number, stage in enumerate(stages) if stage.decides is Decision.BATCHES), len(stages))


def rank_here() -> tuple[int, int]:
    """Returns ``(world_size, rank)`` of the default group; ``(1, 0)`` without one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def shared_number(name: str, proposed: int) -> int | None:
    """Returns the number proposed by the first rank to ask; ``None`` if the group has no store.

    No rank waits for another, so a single rank may ask.
    """
    try:
        return int(default_store().compare_set(f"parquetry/{name}", "", str(proposed)))
    except (AttributeError, RuntimeError, ValueError):  # a backend of another kind
        return None
