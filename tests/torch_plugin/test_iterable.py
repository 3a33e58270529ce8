"""`ParquetIterable` in torch's own loaders: epoch ``k`` of any loader is epoch ``k`` in every worker."""

from __future__ import annotations

import functools
import re
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from ids import epoch_of
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, Subset, get_worker_info, random_split
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import FieldNotFoundError, NullValueError, PipelineError
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetNode, ParquetPipe, mix, rank_state
from parquetry.torch_plugin.epochs import EpochCounter
from parquetry.torch_plugin.loader_passes import Pass

LOADERS = [
    pytest.param(DataLoader, {}, id="in-process"),
    pytest.param(DataLoader, {"num_workers": 3}, id="three-workers"),
    pytest.param(DataLoader, {"num_workers": 2, "persistent_workers": True}, id="persistent"),
    pytest.param(StatefulDataLoader, {"num_workers": 2}, id="stateful"),
    pytest.param(StatefulDataLoader, {"num_workers": 2, "persistent_workers": True}, id="stateful-persistent"),
]


def ids(loader: Any) -> list[Any]:
    return [element["id"].tolist() if isinstance(element, dict) else element for element in loader]


def make(url: str, face: Any = ParquetIterable) -> Any:
    return face(url, ["id"]).shuffle(10, seed=5).batch(7)


@pytest.mark.parametrize(("loader", "options"), LOADERS)
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_each_pass_of_a_loader_is_the_next_epoch(url: str, face: Any, loader: Any, options: dict[str, Any]) -> None:
    dataset = make(url, face)
    loaded = loader(dataset, batch_size=None, **options)
    assert len(loaded) == 9
    assert [ids(loaded) for _ in range(2)] == [epoch_of(dataset, 0), epoch_of(dataset, 1)]
    broken_off = iter(loaded)
    assert next(broken_off)["id"].tolist() == epoch_of(dataset, 2)[0]
    iter(loaded)  # forgotten
    assert ids(loaded) == epoch_of(dataset, 4)
    dataset.set_epoch(9)
    assert ids(loaded) == epoch_of(dataset, 9)
    assert ids(loaded) == epoch_of(dataset, 10)


def test_loaders_over_one_dataset_share_its_epochs(url: str) -> None:
    dataset = make(url)
    persistent = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    others = [DataLoader(dataset, batch_size=None, num_workers=workers) for workers in (0, 1)]
    found = [ids(loaded) for loaded in (persistent, *others, persistent, dataset, persistent)]
    assert found == [epoch_of(dataset, epoch) for epoch in range(6)]


@pytest.mark.slow
def test_workers_that_are_spawned_are_in_the_same_epoch(url: str) -> None:
    dataset = make(url)
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
    loader = DataLoader(dataset, batch_size=None, **options)
    dataset.set_epoch(3)
    assert ids(loader) == epoch_of(dataset, 3)
    dataset.set_epoch(8)
    assert ids(loader) == epoch_of(dataset, 8)


class Wrapped(IterableDataset):
    """A user-defined dataset."""

    def __init__(self, *inside: Any, named: Any = None) -> None:
        self.inside = inside
        self.named = named or {}

    def __iter__(self) -> Any:
        for dataset in [*self.inside, *self.named.values()]:
            for element in dataset() if callable(dataset) else dataset:
                yield element["id"].tolist()


def _in_a_function(dataset: Any) -> Any:
    return Wrapped(lambda: dataset)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "attribute": Wrapped,
    "dict": lambda dataset: Wrapped(named={"train": dataset}),
    "closure": _in_a_function,
    "partial": lambda dataset: Wrapped(functools.partial(iter, dataset)),
    "chain": lambda dataset: ChainDataset([dataset]),
    "chain of a wrapped one": lambda dataset: ChainDataset([Wrapped(dataset)]),
}


@pytest.mark.parametrize(
    "hold",
    [pytest.param(h, id=name, marks=() if name == "attribute" else pytest.mark.slow) for name, h in HOLDERS.items()],
)
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_a_dataset_inside_another_is_dealt_and_counted(url: str, face: Any, hold: Callable[[Any], Any]) -> None:
    dataset = make(url, face)
    for epoch in range(2):  # a new loader, as in many training loops
        assert ids(DataLoader(hold(dataset), batch_size=None, num_workers=2)) == epoch_of(dataset, epoch)
    assert ids(DataLoader(hold(dataset), batch_size=None)) == epoch_of(dataset, 2)


@pytest.mark.parametrize("face", [ParquetIterable, ParquetMap, ParquetNode, ParquetPipe])
def test_a_dataset_in_place_of_a_url_says_to_pass_its_pipeline(face: Any) -> None:
    for given in (ParquetIterable("never-read"), ParquetMap("never-read")):
        with pytest.raises(PipelineError, match=rf"or a Pipeline, got a {type(given).__name__}\. Pass \.pipeline\.$"):
            face(given)


