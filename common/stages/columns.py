"""`Columns`: the columns of a row on their way from storage to the element, while stages are applied to them.

In: the stored fields, and the stages in call order, each by its own `Stage.apply`. Out: which fields are read, which
steps the engine takes, and what comes out. Pure; knows the schema and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import PipelineError
from ..schema.element import Form, OutputField, output_of
from ..schema.field import Shape, UnischemaField, match_names
from .steps import JoinStep, Step, WindowStep

ResolveFields = Callable[[Sequence[str] | None], list[UnischemaField]]
"""Turns patterns (``None`` = all) into stored fields, in schema order; raises for names that match nothing."""


@dataclass(kw_only=True)
class Columns:
    """What stages have made of a row so far.

    Attributes:
        resolve: finds stored fields.
        patterns: of leading ``select`` stages, as long as the fields are open.
        fields: those that are read; ``None`` until something other than ``select`` follows.
        outputs: the columns.
        row_steps: steps on rows, before windows and batches.
        window: how rows become windows.
        join: how rows are joined into items.
        item_steps: steps on items, after that.
        batched: whether ``batch`` has come.
        seed: of the pipeline, for stages that were given none.
        form: how the columns are put together, by their names; ``None`` = as a dict.
        learned: how many vocabularies are learned.
        calls: how many image stages there were, so that each draws its own numbers.
        mixed: of a mix, how many columns its pipelines give.
    """

    resolve: ResolveFields
    patterns: list[tuple[str, ...]] = field(default_factory=list)
    fields: list[UnischemaField] | None = None
    outputs: list[OutputField] = field(default_factory=list)
    row_steps: list[Step] = field(default_factory=list)
    window: WindowStep | None = None
    join: JoinStep | None = None
    item_steps: list[Step] = field(default_factory=list)
    batched: bool = False
    seed: int | None = None
    form: Form = None
    learned: int = 0
    calls: int = 0
    mixed: int = 0

    def open(self) -> list[UnischemaField]:
        """Fixes which fields are read, and gives them."""
        if self.fields is None:
            names = None
            for patterns in self.patterns:
                if names is None:
                    names = [item.name for item in self.resolve(patterns)]
                else:
                    chosen = {name for pattern in patterns for name in match_names(pattern, names)}
                    names = [name for name in names if name in chosen]
            self.fields = self.resolve(names)
            self.outputs = [output_of(item) for item in self.fields]
        return self.fields

    @property
    def steps(self) -> list[Step]:
        """Where the next step goes."""
        return self.row_steps if self.window is None and not self.batched else self.item_steps

    @property
    def stored(self) -> list[int | None]:
        """For each column the number of the field whose stored values it has; ``None`` where a step made or changed it,
        or made something of it.
        """
        if not self.fields or self.join is not None:
            return [None] * len(self.outputs)
        found: list[int | None] = list(range(len(self.fields)))
        for step in self.row_steps:
            found = step.untouched(found)
        if self.window is not None:
            found = [found[number] for _, number, _ in self.window.leaves]
        for step in self.item_steps:
            found = step.untouched(found)
        return found

    @property
    def made(self) -> list[tuple[list[Step], int, int] | None]:
        """For each column the last step that made or changed it: the list it stands in, its place there, and the number
        of the column among those that it gives. ``None``: as it is stored, or joined of several rows.
        """
        found: list[tuple[list[Step], int, int] | None] = [None] * (self.mixed or len(self.fields or ()))
        for steps in (self.row_steps, self.item_steps):
            if steps is self.item_steps and self.join is not None:
                found = [None] * (len(self.join.padding) + 2 * self.join.positions)
            elif steps is self.item_steps and self.window is not None:
                found = [found[number] for _, number, _ in self.window.leaves]
            for place, step in enumerate(steps):
                before = step.untouched(range(len(found)))
                found = [(steps, place, number) if own is None else found[own] for number, own in enumerate(before)]
        return found

    @property
    def names(self) -> list[str]:
        """The names of the columns; one that stands at several offsets of a window comes once."""
        return list(dict.fromkeys(str(output.path[-1]) for output in self.outputs))

    def named(self, patterns: Sequence[str]) -> list[str]:
        """The names that patterns select, in the order of the patterns."""
        names = self.names
        return list(dict.fromkeys(name for pattern in patterns for name in match_names(pattern, names)))

    def matching(self, patterns: Sequence[str]) -> list[int]:
        """The numbers of the columns that patterns select."""
        chosen = set(self.named(patterns))
        return [number for number, output in enumerate(self.outputs) if output.path[-1] in chosen]


def refuse_nested(verb: str, columns: Columns, numbers: Sequence[int]) -> None:
    """Raises `PipelineError` for nested lists among some columns, on which a verb does not work."""
    for number in numbers:
        output = columns.outputs[number]
        if output.levels:
            raise PipelineError(
                f"{verb}: field '{output.name}': expected arrays, got nested lists. Leave it out, or make an array of "
                "it with transform()."
            )


def companion(output: OutputField, suffix: str, dtype: np.dtype, shape: Shape) -> OutputField:
    """A column that says something about another one and stands beside it."""
    path = (*output.path[:-1], f"{output.path[-1]}{suffix}")
    return OutputField(path=path, kind="dense", dtype=dtype, shape=shape, window=output.window)
