"""Each use of what torch does not document, by itself: a failure says which of them another version of torch changed."""

from __future__ import annotations

import ast
import inspect
import multiprocessing
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchdata
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry import torch_plugin
from parquetry.torch_plugin import torch_internals as internals

pytestmark = pytest.mark.versions
SOURCES = Path(inspect.getfile(torch_plugin)).parent
PRIVATE = re.compile(r"_[A-Za-z]\w*")
NOT_OF_TORCH = {
    *("_fields", "_asdict"),  # of named tuples
    *("_getframe",),  # of sys
    *("_FitLoop", "_TrainingEpochLoop", "_EvaluationLoop", "_PredictionLoop", "_MaxSizeCycle"),  # of Lightning
}


class Numbers(IterableDataset):
    """A dataset whose iterators have a state."""

    def __iter__(self) -> Iterator[int]:
        return NumberIterator()


class NumberIterator:
    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> NumberIterator:
        return self

    def __next__(self) -> int:
        if self.next == 3:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Rows(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each private name that a module uses of an object, or imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, part) for part in [*str(node.module).split("."), *(n.name for n in node.names)])
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, part) for each in node.names for part in each.name.split("."))


def own_names(tree: ast.AST) -> Iterator[str]:
    """Yields the names that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield from [node.attr] if node.value.id in ("self", "result") else []


def test_no_other_module_uses_a_private_name_of_torch() -> None:
    package = SOURCES.parent / "common"
    others = {file: ast.parse(file.read_text()) for file in SOURCES.glob("*.py") if file.name != "torch_internals.py"}
    trees = [*others.values(), *(ast.parse(file.read_text()) for file in package.rglob("*.py"))]
    own = {name for tree in trees for name in own_names(tree)} | NOT_OF_TORCH
    found = [
        f"{file.name}:{line}: {name}"
        for file, tree in others.items()
        for line, name in names_in(tree)
        if PRIVATE.fullmatch(name) and name not in own and not name.startswith("_parquetry")
    ]
    assert not found
    replaced = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for file, tree in others.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if re.match(r"(torch|dist|DataLoader|Subset|IterDataPipe)\b", ast.unparse(node))
    ]
    assert not replaced


def test_the_versions_that_were_tried_are_named() -> None:
    text = re.sub(r"\s+", " ", str(internals.__doc__))
    tried = re.search(r"Tried with torch ([\d.]+) and ([\d.]+), and torchdata ([\d.]+)\.", text)
    assert tried is not None
    oldest, newest, data = (tuple(map(int, each.split("."))) for each in tried.groups())
    assert oldest <= tuple(map(int, torch.__version__.split("+")[0].split(".")[:3])) <= newest
    assert tuple(map(int, torchdata.__version__.split("+")[0].split("."))) == data


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((lambda: internals.LoaderIterator, name) for name in ("__init__", "_reset", "__next__", "_next_index")),
        (lambda: internals._workers_iterator(), "_process_data"),
        (lambda: internals._workers_iterator(), "_try_get_data"),
        (lambda: internals._fetcher(), "__init__"),
        (lambda: DataLoader, "__len__"),
        (lambda: Subset, "__getitem__"),
        (lambda: internals.signal_handling, "_error_if_any_worker_fails"),
    ],
)
def test_a_function_of_torch_is_extended(owner: Callable[[], Any], name: str) -> None:
    function = getattr(owner(), name, None)
    assert callable(function)
    assert name == "_try_get_data" or hasattr(function, "_parquetry")  # that one when the first loader begins


def test_a_function_is_extended_once_and_only_if_it_is_there() -> None:
    class Owner:
        def get(self) -> int:
            return 1

    for _ in range(2):
        internals.extend(Owner, "get", lambda original: lambda self: original(self) + 1)
        internals.extend(Owner, "other", lambda original: original)
    assert Owner().get() == 2
    assert not hasattr(Owner, "other")


def test_the_step_of_this_torch_is_known() -> None:
    assert internals.LoaderIterator.__next__.__wrapped__.__name__ == "unlabelled"


def test_an_iterator_without_workers_has_a_seed_and_a_count() -> None:
    iterator: Any = iter(DataLoader(Rows(), batch_size=2))
    assert isinstance(internals.base_seed(iterator), int)
    assert next(iterator).tolist() == [0, 1]
    assert iterator._num_yielded == 1
    internals.count_yielded(iterator, 7)
    next(iterator)
    assert iterator._num_yielded == 8
    assert internals.workers_of(iterator) == []
    assert not internals.keeps_items(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_collates_with_the_function_that_its_start_leaves(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = internals.LoaderIterator.__init__

    def replacing(self: Any, loader: DataLoader) -> None:
        start(self, loader)
        internals.replace_collate(self, lambda collate: lambda rows: [*collate(rows).tolist(), "own"])

    monkeypatch.setattr(internals.LoaderIterator, "__init__", replacing)
    assert list(DataLoader(Rows(), batch_size=4, num_workers=workers)) == [[0, 1, 2, 3, "own"]]


def test_an_iterable_dataset_is_read_by_an_iterator_that_can_be_replaced() -> None:
    iterator: Any = iter(DataLoader(Numbers(), batch_size=None))
    internals.replace_elements(iterator._dataset_fetcher, lambda elements: (10 + each for each in elements))
    assert list(iterator) == [10, 11, 12]


def test_an_iterator_with_workers_tells_about_them() -> None:
    iterator: Any = iter(DataLoader(Numbers(), batch_size=None, num_workers=2, persistent_workers=True))
    assert internals.keeps_items(iterator)
    assert internals.keeps_workers(iterator)
    assert not internals.has_received(iterator)
    assert internals.awaited_worker(iterator) == 0
    assert [worker.is_alive() for worker in internals.workers_of(iterator)] == [True, True]
    assert internals.is_forked(iterator._workers[0]) == (multiprocessing.get_start_method() == "fork")
    next(iterator)
    assert internals.has_received(iterator)
    assert internals.awaited_worker(iterator) == 1
    check = internals.worker_check()
    assert check is not None
    check()  # none has died
    iterator._shutdown_workers()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_is_forked_or_a_new_interpreter(start: str) -> None:
    process = multiprocessing.get_context(start).Process()  # type: ignore[attr-defined]
    assert internals.is_forked(process) == (start == "fork")


def test_an_iterator_that_is_marked_has_nothing_to_stop() -> None:
    iterator: Any = iter(DataLoader(Numbers(), batch_size=None, num_workers=1))
    internals.mark_shut_down(iterator)
    assert not iterator.__del__()
    assert internals.workers_of(iterator)[0].is_alive()
    iterator._shutdown = False
    iterator._shutdown_workers()


class Told(IterableDataset):
    def __iter__(self) -> Iterator[list[bool]]:
        arguments = multiprocessing.current_process()._args  # type: ignore[attr-defined]
        before = internals.is_told_to_end()
        (event,) = [each for each in arguments if isinstance(each, internals.Event)]
        event.set()
        yield [before, internals.is_told_to_end()]


def test_a_worker_knows_whether_it_is_told_to_end() -> None:
    assert not internals.is_told_to_end()  # no worker
    iterator: Any = iter(DataLoader(Told(), batch_size=None, num_workers=1))
    assert next(iterator) == [False, True]
    iterator._shutdown_workers()


def test_the_state_of_a_loader_without_workers_has_the_dataset_s() -> None:
    loader: Any = StatefulDataLoader(Numbers(), batch_size=None)
    assert internals.unrestored_state(loader) == {}
    next(iter(loader))
    state = loader.state_dict()
    assert internals.worker_states(state) == []
    assert internals.dataset_state(state) == {"next": 1}
    assert (internals.steps_in(state), internals.steps_since_snapshot(state)) == (1, 0)
    assert not internals.has_ended(state)
    assert state["_IterableDataset_len_called"] is None
    internals.forget_length(state)
    loader.load_state_dict(state)
    assert internals.unrestored_state(loader) == state
    assert list(loader) == [1, 2]
    assert internals.has_ended(loader.state_dict())


def test_the_state_of_a_loader_with_workers_is_read_and_made() -> None:
    loader: Any = StatefulDataLoader(Numbers(), batch_size=None, num_workers=2, snapshot_every_n_steps=2)
    elements = iter(loader)
    given, states = [], []
    for _ in range(3):
        given.append(next(elements))
        states.append(loader.state_dict())
    assert given == [0, 0, 1]
    assert [internals.steps_since_snapshot(state) for state in states] == [1, 0, 1]
    assert [internals.steps_in(state) for state in states] == [0, 2, 2]
    assert [internals.dataset_state(each) for each in internals.worker_states(states[1])] == [{"next": 1}] * 2
    internals.deal_state(states[1], [{"next": 2}, {"next": 1}])
    loader.load_state_dict(states[1])
    assert list(loader) == [2, 1, 2]
    assert internals.has_ended(loader.state_dict())


def test_loaders_wrap_datapipes_and_the_dataset_inside_is_found() -> None:
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    pipe = pipes.IterableWrapper([1, 2, 3])
    kind = internals.serialization_wrapper()
    assert kind is not None
    wrapped = DataLoader(pipe).dataset
    assert isinstance(wrapped, kind)
    assert internals.unwrapped(wrapped) is pipe
    assert internals.unwrapped(pipe) is pipe
    assert internals.is_fork(pipe.fork(2)[0])
    assert not internals.is_fork(pipe)
    assert internals.map_next(pipe.map(abs), iter([-1])) == 1
    assert internals.next_kept(pipe.filter(bool), iter([0, 2])) == 2


def test_a_jagged_tensor_is_made_of_parts_and_taken_apart() -> None:
    rows, offsets = torch.arange(6.0), torch.tensor([0, 2, 6])
    made = internals.jagged(rows, offsets, 2, 4)
    expected = torch.nested.nested_tensor_from_jagged(rows, offsets, min_seqlen=2, max_seqlen=4)
    assert internals.Jagged is type(made) is type(expected)
    assert (made._maybe_min_seqlen, made._maybe_max_seqlen) == (2, 4)  # type: ignore[attr-defined]
    assert made.to_padded_tensor(0.0).equal(expected.to_padded_tensor(0.0))
    parts = internals.jagged_parts(made)
    assert parts is not None
    assert parts[0].equal(rows)
    assert parts[1].equal(offsets)
    assert parts[2:] == (2, 4)
    assert internals.jagged_parts(expected.transpose(0, 1) if expected.dim() > 2 else made.requires_grad_()) is None
    assert internals.jagged_parts(torch.nested.nested_tensor_from_jagged(rows, offsets)) is None


def test_modes_see_tensors() -> None:
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    tensors = [torch.arange(3)]
    assert internals.seen_by_modes(tensors) is tensors
    with fake.FakeTensorMode(allow_non_fake_inputs=True):
        (seen,) = internals.seen_by_modes(tensors)
    assert isinstance(seen, fake.FakeTensor)


def test_a_block_is_in_shared_memory() -> None:
    block = internals.shared_block(12)
    assert (block.dtype, block.shape, block.is_shared()) == (torch.uint8, (12,), True)


def test_the_default_group_has_a_store(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, RuntimeError, ValueError)):
        internals.default_store()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'x'}", rank=0, world_size=1)
    try:
        assert internals.default_store().compare_set("key", "", "1") == b"1"
    finally:
        torch.distributed.destroy_process_group()


def test_functions_that_are_used_as_they_are() -> None:
    assert torch.Tensor in internals.default_collate_fn_map
    assert next(iter(inspect.signature(internals.pin_memory).parameters)) == "data"
    assert {"flatten_fn", "unflatten_fn"} <= set(inspect.signature(internals.register_pytree_node).parameters)
    try:
        raise ValueError("x")
    except ValueError:
        error = pickle.loads(pickle.dumps(internals.ExceptionWrapper(where="in a test")))
    with pytest.raises(ValueError, match="Caught ValueError in a test"):
        error.reraise()
