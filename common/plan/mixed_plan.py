"""`MixedPlan`: the plan of a mix of pipelines. Each source has its own plan; the mix decides which source is next."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ..base.errors import PipelineError, SchemaError
from ..base.process.dataclass import dataclass
from ..base.process.forks import cached_property
from ..schema.element import OutputField
from ..stages.base import Decision, Stage, positive_integer, with_seed, with_streams
from ..stages.recut import Recut
from .block_reads import BlockKey, BlockRead, BlockRows, BlockSize
from .fields import mixed_program
from .items import distinct
from .order.mixing import SOURCE_SHIFT, MixView, Phase, Stop, Weights
from .order.permutations import raw_words
from .order.positions import RowView, rows_viewed
from .plan import BasePlan, Plan, of_rank
from .program import MixedProgram
from .stage_order import order_stages

_SOURCE_KEY = 5
_STEP_KEY = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The parts of a mix: unbatched pipelines with equal elements.

    Attributes:
        sources: the pipelines, some of which may be mixes. A package above this one creates them.
        phases: the relative weights of the sources, and the row of the mix from which they apply.
        seed: the seed of the draws.
        stop: ``"first"`` ends the mix when a drawn source has no more rows; ``"all"`` continues with the others.
        drawn: whether ``seed`` was generated instead of given, so that it differs between processes.
        drawn_seed: the seed from which all generated seeds (of the draws, and of the sources' shuffles) are derived;
            ``None`` if you gave every seed.
    """

    sources: tuple[Any, ...]
    phases: tuple[Phase, ...]
    seed: int
    stop: Stop
    drawn: bool = field(default=False, compare=False, repr=False)
    drawn_seed: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        positive_integer("mix", "number of pipelines", len(self.sources))
        if not isinstance(self.stop, str) or self.stop not in ("first", "all"):
            raise PipelineError(f"mix: expected stop='first' or 'all', got {self.stop!r}.")
        for source in self.sources:
            if any(stage.decides is Decision.BATCHES for stage in source.stages):
                raise PipelineError("mix: expected pipelines of rows, got one with batch(). Call batch() on the mix.")
            if any(stage.makes_batches for stage in source.stages):
                raise PipelineError("mix: expected pipelines of rows, got one of batches, made by bucket().")
            if any(stage.learns for stage in source.stages):
                raise PipelineError(
                    "mix: expected one vocabulary for all pipelines, got an encode() that learns its own. Give each "
                    "encode() the same vocabulary=[...], or call it on the mix. A pipeline's vocabulary() returns one."
                )
            if any(stage.decides is Decision.FORM for stage in source.stages):
                raise PipelineError("mix: expected rows by name, got as_tuple(). Call as_tuple() on the mix.")

    @property
    def weights(self) -> Weights:
        """The weights in the form in which users pass them."""
        if len(self.phases) == 1:
            return list(self.phases[0].weights)
        return [(start, list(weights)) for start, weights in self.phases]

    @property
    def has_drawn_seeds(self) -> bool:
        """Whether any seed in the mix was generated instead of given."""
        return self.drawn or any(source.drawn_seed is not None for source in self.sources)

    def with_drawn_seed(self, seed: int) -> Mixture:
        """Returns a copy in which every generated seed is derived from ``seed``."""
        sources = tuple(
            source if source.drawn_seed is None else source.with_seed(_derived(_SOURCE_KEY, seed, number))
            for number, source in enumerate(self.sources)
        )
        return replace(self, sources=sources, seed=seed if self.drawn else self.seed, drawn_seed=seed)


def _derived(*key: int) -> int:
    return int(raw_words(1, *key)[0] >> np.uint64(2))


