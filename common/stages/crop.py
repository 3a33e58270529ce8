"""``center_crop`` and ``random_crop``: crop images to a fixed size, in the middle or at a random position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import Seed
from .image_base import (
    CROPS,
    ImageOp,
    ImageStage,
    Key,
    RandomImageStage,
    Size,
    check_alike,
    check_room,
    check_size,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CropOp(ImageOp):
    """Crops to this size: in the middle, or at a random position if there is a seed."""

    cuts: ClassVar[bool] = True
    height: int
    width: int
    seed: Key | None

    @property
    def name(self) -> str:
        return "center_crop" if self.seed is None else "random_crop"

    @property
    def key(self) -> Key | None:
        return None if self.seed is None else (CROPS, *self.seed)

    @property
    def draws(self) -> int:
        return 0 if self.seed is None else 2

    def size(self, height: int, width: int) -> Size:
        if height < self.height or width < self.width:
            raise ValueError(
                f"expected an image of at least {self.height} x {self.width} pixels, got {height} x {width}"
            )
        return self.height, self.width


class Crop(ImageStage):
    """Base of both: crops to a fixed size."""

    size: Size

    def check(self) -> None:
        check_size(self.verb, self.size)

    def operation(self, output: OutputField, key: Key | None) -> CropOp:
        check_room(self.verb, self.size, output)
        return CropOp(height=self.size[0], width=self.size[1], seed=key)

    def shape_after(self, op: ImageOp, output: OutputField) -> tuple[int | None, ...]:
        return self.size


@dataclass(frozen=True)
class CenterCrop(Crop):
    """Crops the middle of each image."""

    verb: ClassVar[str] = "center_crop"
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (1, 1))
    patterns: tuple[str, ...]
    size: Size


@dataclass(frozen=True)
class RandomCrop(RandomImageStage, Crop):
    """Crops each image at a random position."""

    verb: ClassVar[str] = "random_crop"
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (1, 1), 0)
    patterns: tuple[str, ...]
    size: Size
    seed: Seed
    drawn: bool = field(default=False, compare=False, repr=False)

    def check_columns(self, outputs: Sequence[OutputField]) -> None:
        check_alike(self.verb, outputs)
