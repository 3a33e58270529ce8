"""`text.py` with Hugging Face datasets: the packing is done by hand."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader


def tokenizer(text):  # or one of tokenizers, transformers or tiktoken
    return list(text.encode())


def tokenize(batch):
    return {"tokens": [tokenizer(text) for text in batch["text"]]}


def pack(batch):
    items = []
    for tokens in sorted(batch["tokens"], key=len, reverse=True):
        item = next((item for item in items if len(item["tokens"]) + len(tokens) <= 257), None)
        if item is None:
            item = {"tokens": [], "segment_ids": [], "documents": 0}
            items.append(item)
        item["documents"] += 1
        item["tokens"] += tokens
        item["segment_ids"] += [item["documents"]] * len(tokens)
    packed = {}
    for name in ("tokens", "segment_ids"):
        packed[name] = [item[name] + [0] * (257 - len(item[name])) for item in items]
    return packed


texts = load_dataset("parquet", data_files="texts.parquet", split="train").shuffle(seed=7)
texts = texts.map(tokenize, batched=True, remove_columns="text")
items = texts.map(pack, batched=True, remove_columns="tokens").with_format("torch")

model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
batches = DataLoader(items, batch_size=8, shuffle=True)
for _ in range(3):
    for batch in batches:
        tokens, documents = batch["tokens"].long(), batch["segment_ids"]
        # Nothing is predicted from one document to the next.
        labels = tokens[:, 1:].masked_fill(documents[:, 1:] != documents[:, :-1], -100)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{len(batches)} steps in each epoch, loss {loss.item():.3f}")
