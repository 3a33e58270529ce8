"""The dataset for the examples in this folder: 1,000 tiles, either red (label 0) or green (label 1)."""

import numpy as np

from parquetry import CompressedImageCodec, Unischema, UnischemaField, write_dataset

TILES = Unischema(
    "tiles",
    [
        UnischemaField("image", np.uint8, (16, 16, 3), CompressedImageCodec("png")),
        UnischemaField("label", np.int64),
    ],
)

NUMBERED_TILES = Unischema("numbered tiles", [*TILES, UnischemaField("number", np.int64)])


def write_tiles(url: str) -> str:
    """Writes the tiles and returns the URL."""
    images = [np.full((16, 16, 3), np.eye(3)[label] * 200, np.uint8) for label in range(2)]
    write_dataset(url, TILES, [{"image": images[n % 2], "label": n % 2} for n in range(1_000)], row_group_rows=100)
    return url


def write_numbered_tiles(url: str, tiles: int = 960) -> str:
    """Writes tiles with their numbers, so that several ranks can count which tiles they train on."""
    images = [np.full((16, 16, 3), np.eye(3)[label] * 200, np.uint8) for label in range(2)]
    rows = [{"image": images[n % 2], "label": n % 2, "number": n} for n in range(tiles)]
    write_dataset(url, NUMBERED_TILES, rows, row_group_rows=tiles // 10)
    return url
