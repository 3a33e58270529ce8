"""The state of an iterator: one small JSON text that says how far a pipeline has come, the same in every face.

It holds no data and no buffer: the order is a function of (seed, epoch, position), so the position is enough. On
another number of ranks the position is counted in rows that all ranks together have taken (`plan.Origin`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

from ..errors import ParquetryError, StateError
from ..order.cursor import Cursor, Origin
from ..schema.plain import PlainFields, Seed
from ..stages.base import Decision, Stage
from .mixed_plan import MixedPlan
from .plan import BasePlan

VERSION = 2
_SHORTENED = 1
"""The version whose names of pipelines left things out; see `_shortened`."""
_LIMIT = 1 << 48


class Restorable(Protocol):
    """What a state can change: a pipeline, or a plan."""

    def with_seed(self, seed: Any) -> Any:
        """A copy with this seed."""

    def with_canonical_shards(self, count: int) -> Any:
        """A copy with this many canonical shards."""


Carrier = TypeVar("Carrier", bound=Restorable)


@dataclass(frozen=True, kw_only=True)
class State(PlainFields):
    """How far an iterator has come.

    Attributes:
        fingerprint: of the dataset.
        pipeline: hash of the stages.
        order: hash of those stages that decide which rows come in which order.
        seed: of the shuffle; of a mix, that of all seeds which nobody chose.
        iteration: which iterator of the pipeline it is; decides the epoch.
        consumed: elements handed out since ``origin``.
        origin: ``[passes, rows]``: the global position from which this number of ranks began.
        shards: ``[index, num_shards]``.
        batch_size: rows of an element; ``None`` for rows.
        worker, workers: the loader worker's part.
        skipped: rows that failed and were left out since ``origin``; ``None`` where rows that fail raise errors.
    """

    refusal: ClassVar[type[ParquetryError]] = StateError
    version: int
    fingerprint: str
    pipeline: str
    order: str
    seed: Seed | None
    iteration: int
    consumed: int
    origin: tuple[int, int]
    shards: tuple[int, int]
    canonical_shards: int
    batch_size: int | None
    worker: int = 0
    workers: int = 1
    skipped: int | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        before, after = self.around_consumed()
        return f"{before}{self.consumed}{after}"

    def around_consumed(self) -> tuple[str, str]:
        """The JSON before and after the number of consumed elements, for a client that counts on without reading it."""
        others = asdict(self)
        skipped, _ = others.pop("skipped"), others.pop("consumed")
        after = "}" if skipped is None else f',"skipped":{skipped}}}'
        return json.dumps(others, separators=(",", ":"))[:-1] + ',"consumed":', after

    @property
    def called(self) -> str:
        return "state"

    @property
    def start(self) -> Origin:
        """The global position that ``consumed`` counts from."""
        return Origin(passes=self.origin[0], rows=self.origin[1])


def state_of(plan: BasePlan, cursor: Cursor) -> State:
    """The state of an iterator over a plan."""
    shard = plan.order.shard
    return State(
        version=VERSION,
        fingerprint=plan.fingerprint,
        pipeline=plan_hash(plan),
        order=plan_hash(plan, order_only=True),
        seed=plan.seed,
        iteration=cursor.iteration,
        consumed=cursor.start,
        origin=(cursor.origin.passes, cursor.origin.rows),
        shards=(0, 1) if shard is None else (shard.index, shard.num_shards),
        canonical_shards=1 if shard is None else shard.canonical_shards or shard.num_shards,
        batch_size=plan.element.batch_size,
        worker=cursor.worker,
        workers=cursor.workers,
        skipped=cursor.skipped if plan.skips else None,
    )


def resume(
    made: Carrier,
    plan_of: Callable[[Carrier], BasePlan],
    text: str | dict[str, Any],
    *,
    worker: int = 0,
    workers: int = 1,
    strict: bool = True,
) -> tuple[Carrier, State]:
    """A pipeline (or plan) as a state wants it, and the state: seed and canonical shards that nobody chose are its own.

    Raises:
        StateError: see `parse_state`.
    """
    canonical_shards = canonical_shards_of(plan_of(made), text)
    if canonical_shards is not None:
        made = made.with_canonical_shards(canonical_shards)
    plan = plan_of(made)
    found = parse_state(plan, text, worker=worker, workers=workers, strict=strict)
    return (made if found.seed in (None, plan.seed) else made.with_seed(found.seed)), found


def canonical_shards_of(plan: BasePlan, text: str | dict[str, Any]) -> int | None:
    """The canonical shards that a state brings along where nobody chose the plan's; ``None`` if they are the same.

    They are those of the ranks that the job was begun with: the rows that are left are cut as they were.
    """
    shard = plan.order.shard
    if shard is None or shard.canonical_shards is not None:
        return None
    count = read_state(text).canonical_shards
    return count if count != shard.num_shards else None


def parse_state(
    plan: BasePlan, text: str | dict[str, Any], *, worker: int = 0, workers: int = 1, strict: bool = True
) -> State:
    """Reads a state, holds it to the plan, and brings it to the plan's own ranks and batch size.

    ``strict=False`` takes a state of a pipeline that differs only in what cannot change the order (other fields, other
    transforms). A state of another seed is taken where the plan's own was drawn, not given; the caller then changes
    the pipeline's seed.

    Raises:
        StateError: not a state, or one of another version, dataset, pipeline or loader worker; says the difference.
    """
    found = read_state(text)
    own = state_of(plan, Cursor(worker=worker, workers=workers))
    if plan.seed_is_drawn:
        own = replace(own, seed=found.seed)  # nobody chose this plan's seed: the state's is taken over
    if found.version == _SHORTENED:
        found = _named_anew(plan, found, own, strict=strict)
    for name, what in (
        ("version", "format version"),
        ("fingerprint", "dataset"),
        ("seed", "shuffle seed"),
        ("canonical_shards", "canonical_shards"),
        ("order", "pipeline (stages that decide which rows come in which order)"),
        *([("pipeline", "pipeline (its stages and their arguments)")] if strict else []),
        ("workers", "number of loader workers"),
        ("worker", "loader worker"),
    ):
        if getattr(found, name) != getattr(own, name):
            raise StateError(
                f"state: it belongs to another {what}: expected {getattr(own, name)!r}, the state has "
                f"{getattr(found, name)!r}. Load it into the iterator of the pipeline that it was taken from."
            )
    _check_skipped(plan, found, own)
    if plan.program.drops:
        result = _on_same_rank(found, own)
    elif found.shards[1] == own.shards[1] and found.batch_size == own.batch_size:
        result = replace(found, shards=own.shards)
    else:
        result = _on_other_ranks(plan, found, own)
    if plan.hashes is None:  # else the server has the plan, and looks when it begins
        _check_position(plan, result)
    return result


def read_state(value: Any) -> State:
    """A state as `State.to_json` or ``state_dict()`` gave it, whatever the pipeline.

    Raises:
        StateError: it is none: text that is no JSON, a field that is missing or too many, a value out of range.
    """
    try:
        members = json.loads(value) if isinstance(value, str | bytes | bytearray) else dict(value)
        if not isinstance(members, dict):
            raise TypeError(f"a {type(members).__name__}")
        state = State(**members)
    except StateError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"state: expected what state_dict() returned, got {str(value)[:80]!r} ({error}).") from error
    numbers = (state.iteration, state.consumed, *state.origin, state.shards[0], state.worker, state.skipped or 0)
    counts = (
        state.shards[1],
        state.canonical_shards,
        state.workers,
        1 if state.batch_size is None else state.batch_size,
    )
    if not all(0 <= number < _LIMIT for number in numbers) or not all(1 <= count < _LIMIT for count in counts):
        raise StateError(f"state: expected whole numbers >= 0, and counts >= 1, below {_LIMIT}, got {members}.")
    if state.shards[0] >= state.shards[1] or state.worker >= state.workers:
        raise StateError(f"state: expected a rank and a loader worker below their number, got {members}.")
    return state


def _check_skipped(plan: BasePlan, found: State, own: State) -> None:
    """Raises `StateError` where rows were left out that this plan, or these ranks, would not leave out."""
    if found.skipped and not plan.skips:
        raise StateError(
            f"state: expected a pipeline with on_error='skip', because rows that failed ({found.skipped}) were left "
            "out before it, got on_error='raise'. Give on_error='skip'."
        )
    same = found.shards == own.shards and found.batch_size == own.batch_size
    if found.skipped is not None and not same:
        raise StateError(
            f"state: it belongs to rank {found.shards[0]} of {found.shards[1]} and batch size {found.batch_size}: "
            f"expected {own.shards[0]} of {own.shards[1]} and {own.batch_size}, because on_error='skip' lets ranks "
            "stand at different rows. Save the state of every rank, and restore it there."
        )


def _check_position(plan: BasePlan, state: State) -> None:
    """Raises `StateError` for a position that no iterator of the plan comes to."""
    passes = (plan.batch_view or plan.row_view).passes
    if passes is None:
        return
    length = plan.elements_from(state.start)
    shard = plan.order.shard
    if length is None:
        return
    more = passes if shard is not None and shard.even == "none" else 0  # that another rank has
    most = -(-(length + more) // state.workers)
    if state.consumed > most or _skips_too_far(plan, state) or state.origin[0] > passes:
        raise StateError(
            f"state: expected a position in {passes} passes of {most} elements, got {state.consumed} elements after "
            f"{state.origin}. Load a state that was taken from this pipeline."
        )


def _skips_too_far(plan: BasePlan, state: State) -> bool:
    rows = plan.rows_from(state.start).length
    return rows is not None and not plan.keeps_step and (state.skipped or 0) > rows + 1


def _named_anew(plan: BasePlan, found: State, own: State, *, strict: bool) -> State:
    """A state of the version before, under the names of today, where its own names told pipelines apart."""
    order = _shortened(plan, order_only=True)
    pipeline = _shortened(plan, order_only=False) if strict else found.pipeline
    if order is None or pipeline is None:
        raise StateError(
            "state: expected one of this version for a pipeline with functions or long lists of values: an earlier "
            "version named them so that another filter had the same name. Begin the epoch again"
            + (", or use strict=False if the transforms are the same." if order is not None else ".")
        )
    return replace(
        found,
        version=VERSION,
        order=own.order if found.order == order else found.order,
        pipeline=own.pipeline if found.pipeline == pipeline else found.pipeline,
    )


def _on_same_rank(found: State, own: State) -> State:
    """The state where a function leaves rows out: it counts rows of its own rank, whatever the batch size."""
    if found.shards != own.shards:
        raise StateError(
            f"state: it belongs to rank {found.shards[0]} of {found.shards[1]}: expected {own.shards[0]} of "
            f"{own.shards[1]}, because transform(drops=True) lets ranks stand at different rows. "
            "Save the state of every rank, and restore it there."
        )
    return replace(found, batch_size=own.batch_size)


def _on_other_ranks(plan: BasePlan, found: State, own: State) -> State:
    """The state as it is on this plan's ranks: it begins at the rows that all ranks together had taken."""
    if own.workers > 1:
        raise StateError(
            f"state: it belongs to {found.shards[1]} ranks and batch size {found.batch_size}: expected "
            f"{own.shards[1]} and {own.batch_size}. One loader worker goes on with the same only."
        )
    rows = found.consumed * (found.batch_size or 1)
    origin = plan.origin_after(found.start, found.shards[1], rows)
    return replace(
        found,
        consumed=0,
        origin=(origin.passes, origin.rows),
        shards=own.shards,
        batch_size=own.batch_size,
    )


