"""Lets a loader whose state was saved on one number of ranks continue on another one.

``StatefulDataLoader`` gives each loader worker the state that the worker of its number had. On another number of ranks
that is no use to it, because what remains is dealt anew. So when the loader begins its pass, the states of the workers
are joined to the position of a rank, which the dataset converts to this number of ranks, and are made anew from that.
Lightning ends an epoch after as many steps as the loader has, so the steps it has counted are converted, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch.utils.data import DataLoader

from parquetry.common.base.errors import StateError

from .loader_state import positions_in, rank_state
from .torch_internals import State, deal_state, forget_length, has_ended, unrestored_state
from .trainer_sharding import TrainerEpoch


class MovableDataset(Protocol):
    """A dataset that continues a state of any number of ranks."""

    def _ranks_of(self, state: State) -> tuple[int, int]:
        """Returns the number of ranks that a state is from, and the number of ranks now."""

    def _on_these_ranks(self, state: State) -> State:
        """Returns a state as one of this number of ranks, and prepares for iterators that get it."""

    def _elements_after(self, state: State | None) -> int | None:
        """Returns how many elements this rank has left in an epoch, or has in all; ``None`` = unknown."""


def continue_on_other_ranks(
    loader: DataLoader, dataset: MovableDataset, trainer: TrainerEpoch | None
) -> Callable[[], None] | None:
    """Converts the state that a ``StatefulDataLoader`` is about to restore, if it is from another number of ranks.

    Changes the state in place, because torchdata has already picked it up. Returns what undoes that when the loader has
    restored it, because it may be your only copy; ``None`` if there is nothing to undo.

    Raises:
        StateError: the states of the workers do not amount to one position.
    """
    state = unrestored_state(loader)
    positions = positions_in(state)
    if not positions:
        return None
    before, now = dataset._ranks_of(positions[0])
    if before == now:
        return None
    try:
        own = dataset._on_these_ranks(rank_state(state))
    except StateError as error:
        raise StateError(
            f"StatefulDataLoader: expected a state of {_ranks(now)}, or one that can be dealt to them, got one of "
            f"{_ranks(before)}: {error}"
        ) from error
    if trainer is not None:
        _count_steps(trainer, dataset, own, loader.batch_size or 1, ended=has_ended(state))
    original = dict(state)
    if loader.num_workers:
        workers = loader.num_workers
        deal_state(state, [{**own, "worker": worker, "workers": workers} for worker in range(workers)])
    else:  # the dataset converts the position itself
        forget_length(state)
    return lambda: state.update(original)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _count_steps(trainer: TrainerEpoch, dataset: MovableDataset, own: State, batch_size: int, *, ended: bool) -> None:
    whole, left = dataset._elements_after(None), dataset._elements_after(own)
    if whole is None or left is None:
        return
    steps, more = -(-whole // batch_size), -(-left // batch_size)
    trainer.recount(steps if ended else steps - more)
