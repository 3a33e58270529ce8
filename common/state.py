"""The state of an iterator: one small JSON text that says how far a pipeline has come, the same in every face.

It holds no data and no buffer: the order is a function of (seed, epoch, position), so the position is enough.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from .errors import StateError
from .mixed_plan import MixedPlan
from .plan import BasePlan
from .stages import Stage, Transform, Where, WhereFunction

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far an iterator has come.

    Attributes:
        fingerprint: of the dataset.
        pipeline: hash of the stages that decide which elements come in which order.
        iteration: which iterator of the pipeline it is; decides the epoch.
        consumed: elements handed out.
        worker, workers: the loader worker's part.
    """

    version: int
    fingerprint: str
    pipeline: str
    seed: int | None
    iteration: int
    consumed: int
    shards: list[int]
    canonical_shards: int
    worker: int = 0
    workers: int = 1

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


def state_of(plan: BasePlan, *, iteration: int, consumed: int, worker: int = 0, workers: int = 1) -> State:
    """The state of an iterator over a plan."""
    shuffle, shard = plan.order.shuffle, plan.order.shard
    return State(
        version=VERSION,
        fingerprint=plan.fingerprint,
        pipeline=plan_hash(plan),
        seed=None if shuffle is None else shuffle.seed,
        iteration=iteration,
        consumed=consumed,
        shards=[0, 1] if shard is None else [shard.index, shard.num_shards],
        canonical_shards=1 if shard is None else shard.canonical_shards or shard.num_shards,
        worker=worker,
        workers=workers,
    )


def parse_state(plan: BasePlan, text: str | dict[str, Any], *, worker: int = 0, workers: int = 1) -> State:
    """Reads a state and holds it to the plan.

    Raises:
        StateError: not a state, or one of another version, dataset, pipeline, rank or loader worker; says the difference.
    """
    try:
        value = json.loads(text) if isinstance(text, str | bytes) else dict(text)
        found = State(**value)
    except (TypeError, ValueError) as error:
        raise StateError(f"state: expected what state_dict() returned, got {str(text)[:80]!r} ({error}).") from error
    own = state_of(plan, iteration=0, consumed=0, worker=worker, workers=workers)
    for name, what in (
        ("version", "format version"),
        ("fingerprint", "dataset"),
        ("pipeline", "pipeline (its stages and their arguments)"),
        ("seed", "shuffle seed"),
        ("shards", "shard [index, num_shards]"),
        ("canonical_shards", "canonical_shards"),
        ("workers", "number of loader workers"),
        ("worker", "loader worker"),
    ):
        if getattr(found, name) != getattr(own, name):
            raise StateError(
                f"state: it belongs to another {what}: expected {getattr(own, name)!r}, the state has "
                f"{getattr(found, name)!r}. Load it into the iterator of the pipeline that it was taken from."
            )
    if not isinstance(found.consumed, int) or found.consumed < 0 or not isinstance(found.iteration, int):
        raise StateError(f"state: expected consumed and iteration >= 0, got {found.consumed!r}, {found.iteration!r}.")
    return found


def plan_hash(plan: BasePlan) -> str:
    """A name for what decides which elements come in which order, the same in every process."""
    if not isinstance(plan, MixedPlan):
        return pipeline_hash(plan.stages)
    mixture = plan.mixture
    sources = [(plan_hash(source), weight) for source, weight in zip(plan.plans, mixture.weights, strict=True)]
    text = f"{pipeline_hash(plan.stages)} {sources} {mixture.seed} {mixture.stop}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def pipeline_hash(stages: tuple[Stage, ...]) -> str:
    """A name for the stages, the same in every process; the shard's index is compared by itself."""
    texts = []
    for stage in stages:
        if isinstance(stage, Transform | WhereFunction):
            texts.append(f"{stage.verb} {stage.function.digest}")
        elif isinstance(stage, Where):
            texts.append(f"where {stage.text}")
        elif stage.verb not in ("cache", "shard"):
            texts.append(str(stage))
        elif stage.verb == "shard":
            texts.append(f"shard {stage.even}")  # type: ignore[attr-defined]  # it is a Shard
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
