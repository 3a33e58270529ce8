"""`rank_state`: turns a ``StatefulDataLoader``'s state into a whole rank's, for other numbers of workers or ranks.

``StatefulDataLoader`` keeps one state per worker and restores them only to the same number of workers. If the workers
took the elements of their rank in turn, their states amount to one position, which every dataset class accepts.
Those functions are pure. `position_of` tells the state of a loader whose batches are used later than it returns them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from parquetry.common.base.errors import StateError
from parquetry.common.plan.state import read_state

from .torch_internals import (
    dataset_state,
    has_ended,
    steps_in,
    steps_since_snapshot,
    unrestored_state,
    unwrapped,
    worker_states,
)

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def rank_state(loader_state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of the rank that a ``StatefulDataLoader`` loaded for.

    Pass it to ``pipe.load_state_dict()`` before a loader with any number of workers starts, to a `ParquetNode`, or to
    an iterator of a `Pipeline`.

    Args:
        loader_state: the result of the loader's ``state_dict()``.

    Raises:
        StateError: not a state of a loader over a parquetry dataset; taken between two snapshots; or the positions of
            its workers are not consecutive, as when they collate rows or filter elements themselves.
    """
    if not isinstance(loader_state, Mapping):
        raise StateError(f"rank_state: expected what a loader's state_dict() returned, got {loader_state!r}.")
    if steps := steps_since_snapshot(loader_state):
        raise StateError(
            f"rank_state: expected a state of a snapshot, got one taken {steps} steps after it. Use "
            "snapshot_every_n_steps=1."
        )
    workers = worker_states(loader_state)
    state = _joined([_worker_state(worker) for worker in workers]) if workers else _worker_state(loader_state)
    if has_ended(loader_state):
        ended: dict[str, Any] = json.loads(read_state(state).at_next_iteration().to_json())
        return ended
    return state


def check_state_of(loader: DataLoader) -> None:
    """Checks that a state which a ``StatefulDataLoader`` is about to restore fits its number of workers.

    Raises:
        StateError: the state is for another number of workers, or holds no position of the dataset.
    """
    state = unrestored_state(loader)
    if not state:
        return
    workers = worker_states(state)
    if len(workers) != loader.num_workers:
        raise StateError(
            f"StatefulDataLoader: expected a state of {loader.num_workers} workers, got one of {len(workers)}. Load it "
            "into the dataset, not the loader, before the loader starts: dataset.load_state_dict(rank_state(state)), "
            "with parquetry.torch_plugin.rank_state."
        )
    steps = steps_in(state)
    if steps and all(_position_in(worker) is None for worker in workers or [state]):
        raise StateError(
            f"StatefulDataLoader: expected a state with the position in its dataset, got one without, after {steps} "
            "steps. Accelerate saves such states with dispatch_batches=False on several ranks, and the epoch would "
            f"begin again. Resume with skip_first_batches(loader, {steps})."
        )


def check_dealt_state_of(loader: DataLoader) -> None:
    """Checks a state that a ``StatefulDataLoader`` is about to restore, where a trainer deals its rows to the ranks.

    Raises:
        StateError: the state has the positions of loader workers, which the trainer would ignore.
    """
    state = unrestored_state(loader)
    if loader.num_workers and positions_in(state):
        raise StateError(
            "StatefulDataLoader: expected a state that several ranks saved, got one that a single process saved. "
            "Accelerate with dispatch_batches=False would ignore its position, and the epoch would begin again. Resume "
            f"with skip_first_batches(loader, {steps_in(state)})."
        )


def restored_by(loader: DataLoader) -> list[dict[str, Any]]:
    """Returns the positions within a pass that a ``StatefulDataLoader`` is about to restore, if any."""
    return [] if restores_end(loader) else positions_in(unrestored_state(loader))


def restores_end(loader: DataLoader) -> bool:
    """Returns whether a ``StatefulDataLoader`` is about to restore the end of a pass."""
    return has_ended(unrestored_state(loader))


def positions_in(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the positions of a dataset of this package that a ``StatefulDataLoader``'s state holds."""
    parts: list[Mapping[str, Any]] = [*worker_states(state)] or [state]
    positions = (_position_in(part) for part in parts)
    return [position for position in positions if position is not None]


def _worker_state(state: Mapping[str, Any]) -> dict[str, Any]:
    position = _position_in(state)
    if position is None:
        raise StateError(
            "rank_state: expected the state of a StatefulDataLoader over a parquetry dataset, got the keys "
            f"{sorted(state)}."
        )
    return position


def _position_in(state: Mapping[str, Any]) -> dict[str, Any] | None:
    position = dataset_state(state)
    return position if isinstance(position, dict) and "fingerprint" in position else None


def _joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the states of all workers, whose next elements must be the rank's next ones, in any order."""
    workers = states[0]["workers"]
    following = sorted(state["worker"] + state["consumed"] * workers for state in states)
    first = following[0]
    if len(states) != workers or following != list(range(first, first + workers)):
        raise StateError(
            "rank_state: expected workers that took the elements in turn, got workers whose next elements are "
            f"{following}. Use batch(), and batch_size=None in the loader, without functions that drop rows."
        )
    return {**states[0], "worker": 0, "workers": 1, "consumed": first}


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
