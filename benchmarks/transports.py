"""Compares the native op with ``transport="arrow"``: the same batches, read in turn, as a ratio.

``python benchmarks/transports.py`` needs TensorFlow 2.16 (tensorflow-io) or 2.17 (the stream read through pyarrow). It
prints the rows/s of both, and the median ratio of neighboring runs, which is less sensitive to noise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np

from parquetry.common import CompressedImageCodec, Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset


def write_images(url: str, rows: int) -> None:
    """Writes JPEG photographs, or images that look like them to a decoder."""
    fields = [
        UnischemaField("image", np.uint8, (375, 500, 3), CompressedImageCodec("jpeg")),
        UnischemaField("id", np.int64),
    ]
    ramp = np.add.outer(np.arange(375), np.arange(500))[..., None] + np.arange(3) * 40
    write_dataset(
        url,
        Unischema("images", fields),
        ({"image": ((ramp + n) % 256).astype(np.uint8), "id": n} for n in range(rows)),
        row_group_rows=128,
    )


def write_numbers(url: str, rows: int) -> None:
    """Writes a warehouse table with eight columns."""
    fields = [UnischemaField(f"x{number}", np.float32) for number in range(8)]
    values = np.random.default_rng(0).random((rows, 8), dtype=np.float32)
    stream = ({f"x{number}": row[number] for number in range(8)} for row in values)
    write_dataset(url, Unischema("numbers", fields), stream, row_group_rows=20_000)


def rows_per_second(dataset: ParquetDataset, field: str) -> float:
    """Returns the rows per second of one iteration, first batch included."""
    began, rows = time.perf_counter(), 0
    for batch in dataset:
        rows += int(batch[field].shape[0])
    return rows / (time.perf_counter() - began)


def compare(url: str, field: str, batch: int, pairs: int) -> tuple[float, float, float]:
    """Returns the medians of both rates and of their ratios."""
    native = ParquetDataset(url).shuffle(1_000, seed=1).batch(batch)
    arrow = ParquetDataset(url, transport="arrow").shuffle(1_000, seed=1).batch(batch)
    for dataset in (native, arrow):  # start processes and fill the page cache
        rows_per_second(dataset, field)
    found = [(rows_per_second(native, field), rows_per_second(arrow, field)) for _ in range(pairs)]
    ratios = [stream / op for op, stream in found]
    return statistics.median(op for op, _ in found), statistics.median(at for _, at in found), statistics.median(ratios)


def main() -> None:
    """Measures both workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2_000, help="rows of the image dataset")
    parser.add_argument("--numbers", type=int, default=200_000, help="rows of the numeric dataset")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each, in turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        images, numbers = f"{directory}/images", f"{directory}/numbers"
        write_images(images, options.images)
        write_numbers(numbers, options.numbers)
        print(f"{'':28}{'native op':>14}{'arrow':>14}{'ratio':>8}")
        for name, url, field, batch in (
            ("JPEG 500 x 375, batch 64", images, "id", 64),
            ("8 numbers, batch 1024", numbers, "x0", 1024),
        ):
            op, stream, ratio = compare(url, field, batch, options.pairs)
            print(f"{name:28}{op:>12,.0f}/s{stream:>12,.0f}/s{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