def plan_hash(plan: BasePlan, *, order_only: bool = False) -> str:
    """A name for the stages, the same in every process; ``order_only`` leaves out what cannot change the order."""
    if plan.hashes is not None:
        return plan.hashes[1 if order_only else 0]
    return _name(plan, lambda stage: stage.identity, order_only=order_only)


def _shortened(plan: BasePlan, *, order_only: bool) -> str | None:
    """The name that the version before gave; ``None`` where another pipeline may have had it too."""
    stages = [stage for stage in _all_stages(plan) if not order_only or stage.decides_order]
    if plan.hashes is not None or any(stage.shortened_identity is None for stage in stages):
        return None
    return _name(plan, lambda stage: str(stage.shortened_identity), order_only=order_only)


def _all_stages(plan: BasePlan) -> list[Stage]:
    """Its own stages, and those of the pipelines that it mixes."""
    sources = plan.plans if isinstance(plan, MixedPlan) else []
    return [*plan.stages, *(stage for source in sources for stage in _all_stages(source))]


def _name(plan: BasePlan, text_of: Callable[[Stage], str], *, order_only: bool) -> str:
    own = _stages_hash(plan.order.stored if order_only else plan.stages, text_of, order_only=order_only)
    if not isinstance(plan, MixedPlan):
        return own
    mixture = plan.mixture
    weights = mixture.phases[0].weights if len(mixture.phases) == 1 else [mixture.weights] * len(plan.plans)
    sources = [
        (_name(source, text_of, order_only=order_only), "drawn" if source.seed_is_drawn else source.seed, weight)
        for source, weight in zip(plan.plans, weights, strict=True)
    ]
    seed = "drawn" if mixture.drawn else mixture.seed
    return hashlib.blake2b(f"{own} {sources} {seed} {mixture.stop}".encode(), digest_size=8).hexdigest()


def _stages_hash(stages: Sequence[Stage], text_of: Callable[[Stage], str], *, order_only: bool) -> str:
    """Ranks, batch size and seed are compared by themselves; the cache changes nothing."""
    kept = [stage for stage in stages if stage.decides is not Decision.BYTES]
    texts = [text_of(stage) for stage in kept if not order_only or stage.decides_order]
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
