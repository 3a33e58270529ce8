"""`ImageVerbs`: the verbs for images, shared by all dataset classes."""

from __future__ import annotations

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
from .field_verbs import FieldVerbs, seed_or_drawn

if TYPE_CHECKING:
    from typing import Self


class ImageVerbs(FieldVerbs):
    """Verbs on images.

    Images are fields of shape ``(H, W)`` or ``(H, W, C)``. A ``field`` is a name, a regex, or a list of them; several
    fields, such as an image and its mask, share each random draw. Draws depend only on the seed, the epoch, and the row
    (for a window, its first row). ``seed=None`` follows the shuffle's seed, or picks a random seed now and stores
    it.
    """

    def resize(
        self,
        field: FieldNames,
        size: int | Sequence[int],
        *,
        interpolation: str | Mapping[str, str] = "bilinear",
        antialias: bool = True,
    ) -> Self:
        """Resizes images.

            >>> next(iter(drive.resize("image", (2, 2)).batch(8)))["image"].shape
            (8, 2, 2, 3)

        Args:
            size: ``(height, width)``, or one length for the shorter side, which keeps the aspect ratio.
            interpolation: ``"bilinear"``, ``"bicubic"``, ``"area"`` (averages when shrinking; JPEGs are then decoded no
                larger than needed) or ``"nearest"``; or a dict with one per field, such as ``{"mask": "nearest"}``;
                fields that are not in it use bilinear.
            antialias: whether ``"bilinear"`` and ``"bicubic"`` take all pixels into account when they shrink an image,
                as Pillow and torchvision do. Otherwise, they take the nearest 2 x 2 or 4 x 4, as OpenCV and
                ``tf.image.resize`` do.

        Raises:
            PipelineError: a field is not an image, or its dtype does not support the interpolation.
        """
        return self._with_stage(
            Resize(required_names("resize", field), size, as_interpolation(interpolation), antialias)  # type: ignore[arg-type]  # checked there
        )

    def random_resized_crop(
        self,
        field: FieldNames,
        size: int | Sequence[int],
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str | Mapping[str, str] = "bilinear",
        antialias: bool = True,
        seed: int | None = None,
    ) -> Self:
        """Crops a random part of each image and resizes it to ``size``: ``(height, width)``, or a number for a square.

            >>> cropped = drive.random_resized_crop("image", 3, scale=(0.5, 1.0), seed=1)
            >>> next(iter(cropped.batch(8)))["image"].shape
            (8, 3, 3, 3)

        Args:
            scale: the smallest and largest fraction of the image's area.
            ratio: the smallest and largest width / height of the part, before it is resized.
            interpolation, antialias: as for `resize`.

        Raises:
            PipelineError: a field is not an image, a scale or ratio is out of range, or images are known to differ in
                size.
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
                antialias,
                drawn,
            )
        )

    def center_crop(self, field: FieldNames, size: int | Sequence[int]) -> Self:
        """Crops the middle of each image to ``size``.

            >>> next(iter(drive.center_crop("image", (2, 3)).batch(8)))["image"].shape
            (8, 2, 3, 3)

        Raises:
            PipelineError, DecodeError: an image is smaller than ``size``.
        """
        return self._with_stage(CenterCrop(required_names("center_crop", field), as_size(size)))

    def random_crop(self, field: FieldNames, size: int | Sequence[int], *, seed: int | None = None) -> Self:
        """Crops each image to ``size`` at a random position.

            >>> next(iter(drive.random_crop("image", (2, 3), seed=1).batch(8)))["image"].shape
            (8, 2, 3, 3)

        Raises:
            PipelineError, DecodeError: an image is smaller than ``size``.
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
        """Mirrors images with the given probability; ``"horizontal"`` swaps left and right.

            >>> image = next(iter(drive))["image"]
            >>> flipped = next(iter(drive.random_flip("image", probability=1.0)))["image"]
            >>> np.array_equal(flipped, image[:, ::-1])
            True

        Raises:
            PipelineError: a field is not an image, the axis is unknown, or the probability is not in [0, 1].
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
        """Computes ``(value * scale - mean) / std`` for every channel, in ``dtype``.

            >>> normal = next(iter(drive.normalize("image", mean=0.5, std=0.25)))["image"]
            >>> normal.dtype.name, float(normal[0, 0, 0])
            ('float32', -2.0)

        Args:
            mean, std: one number per channel, or one for all, in the units after ``scale``.
            scale: 1/255 maps bytes to the range 0 to 1.

        Raises:
            PipelineError: a field is not an image, mean or std does not fit its channels, or the dtype is unsupported.
        """
        numbers = as_numbers("mean", mean), as_numbers("std", std)
        name: Any = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else dtype
        return self._with_stage(Normalize(required_names("normalize", field), *numbers, name, scale))