class MixedPlan(BasePlan):
    """The plan of a mix and the stages after it.

    Args:
        seeds: how many stages of each verb have each seed, before this mix in a mix around it.

    Raises:
        SchemaError: the elements of the sources differ. The error names the field.
    """

    def __init__(
        self, mixture: Mixture, stages: Sequence[Stage], seeds: Counter[tuple[str, int]] | None = None
    ) -> None:
        self.stages = tuple(stages)
        self.order = order_stages(stages, mixed=True)
        self.mixture = mixture
        seeds = Counter() if seeds is None else seeds
        self._seed = _out_of_step("mix", mixture.seed, seeds)
        self.plans: list[BasePlan] = [_source_out_of_step(source.plan(), seeds) for source in mixture.sources]
        self._first = np.cumsum([0, *(len(plan.parts) for plan in self.plans)])[:-1].tolist()

    @cached_property
    def program(self) -> MixedProgram:  # type: ignore[override]  # computed once
        """The programs of the sources, and the steps after the mix."""
        sources = tuple(plan.program for plan in self.plans)
        outputs = sources[0].outputs
        for number, source in enumerate(sources[1:], 1):
            _check_same(outputs, source.outputs, number)
        nullable = [any(source.outputs[k].nullable for source in sources) for k in range(len(outputs))]
        outputs = tuple(replace(output, nullable=flag) for output, flag in zip(outputs, nullable, strict=True))
        seed = self.mixture.drawn_seed or self.mixture.seed
        return mixed_program(self.order.fields, sources, outputs, seed)

    @cached_property
    def mix_view(self) -> MixView:
        mixture = self.mixture
        views = [plan.row_view for plan in self.plans]
        return MixView(views, self._first, mixture.phases, self._seed, mixture.stop)

    @cached_property
    def row_view(self) -> RowView:  # type: ignore[override]  # computed once
        """The rows of this rank."""
        return rows_viewed(self.order.row_views, self.mix_view)

    def row_view_of(self, rank: int) -> RowView:
        return rows_viewed(of_rank(self.order.row_views, rank), self.mix_view)

    @property
    def one_pass(self) -> RowView:
        return self.mix_view

    @property
    def seed(self) -> int | None:
        return self.mixture.drawn_seed

    @property
    def seed_is_drawn(self) -> bool:
        return self.mixture.drawn_seed is not None

    def with_seed(self, seed: int) -> MixedPlan:
        return self._over(self.mixture.with_drawn_seed(seed), self.stages)

    def with_streams(self, count: int, recut: Recut | None) -> MixedPlan:
        return self._over(self.mixture, with_streams(self.stages, count, recut))

    @property
    def undivided(self) -> str | None:
        return "the rows of a mix come in one order for all ranks"

    def _over(self, mixture: Mixture, stages: Sequence[Stage]) -> MixedPlan:
        plan = MixedPlan(mixture, stages)
        plan.skips = self.skips
        return plan

    @property
    def keeps_step(self) -> bool:
        return super().keeps_step or any(plan.keeps_step for plan in self.plans)

    @property
    def fingerprint(self) -> str:
        parts = [plan.fingerprint for plan in self.plans]
        digest = hashlib.blake2b("".join(parts).encode(), digest_size=16).hexdigest()
        counts = [[int(count) for count in part.split("-")[1:]] for part in parts]
        return "-".join([digest, *(str(sum(numbers)) for numbers in zip(*counts, strict=True))])

    def check_not_empty(self) -> None:
        for plan in self.plans:
            plan.check_not_empty()

    @property
    def remote(self) -> bool:
        return any(plan.remote for plan in self.plans)

    @property
    def parts(self) -> Sequence[Plan]:
        return [part for plan in self.plans for part in plan.parts]

    def reads(self, iteration: int, passes: np.ndarray, index: np.ndarray) -> list[BlockRead]:
        leaf = index >> SOURCE_SHIFT
        turns = self.global_passes(iteration, passes)
        result = []
        for number, chosen in distinct(np.searchsorted(self.mix_view.first, leaf, side="right") - 1):
            first, mine = self._first[number], np.arange(len(index)) if chosen is None else chosen
            for read in self.plans[number].reads(0, turns[mine], index[mine] - (first << SOURCE_SHIFT)):
                places = mine if read.places is None else mine[read.places]
                result.append(replace(read, key=read.key._replace(source=first + read.key.source), places=places))
        return result

    def block_rows(self, key: BlockKey) -> BlockRows:
        plan, own = self._plan_of(key)
        return plan.block_rows(own)

    def block_size(self, key: BlockKey) -> BlockSize:
        plan, own = self._plan_of(key)
        return plan.block_size(own)

    def block_row_groups(self, key: BlockKey) -> list[int]:
        plan, own = self._plan_of(key)
        return plan.block_row_groups(own)

    def next_block(self, key: BlockKey) -> BlockKey | None:
        plan, own = self._plan_of(key)
        following = plan.next_block(own)
        return None if following is None else following._replace(source=key.source)

    def _plan_of(self, key: BlockKey) -> tuple[BasePlan, BlockKey]:
        """Returns the plan that a block belongs to, and the key of the block in that plan."""
        number = bisect_right(self._first, key.source) - 1
        return self.plans[number], key._replace(source=key.source - self._first[number])


def _source_out_of_step(plan: BasePlan, seeds: Counter[tuple[str, int]]) -> BasePlan:
    """Returns the plan of a source, with other seeds if sources before it shuffle, draw or mix with the same ones.

    Sources of equal layout would otherwise come in the same order, so that equal rows of both meet.
    """
    if isinstance(plan, MixedPlan):
        made = MixedPlan(plan.mixture, plan.stages, seeds)
        made.skips = plan.skips
        return made
    if not isinstance(plan, Plan):
        return plan
    stages = list(plan.stages)
    if (shuffle := plan.order.shuffle) is not None:
        seed = _out_of_step(shuffle.verb, shuffle.seed, seeds)
        stages = stages if seed == shuffle.seed else with_seed(stages, seed)
    for place, stage in enumerate(stages):
        follows = shuffle is not None and stage.drawn_seed is not None  # the shuffle's seed
        if stage.row_seed is not None and not follows:
            stages[place] = stage.with_row_seed(_out_of_step(stage.verb, stage.row_seed, seeds))
    return plan if stages == list(plan.stages) else plan.with_stages(stages)


def _out_of_step(verb: str, seed: int, seeds: Counter[tuple[str, int]]) -> int:
    """Returns the seed of a stage, or another one if stages of its verb before it have the same."""
    before = seeds[verb, seed]
    seeds[verb, seed] += 1
    return _derived(_STEP_KEY, seed, before) if before else seed


def _check_same(expected: Sequence[OutputField], found: Sequence[OutputField], number: int) -> None:
    def essence(output: OutputField) -> tuple[object, ...]:
        return output.path, output.kind, output.numpy_dtype, output.shape, output.window, output.levels

    for left, right in zip(expected, found, strict=False):
        if essence(left) != essence(right):
            one, other = (
                f"'{item.name}' {item.numpy_dtype} {item.element_shape}"
                + (f" as nested lists of {item.levels} levels" if item.levels else "")
                for item in (left, right)
            )
            how = "select() or transform()" if left.levels == right.levels else f"nested('{left.name}') in each"
            raise SchemaError(
                f"mix: expected equal fields in all pipelines, got {one} in pipeline 0, {other} in pipeline {number}."
                f" Make them equal with {how}."
            )
    if len(expected) != len(found):
        raise SchemaError(
            f"mix: expected equal fields in all pipelines, got {[item.name for item in expected]} in pipeline 0 and "
            f"{[item.name for item in found]} in pipeline {number}. Make them equal with select()."
        )
