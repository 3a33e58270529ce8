"""Every use of what torch and torchdata do not document: private names, replaced methods, keys of loader states.

Tried with torch 2.6.0 and 2.13.0, and torchdata 0.11.0. ``tests/torch_plugin/test_torch_internals.py`` has a test of
each, and refuses private names of torch in the other modules. Where a name may be missing, its function says what then
happens; other names are as old as the oldest torch that is supported.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import register_pytree_node
from torch.utils.data import DataLoader, Subset, dataloader
from torch.utils.data._utils import fetch, signal_handling
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory

__all__ = ["ExceptionWrapper", "default_collate_fn_map", "pin_memory", "register_pytree_node"]

State: TypeAlias = dict[str, Any]
Wrapper: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
Jagged: Any
try:
    from torch.nested._internal.nested_tensor import NestedTensor as Jagged
except ImportError:  # it is elsewhere in this torch version
    Jagged = None
LoaderIterator: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
"""The class of a loader's iterators; ``None`` if this torch has none, and passes are not announced."""
_NAMES_IN_NEXT = {
    *("torch", "autograd", "profiler", "record_function", "_profile_name", "_sampler_iter", "_reset", "_next_data"),
    *("_num_yielded", "_dataset_kind", "_DatasetKind", "Iterable", "_IterableDataset_len_called", "_dataset"),
    *("_num_workers", "warnings", "warn"),
}
"""What ``_BaseDataLoaderIter.__next__`` refers to, in the versions of torch where it does what `unlabelled` does."""


# --- methods of loaders that do more than torch's ---


def extend(owner: object, name: str, wrapper: Wrapper) -> None:
    """Replaces a function by what ``wrapper`` makes of it. Idempotent; has no effect if there is none."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, "_parquetry"):
        extended: Any = wrapper(original)
        extended._parquetry = True
        setattr(owner, name, extended)


def extend_iterators(
    *, start: Wrapper, reset: Wrapper, following: Wrapper, next_index: Wrapper, process: Wrapper, length: Wrapper
) -> None:
    """Extends a loader's length, and these methods of all iterators of loaders.

    Args:
        start, reset: what begins the first pass, and each pass; called with the iterator and its loader.
        following: returns the next element to the loop.
        next_index: returns the numbers of the next batch.
        process: takes an item that a worker has sent.
        length: ``DataLoader.__len__``.
    """
    extend(LoaderIterator, "__init__", start)
    extend(LoaderIterator, "_reset", reset)
    extend(LoaderIterator, "__next__", lambda original: following(unlabelled(original)))
    extend(LoaderIterator, "_next_index", next_index)
    extend(_workers_iterator(), "_process_data", process)
    extend(DataLoader, "__len__", length)


def extend_fetcher(wrapper: Wrapper) -> None:
    """Extends the start of what iterates an iterable dataset for a loader; see `replace_elements`."""
    if (fetcher := _fetcher()) is not None:
        extend(fetcher, "__init__", wrapper)


def extend_wait(kind: type, wrapper: Wrapper) -> None:
    """Extends what waits once for a worker's item, in a class of iterators, torch's or `StatefulDataLoader`'s."""
    extend(kind, "_try_get_data", wrapper)


def extend_worker_check(wrapper: Wrapper) -> None:
    """Extends what torch's handler of ``SIGCHLD`` calls. It raises if a worker has died."""
    extend(signal_handling, "_error_if_any_worker_fails", wrapper)


def extend_subsets(wrapper: Wrapper) -> None:
    """Extends what returns the rows of a ``Subset``."""
    for name in ("__getitem__", "__getitems__"):
        extend(Subset, name, wrapper)


