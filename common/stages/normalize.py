"""``normalize``: computes ``(value * scale - mean) / std`` for each channel."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import plain
from .image_base import ImageOp, ImageStage, Key, is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizeOp(ImageOp):
    """Computes ``value * multiply - subtract`` for each channel in float32, then casts to ``dtype``."""

    name: ClassVar[str] = "normalize"
    multiply: tuple[float, ...]
    subtract: tuple[float, ...]
    dtype: str


@dataclass(frozen=True)
class Normalize(ImageStage):
    """Computes ``(value * scale - mean) / std`` for each channel."""

    verb: ClassVar[str] = "normalize"
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (0.0,), (1.0,))
    patterns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Literal["float32", "float16"] = "float32"
    scale: float = 1 / 255

    def check(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std), ("scale", (self.scale,))):
            if not values or not all(is_number(value) and math.isfinite(value) for value in values):
                raise PipelineError(f"normalize: expected {name} to be one or more finite numbers, got {values!r}.")
        if 0 in self.std:
            raise PipelineError(f"normalize: expected std other than 0, got {self.std!r}.")

    def operation(self, output: OutputField, key: Key | None) -> NormalizeOp:
        channels = output.shape[2] if len(output.shape) == 3 else 1
        assert channels is not None
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise PipelineError(
                    f"normalize: field '{output.name}': expected {name} to be one number, or {channels} for its "
                    f"channels, got {len(values)}."
                )
        mean = np.broadcast_to(np.asarray(self.mean, np.float64), channels)
        std = np.broadcast_to(np.asarray(self.std, np.float64), channels)
        return NormalizeOp(
            multiply=tuple((self.scale / std).tolist()), subtract=tuple((mean / std).tolist()), dtype=self.dtype
        )

    def dtype_after(self, output: OutputField) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    def shape_after(self, op: ImageOp, output: OutputField) -> tuple[int | None, ...]:
        return output.shape[:2]


def as_numbers(name: str, values: object) -> tuple[float, ...]:
    """Converts one or more numbers to a tuple of floats.

    Raises:
        PipelineError: ``values`` holds anything else.
    """
    plain_values = plain(values)
    listed = plain_values if isinstance(plain_values, tuple) else (plain_values,)
    if not all(is_number(value) for value in listed):
        raise PipelineError(f"normalize: expected {name} to be a number or a sequence of numbers, got {values!r}.")
    return tuple(float(value) for value in listed)
