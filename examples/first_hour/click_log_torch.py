"""A click log in PyTorch: nulls, categories, a split by user, and statistics of the training part."""

import torch
from torch.utils.data import DataLoader

from parquetry import ParquetIterable, Pipeline

clicks = Pipeline("clicks.parquet")
train, valid = (clicks.hash_split("user", [0.8, 0.2], part) for part in (0, 1))
stats = train.fit("age", "price", "city")


def features(part):
    part = part.standardize("age", "price", stats=stats).nulls("fill", "price", value=0)
    part = part.encode("city", stats=stats, null="unknown")
    return part.pack("numbers", ["age", "price"], "float32").select("numbers", "city", "clicked")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.city = torch.nn.Embedding(len(stats["city"].values) + 1, 8)
        self.layers = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def forward(self, batch):
        return self.layers(torch.cat([batch["numbers"], self.city(batch["city"])], 1))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
batches = DataLoader(ParquetIterable(features(train)).shuffle(10_000, seed=7).batch(64), batch_size=None)
for _ in range(3):
    for batch in batches:
        loss = torch.nn.functional.cross_entropy(model(batch), batch["clicked"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

right = [model(batch).argmax(1) == batch["clicked"] for batch in ParquetIterable(features(valid)).batch(256)]
print(f"{torch.cat(right).float().mean():.0%} of the clicks of other users are right")
