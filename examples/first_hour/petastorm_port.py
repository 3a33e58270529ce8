"""A training loop of Petastorm, ported: the dataset stays as Petastorm wrote it."""

import torch
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

# Before: make_reader("file:///sweeps", schema_fields=["points", "label"], predicate=in_lambda(["id"], ...), seed=7)
sweeps = ParquetIterable("sweeps", ["points", "label"]).where([("id", "<", 500)])
loader = DataLoader(sweeps.shuffle(1_000, seed=7).batch(50), batch_size=None)  # petastorm.pytorch.DataLoader before

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(3):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["points"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{len(loader)} steps in each epoch, loss {loss.item():.3f}")
