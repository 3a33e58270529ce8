"""``random_flip``: mirrors images with a given probability."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import Seed
from .image_base import FLIPS, ImageOp, Key, RandomImageStage, is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipOp(ImageOp):
    """Mirrors an image along ``axis`` with a given probability."""

    name: ClassVar[str] = "random_flip"
    draws: ClassVar[int] = 1
    axis: int
    probability: float
    seed: Key

    @property
    def key(self) -> Key:
        return (FLIPS + self.axis, *self.seed)


@dataclass(frozen=True)
class RandomFlip(RandomImageStage):
    """Mirrors images with a given probability."""

    verb: ClassVar[str] = "random_flip"
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), 0)
    patterns: tuple[str, ...]
    seed: Seed
    axis: Literal["horizontal", "vertical"] = "horizontal"
    probability: float = 0.5
    drawn: bool = field(default=False, compare=False, repr=False)

    def check(self) -> None:
        if not is_number(self.probability) or not 0 <= self.probability <= 1:
            raise PipelineError(f"random_flip: expected probability from 0 to 1, got {self.probability!r}.")

    def operation(self, output: OutputField, key: Key | None) -> FlipOp:
        assert key is not None
        return FlipOp(axis=1 if self.axis == "horizontal" else 0, probability=float(self.probability), seed=key)

    def shape_after(self, op: ImageOp, output: OutputField) -> tuple[int | None, ...]:
        return output.shape[:2]
