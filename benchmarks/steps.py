"""Steps that hand-written loaders share: decoding, augmenting, reading row groups; numpy and Arrow only.

Every contender that lets users choose the JPEG decoder uses these functions, so the benchmark compares loaders rather
than decoders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from .workloads import CROP, CROPPED, DEVIATION, LIDAR_SHAPE, MEAN, SEED

if TYPE_CHECKING:
    import pyarrow as pa

_SCALE = (1 / 255 / np.array(DEVIATION)).astype(np.float32)
_SHIFT = (-np.array(MEAN) / np.array(DEVIATION)).astype(np.float32)
NPY_HEADER_BYTES = 128


def decode(encoded: bytes | np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Decodes a JPEG to uint8 ``(H, W, 3)``, into a buffer if given."""
    image: np.ndarray = simplejpeg.decode_jpeg(encoded, "RGB", buffer=out)
    return image


def as_bytes(cell: pa.Scalar) -> np.ndarray:
    """Returns the bytes of a binary Arrow scalar without a copy."""
    return np.frombuffer(cell.as_buffer(), np.uint8)


def augment(pixels: np.ndarray, random: np.random.Generator, interpolation: str) -> np.ndarray:
    """Random resized crop, random flip, normalize: float32 ``(224, 224, 3)``; with OpenCV, or else with Pillow."""
    area = pixels.shape[0] * pixels.shape[1] * random.uniform(0.08, 1.0)
    ratio = float(np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3))))
    width = min(pixels.shape[1], max(1, round((area * ratio) ** 0.5)))
    height = min(pixels.shape[0], max(1, round((area / ratio) ** 0.5)))
    top = int(random.integers(pixels.shape[0] - height + 1))
    left = int(random.integers(pixels.shape[1] - width + 1))
    small = _resize(pixels[top : top + height, left : left + width], interpolation)
    if random.random() < 0.5:
        small = small[:, ::-1]
    result = small * _SCALE
    result += _SHIFT
    return result


def _resize(pixels: np.ndarray, interpolation: str) -> np.ndarray:
    try:
        import cv2
    except ImportError:
        from PIL import Image

        image = Image.fromarray(np.ascontiguousarray(pixels))
        filters = {"bilinear": Image.Resampling.BILINEAR, "area": Image.Resampling.BOX}
        return np.asarray(image.resize((CROP, CROP), filters[interpolation]))
    cv2.setNumThreads(1)  # the loader's workers are the parallelism
    methods = {"bilinear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA}
    return cv2.resize(pixels, (CROP, CROP), interpolation=methods[interpolation])


def image_row(key: str, encoded: bytes | np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Turns one JPEG into the row of an image workload."""
    pixels = decode(encoded)
    return augment(pixels, random, CROPPED[key]) if key in CROPPED else pixels


def points(stored: bytes | pa.Buffer) -> np.ndarray:
    """Returns the array of ``.npy`` bytes without a copy."""
    return np.frombuffer(stored, np.float32, offset=NPY_HEADER_BYTES).reshape(LIDAR_SHAPE)


def parquet_files(folder: Path) -> list[str]:
    """Returns the data files of a dataset."""
    return sorted(str(path) for path in folder.rglob("*.parquet") if not path.name.startswith("_"))


def row_groups(files: Sequence[str]) -> list[tuple[str, int]]:
    """Returns every row group as its file and number."""
    import pyarrow.parquet as pq

    return [(file, number) for file in files for number in range(pq.read_metadata(file).num_row_groups)]


def permuted(items: Sequence[Any], epoch: int) -> Iterator[Any]:
    """Returns the items in the order of one epoch."""
    for place in np.random.default_rng((SEED, epoch)).permutation(len(items)):
        yield items[place]


def new_image_buffer(rows: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns memory for decoded images, written once so that measurements touch no fresh pages."""
    return np.ones((rows, *shape), np.uint8)
