"""`ImageVerbs`: the verbs for images, the same on `Pipeline` and on every face."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..stages.base import FieldNames, required_names
from ..stages.crop import CenterCrop, RandomCrop
from ..stages.image_base import as_interpolation, as_size
from ..stages.normalize import Normalize, as_numbers
from ..stages.random_flip import RandomFlip
from ..stages.random_resized_crop import RandomResizedCrop
from ..stages.resize import Resize
from .field_verbs import FieldVerbs

if TYPE_CHECKING:
    from typing_extensions import Self


class ImageVerbs(FieldVerbs):
    """Verbs on images.

    Images are fields ``(H, W)`` or ``(H, W, C)``. A ``field`` is a name, a regex, or a list of them; several fields get
    the same random draw, an image and its mask for instance. Draws depend on the seed, the epoch, and the row (of a
    window: its first row), and on nothing else. ``seed=None`` follows the shuffle's seed, or draws one here.
    """

    def resize(
        self, field: FieldNames, size: int | Sequence[int], *, interpolation: str | Mapping[str, str] = "bilinear"
    ) -> Self:
        """Images of another size.

            >>> next(iter(drive.resize("image", (2, 2)).batch(8)))["image"].shape
            (8, 2, 2, 3)

        Args:
            size: ``(height, width)``; or one length, for the shorter side, keeping proportions.
            interpolation: ``"bilinear"`` (of the four nearest pixels), ``"area"`` (averages where it shrinks; JPEG is
                then decoded no larger than needed), ``"bicubic"`` or ``"nearest"``; or one for each field that wants
                another than bilinear, such as ``{"mask": "nearest"}``.

        Raises:
            PipelineError: a field that is no image, or whose dtype the interpolation cannot mix.
        """
        return self._with_stage(Resize(required_names("resize", field), size, as_interpolation(interpolation)))  # type: ignore[arg-type]  # checked there

    def random_resized_crop(
        self,
        field: FieldNames,
        size: int | Sequence[int],
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str | Mapping[str, str] = "bilinear",
        seed: int | None = None,
    ) -> Self:
        """A random part of each image, resized to ``size`` (``(height, width)``, or one number for a square).

            >>> cropped = drive.random_resized_crop("image", 3, scale=(0.5, 1.0), seed=1)
            >>> next(iter(cropped.batch(8)))["image"].shape
            (8, 3, 3, 3)

        Args:
            scale: smallest and largest share of the image's area.
            ratio: smallest and largest width / height of the part, before it is resized.
            interpolation: as for `resize`.

        Raises:
            PipelineError: a field that is no image; a scale or ratio out of range; images known to differ in size.
        """
        verb = "random_resized_crop"
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(
            RandomResizedCrop(
                required_names(verb, field),
                as_size(size),
                chosen,
                scale,  # type: ignore[arg-type]  # checked there, as are the others
                ratio,  # type: ignore[arg-type]
                as_interpolation(interpolation),
                drawn,
            )
        )

    def center_crop(self, field: FieldNames, size: int | Sequence[int]) -> Self:
        """The middle of each image, of ``size``.

            >>> next(iter(drive.center_crop("image", (2, 3)).batch(8)))["image"].shape
            (8, 2, 3, 3)

        Raises:
            PipelineError, DecodeError: an image that is smaller than ``size``.
        """
        return self._with_stage(CenterCrop(required_names("center_crop", field), as_size(size)))

    def random_crop(self, field: FieldNames, size: int | Sequence[int], *, seed: int | None = None) -> Self:
        """A random part of each image, of ``size``.

            >>> next(iter(drive.random_crop("image", (2, 3), seed=1).batch(8)))["image"].shape
            (8, 2, 3, 3)

        Raises:
            PipelineError, DecodeError: an image that is smaller than ``size``.
        """
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(RandomCrop(required_names("random_crop", field), as_size(size), chosen, drawn))

    def random_flip(
        self,
        field: FieldNames,
        axis: Literal["horizontal", "vertical"] = "horizontal",
        probability: float = 0.5,
        *,
        seed: int | None = None,
    ) -> Self:
        """Images mirrored with some probability; ``"horizontal"`` swaps left and right.

            >>> image = next(iter(drive))["image"]
            >>> flipped = next(iter(drive.random_flip("image", probability=1.0)))["image"]
            >>> np.array_equal(flipped, image[:, ::-1])
            True

        Raises:
            PipelineError: a field that is no image; another axis; a probability beyond 0 ... 1.
        """
        chosen, drawn = seed_or_drawn(seed)
        return self._with_stage(RandomFlip(required_names("random_flip", field), chosen, axis, probability, drawn))

    def normalize(
        self,
        field: FieldNames,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        dtype: Literal["float32", "float16"] = "float32",
        *,
        scale: float = 1 / 255,
    ) -> Self:
        """``(value * scale - mean) / std`` of every channel, in ``dtype``.

            >>> normal = next(iter(drive.normalize("image", mean=0.5, std=0.25)))["image"]
            >>> normal.dtype.name, float(normal[0, 0, 0])
            ('float32', -2.0)

        Args:
            mean, std: one number for each channel, or one for all, in the row_groups after ``scale``.
            scale: 1/255 takes bytes to 0 ... 1.

        Raises:
            PipelineError: a field that is no image; a mean or std that does not fit its channels; another dtype.
        """
        numbers = as_numbers("normalize", "mean", mean), as_numbers("normalize", "std", std)
        name: Any = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else dtype
        return self._with_stage(Normalize(required_names("normalize", field), *numbers, name, scale))


def seed_or_drawn(seed: int | None) -> tuple[int, bool]:
    """A seed, and whether it was drawn here because nobody chose one."""
    return (secrets.randbits(62), True) if seed is None else (seed, False)
