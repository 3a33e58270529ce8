"""The stages for images, and `Pack`, as values: what each verb was given, checked.

They go to JSON and back like all stages, and are part of the pipeline's hash; a seed that nobody chose is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from ..engine.steps.image_kernels import INTERPOLATIONS
from ..errors import PipelineError
from ..schema.plain import Seed, plain
from .values import Shuffle, Stage, is_integer

Size = tuple[int, int]
Interpolations = str | tuple[tuple[str, str], ...]


class ImageStage:
    """What the stages that change images have in common; ``patterns`` says which fields."""

    verb: ClassVar[str]
    patterns: tuple[str, ...]

    @property
    def seed_is_drawn(self) -> bool:
        """Whether nobody chose the seed, so that it follows the pipeline's."""
        return bool(getattr(self, "drawn", False))

    @property
    def unnamed(self) -> frozenset[str]:
        """The seed, where nobody chose it."""
        return frozenset({"seed"} if self.seed_is_drawn else ())

    def __str__(self) -> str:
        shown = Stage.__str__(self)  # type: ignore[arg-type]  # every subclass is a stage
        return shown.replace(f", seed={self.seed!r}", "") if self.seed_is_drawn else shown  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Resize(ImageStage, Stage):
    """To a size, or (``size`` an integer) the shorter side to a length."""

    verb: ClassVar[str] = "resize"
    patterns: tuple[str, ...]
    size: int | Size
    interpolation: Interpolations = "bilinear"

    def check(self) -> None:
        if is_integer(self.size):
            positive_size("resize", (self.size, self.size))
        else:
            positive_size("resize", self.size)
        check_interpolation("resize", self.interpolation)


@dataclass(frozen=True)
class RandomResizedCrop(ImageStage, Stage):
    """A part of random area and proportions, resized."""

    verb: ClassVar[str] = "random_resized_crop"
    patterns: tuple[str, ...]
    size: Size
    seed: Seed
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolations = "bilinear"
    drawn: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        positive_size(self.verb, self.size)
        check_interpolation(self.verb, self.interpolation)
        check_seed(self.verb, self.seed)
        _check_range(self.verb, "scale", self.scale, 1.0)
        _check_range(self.verb, "ratio", self.ratio, math.inf)


@dataclass(frozen=True)
class CenterCrop(ImageStage, Stage):
    """The middle."""

    verb: ClassVar[str] = "center_crop"
    patterns: tuple[str, ...]
    size: Size

    def check(self) -> None:
        positive_size(self.verb, self.size)


@dataclass(frozen=True)
class RandomCrop(ImageStage, Stage):
    """Any part of a size."""

    verb: ClassVar[str] = "random_crop"
    patterns: tuple[str, ...]
    size: Size
    seed: Seed
    drawn: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        positive_size(self.verb, self.size)
        check_seed(self.verb, self.seed)


@dataclass(frozen=True)
class RandomFlip(ImageStage, Stage):
    """Mirrored with some probability."""

    verb: ClassVar[str] = "random_flip"
    patterns: tuple[str, ...]
    seed: Seed
    axis: Literal["horizontal", "vertical"] = "horizontal"
    probability: float = 0.5
    drawn: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        check_seed(self.verb, self.seed)
        if self.axis not in ("horizontal", "vertical"):
            raise PipelineError(f"random_flip: expected axis='horizontal' or 'vertical', got {self.axis!r}.")
        if not _is_number(self.probability) or not 0 <= self.probability <= 1:
            raise PipelineError(f"random_flip: expected probability from 0 to 1, got {self.probability!r}.")


