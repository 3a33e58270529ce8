"""The ops of the C++ library, loaded at first use and once per process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tensorflow as tf

from .build import library_path


@lru_cache(maxsize=1)
def load_ops() -> Any:
    """The module with ``parquetry_parquet_dataset`` and ``parquetry_parquet_dataset_state``."""
    return tf.load_op_library(str(library_path()))
