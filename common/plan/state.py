"""The state of an iterator: a small JSON text that records the position in a pipeline, the same in every dataset class.

It contains no data and no buffers. The order is a function of (seed, epoch, position), so the position is enough. If
the number of ranks changes, the position is counted in rows that all ranks together have taken (`plan.Origin`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from ..base.errors import ParquetryError, StateError
from ..base.process.dataclass import dataclass
from ..schema.plain import PlainFields, Seed
from ..stages.base import Decision, Stage
from .mixed_plan import MixedPlan
from .order.cursor import Cursor, Origin, SkipState
from .plan import BasePlan

if TYPE_CHECKING:
    from typing import Self

VERSION = 2
ORDER_VERSION = 3
"""The version of the order: it changes when other rows come at the same positions. A state says it since 2."""
_LIMIT = 1 << 48
_AFTER_CONSUMED = ("consumed", "skipped", "batches", "ahead")
_AHEAD = 7


class Restorable(Protocol):
    """A pipeline or plan, which a state can change."""

    def with_seed(self, seed: int) -> Self:
        """Returns a copy with this seed."""

    def with_canonical_shards(self, count: int) -> Self:
        """Returns a copy with this many canonical shards."""


Carrier = TypeVar("Carrier", bound=Restorable)


@dataclass(frozen=True, kw_only=True)
class State(PlainFields):
    """The position of an iterator.

    Attributes:
        fingerprint: the fingerprint of the dataset.
        pipeline: a hash of the stages.
        order: a hash of the stages that decide which rows come in which order.
        seed: the seed of the shuffle; for a mix, the seed from which all generated seeds are derived.
        iteration: the number of the iterator of the pipeline; it determines the epoch.
        consumed: the number of elements delivered since ``origin``.
        origin: ``[passes, rows]``: the global position at which this number of ranks started.
        shards: ``[index, num_shards]``.
        batch_size: the rows in an element; ``None`` for an unbatched pipeline.
        worker, workers: the index of the loader worker, and the number of loader workers.
        skipped: rows that failed and were left out since ``origin``; ``None`` if failing rows raise errors.
        batches, ahead: what else was left out of the batches of ``bucket``; see `SkipState`.
        order_version: the version of the order that the position belongs to.
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
    batches: int = 0
    ahead: tuple[tuple[int, ...], ...] = ()
    order_version: int = 1

    def to_json(self) -> str:
        """Returns the state as one line of JSON."""
        before, after = self.around_consumed()
        return f"{before}{self.consumed}{after}"

    def around_consumed(self) -> tuple[str, str]:
        """Returns the JSON before and after the number of consumed elements. Clients can then count without parsing."""
        others = {name: value for name, value in asdict(self).items() if name not in _AFTER_CONSUMED}
        after = "}" if self.skipped is None else f",{_json(self.left_out.to_json())[1:]}"
        return _json(others)[:-1] + ',"consumed":', after

    @property
    def called(self) -> str:
        return "state"

    @property
    def left_out(self) -> SkipState:
        """What was left out since ``origin``."""
        return SkipState(rows=self.skipped or 0, batches=self.batches, ahead=self.ahead)

    @property
    def start(self) -> Origin:
        """The global position from which ``consumed`` counts."""
        return Origin(passes=self.origin[0], rows=self.origin[1])

    def cursor(self, worker: int, workers: int) -> Cursor:
        """Returns where an iterator over this part of the rank continues."""
        return Cursor(
            iteration=self.iteration,
            origin=self.start,
            start=self.consumed,
            worker=worker,
            workers=workers,
            skipped=self.left_out,
        )


