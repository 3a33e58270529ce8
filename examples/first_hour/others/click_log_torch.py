"""`click_log_torch.py` with Hugging Face datasets."""

import zlib

import numpy as np
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader

clicks = load_dataset("parquet", data_files="clicks.parquet", split="train")


def in_part(users, parts):
    return [zlib.crc32(user.encode()) % 10 in parts for user in users]


train, valid = (
    clicks.filter(in_part, input_columns="user", batched=True, fn_kwargs={"parts": parts})
    for parts in (range(8), range(8, 10))
)
ages, prices = (np.array(train[name], float) for name in ("age", "price"))
cities = sorted({city for city in train["city"] if city is not None})
codes = {city: code for code, city in enumerate([*cities, None])}


def to_features(batch):
    age = (np.array(batch["age"], float) - ages.mean()) / ages.std()
    price = (np.array(batch["price"], float) - np.nanmean(prices)) / np.nanstd(prices)
    numbers = np.stack([age, np.nan_to_num(price)], 1).astype(np.float32)
    return {"numbers": numbers, "city": [codes.get(city, len(cities)) for city in batch["city"]]}


def features(part):
    part = part.map(to_features, batched=True, remove_columns=["user", "age", "price"])
    return part.with_format("torch")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.city = torch.nn.Embedding(len(cities) + 1, 8)
        self.layers = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def forward(self, batch):
        return self.layers(torch.cat([batch["numbers"], self.city(batch["city"])], 1))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
batches = DataLoader(features(train), batch_size=64, shuffle=True)
for _ in range(3):
    for batch in batches:
        loss = torch.nn.functional.cross_entropy(model(batch), batch["clicked"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

right = [model(batch).argmax(1) == batch["clicked"] for batch in features(valid).iter(256)]
print(f"{torch.cat(right).float().mean():.0%} of the clicks of other users are right")
