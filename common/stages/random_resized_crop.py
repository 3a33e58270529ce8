"""``random_resized_crop``: crops images to a random area and aspect ratio, then resizes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import Seed
from .image_base import (
    CROPS,
    ImageOp,
    Interpolations,
    Key,
    RandomImageStage,
    Size,
    check_alike,
    check_antialias,
    check_interpolated_fields,
    check_interpolation,
    check_size,
    interpolation_of,
    is_number,
)

TRIES = 10
"""How many crops are tried before falling back to the largest one in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedCropOp(ImageOp):
    """Crops an image to a random area and aspect ratio, then resizes it."""

    cuts: ClassVar[bool] = True
    draws: ClassVar[int] = 2 + 2 * TRIES
    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str
    antialias: bool
    seed: Key

    @property
    def name(self) -> str:
        return f"random_resized_crop ({self.interpolation})"

    @property
    def key(self) -> Key:
        return (CROPS, *self.seed)

    def size(self, height: int, width: int) -> Size:
        return self.height, self.width


@dataclass(frozen=True)
class RandomResizedCrop(RandomImageStage):
    """Crops images to a random area and aspect ratio, then resizes them."""

    verb: ClassVar[str] = "random_resized_crop"
    resizes: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (1, 1), 0)
    patterns: tuple[str, ...]
    size: Size
    seed: Seed
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolations = "bilinear"
    antialias: bool = True
    drawn: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        check_size(self.verb, self.size)
        check_interpolation(self.verb, self.interpolation)
        check_antialias(self.verb, self.antialias)
        self._check_range("scale", self.scale, 1.0)
        self._check_range("ratio", self.ratio, math.inf)

    def check_columns(self, outputs: Sequence[OutputField]) -> None:
        check_alike(self.verb, outputs)
        check_interpolated_fields(self.verb, self.interpolation, outputs)

    def operation(self, output: OutputField, key: Key | None) -> ResizedCropOp:
        assert key is not None
        return ResizedCropOp(
            height=self.size[0],
            width=self.size[1],
            scale=self.scale,
            ratio=self.ratio,
            interpolation=interpolation_of(self.verb, self.interpolation, output),
            antialias=self.antialias,
            seed=key,
        )

    def shape_after(self, op: ImageOp, output: OutputField) -> tuple[int | None, ...]:
        return self.size

    def _check_range(self, name: str, value: tuple[float, float], most: float) -> None:
        is_range = isinstance(value, tuple) and len(value) == 2 and all(is_number(end) for end in value)
        if not is_range or not 0 < value[0] <= value[1] <= most or math.isinf(value[1]):
            limit = "" if math.isinf(most) else f" and at most {most:g}"
            raise PipelineError(f"{self.verb}: expected {name}=(low, high) with 0 < low <= high{limit}, got {value!r}.")