def unlabelled(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns torch's ``__next__`` without the label that it sets for profilers, unless one is running.

    Setting and removing it releases the interpreter lock twice. Getting that back from threads that make batches takes
    longer than making tensors of a small one. If torch's method is not the one that we know, it stays as it is.
    """
    names = getattr(getattr(original, "__code__", None), "co_names", ())
    if {*names} != _NAMES_IN_NEXT or not hasattr(torch.autograd, "_profiler_enabled"):
        return original

    def unlabelled(self: Any) -> Any:
        warns = self._IterableDataset_len_called is not None  # of too many elements
        if warns or self._sampler_iter is None or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return original(self)
        data = self._next_data()
        self._num_yielded += 1
        return data

    return unlabelled


# --- iterators of loaders ---


def _workers_iterator() -> Any:
    return getattr(dataloader, "_MultiProcessingDataLoaderIter", None)


def _fetcher() -> Any:
    return getattr(fetch, "_IterableDatasetFetcher", None)


def keeps_items(iterator: object) -> bool:
    """Whether an iterator is torch's own for workers, whose items can be read and replaced on their way."""
    kind = _workers_iterator()
    return type(iterator) is kind and hasattr(kind, "_process_data") and _fetcher() is not None


def base_seed(iterator: object) -> int | None:
    """Returns the random seed of a pass; ``None`` if torch does not expose it."""
    return getattr(iterator, "_base_seed", None)


def replace_collate(iterator: Any, replace: Callable[[Any], Any]) -> None:
    """Replaces the function that an iterator, or its workers, will collate with; when `LoaderIterator` has begun it."""
    iterator._collate_fn = replace(getattr(iterator, "_collate_fn", None))


def replace_elements(fetcher: Any, replace: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    """Replaces the dataset's iterator in what fetches elements from it for a loader."""
    fetcher.dataset_iter = replace(fetcher.dataset_iter)


def count_yielded(iterator: Any, count: int) -> None:
    """Sets how many elements an iterator has given. Torch warns if it is more than ``len()``."""
    iterator._num_yielded = count


def mark_shut_down(iterator: Any) -> None:
    """Tells torch's ``__del__`` that an iterator whose start failed has no workers to stop."""
    iterator._shutdown = True


def keeps_workers(iterator: object) -> bool:
    """Whether an iterator's workers stay for the next pass."""
    return bool(getattr(iterator, "_persistent_workers", False))


def workers_of(iterator: object) -> list[Any]:
    """Returns the processes of an iterator's workers."""
    return getattr(iterator, "_workers", [])


def has_received(iterator: object) -> bool:
    """Whether an iterator has got an item of any worker."""
    return bool(getattr(iterator, "_rcvd_idx", 0))


def awaited_worker(iterator: object) -> int | None:
    """Returns which worker an iterator waits for: its number, -1 if unknown, ``None`` if it waits for all of them."""
    if not getattr(iterator, "_in_order", True):
        return None
    tasks: Mapping[Any, Any] = getattr(iterator, "_task_info", {})
    return int(tasks.get(getattr(iterator, "_rcvd_idx", None), (-1,))[0])


def worker_check() -> Callable[[], object] | None:
    """Returns what raises torch's error if a worker of this process has died, if torch has it."""
    return getattr(signal_handling, "_error_if_any_worker_fails", None)


def is_forked(worker: object) -> bool:
    """Whether a worker was forked, and is no new interpreter."""
    return (getattr(worker, "_start_method", None) or multiprocessing.get_start_method()) == "fork"


def is_told_to_end() -> bool:
    """In a worker: whether the loader has told it to end. It waits only five seconds for each worker."""
    arguments = getattr(multiprocessing.current_process(), "_args", ())  # what the loader started it with
    return any(each.is_set() for each in arguments if isinstance(each, Event))


# --- states of a StatefulDataLoader ---


def unrestored_state(loader: object) -> State:
    """Returns the state that a loader's next iterator will restore; empty without one."""
    return getattr(loader, "next_iter_state", None) or {}


def worker_states(state: Mapping[str, Any]) -> list[State]:
    """Returns the state of each worker; none in a state of a loader without workers."""
    return [*(state.get("_snapshot") or {}).get("_worker_snapshots", {}).values()]


def replace_sampler(iterator: Any, replace: Callable[[Any], Any]) -> bool:
    """Replaces the sampler of which an iterator, before it restores a state, skips what was given before.

    torchdata's ``BatchSampler`` skips numbers of the sampler that it wraps; other batches are skipped as they are.

    Returns:
        Whether it was replaced. A sampler with a state of its own gives nothing to skip.
    """
    sampler, elements = iterator._index_sampler, iterator._sampler_iter
    batched = type(sampler).__module__.startswith("torchdata.") and type(sampler).__name__ == "BatchSampler"
    skipped = (sampler.sampler, elements.sampler_iter) if batched else (sampler, elements)
    if any(hasattr(each, "load_state_dict") for each in skipped):
        return False
    if batched:
        iterator._index_sampler = copy(sampler)
        iterator._index_sampler.sampler = replace(sampler.sampler)
    else:
        iterator._index_sampler = replace(sampler)
    return True


def dataset_state(state: Mapping[str, Any]) -> object:
    """Returns what a dataset's iterator gave for the state of a worker, or of a loader without workers."""
    return (state.get("fetcher_state") or {}).get("dataset_iter_state")


def has_ended(state: Mapping[str, Any]) -> bool:
    """Whether a state is one of the end of a pass."""
    return bool(state.get("_iterator_finished"))


def steps_since_snapshot(state: Mapping[str, Any]) -> int:
    """Returns how many elements were taken since the workers gave their states."""
    return int(state.get("_steps_since_snapshot") or 0) if state.get("_snapshot") is not None else 0


def steps_in(state: Mapping[str, Any]) -> int:
    """Returns how many elements of a pass were taken when the workers gave their states."""
    snapshot = state.get("_snapshot")
    return int((state.get("_num_yielded") if snapshot is None else snapshot.get("_snapshot_step")) or 0)


def forget_length(state: State) -> None:
    """Removes the length that a loader had, about which torch would warn."""
    state["_IterableDataset_len_called"] = None


def deal_state(state: State, positions: list[State]) -> None:
    """Puts the position of a dataset in each worker, at the beginning of a pass, into a loader's state."""
    snapshot = state["_snapshot"]
    main = {**snapshot["_main_snapshot"], "_sampler_iter_yielded": 0}
    forget_length(main)
    workers = {
        f"worker_{worker}": {
            "worker_id": worker,
            "dataset_state": None,  # the worker's copy of the dataset has it
            "fetcher_state": {"dataset_iter_state": position, "fetcher_ended": False},
        }
        for worker, position in enumerate(positions)
    }
    state["_snapshot"] = {
        **snapshot,
        "_main_snapshot": main,
        "_worker_snapshots": workers,
        "_snapshot_step": 0,
        "_last_yielded_worker_id": len(workers) - 1,  # so the first one is next
    }
    state["_iterator_finished"] = False  # a finished pass has become the beginning of the next one


# --- DataPipes, imported when they are used, because torch plans to remove them ---


def serialization_wrapper() -> Any:
    """Returns the class of what loaders put DataPipes into; ``None`` if torch has none, and they see the pipes."""
    from torch.utils.data.datapipes import datapipe

    return getattr(datapipe, "_IterDataPipeSerializationWrapper", None)


def unwrapped(dataset: object) -> object:
    """Returns the dataset that loaders have wrapped: torch does it with a DataPipe, Accelerate with any loader's."""
    while (inner := getattr(dataset, "_datapipe", None)) is not None:
        dataset = inner
    return dataset


def is_fork(pipe: object) -> bool:
    """Whether a DataPipe is one of those that ``fork()`` makes."""
    from torch.utils.data.datapipes.iter.combining import _ForkerIterDataPipe

    return isinstance(getattr(pipe, "main_datapipe", None), _ForkerIterDataPipe)


def map_next(mapper: Any, elements: Iterator[Any]) -> Any:
    """Returns what a ``MapperIterDataPipe`` makes of the next element."""
    return mapper._apply_fn(next(elements))


def next_kept(pipe: Any, elements: Iterator[Any]) -> Any:
    """Returns the next element that a ``FilterIterDataPipe`` keeps."""
    while True:
        kept, element = pipe._returnIfTrue(next(elements))
        if kept:
            return element


# --- tensors ---


def jagged(rows: torch.Tensor, offsets: torch.Tensor, shortest: int, longest: int) -> torch.Tensor:
    """Returns what ``torch.nested.nested_tensor_from_jagged`` gives, for plain tensors with known row lengths.

    torch's function makes a view through the dispatcher, which takes several times as long, and its first call imports
    modules that only compilers need. Without the lengths, torch pads each row to the rows of the whole batch.
    """
    if Jagged is None:
        return torch.nested.nested_tensor_from_jagged(rows, offsets, min_seqlen=shortest, max_seqlen=longest)
    made = Jagged(rows, offsets)
    made._metadata_cache.update(min_seqlen=_length_as_shape(shortest), max_seqlen=_length_as_shape(longest))
    return cast(torch.Tensor, made)


def _length_as_shape(length: int) -> torch.Tensor:
    """Returns ``torch.empty(length, 0)``: torch keeps the lengths of the shortest and longest row in this form.

    `torch.empty` releases the interpreter lock, and may wait long to get it back. `torch.from_numpy` keeps it.
    """
    return torch.from_numpy(np.empty((length, 1), np.float32)[:, 1:])


def jagged_parts(tensor: Any) -> tuple[torch.Tensor, torch.Tensor, int, int] | None:
    """Returns what `jagged` makes a tensor of; ``None`` if it is a jagged tensor of another kind.

    Asked for `requires_grad`, the class would import modules, which fails if a worker has too many open files.
    """
    shortest, longest = tensor._maybe_min_seqlen, tensor._maybe_max_seqlen
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.lengths() is None and tensor._ragged_idx == 1 and not tensor.requires_grad
    if not plain or shortest is None or longest is None:
        return None
    return tensor._values, tensor._offsets, shortest, longest


def seen_by_modes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Shows new tensors to torch's modes, such as `FakeTensorMode`, as `torch.from_numpy` does."""
    if _get_current_dispatch_mode() is None:
        return tensors
    return [torch.ops.aten.lift_fresh(tensor) for tensor in tensors]


def shared_block(size_bytes: int) -> torch.Tensor:
    """Returns a block of shared memory, uint8, as torch's own collate uses for a worker's batches."""
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size_bytes))


def default_store() -> Any:
    """Returns the store of the default process group.

    Raises:
        AttributeError, RuntimeError, ValueError: there is none.
    """
    return torch.distributed.distributed_c10d._get_default_store()
