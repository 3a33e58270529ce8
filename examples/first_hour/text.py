"""Raw text to training in one chain: tokenized in the workers, and whole documents packed into items of one length."""

import torch
from torch.utils.data import DataLoader

from parquetry import ParquetIterable


def tokenizer(text):  # or one of tokenizers, transformers or tiktoken
    return list(text.encode())


texts = ParquetIterable("texts.parquet").shuffle(1_000, seed=7)
items = texts.tokenize(tokenizer, "text").pack_rows(257, "tokens").batch(8)

model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for _ in range(3):
    for batch in DataLoader(items, batch_size=None):
        tokens, documents = batch["tokens"].long(), batch["segment_ids"]
        # Nothing is predicted from one document to the next.
        labels = tokens[:, 1:].masked_fill(documents[:, 1:] != documents[:, :-1], -100)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{len(items)} steps in each epoch, loss {loss.item():.3f}")
