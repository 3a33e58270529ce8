"""The Hugging Face Trainer. It batches the rows itself, so the dataset has no `batch`."""

import tempfile

import torch
from tiles import write_tiles
from transformers import Trainer, TrainingArguments

from parquetry import ParquetIterable


class Classifier(torch.nn.Module):
    """One linear layer that returns its loss in the form the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16 * 16 * 3, 2)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(image.flatten(1) / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


rows = ParquetIterable(write_tiles(tempfile.mkdtemp())).rename({"label": "labels"})
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=3,
    per_device_train_batch_size=50,
    learning_rate=1e-3,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
training, validation = rows.skip(100).shuffle(200, seed=7), rows.take(100)  # a split before the shuffle is a fixed one
trainer = Trainer(Classifier(), arguments, train_dataset=training, eval_dataset=validation)
trainer.train()
print(f"{trainer.state.global_step} steps, loss {trainer.evaluate()['eval_loss']:.3f}")
