"""The state of an iterator: a small JSON text that records the position in a pipeline, the same in every dataset class.

It contains no data and no buffers. The order is a function of (seed, epoch, position), so the position is enough. If
the number of ranks changes, the position is counted in rows that all ranks together have taken (`plan.Origin`), and
what is left of the pass is cut into one stream for each new rank (`Recut`) if each would otherwise read much more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from ..base.errors import ParquetryError, StateError
from ..base.process.dataclass import dataclass
from ..schema.plain import PlainFields, Seed
from ..stages.base import Decision, Stage
from ..stages.recut import MOST_CUTS, Recut
from .mixed_plan import MixedPlan
from .order.cursor import Cursor, Origin, SkipState
from .plan import BasePlan

if TYPE_CHECKING:
    from typing import Self

VERSION = 2
ORDER_VERSION = 4
"""The version of the order: it changes when other rows come at the same positions. A state says it since 2."""
_LIMIT = 1 << 48
_AFTER_CONSUMED = ("consumed", "skipped", "batches", "ahead")
_MOST_SHARES = 2  # a rank may read so many times its share before what is left is cut anew
_LOGGER = logging.getLogger(__name__)
_AHEAD = 7


class Restorable(Protocol):
    """A pipeline or plan, which a state can change."""

    def with_seed(self, seed: int) -> Self:
        """Returns a copy with this seed."""

    def with_streams(self, count: int, recut: Recut | None) -> Self:
        """Returns a copy with the streams of a state."""


Carrier = TypeVar("Carrier", bound=Restorable)


@dataclass(frozen=True, kw_only=True)
class State(PlainFields):
    """The position of an iterator.

    Attributes:
        fingerprint: the fingerprint of the dataset, with its numbers of files and rows.
        pipeline: a hash of the stages.
        order: a hash of the stages that decide which rows come in which order.
        seed: the seed of the shuffle; for a mix, the seed from which all generated seeds are derived.
        iteration: the number of the iterator of the pipeline; it determines the epoch.
        consumed: the number of elements delivered since ``origin``.
        origin: ``[passes, rows]``: the global position at which this number of ranks started.
        shards: ``[index, num_shards]``.
        canonical_shards: the number of streams in which the pass of ``origin`` began.
        cuts: ``[[rows, streams], ...]``: after so many rows of that pass, what was left was cut into so many streams.
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
    cuts: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> str:
        """Returns the state as one line of JSON."""
        before, after = self.around_consumed()
        return f"{before}{self.consumed}{after}"

    def around_consumed(self) -> tuple[str, str]:
        """Returns the JSON before and after the number of consumed elements. Clients can then count without parsing."""
        others = {name: value for name, value in asdict(self).items() if name not in _AFTER_CONSUMED}
        if not self.cuts:
            del others["cuts"]
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

    @property
    def streams(self) -> int:
        """The number of streams of what is left of the pass, and of the passes after it."""
        return self.cuts[-1][1] if self.cuts else self.canonical_shards

    @property
    def recut(self) -> Recut | None:
        """How the pass is cut; ``None`` if it is not."""
        if not self.cuts:
            return None
        return Recut(iteration=self.iteration, passes=self.origin[0], streams=self.canonical_shards, cuts=self.cuts)

    def at_next_iteration(self) -> State:
        """Returns the beginning of the next iterator."""
        return replace(
            self,
            iteration=self.iteration + 1,
            consumed=0,
            origin=(0, 0),
            canonical_shards=self.streams,
            cuts=(),
            skipped=None if self.skipped is None else 0,
            batches=0,
            ahead=(),
        )

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
    recut = None if shard is None else shard.recut
    if recut is not None and (cursor.iteration, cursor.origin.passes) != (recut.iteration, recut.passes):
        recut = None  # it is another pass
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
        canonical_shards=recut.streams if recut is not None else 1 if shard is None else shard.streams,
        batch_size=plan.element.batch_size,
        worker=cursor.worker,
        workers=cursor.workers,
        skipped=cursor.skipped.rows if plan.skips else None,
        batches=cursor.skipped.batches,
        ahead=cursor.skipped.ahead,
        order_version=ORDER_VERSION,
        cuts=() if recut is None else recut.cuts,
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
    """Returns a state for these ranks, and the pipeline (or plan) with its seed and streams where none were given.

    The streams are those with which the job started, so the remaining rows are divided as before. If these ranks would
    then read more than two shares each, what is left of the pass is cut into one stream for each of them.

    Raises:
        StateError: the value is not a state, or belongs to another version, dataset, pipeline or loader worker. The
            error names the difference.
    """
    state = read_state(text)
    made, plan = _with_streams_of(made, plan_of, state)
    state = _parsed(plan, state, worker=worker, workers=workers, strict=strict)
    made, plan = _with_streams_of(made, plan_of, state)
    if plan.hashes is None:  # otherwise the server has the plan, and checks when it starts
        check_position(plan, state)
    return (made if state.seed in (None, plan.seed) else made.with_seed(state.seed)), state


def _with_streams_of(made: Carrier, plan_of: Callable[[Carrier], BasePlan], state: State) -> tuple[Carrier, BasePlan]:
    """Returns a pipeline (or plan) with the streams of a state, and its plan."""
    plan = plan_of(made)
    shard = plan.order.shard
    if shard is not None and shard.with_streams(state.streams, state.recut) != shard:
        made = made.with_streams(state.streams, state.recut)
        plan = plan_of(made)
    return made, plan


def plan_at(plan: BasePlan, state: State) -> BasePlan:
    """Returns the plan that iterators have which continue from a state."""
    return _with_streams_of(plan, lambda made: made, state)[1]


