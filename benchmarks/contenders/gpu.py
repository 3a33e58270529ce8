"""Training steps on a GPU that take their batches from parquetry, in several ways; see `benchmarks.gpu_feed`.

Images are trained on by a ResNet-50 with bfloat16 activations; for workload ``a`` the GPU also resizes and normalizes
them. The step of the lidar workload only reads its points, so it measures the copies. At most two steps are enqueued,
so rows count once their step is nearly done. Needs torch with CUDA, and torchvision for images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from parquetry.torch_plugin import ParquetIterable, as_is, prefetch_to_device

from ..workloads import CROP, DEVIATION, MEAN, Case
from .ours_pipelines import pipeline_of

SETTINGS = {
    "step": "one batch, which stays on the GPU",
    "blocking": "tensor.to('cuda') in the loop",
    "pinned": "DataLoader(pin_memory=True), tensor.to('cuda', non_blocking=True)",
    "ahead": "rows.prefetch_to_device('cuda')",
    "sidecar-ahead": "the same, with executor='sidecar'",
    "workers-ahead": "prefetch_to_device(DataLoader(num_workers=, pin_memory=True), 'cuda'), one worker a processor",
}
_ENQUEUED = 2
_CLASSES = 1_000

Batch = Mapping[str, torch.Tensor]


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each step."""
    if not torch.cuda.is_available():
        raise ImportError("this needs a GPU that torch can use")
    step = _lidar_step() if case.workload.data == "lidar" else _image_step()
    running: deque[torch.cuda.Event] = deque()
    for batch in _feed(case):
        step(batch)
        running.append(torch.cuda.current_stream().record_event())
        if len(running) > _ENQUEUED:
            running.popleft().synchronize()
        yield len(batch["id"])


def _feed(case: Case) -> Iterator[Batch]:
    """Yields batches on the GPU."""
    with_workers = case.variant == "workers-ahead"
    executor = "sidecar" if case.variant == "sidecar-ahead" else None
    workers = None if with_workers else case.workers
    rows = ParquetIterable.from_pipeline(pipeline_of(case, workers=workers, executor=executor))
    if case.variant == "step":
        batch = _on_gpu(next(iter(rows)))
        while True:
            yield batch
    if case.variant == "blocking":
        yield from map(_on_gpu, rows)
    elif case.variant == "pinned":
        loader = DataLoader(rows, batch_size=None, collate_fn=as_is, pin_memory=True)
        yield from (_on_gpu(batch, non_blocking=True) for batch in loader)
    else:
        yield from prefetch_to_device(_loader(rows, case.workers) if with_workers else rows, "cuda")


def _loader(rows: ParquetIterable, workers: int) -> Iterable[Any]:
    return DataLoader(rows, batch_size=None, num_workers=workers, collate_fn=as_is, pin_memory=True)


def _on_gpu(batch: Batch, *, non_blocking: bool = False) -> Batch:
    return {name: tensor.to("cuda", non_blocking=non_blocking) for name, tensor in batch.items()}


def _lidar_step() -> Callable[[Batch], object]:
    total = torch.zeros((), device="cuda")
    return lambda batch: total.add_(batch["points"].sum())


def _image_step() -> Callable[[Batch], object]:
    from torchvision.models import resnet50

    torch.backends.cudnn.benchmark = True
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    mean, deviation = (torch.tensor(values, device="cuda")[:, None, None] * 255 for values in (MEAN, DEVIATION))

    def step(batch: Batch) -> None:
        images = batch["image"].permute(0, 3, 1, 2)  # channels last, as they are stored
        if images.dtype == torch.uint8:
            images = torch.nn.functional.interpolate(images.float(), (CROP, CROP), mode="bilinear")
            images = (images - mean) / deviation
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), batch["id"] % _CLASSES)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()

    return step
