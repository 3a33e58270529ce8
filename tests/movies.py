"""Datasets of painted frames: each shows its own number, so that a reader can be checked by what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parquetry.common import Unischema, UnischemaField, VideoCodec, write_dataset

HEIGHT, WIDTH = 32, 64
_BITS = 8


def painted(number: int) -> np.ndarray:
    """Returns a frame with a number up to 255 painted in; uint8 ``(32, 64, 3)``."""
    frame = np.full((HEIGHT, WIDTH, 3), 30 + number % 90, np.uint8)
    for bit in range(_BITS):
        frame[:16, 8 * bit : 8 * bit + 8] = 255 if (number >> bit) & 1 else 0
    return frame


def number_of(frame: Any) -> int:
    """Returns the number that is painted in a frame."""
    frame = np.asarray(frame)
    return sum(int(frame[4:12, 8 * bit + 2 : 8 * bit + 6].mean() > 127) << bit for bit in range(_BITS))


def numbers_of(frames: Any) -> list[Any]:
    """Returns the numbers painted in frames with any leading axes."""
    frames = np.asarray(frames)
    return (
        [number_of(frames)]
        if frames.ndim == 3
        else [number_of(frame) for frame in frames.reshape(-1, *frames.shape[-3:])]
    )


def front(codec: str = "h264", gop: int = 4, **options: Any) -> UnischemaField:
    """Returns a field of painted frames."""
    return UnischemaField("front", np.uint8, (HEIGHT, WIDTH, 3), VideoCodec(codec, gop=gop), **options)


def write_movie(directory: Path, numbers: Sequence[int] = range(60), **options: Any) -> str:
    """Writes rows of an ``id`` and a frame ``front`` that shows it, in row groups of 20. Returns the directory."""
    field = options.pop("field", front())
    schema = Unischema("movie", [UnischemaField("id", np.int64), field])
    rows = ({"id": number, "front": painted(number)} for number in numbers)
    write_dataset(directory, schema, rows, **{"row_group_rows": 20, **options})
    return str(directory)