def _parsed(plan: BasePlan, found: State, *, worker: int, workers: int, strict: bool) -> State:
    """Checks a state against the plan, and converts it to the plan's ranks and batch size.

    ``strict=False`` also accepts a state of a pipeline that differs only in ways that cannot change the order (other
    fields, other transforms). If the plan's seed was generated and not given, a state with another seed is accepted;
    the caller must then change the pipeline's seed.
    """
    if found.order_version != ORDER_VERSION:
        raise StateError(
            f"state: expected the order of version {ORDER_VERSION}, got the order of version {found.order_version}, in "
            "which other rows come at the same position. Start the epoch again, or resume with the release that saved "
            "the state."
        )
    own = state_of(plan, Cursor(iteration=found.iteration, origin=found.start, worker=worker, workers=workers))
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
            if name == "fingerprint":
                raise _other_dataset(found, own)
            hint = ""
            if name == "canonical_shards" and plan.order.shard is None:
                hint = " If one process continues for several, call shard(1, 0)."
            raise StateError(
                f"state: saved for a different {what}: this pipeline has {getattr(own, name)!r}, the state has "
                f"{getattr(found, name)!r}. Load it into the iterator of the pipeline that it was taken from.{hint}"
            )
    if found.cuts and (plan.order.shard is None or plan.undivided is not None):
        raise StateError(
            f"state: what was left of its pass was cut into {found.streams} streams, because it continued on another "
            f"number of ranks: expected a pipeline that can be cut, got one that cannot ({plan.undivided}). Load it "
            "into the pipeline that it was taken from."
        )
    _check_skipped(plan, found, own)
    if plan.program.drops:
        return _on_same_rank(found, own)
    if found.shards[1] == own.shards[1] and found.batch_size == own.batch_size:
        return replace(found, shards=own.shards)
    return _on_other_ranks(plan, found, own)


def _other_dataset(found: State, own: State) -> StateError:
    """The error for a state of another dataset, or of the same one with other files."""
    text = "state: saved for a different dataset: "
    before, now = _counts(found.fingerprint), _counts(own.fingerprint)
    if not before or not now:
        return StateError(
            f"{text}this pipeline has {own.fingerprint!r}, the state has {found.fingerprint!r}. Load it into the "
            "iterator of the pipeline that it was taken from."
        )
    files = f"{before[0]:,} file{'s' * (before[0] != 1)}"
    text += f"it had {files} with {before[1]:,} rows, and this one has {now[0]:,} with {now[1]:,}. "
    if now[0] > before[0] and now[1] >= before[1]:
        return StateError(
            f"{text}If files were added since, go on with those of then: name them, or their partition directories, in "
            "a list. To read all, begin a new pass without the state."
        )
    return StateError(
        f"{text}Were files removed or rewritten? Load it into the iterator of the pipeline that it was taken from."
    )


def _counts(fingerprint: str) -> list[int]:
    """The numbers of files and rows in a fingerprint; empty if it has none."""
    counts = fingerprint.split("-")[1:]
    return [int(count) for count in counts] if len(counts) == 2 and all(map(str.isdecimal, counts)) else []


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
        *(number for cut in state.cuts for number in cut),
    )
    if not all(0 <= number < _LIMIT for number in numbers) or not all(1 <= count < _LIMIT for count in counts):
        raise StateError(f"state: expected whole numbers >= 0, and counts >= 1, below {_LIMIT}, got {members}.")
    if any(len(each) != _AHEAD for each in state.ahead):
        raise StateError(f"state: expected seven numbers for each bucket in 'ahead', got {members}.")
    cut_rows = [0, *(rows for rows, _ in state.cuts), state.origin[1]]
    if state.cuts and not (len(state.cuts) <= MOST_CUTS and cut_rows == sorted(cut_rows)):
        raise StateError(f"state: expected at most {MOST_CUTS} cuts, ascending up to 'origin', got {members}.")
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
    moved = replace(
        found,
        consumed=0,
        origin=(origin.passes, origin.rows),
        shards=own.shards,
        batch_size=own.batch_size,
    )
    if origin.passes != found.origin[0]:
        moved = replace(moved, canonical_shards=found.streams, cuts=())
    return moved if plan.order.shard is None or plan.order.mixed else _cut_for_ranks(plan, moved)


def _cut_for_ranks(plan: BasePlan, state: State) -> State:
    """Cuts what is left of the pass into one stream for each rank, if each would otherwise read too many shares."""
    ranks, rows = state.shards[1], state.origin[1]
    if plan.undivided is None and state.cuts and state.cuts[-1][0] == rows:
        state = replace(state, cuts=state.cuts[:-1])  # nothing was taken since then
    shares = shares_read(state.streams, ranks)
    if shares <= _MOST_SHARES:
        return state
    why = plan.undivided
    if why is None and not rows:
        return replace(state, canonical_shards=ranks)
    if why is None and len(state.cuts) < MOST_CUTS:
        return replace(state, cuts=(*state.cuts, (rows, ranks)))
    _LOGGER.warning(
        "Resumed on %d ranks, where each reads about %d times its share, because what is left is dealt from %d streams "
        "(%s). Numbers of ranks that divide %d read no more than their share.",
        ranks,
        shares,
        state.streams,
        why or f"it was cut anew {MOST_CUTS} times in this pass",
        state.streams,
    )
    return state


def shares_read(streams: int, ranks: int) -> int:
    """Returns how many times its share a rank reads if streams are dealt to ranks: 1 if the ranks divide the streams.

    Rank ``r`` takes every ``ranks``-th row, which are in the streams ``s`` with ``s % common == r % common``.
    """
    return ranks // math.gcd(streams, ranks)


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
