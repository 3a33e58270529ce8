"""What happens to fields on the way: from the stored schema and the stages to the `Recipe` of the engine.

Pure; reads nothing but the schema. Columns that no later step needs are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .engine.outputs import Element, OutputField, Path, output_of
from .engine.recipe import MixedRecipe, Projection, Recipe, Step, TransformStep, WindowStep
from .errors import PipelineError
from .schema.field import UnischemaField, match_names
from .stages import Batch, Ngram, Select, Stage, Transform

ResolveFields = Callable[[Sequence[str] | None], list[UnischemaField]]
"""Turns patterns (``None`` = all) into stored fields, in schema order; raises for names that match nothing."""


@dataclass(kw_only=True)
class _Flow:
    resolve: ResolveFields
    patterns: list[tuple[str, ...]] = field(default_factory=list)
    fields: list[UnischemaField] | None = None
    outputs: list[OutputField] = field(default_factory=list)
    row_steps: list[Step] = field(default_factory=list)
    window: WindowStep | None = None
    item_steps: list[Step] = field(default_factory=list)
    batched: bool = False

    def open(self) -> None:
        """Fixes which fields are read, once something other than ``select`` follows."""
        if self.fields is not None:
            return
        names = None
        for patterns in self.patterns:
            if names is None:
                names = [item.name for item in self.resolve(patterns)]
            else:
                chosen = {name for pattern in patterns for name in match_names(pattern, names)}
                names = [name for name in names if name in chosen]
        self.fields = self.resolve(names)
        self.outputs = [output_of(item) for item in self.fields]

    def select(self, stage: Select) -> None:
        """Keeps some of the current columns."""
        if self.fields is None:
            self.patterns.append(stage.patterns)
            return
        names = list(dict.fromkeys(str(output.path[-1]) for output in self.outputs))
        chosen = {name for pattern in stage.patterns for name in match_names(pattern, names)}
        keep = tuple(number for number, output in enumerate(self.outputs) if output.path[-1] in chosen)
        self._steps().append(Projection(keep=keep))
        self.outputs = [self.outputs[number] for number in keep]

    def ngram(self, stage: Ngram) -> None:
        """Turns rows into windows."""
        self.open()
        leaves: list[tuple[Path, int, int | None]] = []
        outputs: list[OutputField] = []
        names = [output.name for output in self.outputs]
        if stage.length is not None:
            for number, output in enumerate(self.outputs):
                leaves.append((output.path, number, None))
                outputs.append(replace(output, window=stage.length))
        for offset, patterns in stage.offsets:
            chosen = {name for pattern in patterns for name in match_names(pattern, names)}
            for number, output in enumerate(self.outputs):
                if output.name in chosen:
                    leaves.append(((offset, output.name), number, offset))
                    outputs.append(replace(output, path=(offset, output.name)))
        self.window = WindowStep(offsets=stage.steps, leaves=tuple(leaves))
        self.outputs = outputs

    def transform(self, stage: Transform) -> None:
        """Adds a user function."""
        self.open()
        names = list(dict.fromkeys(str(output.path[-1]) for output in self.outputs))
        removed = {name for pattern in stage.remove for name in match_names(pattern, names)}
        declared = [output_of(item) for item in stage.output or ()]
        replaced = {output.path for output in declared}
        kept = [output for output in self.outputs if output.path[-1] not in removed and output.path not in replaced]
        step = TransformStep(
            function=stage.function.function,
            inputs=tuple(self.outputs),
            outputs=(*kept, *declared),
            batched=stage.batched or self.batched,
            name=stage.function.name,
        )
        if not step.outputs:
            raise PipelineError(f"transform {step.name}: expected at least one field to remain, got none.")
        self._steps().append(step)
        self.outputs = list(step.outputs)

    def _steps(self) -> list[Step]:
        return self.row_steps if self.window is None and not self.batched else self.item_steps


def build_recipe(stages: Sequence[Stage], resolve: ResolveFields) -> Recipe:
    """The recipe of a pipeline.

    Raises:
        FieldNotFoundError: a name or regex that matches nothing where it stands.
        SchemaError: a selected column that cannot become a tensor.
    """
    flow = _Flow(resolve=resolve)
    for stage in stages:
        if isinstance(stage, Select):
            flow.select(stage)
        elif isinstance(stage, Ngram):
            flow.ngram(stage)
        elif isinstance(stage, Transform):
            flow.transform(stage)
        elif isinstance(stage, Batch):
            flow.open()
            flow.batched = True
    flow.open()
    assert flow.fields is not None
    if flow.window is None:  # without windows a row is an item
        flow.item_steps, flow.row_steps = [*flow.row_steps, *flow.item_steps], []
    recipe = Recipe(
        fields=tuple(flow.fields),
        row_steps=tuple(flow.row_steps),
        window=flow.window,
        item_steps=tuple(flow.item_steps),
        outputs=tuple(flow.outputs),
    )
    return _without_unused(recipe)


def mixed_steps(
    stages: Sequence[Stage], outputs: tuple[OutputField, ...]
) -> tuple[tuple[Step, ...], tuple[OutputField, ...]]:
    """The steps that follow a mix whose sources give ``outputs``, and what comes out of them."""
    flow = _Flow(resolve=lambda patterns: [], fields=[], outputs=list(outputs))
    for stage in stages:
        if isinstance(stage, Select):
            flow.select(stage)
        elif isinstance(stage, Transform):
            flow.transform(stage)
        elif isinstance(stage, Batch):
            flow.batched = True
    return (*flow.row_steps, *flow.item_steps), tuple(flow.outputs)


def _without_unused(recipe: Recipe) -> Recipe:
    """Folds leading projections into what is read, so that unused columns are neither fetched nor decoded."""
    while recipe.item_steps and isinstance(recipe.item_steps[0], Projection) and not recipe.row_steps:
        keep = recipe.item_steps[0].keep
        if recipe.window is None:
            recipe = replace(
                recipe, fields=tuple(recipe.fields[number] for number in keep), item_steps=recipe.item_steps[1:]
            )
        else:
            window = replace(recipe.window, leaves=tuple(recipe.window.leaves[number] for number in keep))
            recipe = replace(recipe, window=window, item_steps=recipe.item_steps[1:])
    if recipe.window is None or recipe.row_steps:
        return recipe
    used = sorted({number for _, number, _ in recipe.window.leaves})
    leaves = tuple((path, used.index(number), offset) for path, number, offset in recipe.window.leaves)
    return replace(
        recipe,
        fields=tuple(recipe.fields[number] for number in used),
        window=replace(recipe.window, leaves=leaves),
    )


def element_of(recipe: Recipe | MixedRecipe, batch: Batch | None, *, static_batch: bool) -> Element:
    """What one step of the pipeline gives."""
    return Element(
        outputs=recipe.outputs,
        batch_size=None if batch is None else batch.batch_size,
        static_batch=static_batch,
    )
