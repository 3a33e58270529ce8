"""What happens to fields on the way: from the stored schema and the stages to the `Recipe` of the engine.

Pure; reads nothing but the schema. Columns that no later step needs are not read.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..engine.steps.images import ImageStep
from ..engine.steps.shaping import NullStep, PadStep, PermuteStep
from ..errors import PipelineError
from ..schema.codecs import ScaledDecimalCodec
from ..schema.element import Element, OutputField, Path, output_of
from ..schema.field import UnischemaField, match_names
from ..stages.image_values import ImageStage, Pack, RandomStage
from ..stages.values import EVERY_FIELD, Batch, Decimals, Ngram, Nulls, Pad, Permute, Select, Stage, Transform
from .folding import folded
from .image_flow import check_alike, image_step, joined, named_interpolations, pack_step
from .recipe import Form, Input, MixedRecipe, Projection, Recipe, Step, TransformStep, WindowStep

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
    seed: int | None = None
    calls: int = 0

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
            form=self._form(stage),
            name=stage.function.name,
            drops=stage.drops,
        )
        if not step.outputs:
            raise PipelineError(f"transform {step.name}: expected at least one field to remain, got none.")
        self._steps().append(step)
        self.outputs = list(step.outputs)

    def _form(self, stage: Transform) -> Form:
        if stage.batched == "arrow":
            nested = [output.name for output in self.outputs if len(output.path) > 1]
            if nested:
                raise PipelineError("transform: expected plain fields for batched='arrow', got windows with offsets.")
            return "arrow"
        return "batch" if stage.batched or self.batched else "row"

    def permute(self, stage: Permute) -> None:
        """Puts axes into another order, by their names."""
        self.open()
        for number in self._matching(stage.patterns):
            output = self.outputs[number]
            if output.dims is None or sorted(output.dims) != sorted(stage.dims):
                raise PipelineError(
                    f"permute: field '{output.name}': expected the names of its axes, {output.dims}, in another order, "
                    f"got {stage.dims}. Declare them with UnischemaField(dims=...)."
                )
            axes = tuple(output.dims.index(name) for name in stage.dims)
            shape = tuple(output.shape[axis] for axis in axes)
            self.outputs[number] = replace(output, shape=shape, dims=tuple(stage.dims))
            place = self._image_step(number)
            before = None if place is None else self._steps()[place]
            if place is not None and isinstance(before, ImageStep) and before.axes is None:
                self._steps()[place] = replace(before, axes=axes, output=self.outputs[number])
            else:
                self._steps().append(PermuteStep(number=number, axes=axes))

    def images(self, stage: ImageStage) -> None:
        """Changes the images of some fields."""
        self.open()
        self.calls += 1
        numbers = self._matching(stage.patterns)
        check_alike(stage, [self.outputs[number] for number in numbers])
        named_interpolations(stage, [self.outputs[number] for number in numbers])
        seed: tuple[int, ...] | None = None
        if isinstance(stage, RandomStage):  # calls of one given seed draw alike, those of none each by itself
            drawn = stage.seed if self.seed is None else self.seed
            seed = (drawn, self.calls) if stage.drawn else (stage.seed,)
        for number in numbers:
            step = image_step(stage, number, self.outputs[number], seed, self.calls if len(numbers) > 1 else None)
            self.outputs[number] = step.output
            place = self._image_step(number)
            before = None if place is None else self._steps()[place]
            both = joined(before, step) if isinstance(before, ImageStep) else None
            if place is not None and both is not None:
                self._steps()[place] = both
            else:
                self._steps().append(step)

    def _image_step(self, number: int) -> int | None:
        """Where the step stands that a further one of column ``number`` may become one with."""
        steps = self._steps()
        for place in range(len(steps) - 1, -1, -1):
            step = steps[place]
            if not isinstance(step, ImageStep | PermuteStep):
                return None
            if step.number == number:
                return place if isinstance(step, ImageStep) else None
        return None

    def pack(self, stage: Pack) -> None:
        """Puts numeric columns side by side."""
        self.open()
        names = list(dict.fromkeys(str(output.path[-1]) for output in self.outputs))
        chosen = list(dict.fromkeys(name for pattern in stage.patterns for name in match_names(pattern, names)))
        groups: dict[Path, list[int]] = {}  # of windows with fields for each offset: one matrix each
        for name in chosen:
            for number, output in enumerate(self.outputs):
                if output.path[-1] == name:
                    groups.setdefault(output.path[:-1], []).append(number)
        for prefix in groups:
            numbers = [
                number
                for name in chosen
                for number, output in enumerate(self.outputs)
                if output.path == (*prefix, name)
            ]
            step = pack_step(stage, self.outputs, numbers)
            self._steps().append(step)
            self.outputs = [*(self.outputs[number] for number in step.keep), step.output]

    def nulls(self, stage: Nulls) -> None:
        """Gives nulls of some columns a policy."""
        self.open()
        for number in self._matching(stage.patterns):
            output = self.outputs[number]
            if not output.nullable and stage.patterns == EVERY_FIELD:
                continue
            if stage.policy != "drop":
                value = _fill_value(output, stage.value) if stage.policy == "fill" else None
                step = NullStep(number=number, policy=stage.policy, value=value, field=output)
                self._steps().append(step)
            self.outputs[number] = replace(output, nullable=False)
            if stage.policy == "mask":
                self.outputs.append(_companion(output, "__valid", np.dtype(bool), ()))

    def pad(self, stage: Pad) -> None:
        """Makes variable shapes dense."""
        self.open()
        for number in self._matching(stage.patterns):
            output = self.outputs[number]
            shape = output.shape if stage.shape is None else stage.shape
            if len(shape) != len(output.shape) or any(
                own is not None and own != size for own, size in zip(output.shape, shape, strict=True)
            ):
                raise PipelineError(
                    f"pad: field '{output.name}': expected a shape that fits {output.shape}, got {shape}."
                )
            if not stage.lengths and None in shape:
                raise PipelineError(f"fixed: field '{output.name}': expected a shape without None, got {shape}.")
            if not output.ragged and shape == output.shape:
                continue
            value = _pad_value(output, stage.value)
            variable = tuple(axis for axis, size in enumerate(output.shape) if size is None) or (0,)
            step = PadStep(number=number, shape=shape, value=value, lengths=stage.lengths, axes=variable, field=output)
            self._steps().append(step)
            self.outputs[number] = replace(output, shape=shape, padded=None in shape)
            if stage.lengths:
                axes = () if len(variable) == 1 else (len(variable),)
                self.outputs.append(_companion(output, "__length", np.dtype(np.int64), axes))

    def decimals(self, stage: Decimals) -> None:
        """Chooses how decimals are read."""
        self.open()
        assert self.fields is not None
        if self.row_steps or self.item_steps or self.window is not None:
            raise PipelineError("decimals: expected before ngram(), transform(), nulls() and pad(). Call it earlier.")
        for number in self._matching(stage.patterns):
            own = self.fields[number]
            if own.dtype is not decimal.Decimal:
                raise PipelineError(f"decimals: field '{own.name}': expected a decimal field, got {own.dtype}.")
            if stage.form == "float64":
                self.fields[number] = own.replace(dtype=np.float64, codec=None if own.shape == () else own.codec)
            elif stage.form == "scaled":
                self.fields[number] = own.replace(dtype=np.int64, codec=ScaledDecimalCodec())
            self.outputs[number] = output_of(self.fields[number])

    def _matching(self, patterns: Sequence[str]) -> list[int]:
        names = list(dict.fromkeys(str(output.path[-1]) for output in self.outputs))
        chosen = {name for pattern in patterns for name in match_names(pattern, names)}
        return [number for number, output in enumerate(self.outputs) if output.path[-1] in chosen]

    def apply(self, stage: Stage) -> None:
        """Takes in one stage."""
        if isinstance(stage, Select):
            self.select(stage)
        elif isinstance(stage, Ngram):
            self.ngram(stage)
        elif isinstance(stage, Transform):
            self.transform(stage)
        elif isinstance(stage, Nulls):
            self.nulls(stage)
        elif isinstance(stage, Pad):
            self.pad(stage)
        elif isinstance(stage, Permute):
            self.permute(stage)
        elif isinstance(stage, Decimals):
            self.decimals(stage)
        elif isinstance(stage, ImageStage):
            self.images(stage)
        elif isinstance(stage, Pack):
            self.pack(stage)
        elif isinstance(stage, Batch):
            self.open()
            self.batched = True

    def _steps(self) -> list[Step]:
        return self.row_steps if self.window is None and not self.batched else self.item_steps


def build_recipe(stages: Sequence[Stage], resolve: ResolveFields, seed: int | None = None) -> Recipe:
    """The recipe of a pipeline, whose random stages follow ``seed`` where they were given none.

    Raises:
        FieldNotFoundError: a name or regex that matches nothing where it stands.
        SchemaError: a selected column that cannot become a tensor.
    """
    flow = _Flow(resolve=resolve, seed=seed)
    for stage in stages:
        flow.apply(stage)
    flow.open()
    assert flow.fields is not None
    _refuse_open_padding(flow, stages)
    if flow.window is None:  # without windows a row is an item
        flow.item_steps, flow.row_steps = [*flow.row_steps, *flow.item_steps], []
    recipe = Recipe(
        fields=tuple(flow.fields),
        row_steps=tuple(flow.row_steps),
        window=flow.window,
        item_steps=tuple(flow.item_steps),
        outputs=tuple(flow.outputs),
        inputs=(),
    )
    return _with_inputs(_without_unused(recipe))


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


def _companion(output: OutputField, suffix: str, dtype: np.dtype, shape: tuple[int, ...]) -> OutputField:
    path = (*output.path[:-1], f"{output.path[-1]}{suffix}")
    return OutputField(path=path, kind="dense", dtype=dtype, shape=shape, window=output.window)


def _fill_value(output: OutputField, value: Any) -> Any:
    """The fill value in the column's type; raises `PipelineError` if it does not fit."""
    wanted: Any = {"text": str, "bytes": bytes}.get(output.kind)
    if wanted is not None:
        if isinstance(value, wanted):
            return value
        raise PipelineError(f"field '{output.name}': expected a fill value of type {wanted.__name__}, got {value!r}.")
    try:
        result = np.asarray(value).astype(output.dtype)
        exact = output.dtype.kind == "f" or bool(np.all(result == np.asarray(value)))
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise PipelineError(
            f"field '{output.name}': expected a fill value that {output.dtype} can hold, got {value!r}."
        )
    return result


