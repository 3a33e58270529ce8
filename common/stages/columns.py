"""`Columns`: the columns of a row between storage and the element, while stages are applied to them.

It starts from the stored fields, and each stage changes it in call order with `Stage.apply`. The result says which
fields are read, which steps the engine runs, and which columns come out. It looks only at the schema.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from contextlib import suppress
from dataclasses import field

import numpy as np

from ..base.errors import FieldNotFoundError, PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import Form, OutputField, output_of
from ..schema.field import Shape, UnischemaField, match_names
from .steps import JoinStep, Step, WindowStep

ResolveFields = Callable[[Sequence[str] | None], list[UnischemaField]]
"""Resolves patterns (``None`` = all) to stored fields, in schema order; raises for names that match nothing."""


@dataclass(kw_only=True)
class Columns:
    """The columns of a row after the stages applied so far.

    Attributes:
        resolve: finds stored fields.
        patterns: patterns of leading ``select`` stages, collected until the fields are fixed.
        fields: the fields to read; ``None`` until a stage other than ``select`` fixes them.
        row_steps: steps on rows, before windows and batches.
        window: how rows become windows.
        join: how rows are joined into items.
        joined_steps: steps on these rows, if functions make them.
        item_steps: steps on items, after windows and batches.
        batched: whether a ``batch`` stage was applied.
        seed: the pipeline's seed, for stages without one of their own.
        form: how the columns are arranged, by name; ``None`` = as a dict.
        learned: number of vocabularies to learn.
        calls: number of stages so far that may draw random numbers, so that each draws its own.
        mixed: in a mix, the number of columns that its pipelines return.
    """

    resolve: ResolveFields
    patterns: list[tuple[str, ...]] = field(default_factory=list)
    fields: list[UnischemaField] | None = None
    outputs: list[OutputField] = field(default_factory=list)
    row_steps: list[Step] = field(default_factory=list)
    window: WindowStep | None = None
    join: JoinStep | None = None
    joined_steps: list[Step] = field(default_factory=list)
    item_steps: list[Step] = field(default_factory=list)
    batched: bool = False
    seed: int | None = None
    form: Form = None
    learned: int = 0
    calls: int = 0
    mixed: int = 0

    def open(self) -> list[UnischemaField]:
        """Fixes which fields are read, and returns them."""
        if self.fields is None:
            names: dict[str, None] | None = None
            for patterns in self.patterns:
                if names is None:
                    names = dict.fromkeys(item.name for item in self.resolve(patterns))
                else:
                    chosen = {name for pattern in patterns for name in match_names(pattern, names)}
                    names = dict.fromkeys(name for name in names if name in chosen)
            self.fields = self.resolve(None if names is None else list(names))
            self.outputs = [output_of(item) for item in self.fields]
        return self.fields

    @property
    def steps(self) -> list[Step]:
        """The list that the next step is appended to."""
        return self.row_steps if self.window is None and not self.batched else self.item_steps

    @property
    def stored(self) -> list[int | None]:
        """For each column, the number of the field whose stored values it holds; ``None`` if a step made or changed it,
        or if rows were joined.
        """
        if not self.fields or self.join is not None:
            return [None] * len(self.outputs)
        sources: list[int | None] = list(range(len(self.fields)))
        for step in self.row_steps:
            sources = step.untouched(sources)
        if self.window is not None:
            sources = [None if leaf.number is None else sources[leaf.number] for leaf in self.window.leaves]
        for step in self.item_steps:
            sources = step.untouched(sources)
        return sources

    @property
    def counted(self) -> list[bool]:
        """For each column of a row, whether a function makes it whose lengths are counted (`MadeLengths`)."""
        counted = [False] * len(self.fields or ())
        for step in self.row_steps:
            counted = step.counted(counted)
        return counted

    @property
    def made(self) -> list[tuple[list[Step], int, int] | None]:
        """For each column, the last step that made or changed it: the list that holds the step, its index there, and
        the column's number among the step's outputs. ``None`` if the column is as stored, or was joined from rows.
        """
        origins: list[tuple[list[Step], int, int] | None] = [None] * (self.mixed or len(self.fields or ()))
        for steps in (self.row_steps, self.item_steps):
            if steps is self.item_steps and self.join is not None:
                origins = [None] * (len(self.join.padding) + 2 * self.join.positions)
            elif steps is self.item_steps and self.window is not None:
                origins = [None if leaf.number is None else origins[leaf.number] for leaf in self.window.leaves]
            for place, step in enumerate(steps):
                before = step.untouched(range(len(origins)))
                origins = [(steps, place, number) if own is None else origins[own] for number, own in enumerate(before)]
        return origins

    @property
    def names(self) -> KeysView[str]:
        """The names of the columns; a name at several offsets of a window is listed once."""
        return dict.fromkeys(str(output.path[-1]) for output in self.outputs).keys()

    def add(self, *outputs: OutputField, verb: str) -> None:
        """Adds columns that a stage makes, at the end.

        Raises:
            PipelineError: there is a column of this name. It is never replaced.
        """
        paths = {output.path for output in self.outputs}
        for output in outputs:
            if output.path in paths:
                name = output.path[-1]
                raise PipelineError(
                    f"{verb}: expected no field '{name}', which it adds itself, got one. Rename that one before, with "
                    f"rename({{'{name}': 'stored_{name}'}}), or leave it out with select()."
                )
            paths.add(output.path)
        self.outputs += outputs

    def named(self, patterns: Sequence[str]) -> list[str]:
        """The names that patterns select, in the order of the patterns."""
        names = self.names
        try:
            return list(dict.fromkeys(name for pattern in patterns for name in match_names(pattern, names)))
        except FieldNotFoundError:
            with suppress(FieldNotFoundError):
                self.resolve(patterns)  # it says why a stored column cannot be read
            raise

    def matching(self, patterns: Sequence[str]) -> list[int]:
        """The numbers of the columns that patterns select."""
        chosen = set(self.named(patterns))
        return [number for number, output in enumerate(self.outputs) if output.path[-1] in chosen]


def refuse_nested(verb: str, columns: Columns, numbers: Sequence[int]) -> None:
    """Raises `PipelineError` if some of the columns hold nested lists, which the verb does not support."""
    for number in numbers:
        output = columns.outputs[number]
        if output.levels:
            raise PipelineError(
                f"{verb}: field '{output.name}': expected arrays, got nested lists. Leave it out, or turn it into an "
                "array with transform()."
            )


def companion(output: OutputField, suffix: str, dtype: np.dtype, shape: Shape) -> OutputField:
    """A column that describes another one, such as its lengths or its validity, with the same path and window."""
    path = (*output.path[:-1], f"{output.path[-1]}{suffix}")
    return OutputField(path=path, kind="dense", dtype=dtype, shape=shape, window=output.window)
