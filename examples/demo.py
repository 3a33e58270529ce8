"""Writes arrays to Parquet, then trains a Keras model and a torch model from the same files.

Run it with ``make demo``. It needs the extras ``tensorflow``, ``torch`` and ``demo``, and takes about a minute. It
does not use the network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's startup logs would bury the demo's output

import demo_data
import demo_keras
import demo_torch
import numpy as np
import pyarrow.compute as pc
from demo_report import print_results
from rich.console import Console

from parquetry.common import Pipeline

REQUIRED_ACCURACY = 0.95
EPOCHS = 15
BATCH_SIZE = 64
WINDOW = 4
MAX_GAP_MS = 150


def main() -> int:
    """Runs the demo; returns 0 if both models learned the digits and both frameworks saw the same windows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path("demo-data"), help="where the datasets go (default: %(default)s)"
    )
    data = parser.parse_args().data
    digits, drives = data / "digits", data / "drives"
    console = Console(highlight=False, soft_wrap=True)

    console.rule("1. Write")
    for directory, write in ((digits, demo_data.write_digits), (drives, demo_data.write_drives)):
        shutil.rmtree(directory, ignore_errors=True)
        write(directory)
        files = list(directory.rglob("*.parquet"))
        console.print(f"{directory}: {len(files)} Parquet files, {sum(path.stat().st_size for path in files):,} bytes")

    console.rule("2. Plan")
    train = Pipeline(digits).where(pc.field("split") == "train").shuffle(1_000, seed=7).batch(BATCH_SIZE)
    console.print(train.explain(), markup=False)

    console.rule("3. Windows of consecutive frames")
    same = _show_windows(console, drives)

    console.rule("4. Train")
    results = [module.train_on_digits(digits, EPOCHS, BATCH_SIZE) for module in (demo_keras, demo_torch)]
    print_results(console, results)

    weak = [result.name for result in results if result.accuracy <= REQUIRED_ACCURACY]
    for name in weak:
        console.print(f"{name}: expected a test accuracy over {REQUIRED_ACCURACY:.0%}")
    return 1 if weak or not same else 0


def _show_windows(console: Console, drives: Path) -> bool:
    windows = Pipeline(drives).ngram(length=WINDOW, timestamp="time_ms", max_gap=MAX_GAP_MS, group_by="drive")
    console.print(
        f"{len(Pipeline(drives))} frames, {len(windows)} windows of {WINDOW} frames, none across a pause or a drive"
    )
    in_tf = demo_keras.first_windows(drives, WINDOW, MAX_GAP_MS)
    in_torch = demo_torch.first_windows(drives, WINDOW, MAX_GAP_MS)
    for name in ("frame", "time_ms"):
        console.print(f"  {name}: TensorFlow {list(in_tf[name].shape)}, torch {list(in_torch[name].shape)}")
    same = all(np.array_equal(in_tf[name], in_torch[name].numpy()) for name in ("frame", "time_ms", "position"))
    console.print(f"  same windows, same order, same bytes in both: {'yes' if same else 'NO'}")
    return same


if __name__ == "__main__":
    sys.exit(main())
