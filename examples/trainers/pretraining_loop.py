"""Pretraining on several ranks: a device mesh, FSDP, gradient accumulation, and checkpoints that include the loader.

Two processes on this machine train a small language model, stop after 6 steps, and continue from the checkpoint. On a
cluster, torchrun starts the ranks.
"""

import json
import os
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry import ParquetIterable
from parquetry.torch_plugin import rank_state

RANKS, LENGTH, VOCABULARY = 2, 32, 50
ACCUMULATED = 2  # batches per step


def write_corpus(url: str) -> str:
    """Writes 2,000 documents, each counting up from a random token."""
    random = np.random.default_rng(0)
    starts, lengths = random.integers(VOCABULARY, size=2_000), random.integers(5, 60, size=2_000)
    documents = [(start + np.arange(length)) % VOCABULARY for start, length in zip(starts, lengths, strict=True)]
    pq.write_table(
        pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), f"{url}/0.parquet", row_group_size=250
    )
    return url


class Training:
    """A model, an optimizer, and the loader that feeds them."""

    def __init__(self, url: str, mesh: DeviceMesh) -> None:
        rows = ParquetIterable(url).shuffle(500, seed=7).shard(mesh=mesh)
        self.rows = rows.concat(LENGTH + 1, "tokens", separator=0).batch(8)
        self.loader = StatefulDataLoader(self.rows, batch_size=None)
        self.model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY))
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        self.steps = 0

    def step(self, batches: list[dict[str, torch.Tensor]]) -> float:
        """Takes one optimizer step over some batches; returns the mean loss on this rank."""
        total = 0.0
        for batch in batches:
            tokens = batch["tokens"].long()
            logits = self.model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / len(batches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return total

    def state_dict(self) -> dict[str, Any]:
        """For `dcp.save` and `dcp.load`. The position is that of all ranks, and continues on any number of them."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        rows = json.dumps(rank_state(self.loader.state_dict()))
        return {"model": model, "optimizer": optimizer, "rows": rows, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For `dcp.load`."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.rows.load_state_dict(state["rows"])
        self.loader = StatefulDataLoader(self.rows, batch_size=None)  # made after the dataset has its position
        self.steps = state["steps"]


def train(url: str, checkpoint: str, until: int | None) -> None:
    """Trains to the end of the epoch, or to step `until` and saves a checkpoint; resumes from one if it exists."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    training = Training(url, mesh)
    if os.path.exists(f"{checkpoint}/.metadata"):
        dcp.load({"training": training}, checkpoint_id=checkpoint)
    batches, loss = [], 0.0
    for batch in training.loader:
        batches.append(batch)
        if len(batches) == ACCUMULATED:
            loss, batches = training.step(batches), []
            if training.steps == until:
                dcp.save({"training": training}, checkpoint_id=checkpoint)
                break
    if dist.get_rank() == 0:
        print(f"step {training.steps}: loss {loss:.3f}", flush=True)


def rank(number: int, meeting_point: str, url: str, checkpoint: str, until: int | None) -> None:
    """Runs one rank. With torchrun, `dist.init_process_group()` needs no arguments."""
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=number, world_size=RANKS)
    try:
        train(url, checkpoint, until)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    url, checkpoint = write_corpus(tempfile.mkdtemp()), tempfile.mkdtemp()
    for until in (6, None):  # the second run continues where the first one stopped
        arguments = (f"{checkpoint}-ranks-{until}", url, checkpoint, until)
        torch.multiprocessing.spawn(rank, args=arguments, nprocs=RANKS)
