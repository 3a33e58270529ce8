"""A device mesh of two dimensions, data parallel and tensor parallel.

Ranks along "tp" hold parts of one model and read the same rows; each model along "dp" reads other rows. Run it with
torchrun on any even number of ranks: `mesh_loop.py TILES CHECKPOINT [LAST_STEP]`. A checkpoint continues on another.

Without arguments, the script starts itself: four ranks (two models) stop in the middle of an epoch, and two ranks (one
model) continue.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiles import write_numbered_tiles
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry import ParquetIterable
from parquetry.torch_plugin import rank_state

MODEL_RANKS, TILES = 2, 96


class Training:
    """The state to save in a checkpoint. Each rank holds a part of the model, and the position of all ranks."""

    def __init__(self, url: str, mesh: DeviceMesh) -> None:
        self.rows = ParquetIterable(url, mesh=mesh["dp"]).shuffle(32, seed=7).batch(12)
        self.loader = StatefulDataLoader(self.rows, batch_size=None)
        torch.manual_seed(7)
        layers = (torch.nn.Linear(16 * 16 * 3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2), torch.nn.LogSoftmax(1))
        self.model = torch.nn.Sequential(torch.nn.Flatten(), *layers)
        parallelize_module(self.model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
        fully_shard(self.model, mesh=mesh["dp"])
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.steps = 0

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Trains on one batch. The ranks wait for each other."""
        loss = torch.nn.functional.nll_loss(self.model(batch["image"] / 255), batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """For `dcp.save` and `dcp.load`."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        rows = json.dumps(rank_state(self.loader.state_dict()))
        return {"model": model, "optimizer": optimizer, "rows": rows, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For `dcp.load`."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.rows.load_state_dict(state["rows"])
        self.loader = StatefulDataLoader(self.rows, batch_size=None)  # made after the dataset has its position
        self.steps = state["steps"]


def train(url: str, checkpoint: str, last_step: int | None) -> None:
    """Trains to the end of the epoch, or stops after a step as if the job's time were over."""
    shape = (dist.get_world_size() // MODEL_RANKS, MODEL_RANKS)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    training = Training(url, mesh)
    if os.path.exists(f"{checkpoint}/.metadata"):
        dcp.load({"training": training}, checkpoint_id=checkpoint)
    begin, tiles = training.steps, []
    for batch in training.loader:
        training.step(batch)
        tiles += batch["number"].tolist()
        if training.steps == last_step:
            dcp.save({"training": training}, checkpoint_id=checkpoint)
            break
    place = f"dp {mesh.get_local_rank('dp')}, tp {mesh.get_local_rank('tp')}"
    # A whole line at once, as ranks share a terminal.
    print(f"{place}: steps {begin + 1} to {training.steps}, tiles {tiles}\n", end="", flush=True)


def main(url: str, checkpoint: str, last_step: str | None = None) -> None:
    """Runs one rank of torchrun."""
    dist.init_process_group("gloo")  # "nccl" with GPUs
    try:
        train(url, checkpoint, None if last_step is None else int(last_step))
    finally:
        dist.destroy_process_group()


def show() -> None:
    """Starts four ranks on this machine, and then two."""
    url, checkpoint = write_numbered_tiles(tempfile.mkdtemp(), TILES), tempfile.mkdtemp()
    for ranks, arguments in ((4, ["2"]), (2, [])):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        subprocess.run([sys.executable, *torchrun, __file__, url, checkpoint, *arguments], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else show()
