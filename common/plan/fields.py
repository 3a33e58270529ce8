"""From the stored schema and the stages to the `Recipe` of the engine: which fields are read, and what is done to them.

Pure; reads nothing but the schema. Columns that no later step needs are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import PipelineError
from ..schema.element import Element, OutputField
from ..stages.base import Stage
from ..stages.batch import Batch
from ..stages.columns import Columns, ResolveFields
from ..stages.pad import PadStep
from ..stages.select import Projection
from ..stages.steps import Step
from .folding import folded
from .recipe import Input, MixedRecipe, Recipe


def build_recipe(stages: Sequence[Stage], resolve: ResolveFields, seed: int | None = None) -> Recipe:
    """The recipe of a pipeline, whose random stages follow ``seed`` where they were given none.

    Raises:
        FieldNotFoundError: a name or regex that matches nothing where it stands.
        SchemaError: a selected column that cannot become a tensor.
    """
    columns = Columns(resolve=resolve, seed=seed)
    for stage in stages:
        stage.apply(columns)
    fields = columns.open()
    _refuse_open_padding(columns, stages)
    if columns.window is None:  # without windows a row is an item
        columns.item_steps, columns.row_steps = [*columns.row_steps, *columns.item_steps], []
    recipe = Recipe(
        fields=tuple(fields),
        row_steps=tuple(columns.row_steps),
        window=columns.window,
        item_steps=tuple(columns.item_steps),
        outputs=tuple(columns.outputs),
        inputs=(),
    )
    return _with_inputs(_without_unused(recipe))


def mixed_steps(
    stages: Sequence[Stage], outputs: tuple[OutputField, ...], seed: int | None
) -> tuple[tuple[Step, ...], tuple[OutputField, ...]]:
    """The steps that follow a mix whose sources give ``outputs``, and what comes out of them."""
    columns = Columns(resolve=lambda patterns: [], fields=[], outputs=list(outputs), seed=seed)
    for stage in stages:
        stage.apply(columns)
    return (*columns.row_steps, *columns.item_steps), tuple(columns.outputs)


def _with_inputs(recipe: Recipe) -> Recipe:
    """Lets stored columns go straight through the steps that can take them so."""
    if recipe.row_steps or recipe.window is None:
        inputs = [Input(leaves=(number,)) for number in range(len(recipe.fields))]
    else:
        inputs = [Input(leaves=(number,)) for number in range(len(recipe.window.leaves))]
    inputs, steps = folded(inputs, recipe.row_steps or recipe.item_steps)
    if recipe.row_steps:
        steps = steps or [Projection(keep=tuple(range(len(inputs))))]  # they are made by rows all the same
        return replace(recipe, inputs=tuple(inputs), row_steps=tuple(steps))
    return replace(recipe, inputs=tuple(inputs), item_steps=tuple(steps))


def _refuse_open_padding(columns: Columns, stages: Sequence[Stage]) -> None:
    """Padding to the largest value of the batch needs a batch that is known when rows are padded."""
    drops = any(stage.hides_length for stage in stages)
    for step in (*columns.row_steps, *columns.item_steps):
        if isinstance(step, PadStep) and step.needs_whole_batch and (drops or not columns.batched):
            why = "a function leaves rows out" if drops else "rows are not batched"
            remedy = "" if drops else ", or call batch()"
            raise PipelineError(
                f"pad: field '{step.field.name}': expected shape=, because {why}, so there is no batch whose largest "
                f"value it could grow to. Give the shape{remedy}."
            )


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
