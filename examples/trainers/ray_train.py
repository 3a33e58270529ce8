"""Ray Train with an elastic number of workers, whose checkpoints hold the loader's position with the model.

Two workers train and stop in the middle of an epoch, as if the cluster were gone. One worker continues.
"""

import tempfile
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from tiles import write_numbered_tiles
from torch.nn.parallel import DistributedDataParallel

from parquetry import ParquetIterable

EPOCHS, SAVE_EVERY, TILES = 2, 3, 960


class Training:
    """What a checkpoint holds. All workers have the same model, optimizer, position and counts."""

    def __init__(self, url: str, checkpoint: train.Checkpoint | None) -> None:
        self.tiles = ParquetIterable(url).shuffle(200, seed=7).batch(30)  # this rank's part
        self.model = prepare_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.steps = 0
        self.seen = torch.zeros(TILES, dtype=torch.int64)  # how often the workers trained on each tile, together
        if checkpoint:
            self.load(checkpoint)

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Trains on one batch. The workers wait for each other."""
        loss = torch.nn.functional.cross_entropy(self.model(batch["image"] / 255), batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        seen = torch.bincount(batch["number"], minlength=TILES)
        dist.all_reduce(seen)
        self.seen += seen
        self.steps += 1

    def own_model(self) -> torch.nn.Module:
        """Returns the model that `prepare_model` wraps if there are several workers."""
        return self.model.module if isinstance(self.model, DistributedDataParallel) else self.model

    def report(self, epoch: int) -> None:
        """Reports the progress, with a checkpoint that continues on any number of workers."""
        parts = {"model": self.own_model(), "optimizer": self.optimizer, "tiles": self.tiles}
        state = {name: part.state_dict() for name, part in parts.items()}
        times, workers = self.seen.unique().tolist(), dist.get_world_size()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({**state, "steps": self.steps, "seen": self.seen}, f"{folder}/state.pt")
            kept = train.Checkpoint.from_directory(folder) if dist.get_rank() == 0 else None
            said = {"workers": workers, "epoch": epoch, "steps": self.steps, "times": times}
            train.report(said, checkpoint=kept)

    def load(self, checkpoint: train.Checkpoint) -> None:
        """Continues from a checkpoint."""
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        self.own_model().load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.tiles.load_state_dict(state["tiles"])
        self.steps, self.seen = state["steps"], state["seen"]


def train_on_a_worker(config: dict[str, Any]) -> None:
    """Runs on each worker, in a process group that Ray has set up."""
    training = Training(config["url"], train.get_checkpoint() or config["checkpoint"])  # Ray's, if it has restarted us
    for epoch in range(training.tiles.state_dict()["iteration"], EPOCHS):
        for batch in training.tiles:
            training.step(batch)
            if training.steps % SAVE_EVERY == 0:
                training.report(epoch)
            if training.steps == config["last_step"]:
                return
        training.report(epoch)


def fit(url: str, workers: int | tuple[int, int], last_step: int | None = None, checkpoint: Any = None) -> Any:
    """Trains to the end, or to a step; returns the last checkpoint.

    With a range, Ray takes as many workers as the cluster has room for, and restarts on fewer if some are lost. Older
    versions of Ray take only a number.
    """
    trainer = TorchTrainer(
        train_on_a_worker,
        train_loop_config={"url": url, "last_step": last_step, "checkpoint": checkpoint},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), failure_config=train.FailureConfig(max_failures=2)),
    )
    result = trainer.fit()
    print("workers {workers}, epoch {epoch}, step {steps}: each tile was seen {times} times".format(**result.metrics))
    return result.checkpoint


if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    url = write_numbered_tiles(tempfile.mkdtemp())
    begun = fit(url, workers=(1, 2), last_step=6)
    fit(url, workers=1, checkpoint=begun)
    ray.shutdown()
