"""Drives with gaps: clips of consecutive frames, none across a gap or a drive, and the speed after each clip."""

import torch
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

frames = ParquetIterable("drives")
offsets = {"frame": [0, 1, 2, 3], "speed": 4}
clips = frames.ngram(offsets=offsets, timestamp="time_ms", max_gap=150, group_by="drive")
print(f"{len(frames)} frames, {len(clips)} clips")

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4 * 48 * 64 * 3, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
for _ in range(3):
    for batch in DataLoader(clips.shuffle(1_000, seed=7).batch(16), batch_size=None):
        loss = torch.nn.functional.mse_loss(model(batch["frame"] / 255)[:, 0], batch["speed"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
