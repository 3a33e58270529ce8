"""Writes a small dataset and trains a torch model from it."""

import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader

from parquetry import CompressedImageCodec, ParquetIterable, Unischema, UnischemaField, write_dataset

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

loader = DataLoader(ParquetIterable(url).shuffle(200, seed=7).batch(64), batch_size=None)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
