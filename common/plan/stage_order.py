"""Sorts the stages of a pipeline: which belong to the selection, which to the order, and which are views of the order.

`order_stages` turns the stages in call order into a `StageOrder`. It is pure, needs no data, and looks only at what
each stage decides.

- ``where`` and ``ngram`` define the items. They commute with ``shard``, ``shuffle`` and ``repeat``, so they are moved
  before them. They do not commute with ``take``, ``skip`` and ``batch``.
- ``take`` and ``skip`` before any ``shard`` or ``shuffle`` cut the natural order and belong to the selection. Later
  ones are views of the order.
- ``shuffle`` permutes the items of the stages before it. After ``repeat``, it shuffles within each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import takewhile
from typing import Any

import numpy as np

from ..base.errors import PipelineError
from ..base.other_names import did_you_mean
from ..base.process.dataclass import dataclass
from ..schema.field import UnischemaField
from ..stages.base import EVERY_FIELD, Decision, Stage, kinds
from ..stages.batch import Batch
from ..stages.cache import Cache
from ..stages.measure import MadeLengths, Measure
from ..stages.nulls import Nulls
from ..stages.shard import Shard
from ..stages.shuffle import Shuffle

_ABOUT_ROWS = (Decision.ITEMS, Decision.ROW_GROUPS, Decision.CUT, Decision.FIELDS, Decision.BYTES)
_NOT_ON_A_MIX = (
    Decision.ITEMS,
    Decision.WINDOWS,
    Decision.JOINS,
    Decision.WEIGHTS,
    Decision.ORDER,
    Decision.BYTES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """A stage that learns from the rows which the stages before it select.

    Stages after it do not count, so all parts of a later split learn the same.

    Attributes:
        stage: the stage, using the stored names of fields.
        selection: the stages before it that select rows, without the part of a rank.
    """

    stage: Stage
    selection: tuple[Stage, ...]

    @property
    def field(self) -> str:
        """The stored field whose values it learns."""
        return self.stage.reads[0]


@dataclass(kw_only=True)
class StageOrder:
    """The stages, sorted by what they decide.

    Attributes:
        selection: ``where``, ``ngram``, ``take``, ``skip``, evaluated in natural order.
        part: views (``shard``, ``take``, ``skip``) in natural order that are fixed before the shuffle.
        shard_first: whether the shard comes before the shuffle, with no cut between them.
        views: ``shard``, ``take``, ``skip``, ``repeat``, ``batch`` over the order, in call order.
        stored: all stages in call order; filters and windows use the stored names of fields.
        fields: all stages in call order; each defines what it does to fields.
        declared: how stored fields are decoded, by name, where a stage says so.
        learning: the stages that learn a vocabulary, each with the rows that it learns from, in call order.
        join: the only stage that forms items from several rows or draws rows by weight; it needs a measure of each row.
        making: if functions make what it measures, the stages before it that decide the values of a row; else empty.
        cache: the last ``cache``.
        mixed: whether the rows come from a mix of pipelines, whose items and order are already decided.
    """

    selection: list[Stage] = field(default_factory=list)
    part: list[Stage] = field(default_factory=list)
    shuffle: Shuffle | None = None
    shard: Shard | None = None
    shard_first: bool = False
    views: list[Stage] = field(default_factory=list)
    stored: list[Stage] = field(default_factory=list)
    fields: list[Stage] = field(default_factory=list)
    declared: dict[str, UnischemaField] = field(default_factory=dict)
    learning: list[Learning] = field(default_factory=list)
    join: Stage | None = None
    making: tuple[Stage, ...] = ()
    batch: Batch | None = None
    cache: Cache | None = None
    mixed: bool = False

    def add(self, stage: Stage) -> None:
        """Adds the next stage. Raises `PipelineError` if it makes no sense here."""
        if self.mixed and stage.decides in _NOT_ON_A_MIX:
            raise _misplaced(stage, "mix", "the sources of a mix determine its order")
        self._check_lengths(stage)
        formed = next((done for done in self.fields if done.decides is Decision.FORM), None)
        if formed is not None and stage.changes_names:
            raise _misplaced(stage, formed.verb, "fields have positions there, not names")
        for item in stage.declared:
            self._declare(stage, item)
        self.fields.append(stage)
        self.stored.append(stage)
        if stage.learns:
            if self.mixed:
                raise PipelineError(
                    f"{stage.verb}: expected a vocabulary on a mix, whose sources would each learn their own. Give "
                    "vocabulary=[...]; a pipeline's vocabulary() returns one."
                )
            self.learning.append(Learning(stage=self._as_stored(stage), selection=tuple(self.shared_selection)))
        match stage.decides:
            case Decision.ITEMS:
                self._add_filter(stage)
            case Decision.WINDOWS:
                self._add_windows(stage)
            case Decision.ROW_GROUPS:
                self._add_row_group_shard(stage)
            case Decision.PART:
                self._add_shard(stage)  # type: ignore[arg-type]  # only a shard decides this, and so on below
            case Decision.JOINS | Decision.WEIGHTS:
                self._add_join(stage)
            case Decision.ORDER:
                self._add_shuffle(stage)  # type: ignore[arg-type]
            case Decision.BATCHES:
                self._add_batch(stage)  # type: ignore[arg-type]
            case Decision.CUT if not (self.shuffle or self.views or self.mixed or self.join):
                self.selection.append(stage)
            case Decision.CUT | Decision.PASSES:
                self.views.append(stage)
            case Decision.BYTES:
                self.cache = stage  # type: ignore[assignment]

    def _declare(self, stage: Stage, item: UnischemaField) -> None:
        """Notes how to decode a stored field. After other stages that work on fields, a field without a codec says
        nothing about storage: `Stage.apply` compares it with what they make.
        """
        working = (done for done in self.fields if done.decides is Decision.FIELDS and type(done) is not type(stage))
        if item.codec is not None:
            working = (done for done in working if done.hides(item.name))
        before = "mix" if self.mixed else next((done.called for done in working), None)
        if before is None:
            if self.declared.setdefault(item.name, item) != item:
                raise PipelineError(
                    f"{stage.verb}: field '{item.name}': expected one declaration, got {self.declared[item.name]} and "
                    f"{item}. After the first one, give only the name."
                )
        elif item.codec is not None:
            raise _misplaced(stage, before, "it says how stored fields are decoded, by their stored names")

    @property
    def casts(self) -> bool:
        return any(stage.casts_to is not None for stage in self.fields)

    def cast_of(self, name: str) -> np.dtype[Any] | None:
        """Returns the dtype that a stored field is cast to before any other stage works on it."""
        for stage in self.fields:
            if stage.casts_to is not None and stage.changes(name):
                return np.dtype(stage.casts_to)
            is_work = stage.decides is Decision.FIELDS and stage.changes_names and not stage.selects
            if is_work or stage.changes(name) or stage.hides(name):
                return None
        return None

    @property
    def makes_batches(self) -> bool:
        """Whether the items are batches of different sizes."""
        return self.join is not None and self.join.makes_batches

    @property
    def row_views(self) -> list[Stage]:
        """The views before the batch."""
        return self.views if self.batch is None else self.views[: self.views.index(self.batch)]

    @property
    def batch_views(self) -> list[Stage]:
        """The views after the batch."""
        return [] if self.batch is None else self.views[self.views.index(self.batch) + 1 :]

    def _check_lengths(self, stage: Stage) -> None:
        """Raises `PipelineError` for stages that count rows after a function that drops an unknown number of rows."""
        hidden = any(done.hides_length for done in self.fields)
        if stage.hides_length:
            self._refuse_after(stage, Decision.BATCHES)
            if self.makes_batches and self.join is not None:
                raise _incompatible(stage, self.join.verb, "a function that drops rows would change its batches")
        if not hidden:
            return
        if stage.makes_batches:
            raise _incompatible(stage, "transform(drops=True)", "a function that drops rows would change its batches")
        if stage.decides in (Decision.CUT, Decision.PART, Decision.ROW_GROUPS, Decision.WINDOWS, Decision.JOINS):
            raise _misplaced(stage, "transform(drops=True)", "the number of rows that the function keeps is unknown")
        if stage.decides is Decision.PASSES:
            self._refuse_after(stage, Decision.BATCHES)
        if stage.makes_values and self._has_view(Decision.BATCHES):
            raise _misplaced(stage, "batch", "after a function that drops rows, batches are made last")

    def _add_filter(self, stage: Stage) -> None:
        self._refuse_after(stage, Decision.CUT, Decision.BATCHES)
        if self._selects(Decision.WINDOWS):
            raise _misplaced(stage, "ngram", "windows are formed from the filtered rows")
        if self.join is not None:
            raise _misplaced(stage, self.join.verb, f"{self.join.verb}() uses the filtered rows")
        self._select(self._as_stored(stage))

    def _add_windows(self, stage: Stage) -> None:
        self._refuse_twice(stage, self._selects(Decision.WINDOWS))
        if self.join is not None:
            raise _incompatible(stage, self.join.verb, f"{self.join.verb}() uses rows, not windows")
        self._refuse_after(stage, Decision.CUT, Decision.BATCHES)
        self._select(self._as_stored(stage))

    def _add_join(self, stage: Stage) -> None:
        """Adds a stage whose items, like windows, are formed from the filtered rows, before the order."""
        if self.join is not None:
            raise _incompatible(stage, self.join.verb, "at most one verb can form items or draw rows")
        if self._selects(Decision.WINDOWS):
            raise _incompatible(stage, "ngram", f"{stage.called}() uses rows, not windows")
        self._refuse_after(stage, Decision.CUT, Decision.BATCHES)
        if self.part:
            raise _misplaced(stage, "shard().take", "a fixed part is cut from rows")
        if stage.reads_lengths and any(map(self._counts, stage.reads)):
            self.join = stage
            self.making = tuple(done for done in self.fields[:-1] if done.decides in _ABOUT_ROWS)
        else:
            self.join = self.stored[-1] = self._as_stored(stage)

    def _counts(self, name: str) -> bool:
        """Returns whether the lengths of the field now called ``name`` can be counted, because a function makes it."""
        for done in reversed(self.fields[:-1]):
            if done.counts(name):
                return True
            if done.changes(name) and done.makes_values:
                return False
            name = done.name_before(name)
        return False

    @property
    def measure(self) -> Measure | None:
        """The measure of the selected rows."""
        measure = None if self.join is None else self.join.measure
        if not isinstance(measure, Measure):
            return None
        return MadeLengths(measure, self.making) if self.making else measure

    @property
    def selected(self) -> list[Stage]:
        """The stages of the selection, followed by the measure of the selected rows."""
        measure = self.measure
        return self.selection if measure is None else [*self.selection, measure]

    @property
    def shared_selection(self) -> list[Stage]:
        """The stages of the selection whose rows all ranks share: those before a shard of row groups."""
        return list(takewhile(lambda stage: stage.decides is not Decision.ROW_GROUPS, self.selection))

    def _select(self, stage: Stage) -> None:
        """Adds a filter or window to the selection, before a shard of row groups, which divides the filtered rows."""
        dealt = bool(self.selection) and self.selection[-1].decides is Decision.ROW_GROUPS
        self.selection.insert(len(self.selection) - dealt, stage)
        self.stored[-1] = stage

    def _add_row_group_shard(self, stage: Stage) -> None:
        self._refuse_twice(stage, self._selects(Decision.ROW_GROUPS) or self.shard is not None)
        self._refuse_after(stage, Decision.CUT, Decision.BATCHES)
        if self.join is not None:
            raise _misplaced(stage, self.join.verb, f"the items of {self.join.verb}() span row groups")
        if self.mixed:
            raise _misplaced(stage, "mix", "a mix has no row groups of its own")
        self.selection.append(stage)

    def _add_shuffle(self, stage: Shuffle) -> None:
        self._refuse_twice(stage, self.shuffle is not None)
        self._refuse_after(stage, Decision.BATCHES)
        cuts = self._has_view(Decision.CUT)
        if self.join is not None and (cuts or self.join.decides is Decision.JOINS):
            raise _misplaced(stage, self.join.verb, f"{self.join.verb}() uses rows in shuffled order")
        if cuts and self._has_view(Decision.PASSES):
            raise _misplaced(stage, "repeat().take", "a truncated pass cannot be shuffled as a whole")
        if cuts:
            self.part, self.views = self.views, []
        self.shard_first = self.shard is not None and not self.part
        self.shuffle = stage

    def _add_shard(self, stage: Shard) -> None:
        self._refuse_twice(stage, self._selects(Decision.ROW_GROUPS) or self.shard is not None)
        self._refuse_after(stage, Decision.BATCHES)
        self.shard = stage
        self.views.append(stage)

    def _add_batch(self, stage: Batch) -> None:
        if self.join is not None and self.join.makes_batches:
            raise PipelineError(
                f"batch: expected rows, got the batches of {self.join.verb}(). Leave batch() out; {self.join.verb}() "
                "itself takes batch_size=, batch_sizes= or max_tokens=."
            )
        self._refuse_twice(stage, self.batch is not None)
        self.batch = stage
        self.views.append(stage)

    def _selects(self, decision: Decision) -> bool:
        return any(stage.decides is decision for stage in self.selection)

    def _has_view(self, decision: Decision) -> bool:
        return any(view.decides is decision for view in self.views)

    def _as_stored(self, stage: Stage) -> Stage:
        """Returns a stage with the stored names of fields. Raises if an earlier stage changes a field that it reads."""
        read, names = stage, stage.reads
        for done in reversed(self.fields[:-1]):
            for name in names:
                if done.changes(name) and not (stage.reads_lengths and done.keeps_lengths):
                    raise _misplaced(
                        stage,
                        done.verb,
                        f"it reads the stored values of '{name}', which that call changes",
                        _if_made_there(stage, done.verb, name) if done.makes_values else "",
                    )
            read, before = done.as_before(read), read
            names = names if read is before else read.reads
        return read

    def _refuse_after(self, stage: Stage, *decisions: Decision) -> None:
        for view in self.views:
            if view.decides in decisions:
                raise _misplaced(stage, view.verb, "its meaning would change after that call")

    @staticmethod
    def _refuse_twice(stage: Stage, present: bool) -> None:
        if present:
            raise PipelineError(
                f"{stage.called}: expected at most one in a pipeline, got a second. Remove one of them."
            )


def order_stages(stages: Sequence[Stage], *, mixed: bool = False) -> StageOrder:
    """Sorts the stages of a pipeline (``mixed``: of a mix of pipelines).

    Raises:
        PipelineError: a stage makes no sense after the stages before it.
    """
    result = StageOrder(mixed=mixed)
    for stage in stages:
        result.add(stage)
    return result


def check_skippable(order: StageOrder) -> None:
    """Raises `PipelineError` for stages whose elements cannot use later rows in place of rows that fail."""
    after = next((view for view in order.batch_views if not view.keeps_first), None)
    if after is not None:
        raise PipelineError(
            f"on_error='skip': cannot be combined with {after.verb}() after batch(). Call it before batch(), where it "
            "counts rows."
        )


def accepts(
    stages: Sequence[Stage],
    verb: str,
    *,
    mixed: bool = False,
    check: Callable[[StageOrder], None] | None = None,
) -> bool:
    """Returns whether a known verb may follow the stages. ``check`` may raise for further reasons."""
    sample = Nulls("drop", EVERY_FIELD) if verb == "drop_nulls" else kinds()[_ALIASES.get(verb, verb)].sample()
    try:
        order = order_stages([*stages, sample], mixed=mixed)
        if check is not None:
            check(order)
    except PipelineError:
        return False
    return True


def check_verb(verb: object) -> None:
    """Raises `PipelineError` unless this is the name of a verb."""
    known = {*kinds(), *_ALIASES, "drop_nulls"}
    if not isinstance(verb, str) or verb not in known:
        raise PipelineError(f"accepts: expected the name of a verb, got {verb!r}.{did_you_mean(verb, known)}")


_ALIASES = {"balance": "weigh", "filter": "where", "fixed": "pad", "hash_split": "where", "map": "transform"}


def _misplaced(stage: Stage, after: str, why: str, otherwise: str = "") -> PipelineError:
    return PipelineError(f"{stage.called}() must come before {_as_call(after)}: {why}.{otherwise}")


def _if_made_there(stage: Stage, verb: str, name: str) -> str:
    """What to do if no file has the field, so that the stage cannot come first."""
    is_filter = stage.called == "where" and verb == "transform"
    drops = " return None from it for rows to leave out, with drops=True, or" if is_filter else ""
    counts = " declare it in adds=[...] with lengths=True, or" if stage.reads_lengths and verb == "transform" else ""
    return (
        f" If only that call makes '{name}',{drops}{counts} store its rows with write_dataset(url, schema, pipeline), "
        "and read those."
    )


def _incompatible(stage: Stage, other: str, why: str) -> PipelineError:
    return PipelineError(f"{stage.called}() cannot be combined with {_as_call(other)}: {why}.")


def _as_call(verb: str) -> str:
    return verb if verb.endswith(")") else f"{verb}()"
