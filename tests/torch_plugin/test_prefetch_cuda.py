"""``prefetch_to_device`` on a GPU: the same values as on the host, from page-locked memory, for every kind of loader."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe, as_is, prefetch_to_device
from parquetry.torch_plugin.devices import copies_to
from parquetry.torch_plugin.prefetch import DevicePrefetcher, moved

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FACES = [ParquetIterable, ParquetNode, ParquetPipe]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes 512 rows with arrays large enough for the engine's regions."""
    target = str(tmp_path_factory.mktemp("data") / "images")
    fields = [UnischemaField("id", np.int64), UnischemaField("image", np.uint8, (32, 32, 3))]
    rows = ({"id": number, "image": np.full((32, 32, 3), number % 251, np.uint8)} for number in range(512))
    write_dataset(target, Unischema("images", fields), rows, row_group_rows=64)
    return target


def on_host(batch: Any) -> Any:
    return moved(batch, lambda tensor: tensor.cpu())


def shown(batch: Any) -> str:
    """Returns the values as text. torch numbers the unknown length of each jagged tensor, so j0 and j7 may be the same."""
    return re.sub(r"\bj\d+", "j", repr(batch))


@pytest.mark.parametrize("face", FACES)
def test_every_kind_of_field_has_its_values_on_the_gpu(url: str, face: Any) -> None:
    expected = list(face(url).batch(8))
    with face(url).batch(8).prefetch_to_device("cuda") as batches:
        for batch, host in zip(batches, expected, strict=True):
            assert batch["image"].device.type == batch["points"].device.type == "cuda"
            assert shown(on_host(batch)) == shown(host)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "pin_memory": True}])
def test_loaders_have_their_values_on_the_gpu(images: str, options: dict[str, Any]) -> None:
    pipe = ParquetIterable(images).shuffle(100, seed=1).batch(32)
    loader = DataLoader(pipe, batch_size=None, collate_fn=as_is, **options)
    busy = torch.randn(1024, 1024, device="cuda")
    with prefetch_to_device(loader, "cuda", depth=3) as batches:
        sums = []
        for batch in batches:
            busy = torch.tanh(busy @ busy)  # your stream is behind, so the copies run while it works
            sums.append((batch["image"].long().sum(), batch["id"].sum()))
    whole = sum(32 * 32 * 3 * (number % 251) for number in range(512))
    assert sum(image.item() for image, _ in sums) == whole
    assert sum(row.item() for _, row in sums) == sum(range(512))


def test_batches_of_threads_are_copied_from_the_regions(images: str) -> None:
    copies, sources = copies_to("cuda"), []
    assert copies is not None
    original = copies.pinned

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        sources.append(tensor.is_pinned())
        return original(tensor)

    copies.pinned = pinned  # type: ignore[method-assign]
    pipe = ParquetIterable(images, ["image"], executor="threads", workers=1).repeat(40).batch(32)
    with DevicePrefetcher(pipe, copies, depth=2) as batches:
        for number, batch in enumerate(batches):
            expected = [row % 251 for row in range(32 * number % 512, 32 * number % 512 + 32)]
            assert batch["image"][:, 0, 0, 0].tolist() == expected
    assert sum(sources) > len(sources) / 2


def test_memory_is_not_reused_while_your_stream_reads_it(images: str) -> None:
    busy = torch.randn(2048, 2048, device="cuda")
    kept = []
    with ParquetIterable(images).batch(16).prefetch_to_device("cuda", depth=4) as batches:
        for batch in batches:
            for _ in range(20):
                busy = torch.tanh(busy @ busy)
            kept.append(batch["id"] * 1)  # enqueued far behind the copies that follow
            del batch
    assert torch.cat(kept).tolist() == list(range(512))
