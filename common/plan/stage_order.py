"""What stages mean together: which belong to the selection, which to the order, and which are views of it.

In: the stages in call order. Out: a `StageOrder`. Pure; needs no data.

- ``where`` and ``ngram`` define the items. They commute with ``shard``, ``shuffle`` and ``repeat`` and are moved below
  them; they do not commute with ``take``, ``skip`` and ``batch``.
- ``take`` and ``skip`` before any ``shard`` or ``shuffle`` cut the natural order and belong to the selection; later
  ones are views of the order.
- ``shuffle`` permutes what stands before it; over ``repeat`` it shuffles inside each pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import PipelineError
from ..predicates.expression import FieldRef, parse_expression, walk
from ..stages.functions import UserFunction
from ..stages.image_values import ImageStage, Normalize, Pack, Resize
from ..stages.values import (
    Batch,
    Cache,
    Decimals,
    Ngram,
    Nulls,
    Pad,
    Permute,
    Repeat,
    Select,
    Shard,
    ShardRowGroups,
    Shuffle,
    Skip,
    Stage,
    Take,
    Transform,
    Where,
    WhereColumn,
    WhereFunction,
)


@dataclass(kw_only=True)
class StageOrder:
    """The stages sorted by what they decide.

    Attributes:
        selection: ``where``, ``ngram``, ``take``, ``skip``: evaluated in natural order.
        part: views (``shard``, ``take``, ``skip``) in natural order that are fixed before the shuffle.
        shuffle: the one shuffle.
        shard: the one shard.
        shard_first: the shard stands before the shuffle with nothing between.
        views: ``shard``, ``take``, ``skip``, ``repeat``, ``batch`` over the order, in call order.
        flow: ``select``, ``ngram``, ``transform``, ``batch`` in call order: what happens to fields.
        cache: the last ``cache``.
        mixed: the rows come from a mix of pipelines, whose items and order are decided.
    """

    selection: list[Stage] = field(default_factory=list)
    part: list[Stage] = field(default_factory=list)
    shuffle: Shuffle | None = None
    shard: Shard | None = None
    shard_first: bool = False
    views: list[Stage] = field(default_factory=list)
    flow: list[Stage] = field(default_factory=list)
    cache: Cache | None = None
    mixed: bool = False

    def add(self, stage: Stage) -> None:
        """Takes in the next stage; raises `PipelineError` if it makes no sense here."""
        if self.mixed and isinstance(stage, Where | WhereFunction | WhereColumn | Ngram | Shuffle | Cache):
            raise _misplaced(stage, "mix", "a mix has the order that its sources give it")
        if isinstance(stage, Cache):
            self.cache = stage
            return
        self._check_lengths(stage)
        if isinstance(stage, Select | Transform | Ngram | Batch | Nulls | Pad | Permute | Decimals | ImageStage | Pack):
            self.flow.append(stage)
        if isinstance(stage, Where | WhereFunction | WhereColumn) or _drops(stage):
            self._add_filter(stage)
        elif isinstance(stage, Ngram):
            self._add_ngram(stage)
        elif isinstance(stage, Shuffle):
            self._add_shuffle(stage)
        elif isinstance(stage, ShardRowGroups):
            self._add_row_group_shard(stage)
        elif isinstance(stage, Shard):
            self._add_shard(stage)
        elif isinstance(stage, Batch):
            self._refuse_twice(stage, any(isinstance(view, Batch) for view in self.views))
            self.views.append(stage)
        elif isinstance(stage, Take | Skip) and self.shuffle is None and not self.views and not self.mixed:
            self.selection.append(stage)
        elif isinstance(stage, Take | Skip | Repeat):
            self.views.append(stage)

    def _check_lengths(self, stage: Stage) -> None:
        """A function that leaves rows out hides how many there are; what counts rows must stand before it."""
        dropping = [done for done in self.flow if isinstance(done, Transform) and done.drops]
        if isinstance(stage, Transform) and stage.drops:
            self._refuse_after(stage, Batch)
        if dropping and isinstance(stage, Take | Skip | Shard | Ngram):
            raise _misplaced(stage, "transform(drops=True)", "nobody knows how many rows the function leaves")
        if dropping and isinstance(stage, Repeat):
            self._refuse_after(stage, Batch)
        if dropping and isinstance(stage, Transform) and any(isinstance(view, Batch) for view in self.views):
            raise _misplaced(stage, "batch", "after a function that leaves rows out, batches are made last")

    def _add_filter(self, stage: Stage) -> None:
        self._refuse_after(stage, Take, Skip, Batch)
        if any(isinstance(done, Ngram) for done in self.selection):
            raise _misplaced(stage, "ngram", "windows are formed from the rows that a filter leaves")
        self._refuse_changed(stage)
        self._select(stage)

    def _add_ngram(self, stage: Ngram) -> None:
        self._refuse_twice(stage, any(isinstance(done, Ngram) for done in self.selection))
        self._refuse_after(stage, Take, Skip, Batch)
        self._refuse_changed(stage)
        self._select(stage)

    def _select(self, stage: Stage) -> None:
        """Puts a filter or window into the selection, before a shard of row groups, which deals what they leave."""
        dealt = bool(self.selection) and isinstance(self.selection[-1], ShardRowGroups)
        self.selection.insert(len(self.selection) - dealt, stage)

    def _add_row_group_shard(self, stage: ShardRowGroups) -> None:
        done = any(isinstance(other, ShardRowGroups) for other in self.selection)
        self._refuse_twice(stage, done or self.shard is not None)
        self._refuse_after(stage, Take, Skip, Batch)
        if self.mixed:
            raise _misplaced(stage, "mix", "a mix has no row groups of its own")
        self.selection.append(stage)

    def _add_shuffle(self, stage: Shuffle) -> None:
        self._refuse_twice(stage, self.shuffle is not None)
        self._refuse_after(stage, Batch)
        cuts = any(isinstance(view, Take | Skip) for view in self.views)
        if cuts and any(isinstance(view, Repeat) for view in self.views):
            raise _misplaced(stage, "repeat().take", "a pass that is cut off cannot be shuffled as a whole")
        if cuts:
            self.part, self.views = self.views, []
        self.shard_first = self.shard is not None and not self.part
        self.shuffle = stage

    def _add_shard(self, stage: Shard) -> None:
        dealt = any(isinstance(other, ShardRowGroups) for other in self.selection)
        self._refuse_twice(stage, dealt or self.shard is not None)
        self._refuse_after(stage, Batch)
        self.shard = stage
        self.views.append(stage)

    def _refuse_changed(self, stage: Stage) -> None:
        """A filter or window looks at stored values, so none of its fields may have been changed before it."""
        for name in _fields_read(stage):
            for done in self.flow:
                if done is not stage and _changes(done, name):
                    raise _misplaced(stage, done.verb, f"it reads the stored values of '{name}', which that changes")

    def _refuse_after(self, stage: Stage, *kinds: type[Stage]) -> None:
        for view in self.views:
            if isinstance(view, kinds):
                raise _misplaced(stage, view.verb, "it would mean something else there")

    @staticmethod
    def _refuse_twice(stage: Stage, present: bool) -> None:
        if present:
            raise PipelineError(f"{stage.verb}: expected at most one in a pipeline, got a second. Remove one of them.")


def order_stages(stages: Sequence[Stage], *, mixed: bool = False) -> StageOrder:
    """Sorts the stages of a pipeline (``mixed``: over a mix of pipelines).

    Raises:
        PipelineError: a stage that makes no sense after the ones before it.
    """
    result = StageOrder(mixed=mixed)
    for stage in stages:
        result.add(stage)
    return result


def _drops(stage: Stage) -> bool:
    return isinstance(stage, Nulls) and stage.policy == "drop"


def _fields_read(stage: Stage) -> tuple[str, ...]:
    """The stored fields that a filter or window looks at."""
    if isinstance(stage, Where):
        tree = parse_expression(stage.expression) if stage.serialised else None
        return tuple(node.name for node in walk(tree) if isinstance(node, FieldRef)) if tree is not None else ()
    if isinstance(stage, WhereFunction):
        return stage.fields
    if isinstance(stage, WhereColumn):
        return (stage.predicate.field,)
    if isinstance(stage, Ngram):
        return (*stage.group_by, *([stage.timestamp] if stage.timestamp else []))
    return ()


def _changes(stage: Stage, name: str) -> bool:
    """Whether a stage may give a field other values than the stored ones."""
    if isinstance(stage, Transform):
        return stage.output is None or any(field.name == name for field in stage.output)
    if isinstance(stage, Nulls):
        return stage.policy == "fill" and _matches(stage.patterns, name)
    if isinstance(stage, ImageStage):
        return _matches(stage.patterns, name)
    if isinstance(stage, Pack):
        return stage.name == name
    return isinstance(stage, Decimals) and stage.form != "text" and _matches(stage.patterns, name)


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(pattern == name or re.fullmatch(pattern, name) for pattern in patterns)


_SAMPLES: dict[str, Stage] = {
    "select": Select(("x",)),
    "where": Where("", ""),
    "filter": Where("", ""),
    "nulls": Nulls("error", ("x",)),
    "drop_nulls": Nulls("drop", ("x",)),
    "pad": Pad(("x",)),
    "permute": Permute(("x",), ("x",)),
    "decimals": Decimals("text", ("x",)),
    "resize": Resize(("x",), (1, 1)),
    "normalize": Normalize(("x",), (0.0,), (1.0,)),
    "pack": Pack("x", ("x",)),
    "ngram": Ngram(length=1),
    "shard": Shard(1, 0),
    "shuffle": Shuffle(1, 0),
    "cache": Cache("x"),
    "transform": Transform(UserFunction(len)),
    "batch": Batch(1),
    "repeat": Repeat(),
    "take": Take(1),
    "skip": Skip(1),
}


def accepts(stages: Sequence[Stage], verb: str, *, mixed: bool = False) -> bool:
    """Whether ``verb`` may follow the stages."""
    try:
        order_stages([*stages, _SAMPLES[verb]], mixed=mixed)
    except PipelineError:
        return False
    return True


def _misplaced(stage: Stage, after: str, why: str) -> PipelineError:
    return PipelineError(f"{stage.verb}: expected before {after}(), got after it: {why}. Call {stage.verb}() earlier.")