@dataclass(frozen=True)
class Normalize(ImageStage, Stage):
    """``(value * scale - mean) / std`` for each channel."""

    verb: ClassVar[str] = "normalize"
    patterns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Literal["float32", "float16"] = "float32"
    scale: float = 1 / 255

    def check(self) -> None:
        if self.dtype not in ("float32", "float16"):
            raise PipelineError(f"normalize: expected dtype='float32' or 'float16', got {self.dtype!r}.")
        for name, values in (("mean", self.mean), ("std", self.std), ("scale", (self.scale,))):
            if not values or not all(_is_number(value) and math.isfinite(value) for value in values):
                raise PipelineError(f"normalize: expected {name} to be a finite number or several, got {values!r}.")
        if 0 in self.std:
            raise PipelineError(f"normalize: expected std other than 0, got {self.std!r}.")


@dataclass(frozen=True)
class Pack(Stage):
    """Many numeric fields as one vector."""

    verb: ClassVar[str] = "pack"
    name: str
    patterns: tuple[str, ...]
    dtype: str | None = None
    keep: bool = False

    def check(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PipelineError(f"pack: expected a name for the new field, got {self.name!r}.")
        if not self.patterns:
            raise PipelineError(f"pack '{self.name}': expected one field or more, got none.")


RandomStage = RandomResizedCrop | RandomCrop | RandomFlip


def drawn_seed(stages: Sequence[Stage]) -> int | None:
    """The seed of the first image stage that was given none; ``None`` if there is no such stage."""
    return next((stage.seed for stage in stages if isinstance(stage, RandomStage) and stage.drawn), None)


def with_seed(stages: Sequence[Stage], seed: int) -> list[Stage]:
    """The stages with another seed of the shuffle, and of the image stages that were given none."""
    return [
        replace(stage, seed=seed)
        if isinstance(stage, Shuffle) or (isinstance(stage, RandomStage) and stage.drawn)
        else stage
        for stage in stages
    ]


def as_size(verb: str, size: Any) -> Size:
    """``(height, width)`` of an integer (a square) or a pair."""
    size = plain(size)
    return (size, size) if is_integer(size) else size


def as_interpolation(value: Any) -> Interpolations:
    """An interpolation, or one for each field named, in a form that goes to JSON."""
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


def as_numbers(verb: str, name: str, values: Any) -> tuple[float, ...]:
    """One number or several, as floats."""
    given = plain(values)
    listed = given if isinstance(given, tuple) else (given,)
    if not all(_is_number(value) for value in listed):
        raise PipelineError(f"{verb}: expected {name} to be a number or several, got {values!r}.")
    return tuple(float(value) for value in listed)


def positive_size(verb: str, size: Any) -> None:
    """Raises `PipelineError` unless ``size`` is a pair of integers of at least 1."""
    if not isinstance(size, tuple) or len(size) != 2 or not all(is_integer(side) and side >= 1 for side in size):
        raise _no_size(verb, size)


def check_interpolation(verb: str, value: Interpolations) -> None:
    """Raises `PipelineError` for an interpolation that does not exist."""
    names = [value] if isinstance(value, str) or not isinstance(value, tuple) else [name for _, name in value]
    wrong = next((name for name in names if name not in INTERPOLATIONS), None)
    if wrong is not None or not names:
        raise PipelineError(f"{verb}: expected interpolation of {INTERPOLATIONS}, got {wrong!r}.")


def check_seed(verb: str, seed: Any) -> None:
    """Raises `PipelineError` unless ``seed`` is an integer."""
    if not is_integer(seed):
        raise PipelineError(f"{verb}: expected an integer seed or None, got {seed!r}.")


def _check_range(verb: str, name: str, value: Any, most: float) -> None:
    numbers = isinstance(value, tuple) and len(value) == 2 and all(_is_number(end) for end in value)
    if not numbers or not 0 < value[0] <= value[1] <= most or math.isinf(value[1]):
        limit = "" if math.isinf(most) else f" and at most {most:g}"
        raise PipelineError(f"{verb}: expected {name}=(low, high) with 0 < low <= high{limit}, got {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _no_size(verb: str, size: Any) -> PipelineError:
    return PipelineError(f"{verb}: expected size to be (height, width), integers >= 1, got {size!r}.")
