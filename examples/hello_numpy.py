"""Writes a small dataset and reads it back as numpy batches."""

import tempfile

import numpy as np
import pyarrow.compute as pc

from parquetry import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset

schema = Unischema(
    "tiles",
    [
        UnischemaField("image", np.uint8, (16, 16, 3), CompressedImageCodec("png")),
        UnischemaField("label", np.int64),
    ],
)
# Tiles that are red (label 0) or green (label 1).
rows = [{"image": np.full((16, 16, 3), np.eye(3)[n % 2] * 200, np.uint8), "label": n % 2} for n in range(1_000)]
url = tempfile.mkdtemp()
write_dataset(url, schema, rows, row_group_rows=100)

pipeline = Pipeline(url).where(pc.field("label") == 1).shuffle(200, seed=7).batch(64)
print(pipeline.explain())
for batch in pipeline:
    print(batch["image"].shape, batch["label"][:5])
