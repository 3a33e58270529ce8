"""Makes the pictures of the image workloads: crops of two photographs, the same each time.

Takes a number of pictures and their shape; yields uint8 arrays ``(H, W, 3)``, all different.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .workloads import SEED

_ROOM = 32  # pixels by which crops of a mirrored photograph may differ


def photographs(rows: int, shape: tuple[int, int, int]) -> Iterator[np.ndarray]:
    """Yields crops of two photographs, all different; photographs that are too small are mirrored at their edges."""
    sources = [_mirrored(source, shape) for source in _sources()]
    random = np.random.default_rng(SEED)
    for number in range(rows):
        source = sources[number % len(sources)]
        top = random.integers(source.shape[0] - shape[0] + 1)
        left = random.integers(source.shape[1] - shape[1] + 1)
        yield np.ascontiguousarray(source[top : top + shape[0], left : left + shape[1]])


def _mirrored(source: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns a picture with room for crops; mirroring keeps the detail of each pixel, enlarging would not."""
    missing = [max(0, wanted - length) for wanted, length in zip(shape, source.shape, strict=True)]
    return np.pad(source, [(0, more + _ROOM if more else 0) for more in missing], mode="symmetric")


def _sources() -> list[np.ndarray]:
    """Returns scikit-learn's two photographs, or without scikit-learn, two pictures with about as much detail."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return [_picture(np.random.default_rng(number)) for number in range(2)]
    images: list[np.ndarray] = load_sample_images().images
    return images


def _picture(random: np.random.Generator) -> np.ndarray:
    """Returns noise at every scale, weaker at finer scales: its JPEG is about as large as a photograph's."""
    height, width = 427, 640
    pixels = np.full((height, width, 3), 128.0)
    for cell in (128, 64, 32, 16, 8, 4, 2):
        coarse = random.standard_normal((height // cell + 2, width // cell + 2, 3))
        pixels += 4.0 * cell**0.5 * coarse.repeat(cell, 0).repeat(cell, 1)[:height, :width]
    return pixels.clip(0, 255).astype(np.uint8)
