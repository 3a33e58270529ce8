"""The state of a loader whose batches are used later than it returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from parquetry.common.base.errors import StateError

from .torch_internals import unwrapped

State = dict[str, Any]
Position = Callable[[], State]
"""Returns the state at one point of a pass, or raises why there is none."""


def position_of(loader: object, count: int) -> Position:
    """Returns the loader's position, right after it gave ``count`` elements of this pass (or ended).

    A loader with ``state_dict()`` is asked now. A stock ``DataLoader`` is asked through its dataset: now, or if workers
    read ahead of it, by the number of elements when the state is needed.
    """
    if callable(getattr(loader, "state_dict", None)):
        return _now(loader.state_dict)  # type: ignore[attr-defined]
    dataset = dataset_of(loader)
    if dataset is None:
        return _unknown(loader)
    assert isinstance(loader, DataLoader)
    if not loader.num_workers:
        return _now(dataset.state_dict)
    if loader.batch_size is None:
        return lambda: dataset.state_after(count)
    return _unknown(loader)


def dataset_of(loader: object) -> Any:
    """Returns the `ParquetIterable` that a stock ``DataLoader`` iterates; ``None`` if it iterates anything else."""
    if not isinstance(loader, DataLoader):
        return None
    dataset = unwrapped(loader.dataset)
    return dataset if callable(getattr(type(dataset), "state_after", None)) else None


def _now(state_dict: Callable[[], State]) -> Position:
    try:
        state = state_dict()
    except StateError as error:
        return _raising(error)
    return lambda: state


def _unknown(loader: object) -> Position:
    return _raising(
        StateError(
            "prefetch_to_device: expected a loader whose position is known, got "
            f"{type(loader).__name__} over rows that its workers collate, or over another dataset. Use batch() in the "
            "dataset and batch_size=None, or StatefulDataLoader."
        )
    )


def _raising(error: StateError) -> Position:
    def position() -> State:
        raise error

    return position
