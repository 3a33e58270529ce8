"""Accelerate: `prepare` takes the loader as it is. Run it with `accelerate launch` on as many processes as you like."""

import tempfile

import torch
from accelerate import Accelerator
from tiles import write_tiles
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

accelerator = Accelerator(cpu=True)
loader = DataLoader(ParquetIterable(write_tiles(tempfile.mkdtemp())).shuffle(200, seed=7).batch(50), batch_size=None)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))
model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters()), loader)
for epoch in range(3):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: {len(loader)} batches, loss {loss.item():.3f}")
