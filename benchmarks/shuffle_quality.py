"""Prints how well a shuffle mixes for each buffer size: the table in `docs/shuffle.md`.

Run: ``python benchmarks/shuffle_quality.py``. Needs no data: the order is a pure function.
"""

from __future__ import annotations

import numpy as np

from parquetry.common.order.epoch import EpochOrder, OrderSpec
from parquetry.common.order.quality import shuffle_quality

ROW_GROUPS = 1000
ROWS = 100
BATCH = 64
BUFFERS = (1, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)


def main() -> None:
    """Measures one epoch for each buffer size."""
    items_before = np.arange(ROW_GROUPS + 1) * ROWS
    print(f"{ROW_GROUPS * ROWS:,} rows in {ROW_GROUPS:,} row groups of {ROWS}, batches of {BATCH}:\n")
    print("| buffer_size | rank correlation | displacement | row groups in a batch |")
    print("|---|---|---|---|")
    for buffer_size in BUFFERS:
        order = EpochOrder(items_before, OrderSpec(seed=0, buffer_size=buffer_size), 0)
        quality = shuffle_quality(order, items_before, BATCH)
        assert quality is not None
        print(
            f"| {buffer_size:,} | {quality.rank_correlation:.3f} | {quality.displacement:.2f} | "
            f"{quality.row_groups_per_batch:.1f} of {quality.row_groups_per_batch_full:.1f} |"
        )


if __name__ == "__main__":
    main()
