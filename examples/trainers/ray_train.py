"""Ray Train: two workers each read their part of one dataset, and checkpoint the loader with the model."""

import tempfile
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from tiles import write_tiles

from parquetry import ParquetIterable


def train_on_a_worker(config: dict[str, Any]) -> None:
    """Runs on each worker, in a process group that Ray has set up."""
    tiles = ParquetIterable(config["url"]).shuffle(200, seed=7).batch(50)  # this rank's part
    model = prepare_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2)))
    optimizer = torch.optim.Adam(model.parameters())
    if checkpoint := train.get_checkpoint():  # Ray has restarted this worker
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
            model.load_state_dict(state["model"])
            tiles.load_state_dict(state["tiles"])
    for epoch in range(tiles.state_dict()["iteration"], config["epochs"]):
        losses = []
        for batch in tiles:
            loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "tiles": tiles.state_dict()}, f"{folder}/state.pt")
            kept = train.Checkpoint.from_directory(folder) if train.get_context().get_world_rank() == 0 else None
            train.report({"epoch": epoch, "steps": len(losses), "loss": losses[-1]}, checkpoint=kept)


if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        train_on_a_worker,
        train_loop_config={"url": write_tiles(tempfile.mkdtemp()), "epochs": 3},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), failure_config=train.FailureConfig(max_failures=2)),
    )
    metrics = trainer.fit().metrics
    print(f"epoch {metrics['epoch']}: {metrics['steps']} steps on each worker, loss {metrics['loss']:.3f}")
    ray.shutdown()
