"""Loader workers forked while threads are reading: none waits for a lock that is never released."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import PATIENCE_S

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


@pytest.mark.slow
def test_workers_beside_threads_that_read_do_not_hang(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _READ, url, "20"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "done\n", done.stderr
