"""``resize``: scales images to another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from .image_base import (
    ImageOp,
    ImageStage,
    Interpolations,
    Key,
    Size,
    check_antialias,
    check_interpolated_fields,
    check_interpolation,
    check_size,
    interpolation_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOp(ImageOp):
    """Resizes to ``height`` x ``width``; if both are ``None``, scales the shorter side to ``shorter`` instead."""

    height: int | None
    width: int | None
    shorter: int | None
    interpolation: str
    antialias: bool

    @property
    def name(self) -> str:
        return f"resize ({self.interpolation})"

    def size(self, height: int, width: int) -> Size:
        if self.shorter is None:
            assert self.height is not None
            assert self.width is not None
            return self.height, self.width
        if height <= width:
            return self.shorter, max(self.shorter * width // height, 1)
        return max(self.shorter * height // width, 1), self.shorter


@dataclass(frozen=True)
class Resize(ImageStage):
    """Resizes images to a size, or, if ``size`` is an integer, scales the shorter side to that length."""

    verb: ClassVar[str] = "resize"
    resizes: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (1, 1))
    patterns: tuple[str, ...]
    size: int | Size
    interpolation: Interpolations = "bilinear"
    antialias: bool = True

    def check(self) -> None:
        check_size(self.verb, self.size if isinstance(self.size, tuple) else (self.size, self.size))
        check_interpolation(self.verb, self.interpolation)
        check_antialias(self.verb, self.antialias)

    def check_columns(self, outputs: Sequence[OutputField]) -> None:
        check_interpolated_fields(self.verb, self.interpolation, outputs)

    def operation(self, output: OutputField, key: Key | None) -> ResizeOp:
        height, width = self.size if isinstance(self.size, tuple) else (None, None)
        return ResizeOp(
            height=height,
            width=width,
            shorter=None if isinstance(self.size, tuple) else self.size,
            interpolation=interpolation_of(self.verb, self.interpolation, output),
            antialias=self.antialias,
        )

    def shape_after(self, op: ImageOp, output: OutputField) -> tuple[int | None, ...]:
        return self.size if isinstance(self.size, tuple) else super().shape_after(op, output)
