"""Large values copied around the cache arrive unchanged, and nothing beside them is written."""

from __future__ import annotations

import numpy as np
import pytest

from parquetry.common.base.native.kernels import copy_value


def test_memory_that_must_not_be_written_is_refused() -> None:
    out = np.zeros((1, 100_000), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy_value(np.ones(100_000, np.uint8), out, [0])
