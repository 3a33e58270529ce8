"""A pretraining loop that saves model, optimizer and loader together with `torch.distributed.checkpoint`."""

import json
import tempfile
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from tiles import write_tiles
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry import ParquetIterable
from parquetry.torch_plugin import rank_state


class Training:
    """The state to save in a checkpoint. All ranks have the same, which continues on any number of them."""

    def __init__(self, url: str) -> None:
        self.rows = ParquetIterable(url).shuffle(200, seed=7).batch(50)
        self.loader = StatefulDataLoader(self.rows, batch_size=None)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Trains on one batch."""
        loss = torch.nn.functional.cross_entropy(self.model(batch["image"] / 255), batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """For `dcp.save` and `dcp.load`."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**parts, "rows": json.dumps(rank_state(self.loader.state_dict()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For `dcp.load`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rows.load_state_dict(state["rows"])
        self.loader = StatefulDataLoader(self.rows, batch_size=None)  # made after the dataset has its position


url, checkpoint = write_tiles(tempfile.mkdtemp()), tempfile.mkdtemp()
training = Training(url)
for number, batch in enumerate(training.loader, 1):
    training.step(batch)
    if number == 8:
        dcp.save({"training": training}, checkpoint_id=checkpoint)
        break

# Later, in another process.
resumed = Training(url)
resumed.step(
    next(iter(resumed.loader))
)  # the optimizer has no state before its first step, and `dcp.load` only fills existing state
dcp.load({"training": resumed}, checkpoint_id=checkpoint)
losses = [resumed.step(batch) for batch in resumed.loader]
print(f"{len(losses)} batches were left, loss {losses[-1]:.3f}")