@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_a_sum_of_datasets_gives_one_after_the_other(url: str, face: Any, options: dict[str, Any]) -> None:
    rows = face(url, ["id"]).shuffle(10, seed=5)
    first, second = (rows.where(predicate).batch(7) for predicate in (pc.field("id") < 30, pc.field("id") >= 30))
    loader = DataLoader(first + second, batch_size=None, **options)
    for epoch in range(2):
        found = [batch["id"].tolist() for batch in loader]
        assert sorted(found) == sorted(epoch_of(first, epoch) + epoch_of(second, epoch))


class MadeInside(IterableDataset):
    """Creates its dataset in the worker, where no loader can know about it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __iter__(self) -> Any:
        for element in ParquetIterable(self.url, ["id"]).shuffle(10):
            yield element["id"].tolist()


def test_workers_that_make_their_own_dataset_share_a_drawn_seed(url: str) -> None:
    loader = DataLoader(MadeInside(url), batch_size=None, num_workers=3)
    first, second = list(loader), list(loader)
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second


class ZippedInside(IterableDataset):
    """Creates two datasets in the worker, and gives their rows in pairs; then rows of two parts of one shuffle."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __iter__(self) -> Any:
        pair = [ParquetIterable(self.url, ["id"]).shuffle(60) for _ in range(2)]
        shuffled = ParquetIterable(self.url, ["id"]).shuffle(60)
        parts = [shuffled.rename({"id": "first"}), shuffled.select("id")]
        for alike, derived in zip(zip(*pair, strict=True), zip(*parts, strict=True), strict=True):
            yield [int(value) for element in (*alike, *derived) for value in element.values()]


def test_two_shuffles_in_a_worker_have_orders_of_their_own(url: str) -> None:
    loader = DataLoader(ZippedInside(url), batch_size=None, num_workers=2, persistent_workers=True)
    passes = [list(zip(*loader, strict=True)) for _ in range(2)]
    for columns in passes:
        assert all(sorted(column) == list(range(60)) for column in columns)  # the workers agree on each seed
        assert columns[2] == columns[3]  # parts of one shuffle
    assert len({column for columns in passes for column in columns}) == 6