def state_of(plan: BasePlan, cursor: Cursor) -> State:
    """Returns the state of an iterator over a plan."""
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
        skipped=cursor.skipped.rows if plan.skips else None,
        batches=cursor.skipped.batches,
        ahead=cursor.skipped.ahead,
        order_version=ORDER_VERSION,
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
    """Returns the state, and the pipeline (or plan) with the state's seed and canonical shards where none were given.

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
    """Returns the canonical shards that a plan without an explicit number takes from a state; ``None`` if no change.

    They are the ranks with which the job started, so the remaining rows are divided as before.
    """
    shard = plan.order.shard
    if shard is None or shard.canonical_shards is not None:
        return None
    count = read_state(text).canonical_shards
    return count if count != shard.num_shards else None


def parse_state(
    plan: BasePlan, text: str | dict[str, Any], *, worker: int = 0, workers: int = 1, strict: bool = True
) -> State:
    """Reads a state, checks it against the plan, and converts it to the plan's ranks and batch size.

    ``strict=False`` also accepts a state of a pipeline that differs only in ways that cannot change the order (other
    fields, other transforms). If the plan's seed was generated and not given, a state with another seed is accepted;
    the caller must then change the pipeline's seed.

    Raises:
        StateError: the value is not a state, or belongs to another version, dataset, pipeline or loader worker. The
            error names the difference.
    """
    found = read_state(text)
    if found.order_version != ORDER_VERSION:
        raise StateError(
            f"state: expected the order of version {ORDER_VERSION}, got the order of version {found.order_version}, in "
            "which other rows come at the same position. Start the epoch again, or resume with the release that saved "
            "the state."
        )
    own = state_of(plan, Cursor(worker=worker, workers=workers))
    if plan.seed_is_drawn:
        own = replace(own, seed=found.seed)  # the plan's seed was generated, so the state's replaces it
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
            hint = " Were files added, removed or rewritten?" if name == "fingerprint" else ""
            if name == "canonical_shards" and plan.order.shard is None:
                hint = " If one process continues for several, call shard(1, 0)."
            raise StateError(
                f"state: saved for a different {what}: this pipeline has {getattr(own, name)!r}, the state has "
                f"{getattr(found, name)!r}. Load it into the iterator of the pipeline that it was taken from.{hint}"
            )
    _check_skipped(plan, found, own)
    if plan.program.drops:
        result = _on_same_rank(found, own)
    elif found.shards[1] == own.shards[1] and found.batch_size == own.batch_size:
        result = replace(found, shards=own.shards)
    else:
        result = _on_other_ranks(plan, found, own)
    if plan.hashes is None:  # otherwise the server has the plan, and checks when it starts
        check_position(plan, result)
    return result


def read_state(value: Any) -> State:
    """Reads a state from `State.to_json` or ``state_dict()``, without checking it against a pipeline.

    Raises:
        StateError: the text is not JSON, a field is missing or unknown, or a value is out of range.
    """
    try:
        members = json.loads(value) if isinstance(value, str | bytes | bytearray) else dict(value)
        if not isinstance(members, dict):
            raise TypeError(f"a {type(members).__name__}")
        missing = [item.name for item in fields(State) if item.default is MISSING and item.name not in members]
        if missing:
            raise TypeError(f"without {', '.join(missing)}")
        state = State(**members)
    except StateError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"state: expected what state_dict() returned, got {str(value)[:80]!r} ({error}).") from error
    left_out = (state.skipped or 0, state.batches, *(number for each in state.ahead for number in each))
    numbers = (state.iteration, state.consumed, *state.origin, state.shards[0], state.worker, *left_out)
    counts = (
        state.shards[1],
        state.canonical_shards,
        state.workers,
        1 if state.batch_size is None else state.batch_size,
    )
    if not all(0 <= number < _LIMIT for number in numbers) or not all(1 <= count < _LIMIT for count in counts):
        raise StateError(f"state: expected whole numbers >= 0, and counts >= 1, below {_LIMIT}, got {members}.")
    if any(len(each) != _AHEAD for each in state.ahead):
        raise StateError(f"state: expected seven numbers for each bucket in 'ahead', got {members}.")
    if state.shards[0] >= state.shards[1] or state.worker >= state.workers:
        raise StateError(f"state: expected rank < number of ranks and worker < number of workers, got {members}.")
    return state


def _check_skipped(plan: BasePlan, found: State, own: State) -> None:
    """Raises `StateError` if rows were left out and this plan, or these ranks, cannot continue from there."""
    if found.skipped and not plan.skips:
        raise StateError(
            f"state: expected a pipeline with on_error='skip', because rows that failed ({found.skipped}) were already "
            "left out, got on_error='raise'. Set on_error='skip'."
        )
    if found.skipped is not None and not plan.skips and plan.joined:
        raise StateError(
            "state: expected a pipeline with on_error='skip', as where it was taken, because concat(), pack_rows() and "
            "bucket() leave out rows before they form items, got on_error='raise'. Set on_error='skip'."
        )
    if found.skipped is None and plan.skips and any(len(part.selection.refused) for part in plan.parts if plan.joined):
        raise StateError(
            "state: expected one taken with on_error='skip', because the rows that it leaves out change the items of "
            "concat(), pack_rows() and bucket(), got one taken with on_error='raise'. Start the epoch again."
        )
    if (found.batches or found.ahead) and not (found.skipped and plan.order.makes_batches):
        raise StateError(
            f"state: expected a pipeline with bucket(), because batches of buckets were left out ({found.batches}) or "
            "refilled. Load a state that was taken from this pipeline."
        )
    same = found.shards == own.shards and (found.batch_size == own.batch_size or plan.program.drops)
    if found.skipped is not None and not same:
        raise StateError(
            f"state: it belongs to rank {found.shards[0]} of {found.shards[1]} and batch size {found.batch_size}: "
            f"expected {own.shards[0]} of {own.shards[1]} and {own.batch_size}, because with on_error='skip' ranks can "
            "be at different rows. Save the state of every rank, and restore it there."
        )


def check_position(plan: BasePlan, state: State) -> None:
    """Raises `StateError` for a position that no iterator of the plan can reach."""
    passes = plan.turns
    if passes is None:
        return
    length = plan.elements_from(state.start)
    shard = plan.order.shard
    if length is None:
        return
    more = passes if shard is not None and shard.even == "none" else 0  # another rank may have more
    most = -(-(length + more) // state.workers)
    if state.consumed > most or _skips_too_far(plan, state) or state.origin[0] > passes:
        raise StateError(
            f"state: expected a position in {passes} passes of {most} elements, got {state.consumed} elements after "
            f"{state.origin}{_with_skipped(state)}. Load a state that was taken from this pipeline."
        )


def _with_skipped(state: State) -> str:
    return f" with {state.skipped} rows left out" if state.skipped else ""


def _skips_too_far(plan: BasePlan, state: State) -> bool:
    """Whether more rows were left out than exist besides the delivered ones.

    A last, shorter batch counts as a full one, with fewer rows left out instead.
    """
    if not state.skipped or plan.keeps_step:
        return False
    if plan.order.makes_batches:
        length = plan.elements_from(state.start)
        return length is not None and state.consumed + state.batches > -(-length // state.workers)
    size = 1 if plan.program.drops else state.batch_size or 1
    length = plan.lane(Cursor(origin=state.start, worker=state.worker, workers=state.workers)).length
    return length is not None and state.consumed * size + state.skipped > length


def _on_same_rank(found: State, own: State) -> State:
    """Returns the state for a function that drops rows. It counts rows of one rank, whatever the batch size."""
    if found.shards != own.shards:
        raise StateError(
            f"state: it belongs to rank {found.shards[0]} of {found.shards[1]}: expected {own.shards[0]} of "
            f"{own.shards[1]}, because with transform(drops=True) ranks can be at different rows. "
            "Save the state of every rank, and restore it there."
        )
    return replace(found, batch_size=own.batch_size)


def _on_other_ranks(plan: BasePlan, found: State, own: State) -> State:
    """Converts a state to this plan's ranks. It starts after the rows that all ranks together have taken."""
    if own.workers > 1:
        raise StateError(
            f"state: it belongs to {found.shards[1]} ranks and batch size {found.batch_size}: expected "
            f"{own.shards[1]} and {own.batch_size}. A single loader worker cannot resume with other numbers."
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


def _json(members: dict[str, Any]) -> str:
    return json.dumps(members, separators=(",", ":"))


def plan_hash(plan: BasePlan, *, order_only: bool = False) -> str:
    """Returns a hash of the stages, the same in every process. ``order_only`` omits what cannot change the order."""
    if plan.hashes is not None:
        return plan.hashes[1 if order_only else 0]
    return _name(plan, order_only=order_only)


def _name(plan: BasePlan, *, order_only: bool) -> str:
    own = _stages_hash(plan.order.stored if order_only else plan.stages, order_only=order_only)
    if not isinstance(plan, MixedPlan):
        return own
    mixture = plan.mixture
    weights = mixture.phases[0].weights if len(mixture.phases) == 1 else [mixture.weights] * len(plan.plans)
    sources = [
        (_name(source, order_only=order_only), "drawn" if source.seed_is_drawn else source.seed, weight)
        for source, weight in zip(plan.plans, weights, strict=True)
    ]
    seed = "drawn" if mixture.drawn else mixture.seed
    return hashlib.blake2b(f"{own} {sources} {seed} {mixture.stop}".encode(), digest_size=8).hexdigest()


def _stages_hash(stages: Sequence[Stage], *, order_only: bool) -> str:
    """Hashes stages, except for caches, which change nothing. Ranks, batch size and seed are compared separately."""
    kept = [stage for stage in stages if stage.decides is not Decision.BYTES]
    texts = [stage.identity for stage in kept if not order_only or stage.decides_order]
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()
