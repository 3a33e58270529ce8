"""Loader workers forked while threads are reading: none waits for a lock that is never released."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import PATIENCE_S, run_python

_READ = """
import os, sys, threading
from torch.utils.data import DataLoader
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetPipe
url, passes = sys.argv[1], int(sys.argv[2])

def read_whole():
    while True:
        for _ in ParquetIterable(url, ["id", "drive", "x"], workers=2).shuffle(seed=1).batch(4): pass

def begin_only():
    while True:
        next(iter(ParquetIterable(url, workers=2).shuffle(seed=1)))

def by_number():
    while True:
        ParquetMap(url, ["id"])[7]

for target in (read_whole, begin_only, by_number):
    threading.Thread(target=target, daemon=True).start()
for seed in range(passes):
    for dataset in (ParquetIterable(url, ["id", "image"]).shuffle(seed=seed), ParquetPipe(url, ["id"]).take(20)):
        count = sum(1 for _ in DataLoader(dataset, batch_size=None, num_workers=2))
        assert count == len(dataset), count
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.nightly
def test_workers_beside_threads_that_read_do_not_hang(url: str) -> None:
    done = run_python("-W", "ignore", "-c", _READ, url, "20")
    assert done.stdout == "done\n", done.stderr


_COLLECT = """
import gc, os, sys
import tensorflow as tf
from torch.utils.data import DataLoader
from parquetry import ParquetIterable, ParquetMap

def collects(row):
    gc.collect()
    return row

def leave():
    iterator = iter(tf.data.Dataset.range(1000).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2))
    next(iterator)
    cycle = [iterator]
    cycle.append(cycle)

gc.collect()
gc.disable()
leave()
for rows in (ParquetIterable(sys.argv[1], ["id"]), ParquetMap(sys.argv[1], ["id"])):
    print(len(list(DataLoader(rows.transform(collects), batch_size=None, num_workers=1))), flush=True)
os._exit(0)
"""


@pytest.mark.nightly
def test_a_worker_collects_nothing_that_it_inherited(url: str) -> None:
    """In a fork, deleting TensorFlow's iterators hangs, because their threads are not there."""
    pytest.importorskip("tensorflow")
    command = [sys.executable, "-W", "ignore", "-c", _COLLECT, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "60\n60\n", done.stderr
