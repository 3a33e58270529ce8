"""Reads a dataset by an installed wheel that holds the core and the op, in an environment with TensorFlow and without a compiler.

`make check-dist` runs it with each TensorFlow that the wheel is for. It fails where the op had to be compiled.
"""

from __future__ import annotations

import shutil
import sys
import tempfile

import numpy as np
import tensorflow as tf

from parquetry import ParquetDataset, Unischema, UnischemaField, write_dataset
from parquetry.common.base.native.library import is_compiled
from parquetry.tf_plugin.build import PACKAGE, library_path

assert "site-packages" in str(PACKAGE), f"expected the installed package, got {PACKAGE}"
assert not any(map(shutil.which, ("g++", "c++", "clang++", "cc"))), "expected no compiler on the path"
with tempfile.TemporaryDirectory() as url:
    write_dataset(url, Unischema("rows", [UnischemaField("id", np.int64)]), ({"id": n} for n in range(100)))
    batches = list(ParquetDataset(url).shuffle(10, seed=1).batch(8))
assert sorted(number for batch in batches for number in batch["id"].numpy().tolist()) == list(range(100))
assert library_path().parent == PACKAGE, f"expected the op of the wheel, got {library_path()}"
assert is_compiled(), "expected the compiled core of the wheel"
print(f"Python {sys.version.split()[0]}, TensorFlow {tf.__version__}: reads by {library_path().name}")
