"""`recommender.py` with Hugging Face datasets."""

import zlib

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader

BUCKETS = 2_000


def encode(batch):
    return {name: [zlib.crc32(value.encode()) % BUCKETS for value in batch[name]] for name in ("user", "film")}


ratings = load_dataset("parquet", data_files="ratings.parquet", split="train")
ratings = ratings.map(encode, batched=True).with_format("torch")
rows = DataLoader(ratings, batch_size=128, shuffle=True)

users, films = torch.nn.Embedding(BUCKETS, 16), torch.nn.Embedding(BUCKETS, 16)
optimizer = torch.optim.Adam([*users.parameters(), *films.parameters()], 0.03)
for epoch in range(6):
    for batch in rows:
        score = (users(batch["user"]) * films(batch["film"])).sum(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, batch["liked"].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
