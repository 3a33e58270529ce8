"""A folder of pictures for each class, read as it is: random crops for training, and a split by file name."""

import torch
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

photos = ParquetIterable.from_image_folder("photos")
train, valid = (photos.hash_split("path", [0.8, 0.2], part) for part in (0, 1))
train = train.shuffle(10_000, seed=7).random_resized_crop("image", 32).random_flip("image")

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32 * 3, 2))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    for batch in DataLoader(train.batch(16), batch_size=None):
        loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

rows = valid.resize("image", (32, 32)).batch(16)
right = [model(batch["image"] / 255).argmax(1) == batch["label"] for batch in rows]
print(f"{torch.cat(right).float().mean():.0%} of the other pictures are right")
