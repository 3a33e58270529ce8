"""How fast JPEG batches come out, as a share of what the decoder alone can do on this machine.

Writes 1,024 JPEG photographs of 500 x 375 pixels to a temporary dataset, then measures, in turn and several times:
the decoder alone (bytes in memory, one thread for each processor, reused buffers), and each way to read the dataset,
shuffled, in batches of 64, in the steady state. Prints the median of each, and the median of its ratio to the limit of
the same round. ``--json`` also writes the figures to ``bench-results/quick.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import simplejpeg
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader
from tqdm import tqdm

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.iteration import usable_processors
from parquetry.tf_plugin import ParquetDataset
from parquetry.torch_plugin import ParquetPipe

ROWS = 1_024
SHAPE = (375, 500, 3)
QUALITY = 85
BATCH_SIZE = 64
WARM_UP_BATCHES = 16
TIMED_BATCHES = 48
LIMIT = "the decoder alone"

Measure = Callable[[], float]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="write bench-results/quick.json as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        images = _photographs()
        _write(directory, images)
        measures = _measures(directory, images)
        figures: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(arguments.rounds):
            for name, measure in tqdm(measures.items(), "measuring", leave=False):
                figures[name].append(measure())
    _print(figures)
    if arguments.json:
        results = Path("bench-results")
        results.mkdir(exist_ok=True)
        (results / "quick.json").write_text(json.dumps(figures, indent=2))


def _photographs() -> list[np.ndarray]:
    """Crops of two real photographs, each one different."""
    photographs = load_sample_images().images
    random = np.random.default_rng(7)
    crops = []
    for number in range(ROWS):
        photograph = photographs[number % len(photographs)]
        top = random.integers(photograph.shape[0] - SHAPE[0] + 1)
        left = random.integers(photograph.shape[1] - SHAPE[1] + 1)
        crops.append(photograph[top : top + SHAPE[0], left : left + SHAPE[1]])
    return crops


def _write(directory: str, images: list[np.ndarray]) -> None:
    image = UnischemaField("image", np.uint8, SHAPE, CompressedImageCodec("jpeg", QUALITY))
    rows = ({"image": pixels} for pixels in tqdm(images, "writing", unit="row", leave=False))
    write_dataset(directory, Unischema("photographs", [image]), rows, row_group_rows=64)


def _measures(url: str, images: list[np.ndarray]) -> dict[str, Measure]:
    pipeline = Pipeline(url).shuffle(256, seed=7).batch(BATCH_SIZE).repeat()
    pipe = ParquetPipe.from_pipeline(pipeline)
    workers = usable_processors()
    endless: dict[str, Callable[[], Iterator[Any]]] = {
        "Pipeline, threads": lambda: iter(pipeline.with_options(executor="threads")),
        "Pipeline, sidecar": lambda: iter(pipeline.with_options(executor="sidecar")),
        "ParquetDataset": lambda: iter(ParquetDataset.from_pipeline(pipeline)),
        "ParquetPipe, DataLoader(num_workers=0)": lambda: iter(DataLoader(pipe, batch_size=None)),
        f"ParquetPipe, DataLoader(num_workers={workers})": lambda: iter(
            # Not forked: TensorFlow lives in this process.
            DataLoader(pipe, batch_size=None, num_workers=workers, multiprocessing_context="spawn")
        ),
    }
    encoded = [simplejpeg.encode_jpeg(np.ascontiguousarray(image), QUALITY, "RGB", "420") for image in images]
    limit: dict[str, Measure] = {LIMIT: partial(_decoder_alone, encoded, workers)}
    return limit | {name: partial(_rows_per_s, open_iterator) for name, open_iterator in endless.items()}


def _rows_per_s(open_iterator: Callable[[], Iterator[Any]]) -> float:
    batches = open_iterator()
    for _ in islice(batches, WARM_UP_BATCHES):
        pass
    started = time.perf_counter()
    for _ in islice(batches, TIMED_BATCHES):
        pass
    return TIMED_BATCHES * BATCH_SIZE / (time.perf_counter() - started)


def _decoder_alone(encoded: list[bytes], threads: int) -> float:
    buffers = np.ones((threads, BATCH_SIZE, *SHAPE), np.uint8)  # written once, so that no page is new when it counts

    def decode_share(thread: int, batches: int) -> None:
        for number in range(thread, batches * BATCH_SIZE, threads):
            buffer = buffers[thread, number // threads % BATCH_SIZE]
            simplejpeg.decode_jpeg(encoded[number % len(encoded)], "RGB", buffer=buffer)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(partial(decode_share, batches=WARM_UP_BATCHES), range(threads)))
        started = time.perf_counter()
        list(pool.map(partial(decode_share, batches=TIMED_BATCHES), range(threads)))
        return TIMED_BATCHES * BATCH_SIZE / (time.perf_counter() - started)


def _print(figures: dict[str, list[float]]) -> None:
    title = f"JPEG {SHAPE[1]} x {SHAPE[0]}, batches of {BATCH_SIZE}, {usable_processors()} processors"
    table = Table("reading by", title=title)
    for heading in ("rows/s", "of the limit"):
        table.add_column(heading, justify="right")
    for name, speeds in figures.items():
        ratios = [speed / limit for speed, limit in zip(speeds, figures[LIMIT], strict=True)]
        table.add_row(name, f"{statistics.median(speeds):,.0f}", f"{statistics.median(ratios):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
