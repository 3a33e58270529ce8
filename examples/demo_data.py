"""Writes the demo's two datasets from scikit-learn's sample data: handwritten digits, and drives past two photographs.

The digits are PNG images in partitions ``split=train`` and ``split=test``. The drives are JPEG frames with
timestamps, one partition per photograph.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_sample_images
from tqdm import tqdm

from parquetry.common import CompressedImageCodec, Unischema, UnischemaField, write_dataset

DIGITS = Unischema(
    "digits",
    [
        UnischemaField("image", np.uint8, (8, 8, 1), CompressedImageCodec("png"), dims=("H", "W", "C")),
        UnischemaField("label", np.int64),
        UnischemaField("split", str),
    ],
)

FRAME_SHAPE = (96, 128, 3)
FRAMES_PER_DRIVE = 60
FRAME_MS = 100
PAUSE_MS = 3_000  # in the middle of each drive; no window may cross it

DRIVES = Unischema(
    "drives",
    [
        UnischemaField("drive", str),
        UnischemaField("time_ms", np.int64),
        UnischemaField("frame", np.uint8, FRAME_SHAPE, CompressedImageCodec("jpeg", 90), dims=("H", "W", "C")),
        UnischemaField("position", np.float32, (2,)),
    ],
)


def write_digits(directory: Path) -> None:
    """Writes 1,797 handwritten digits; every fifth one goes to the test split."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 8, 8, 1) * 255 / 16).round().astype(np.uint8)
    rows = (
        {"image": image, "label": label, "split": "test" if number % 5 == 4 else "train"}
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True))
    )
    shown = tqdm(rows, "writing digits", total=len(labels), unit="row", leave=False)
    write_dataset(directory, DIGITS, shown, row_group_rows=128, partition_by=("split",), files=2)


def write_drives(directory: Path) -> None:
    """Writes the frames of a camera that pans over each photograph at ten frames a second, with one pause."""
    photographs = load_sample_images()
    rows = (
        row
        for path, photograph in zip(photographs.filenames, photographs.images, strict=True)
        for row in _frames(Path(path).stem, photograph)
    )
    total = FRAMES_PER_DRIVE * len(photographs.images)
    shown = tqdm(rows, "writing drives", total=total, unit="frame", leave=False)
    write_dataset(directory, DRIVES, shown, row_group_rows=16, partition_by=("drive",))


def _frames(drive: str, photograph: np.ndarray) -> Iterator[dict[str, Any]]:
    height, width, _ = FRAME_SHAPE
    reach = np.array([photograph.shape[0] - height, photograph.shape[1] - width])
    for number in range(FRAMES_PER_DRIVE):
        turn = 2 * np.pi * number / FRAMES_PER_DRIVE
        top, left = (reach * (0.5 + 0.5 * np.array([np.sin(turn), np.cos(turn)]))).astype(int)
        pause = PAUSE_MS if number >= FRAMES_PER_DRIVE // 2 else 0
        yield {
            "drive": drive,
            "time_ms": number * FRAME_MS + pause,
            "frame": photograph[top : top + height, left : left + width],
            "position": np.array([left, top], dtype=np.float32),
        }
