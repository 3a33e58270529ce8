"""`rank_state`: the state of a whole rank out of a ``StatefulDataLoader``'s, for another number of workers or ranks.

``StatefulDataLoader`` keeps one state for each worker and gives them back to as many workers only. Where the workers
took the elements of their rank in turn, those states together are one position, which every face takes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parquetry.common.errors import StateError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def rank_state(loader_state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the rank that a ``StatefulDataLoader`` loaded for.

    Give it to ``pipe.load_state_dict()`` before a loader with any number of workers starts, to a `ParquetNode`, or to
    an iterator of a `Pipeline`.

    Args:
        loader_state: what ``state_dict()`` of the loader returned.

    Raises:
        StateError: it is no state of a loader over a `ParquetPipe`; it was taken between two snapshots; or its workers
            stand at elements that do not follow each other, as when they collate rows or filter elements themselves.
    """
    snapshot = loader_state.get("_snapshot")
    if snapshot is None:
        state = _worker_state(loader_state)
    else:
        if loader_state.get("_steps_since_snapshot"):
            raise StateError(
                "rank_state: expected a state of a snapshot, got one taken "
                f"{loader_state['_steps_since_snapshot']} steps after it. Use snapshot_every_n_steps=1."
            )
        state = _joined([_worker_state(worker) for worker in snapshot["_worker_snapshots"].values()])
    if loader_state.get("_iterator_finished"):
        return {**state, "iteration": state["iteration"] + 1, "origin": [0, 0], "consumed": 0}
    return state


def check_state_of(loader: DataLoader) -> None:
    """Holds a state that a ``StatefulDataLoader`` is going to restore to its number of workers.

    Raises:
        StateError: it is of another number of workers.
    """
    state = getattr(loader, "next_iter_state", None)
    if not state:
        return
    snapshot = state.get("_snapshot")
    saved = 0 if snapshot is None else len(snapshot.get("_worker_snapshots", ()))
    if saved != loader.num_workers:
        raise StateError(
            f"StatefulDataLoader: expected a state of {loader.num_workers} workers, got one of {saved}. Give it to the "
            "dataset in place of the loader, before that starts: dataset.load_state_dict(rank_state(state)), with "
            "parquetry.torch_plugin.rank_state."
        )


def _worker_state(state: Mapping[str, Any]) -> dict[str, Any]:
    found = (state.get("fetcher_state") or {}).get("dataset_iter_state")
    if not isinstance(found, dict) or "fingerprint" not in found:
        raise StateError(
            f"rank_state: expected the state of a StatefulDataLoader over a ParquetPipe, got the keys {sorted(state)}."
        )
    return found


def _joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state of all workers together: they stand at the next elements of the rank, in any order."""
    workers = states[0]["workers"]
    following = sorted(state["worker"] + state["consumed"] * workers for state in states)
    first = following[0]
    if len(states) != workers or following != list(range(first, first + workers)):
        raise StateError(
            "rank_state: expected workers that took the elements in turn, got workers whose next elements are "
            f"{following}. Use batch(), and batch_size=None in the loader, without functions that leave rows out."
        )
    return {**states[0], "worker": 0, "workers": 1, "consumed": first}
