"""Lightning: a data module over a `ParquetIterable`, with the trainer's own sampler turned off."""

import tempfile

import lightning
import torch
from tiles import write_tiles
from torch.utils.data import DataLoader

from parquetry import ParquetIterable


class Tiles(lightning.LightningDataModule):
    """Gives each rank and each loader worker its own rows, in a new order every epoch."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def train_dataloader(self) -> DataLoader:
        return DataLoader(ParquetIterable(self.url).shuffle(200, seed=7).batch(50), batch_size=None)


class Classifier(lightning.LightningModule):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.model(batch["image"] / 255), batch["label"])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    use_distributed_sampler=False,  # the dataset already shards its rows across ranks
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier(), Tiles(write_tiles(tempfile.mkdtemp())))
print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['loss']:.3f}")
