"""`drives.py` with Hugging Face datasets: the clips are found by hand."""

import numpy as np
import torch
from datasets import Image, load_dataset
from torch.utils.data import DataLoader, Dataset

frames = load_dataset("parquet", data_files="drives/*.parquet", split="train")
frames = frames.cast_column("frame", Image(mode="RGB")).with_format("torch")
columns = frames.with_format("numpy")
drive, time = columns["drive"][:], columns["time_ms"][:]
follows = (drive[1:] == drive[:-1]) & (np.diff(time) <= 150)
starts = np.flatnonzero(np.lib.stride_tricks.sliding_window_view(follows, 4).all(1))


class Clips(Dataset):
    def __len__(self):
        return len(starts)

    def __getitem__(self, number):
        first = int(starts[number])
        rows = frames[first : first + 5]
        return {"frame": rows["frame"][:4], "speed": rows["speed"][4]}


clips = Clips()
print(f"{len(frames)} frames, {len(clips)} clips")

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4 * 48 * 64 * 3, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
for _ in range(3):
    for batch in DataLoader(clips, batch_size=16, shuffle=True):
        loss = torch.nn.functional.mse_loss(model(batch["frame"] / 255)[:, 0], batch["speed"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
