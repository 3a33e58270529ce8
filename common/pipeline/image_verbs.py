"""`ImageVerbs`: the verbs for images, and `pack`, the same on `Pipeline` and on every face."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from ..errors import PipelineError
from ..schema.field import UnischemaField
from ..stages.base import Stage
from ..stages.crop import CenterCrop, RandomCrop
from ..stages.image_base import as_interpolation, as_size
from ..stages.normalize import Normalize, as_numbers
from ..stages.pack import Pack
from ..stages.random_flip import RandomFlip
from ..stages.random_resized_crop import RandomResizedCrop
from ..stages.resize import Resize

Carrier = TypeVar("Carrier", bound="ImageVerbs")
Fields = str | UnischemaField | Sequence[str | UnischemaField]


class ImageVerbs:
    """Verbs that need nothing but a way to add a stage.

    Images are fields ``(H, W)`` or ``(H, W, C)``. A ``field`` is a name, a regex, or a list of them; several fields get
    the same random draw, an image and its mask for instance. Draws depend on the seed, the epoch, and the row (of a
    window: its first row), and on nothing else. ``seed=None`` follows the shuffle's seed, or draws one here.
    """

    def _with_stage(self: Carrier, stage: Stage) -> Carrier:
        raise NotImplementedError

    def resize(
        self: Carrier, field: Fields, size: int | Sequence[int], *, interpolation: str | Mapping[str, str] = "bilinear"
    ) -> Carrier:
        """Images of another size.

        Args:
            size: ``(height, width)``; or one length, for the shorter side, keeping proportions.
            interpolation: ``"bilinear"`` (of the four nearest pixels), ``"area"`` (averages where it shrinks; JPEG is
                then decoded no larger than needed), ``"bicubic"`` or ``"nearest"``; or one for each field that wants
                another than bilinear, such as ``{"mask": "nearest"}``.
        """
        return self._with_stage(Resize(_fields("resize", field), size, as_interpolation(interpolation)))  # type: ignore[arg-type]  # checked there

    def random_resized_crop(
        self: Carrier,
        field: Fields,
        size: int | Sequence[int],
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str | Mapping[str, str] = "bilinear",
        seed: int | None = None,
    ) -> Carrier:
        """A random part of each image, resized to ``size`` (``(height, width)``, or one number for a square).

        Args:
            scale: smallest and largest share of the image's area.
            ratio: smallest and largest width / height of the part, before it is resized.
            interpolation: as for `resize`.
        """
        verb = "random_resized_crop"
        chosen, drawn = _seed(seed)
        return self._with_stage(
            RandomResizedCrop(
                _fields(verb, field),
                as_size(size),
                chosen,
                scale,  # type: ignore[arg-type]  # checked there, as are the others
                ratio,  # type: ignore[arg-type]
                as_interpolation(interpolation),
                drawn,
            )
        )

    def center_crop(self: Carrier, field: Fields, size: int | Sequence[int]) -> Carrier:
        """The middle of each image; one that is smaller than ``size`` is an error."""
        return self._with_stage(CenterCrop(_fields("center_crop", field), as_size(size)))

    def random_crop(self: Carrier, field: Fields, size: int | Sequence[int], *, seed: int | None = None) -> Carrier:
        """A random part of ``size`` of each image; one that is smaller than ``size`` is an error."""
        chosen, drawn = _seed(seed)
        return self._with_stage(RandomCrop(_fields("random_crop", field), as_size(size), chosen, drawn))

    def random_flip(
        self: Carrier,
        field: Fields,
        axis: Literal["horizontal", "vertical"] = "horizontal",
        probability: float = 0.5,
        *,
        seed: int | None = None,
    ) -> Carrier:
        """Images mirrored with some probability; ``"horizontal"`` swaps left and right."""
        chosen, drawn = _seed(seed)
        return self._with_stage(RandomFlip(_fields("random_flip", field), chosen, axis, probability, drawn))

    def normalize(
        self: Carrier,
        field: Fields,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        dtype: Literal["float32", "float16"] = "float32",
        *,
        scale: float = 1 / 255,
    ) -> Carrier:
        """``(value * scale - mean) / std`` of every channel, in ``dtype``.

        Args:
            mean, std: one number for each channel, or one for all, in the units after ``scale``.
            scale: 1/255 takes bytes to 0 ... 1.
        """
        numbers = as_numbers("normalize", "mean", mean), as_numbers("normalize", "std", std)
        name: Any = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else dtype
        return self._with_stage(Normalize(_fields("normalize", field), *numbers, name, scale))

    def pack(self: Carrier, name: str, fields: Fields, dtype: Any = None, *, keep: bool = False) -> Carrier:
        """Many numeric fields (scalars or vectors of fixed length) as one vector field ``name``, ``[B, K]`` in a batch.

        Args:
            fields: names or regexes, in the order wanted (those of a regex in the schema's order).
            dtype: of the vector; if not given, the smallest that holds all of them as numpy promotes types.
            keep: whether the fields remain beside it.
        """
        try:
            wanted = None if dtype is None else np.dtype(dtype)
        except TypeError as error:
            raise PipelineError(f"pack '{name}': expected a numeric dtype, got {dtype!r}.") from error
        if wanted is not None and wanted.kind not in "biuf":
            raise PipelineError(f"pack '{name}': expected a numeric dtype, got {dtype!r}.")
        return self._with_stage(Pack(name, _fields("pack", fields), None if wanted is None else wanted.name, keep))


def _fields(verb: str, field: Any) -> tuple[str, ...]:
    listed = (field,) if isinstance(field, str | UnischemaField) else tuple(field)
    names = tuple(item.name if isinstance(item, UnischemaField) else item for item in listed)
    if not names or not all(isinstance(name, str) for name in names):
        raise PipelineError(f"{verb}: expected a field name or regex, or a list of them, got {field!r}.")
    return names


def _seed(seed: int | None) -> tuple[int, bool]:
    return (secrets.randbits(62), True) if seed is None else (seed, False)
