"""`petastorm_port.py` with Hugging Face datasets: it sees the stored bytes, so the codec is undone by hand."""

import io

import numpy as np
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader

columns = ["points", "label"]
filters = [("id", "<", 500)]
sweeps = load_dataset("parquet", data_files="sweeps/*.parquet", columns=columns, filters=filters, split="train")


def decode(batch):
    return {**batch, "points": [np.load(io.BytesIO(points)) for points in batch["points"]]}


loader = DataLoader(sweeps.with_transform(decode), batch_size=50, shuffle=True)

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(3):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["points"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{len(loader)} steps in each epoch, loss {loss.item():.3f}")
