"""A recommender: users and films by a hash instead of a vocabulary, so new ones need no new model."""

import torch
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

BUCKETS = 2_000
ratings = ParquetIterable("ratings.parquet").hash_encode("user", "film", buckets=BUCKETS)
rows = ratings.shuffle(10_000, seed=7).batch(128)

users, films = torch.nn.Embedding(BUCKETS, 16), torch.nn.Embedding(BUCKETS, 16)
optimizer = torch.optim.Adam([*users.parameters(), *films.parameters()], 0.03)
for epoch in range(6):
    for batch in DataLoader(rows, batch_size=None):
        score = (users(batch["user"]) * films(batch["film"])).sum(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, batch["liked"].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
