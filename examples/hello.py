"""Writes a small Parquet file and reads batches of tensors from it: the first example of the README."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

# Any Parquet will do. Here is a small file.
rng = np.random.default_rng(7)
columns = {
    "price": rng.normal(20, 15, 5_000),
    "clicks": rng.integers(0, 30, 5_000),
    "label": rng.integers(0, 2, 5_000),
}
pq.write_table(pa.table(columns), "events.parquet")

events = (
    ParquetIterable("events.parquet")
    .where(pc.field("price") > 0)
    .pack("features", ["price", "clicks"], "float32")
    .shuffle(10_000, seed=7)
    .batch(256)
)
loader = DataLoader(events, batch_size=None)  # already batches
print(len(loader), "batches")
for step, batch in enumerate(loader):
    if step < 2:
        print(batch["features"].shape, batch["label"][:8])
