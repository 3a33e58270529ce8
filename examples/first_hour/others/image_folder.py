"""`image_folder.py` with Hugging Face datasets, and the crops of torchvision."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from torchvision.transforms import v2

photos = load_dataset("imagefolder", data_dir="photos", split="train").train_test_split(0.2, seed=7)
augment = v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
resize = v2.Compose([v2.PILToTensor(), v2.Resize((32, 32))])


def with_images(part, change):
    def changed(batch):
        return {**batch, "image": [change(image.convert("RGB")) for image in batch["image"]]}

    return part.with_transform(changed)


train, valid = with_images(photos["train"], augment), with_images(photos["test"], resize)

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32 * 3, 2))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    for batch in DataLoader(train, batch_size=16, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

rows = DataLoader(valid, batch_size=16)
right = [model(batch["image"] / 255).argmax(1) == batch["label"] for batch in rows]
print(f"{torch.cat(right).float().mean():.0%} of the other pictures are right")
