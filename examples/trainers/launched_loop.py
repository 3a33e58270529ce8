"""One script for every launcher: torchrun, Slurm, MPI, an indexed Kubernetes job, or a TPU pod.

`shard()` takes the rank from the variables that the launcher sets, and DDP takes the same one. The ranks meet at
`MASTER_ADDR` and `MASTER_PORT`, which torchrun sets and you set for the others. A checkpoint holds one position for all
ranks, so the next start may have any number of them: `launched_loop.py TILES CHECKPOINT [LAST_STEP]`.

Without arguments, the script starts itself with torchrun: two ranks stop in the middle of an epoch, three continue.
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from tiles import write_numbered_tiles
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry import ParquetIterable, rank_from_environment
from parquetry.torch_plugin import rank_state

EPOCHS, SAVE_EVERY, TILES = 2, 4, 960


class Training:
    """What a checkpoint holds. All ranks have the same model, optimizer and counts."""

    def __init__(self, url: str, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        torch.manual_seed(7)
        self.rows = ParquetIterable(url).shuffle(200, seed=7).shard().batch(30)
        self.model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.steps = 0
        self.seen = torch.zeros(TILES, dtype=torch.int64)  # how often the ranks trained on each tile, together
        if os.path.exists(checkpoint):
            self.load()
        self.loader = StatefulDataLoader(self.rows, batch_size=None, num_workers=1)

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Trains on one batch. The ranks wait for each other."""
        loss = torch.nn.functional.cross_entropy(self.model(batch["image"] / 255), batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        seen = torch.bincount(batch["number"], minlength=TILES)
        dist.all_reduce(seen)
        self.seen += seen
        self.steps += 1

    def save(self) -> None:
        """Saves the position of all ranks, with the model. Rank 0 knows both."""
        if dist.get_rank() == 0:
            parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer")}
            rows = rank_state(self.loader.state_dict())
            torch.save({**parts, "rows": rows, "steps": self.steps, "seen": self.seen}, f"{self.checkpoint}.new")
            os.replace(f"{self.checkpoint}.new", self.checkpoint)  # whole or not at all

    def load(self) -> None:
        """Continues from the checkpoint. The position goes into the dataset, before there is a loader."""
        saved = torch.load(self.checkpoint)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.rows.load_state_dict(saved["rows"])
        self.steps, self.seen = saved["steps"], saved["seen"]


def train(url: str, checkpoint: str, last_step: int | None) -> None:
    """Trains to the end, or stops after a step as if the job's time were over."""
    training = Training(url, checkpoint)
    say(f"starts after step {training.steps}")
    for epoch in range(training.rows.state_dict()["iteration"], EPOCHS):
        for batch in training.loader:
            training.step(batch)
            if training.steps % SAVE_EVERY == 0 or training.steps == last_step:
                training.save()
            if training.steps == last_step:
                say(f"stops after step {training.steps}")
                return
        times = training.seen.unique().tolist()
        say(f"epoch {epoch} ends after step {training.steps}, each tile was seen {times} times")


def say(text: str) -> None:
    """Prints a whole line at once, as ranks share a terminal."""
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} {text}\n", end="", flush=True)


def main(url: str, checkpoint: str, last_step: str | None = None) -> None:
    """Runs one rank of a launcher."""
    rank = rank_from_environment()
    if rank is None:
        raise SystemExit("Start this script with a launcher, such as torchrun.")
    dist.init_process_group("gloo", rank=rank.index, world_size=rank.size)  # "nccl" with GPUs
    try:
        train(url, checkpoint, None if last_step is None else int(last_step))
    finally:
        dist.destroy_process_group()


def show() -> None:
    """Starts two ranks on this machine, and then three."""
    url, checkpoint = write_numbered_tiles(tempfile.mkdtemp()), f"{tempfile.mkdtemp()}/checkpoint.pt"
    for ranks, arguments in ((2, ["6"]), (3, [])):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        subprocess.run([sys.executable, *torchrun, __file__, url, checkpoint, *arguments], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else show()