def _pad_value(output: OutputField, value: Any) -> Any:
    if output.kind == "dense":
        return _fill_value(output, 0 if value is None else value)
    if value is not None and not isinstance(value, str):
        raise PipelineError(f"field '{output.name}': expected a text to pad with, got {value!r}.")
    return value or ""


def _refuse_open_padding(flow: _Flow, stages: Sequence[Stage]) -> None:
    """Padding to the largest value of the batch needs a batch that is known when rows are padded."""
    batched = any(isinstance(stage, Batch) for stage in stages)
    drops = any(isinstance(stage, Transform) and stage.drops for stage in stages)
    for step in (*flow.row_steps, *flow.item_steps):
        if isinstance(step, PadStep) and None in step.shape and (drops or not batched):
            why = "a function leaves rows out" if drops else "rows are not batched"
            remedy = "" if drops else ", or call batch()"
            raise PipelineError(
                f"pad: field '{step.field.name}': expected shape=, because {why}, so there is no batch whose largest "
                f"value it could grow to. Give the shape{remedy}."
            )


def mixed_steps(
    stages: Sequence[Stage], outputs: tuple[OutputField, ...], seed: int | None
) -> tuple[tuple[Step, ...], tuple[OutputField, ...]]:
    """The steps that follow a mix whose sources give ``outputs``, and what comes out of them."""
    flow = _Flow(resolve=lambda patterns: [], fields=[], outputs=list(outputs), seed=seed)
    for stage in stages:
        flow.apply(stage)
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