def test_a_worker_warns_of_an_epoch_that_nobody_announced(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parquetry.torch_plugin import epochs, iterable

    dataset = make(url)
    info = type("Info", (), {"id": 0, "num_workers": 1, "seed": 3})()
    for module in (iterable, epochs):
        monkeypatch.setattr(module, "get_worker_info", lambda: info)
    monkeypatch.setattr(iterable, "end_with_trainer", lambda: None)
    next(iter(dataset))
    assert "no loader announced this pass, so it is epoch 0 each time" in caplog.text


def test_a_stateful_loader_that_began_in_mid_epoch_is_saved_and_restored(url: str) -> None:
    dataset = make(url)
    dataset.load_state_dict({**dataset.state_dict(), "consumed": 3})
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    iterator = iter(loader)
    head = [next(iterator)["id"].tolist() for _ in range(3)]
    fresh = StatefulDataLoader(make(url), batch_size=None, num_workers=2)
    fresh.load_state_dict(loader.state_dict())
    assert rank_state(loader.state_dict())["consumed"] == 6
    assert head + ids(fresh) == epoch_of(dataset, 0)[3:]
    assert ids(fresh) == epoch_of(dataset, 1)


def test_a_mix_is_of_the_kind_of_its_first_source(url: str) -> None:
    assert type(mix([ParquetIterable(url)])) is ParquetIterable
    assert isinstance(mix([ParquetPipe(url)]), ParquetPipe)
    assert isinstance(mix([ParquetIterable(url).pipeline]), ParquetPipe)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_torchs_seed_fixes_a_shuffle_without_one(url: str, face: Any, workers: int) -> None:
    def epochs(generator: torch.Generator | None = None) -> list[Any]:
        loaded = DataLoader(face(url, ["id"]).shuffle(20).batch(7), None, num_workers=workers, generator=generator)
        return [ids(loaded) for _ in range(2)]

    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, other = epochs(), epochs()
        torch.manual_seed(3)
        assert epochs() == first
        assert first != other
        assert first[0] != first[1]
        given = epochs(torch.Generator().manual_seed(4))
        assert epochs(torch.Generator().manual_seed(4)) == given
        torch.manual_seed(5)
        direct = ids(face(url, ["id"]).shuffle(20))
        torch.manual_seed(5)
        assert ids(face(url, ["id"]).shuffle(20)) == direct


def test_pipelines_derived_from_one_shuffle_share_its_order(url: str) -> None:
    shuffled = ParquetIterable(url).shuffle(20)
    first, second = shuffled.select("id"), shuffled.select("id", "x").batch(7)
    state = shuffled.select("id").state_dict()
    rows = ids(DataLoader(first, batch_size=None))
    assert [row for batch in ids(DataLoader(second, batch_size=None, num_workers=1)) for row in batch] == rows
    resumed = ParquetIterable(url).shuffle(20).select("id")
    resumed.load_state_dict(state)
    assert ids(DataLoader(resumed, batch_size=None)) == rows


def test_two_shuffles_in_one_loader_are_two_orders(url: str) -> None:
    class Pairs(IterableDataset):
        def __init__(self) -> None:
            self.sides = [ParquetIterable(url, ["id"]).shuffle(20) for _ in range(2)]

        def __iter__(self) -> Any:
            return iter(list(zip(*(ids(side) for side in self.sides), strict=True)))

    pairs = list(DataLoader(Pairs(), batch_size=None))
    assert sum(one == other for one, other in pairs) < 20


@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_batches_that_the_loader_batches_again_warn_once(url: str, face: Any, caplog: pytest.LogCaptureFixture) -> None:
    batched = DataLoader(face(url, ["id"]).batch(10))
    assert [element["id"].shape for element in batched] == [(1, 10)] * 6
    list(batched)
    assert caplog.text.count("Write DataLoader(dataset, batch_size=None)") == 1
    caplog.clear()
    list(DataLoader(face(url, ["id"])))
    list(DataLoader(face(url, ["id"]).batch(10), collate_fn=lambda batches: batches[0]))
    list(DataLoader(face(url, ["id"]).batch(10), batch_size=None))
    assert caplog.text == ""


@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_splitting_by_row_numbers_names_what_splits(url: str, face: Any) -> None:
    part, _ = random_split(face(url, ["id"]), [0.8, 0.2])
    with pytest.raises(PipelineError, match=r'dataset.hash_split\("id", \[0.8, 0.2\], 0\)'):
        next(iter(DataLoader(part)))
    with pytest.raises(PipelineError, match=r"In place of Subset\(\), use take\(\) and skip\(\)"):
        Subset(face(url, ["id"]), [1, 2])[0]


def test_a_state_that_loader_workers_know_alone_warns(url: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = make(url)
    before = dataset.state_dict()
    dataset.pass_begins(Pass(loader=1, workers=2, seed=None))
    assert dataset.state_dict() == dataset.state_dict() == before
    assert caplog.text.count("Write state_after(elements)") == 1
    caplog.clear()
    dataset.pass_begins(Pass(loader=2, workers=0, seed=None))
    next(iter(dataset))
    dataset.state_dict()
    assert caplog.text == ""


@pytest.mark.parametrize("batch", [None, 7])
def test_threads_that_share_an_iterator_take_each_row_once(url: str, batch: int | None) -> None:
    dataset = ParquetIterable(url, ["id"]).repeat(5)
    elements = iter(dataset if batch is None else dataset.batch(batch))

    def take() -> list[int]:
        found: list[int] = []
        for element in elements:
            found += element["id"].reshape(-1).tolist()
            time.sleep(0.0001)  # another thread takes the next element
        return found

    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(take) for _ in range(4)]
    assert sorted(id for part in parts for id in part.result()) == sorted([*range(60)] * 5)


@pytest.mark.parametrize("batch", [None, 7])
def test_errors_of_elements_have_the_callers_frames_alone(nullable_url: str, batch: int | None) -> None:
    dataset = ParquetIterable(nullable_url, ["id", "score"])
    with pytest.raises(NullValueError) as caught:
        list(dataset if batch is None else dataset.batch(batch))
    assert {Path(frame.filename) for frame in traceback.extract_tb(caught.value.__traceback__)} == {Path(__file__)}


@pytest.mark.parametrize(
    ("loader", "workers"), [(DataLoader, 0), (DataLoader, 1), (StatefulDataLoader, 0), (StatefulDataLoader, 1)]
)
@pytest.mark.parametrize(
    ("made", "options"),
    [
        (lambda url: ParquetIterable(url, ["id", "score"]).batch(7), {"batch_size": None}),
        (lambda url: ParquetPipe(url, ["id", "score"]).batch(7), {"batch_size": None}),
        (lambda url: ParquetMap(url, ["id", "score"]), {"batch_size": 7, "collate_fn": list}),
        (lambda url: ParquetIterable(url, ["idd"]).batch(7), {"batch_size": None}),
    ],
)
def test_errors_leave_loaders_without_our_frames(
    nullable_url: str, made: Callable[[str], Any], options: dict[str, Any], loader: Any, workers: int
) -> None:
    with pytest.raises((NullValueError, FieldNotFoundError)) as caught:
        list(loader(made(nullable_url), num_workers=workers, **options))
    shown = "".join(traceback.format_exception(caught.value))  # with what a worker's traceback was
    files = [Path(file) for file in re.findall(r'File "([^"]+)"', shown)]
    assert Path(__file__) in files
    assert not [file for file in files if {"torch_plugin", "common"} & {*file.parts} and file != Path(__file__)]


def test_passes_that_begin_in_a_row_keep_their_epochs_in_a_slow_worker(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = EpochCounter.begin

    def slow(counter: EpochCounter) -> int:
        info = get_worker_info()
        time.sleep(0.2 if info is not None and info.id == 1 else 0)
        return begin(counter)

    monkeypatch.setattr(EpochCounter, "begin", slow)  # in forked workers, too
    expected = ParquetIterable(url, ["id"]).shuffle(60, seed=1).batch(7)
    expected.set_epoch(2)
    dataset = ParquetIterable(url, ["id"]).shuffle(60, seed=1).batch(7)
    options = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = DataLoader(dataset, batch_size=None, **options)
    for _ in range(2):
        iter(loader)
    assert ids(loader) == ids(expected)
