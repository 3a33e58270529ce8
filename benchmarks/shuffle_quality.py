"""Prints how well a shuffle mixes for each buffer size: the table in `docs/shuffle.md`.

Run: ``python benchmarks/shuffle_quality.py``. Needs no data: the order is a pure function.
"""

from __future__ import annotations

import numpy as np

from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec
from parquetry.common.plan.order.quality import shuffle_quality

ROW_GROUPS = 1000
ROWS = 100
BATCH = 64
BUFFERS = (1, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
SEEDS = 40


def main() -> None:
    """Measures one epoch of many seeds for each buffer size."""
    items_before = np.arange(ROW_GROUPS + 1) * ROWS
    print(f"{ROW_GROUPS * ROWS:,} rows in {ROW_GROUPS:,} row groups of {ROWS}, batches of {BATCH}, {SEEDS} seeds:\n")
    print("| buffer_size | rank correlation | displacement | row groups in a batch | least |")
    print("|---|---|---|---|---|")
    for buffer_size in BUFFERS:
        orders = [EpochOrder(items_before, OrderSpec(seed=seed, buffer_size=buffer_size), 0) for seed in range(SEEDS)]
        measured = [found for order in orders if (found := shuffle_quality(order, items_before, BATCH)) is not None]
        correlation = np.array([each.rank_correlation for each in measured])
        displacement = np.array([each.displacement for each in measured])
        print(
            f"| {buffer_size:,} | {correlation.mean():.3f} ± {correlation.std():.3f} | "
            f"{displacement.mean():.2f} ± {displacement.std():.2f} | "
            f"{np.mean([each.row_groups_per_batch for each in measured]):.1f} of "
            f"{measured[0].row_groups_per_batch_full:.1f} | "
            f"{min(each.row_groups_per_batch_least for each in measured)} |"
        )


if __name__ == "__main__":
    main()
