"""Runs: several batches as one item of a loader. Its user sees what torch would give with one batch as an item."""

from __future__ import annotations

import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ids import ids, ids_by_element
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterableDataset, dataloader, default_convert, get_worker_info

from parquetry.common.engine.read.shared_tables import can_share
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, as_is
from parquetry.torch_plugin.loader_workers.relay import most_in_run
from parquetry.torch_plugin.loader_workers.runs import Run, RunIterator, RunMerger

needs_relay = pytest.mark.skipif(not can_share(), reason="needs memory files and sockets without a file")
BATCHES = 60


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("runs") / "rows.parquet"
    pq.write_table(pa.table({"id": range(5 * BATCHES)}), file, row_group_size=50)
    return str(file)


@pytest.fixture
def items(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects what torch hands to the loop of the training process."""
    found: list[Any] = []
    original = dataloader._MultiProcessingDataLoaderIter._process_data  # type: ignore[attr-defined]

    def noting(self: Any, *given: Any) -> Any:
        found.append(original(self, *given))
        return found[-1]

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "_process_data", noting)  # type: ignore[attr-defined]
    return found


class Source:
    """A dataset that no loader finds: a function of a user's module gets at it by a name."""

    pipe: ClassVar[Any]


class Kinds(IterableDataset[str]):
    """The classes of the elements of `Source`."""

    def __iter__(self) -> Iterator[str]:
        return (type(batch).__name__ for batch in Source.pipe)


class Short(IterableDataset[Any]):
    """A dataset that has one element more than it says."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return BATCHES - 1

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


def look_at_a_batch(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(next(iter(info.dataset)), dict)


def wrapped(text: str) -> ExceptionWrapper:
    try:
        raise ValueError(text)
    except ValueError:
        return ExceptionWrapper(where="in a test")


def outcomes(following: Callable[[], Any]) -> Iterator[Any]:
    """Yields elements, and errors in their places, until the end."""
    while True:
        try:
            yield following()
        except StopIteration:
            return
        except ValueError as error:
            yield "error " + str(error).splitlines()[-1]


def dealing(lanes: RunMerger, runs: Iterator[Run]) -> Callable[[], Any]:
    """Returns a function that gives the next of the runs' batches."""

    def item() -> Run:
        run = next(runs)
        lanes.add(run)
        return run

    return lambda: lanes.following(item)


def one_by_one(workers: list[list[Any]]) -> Iterator[Any]:
    """Yields the elements of workers as torch does: one of each in turn, of those that have not ended."""
    left = deque(deque(elements) for elements in workers)
    while left:
        if left[0]:
            yield left[0].popleft()
            left.rotate(-1)
        else:
            left.popleft()


@given(data=st.data())
def test_runs_of_any_length_are_dealt_as_torch_would_deal_their_batches(data: st.DataObject) -> None:
    workers = data.draw(st.lists(st.lists(st.sampled_from(["batch", "error"]), max_size=9), min_size=1, max_size=4))
    named = [[f"{kind} {worker}.{number}" for number, kind in enumerate(kinds)] for worker, kinds in enumerate(workers)]
    runs: list[list[Run]] = []
    for worker, elements in enumerate(named):
        made = [Run(worker, [])]
        for element in elements:
            if made[-1].error is not None or data.draw(st.booleans()):
                made.append(Run(worker, []))
            if element.startswith("error"):
                made[-1].error = wrapped(element.removeprefix("error "))
            else:
                made[-1].batches.append(element)
        if made[-1].error is not None or data.draw(st.booleans()):
            made.append(Run(worker, []))
        made[-1].is_last = True
        runs.append([pickle.loads(pickle.dumps(run)) if run.error is None else run for run in made])
    of_torch = one_by_one(runs)

    lanes = RunMerger(len(workers))
    found = [each.replace("ValueError: ", "") for each in outcomes(dealing(lanes, of_torch))]
    assert found == list(one_by_one(named))
    assert lanes.taken == sum(element.startswith("batch") for elements in named for element in elements)


@needs_relay
@pytest.mark.parametrize("face", [ParquetPipe, ParquetIterable])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_that_wait_for_the_loop_come_in_runs(url: str, items: list[Any], face: Any, workers: int) -> None:
    expected = list(ids_by_element(DataLoader(face(url).shuffle(40, seed=1).batch(5), batch_size=None)))
    found = []
    pause_s = 0.002
    loader = DataLoader(face(url).shuffle(40, seed=1).batch(5), batch_size=None, num_workers=workers)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of IterableDataset")  # there would be more elements than `len()`
        assert len(loader) == BATCHES
        for batch in loader:
            found.append(batch["id"].tolist())
            if not any(len(run.batches) > 1 for run in items):  # the workers have not come that far yet
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 8)
    assert found == expected
    assert {type(item) for item in items} == {Run}
    assert any(len(run.batches) > 1 for run in items)


@needs_relay
def test_a_later_pass_begins_with_nothing_of_the_one_before(url: str) -> None:
    pipe = ParquetPipe(url).batch(5)
    loader = DataLoader(pipe, batch_size=None, num_workers=2, persistent_workers=True)
    for taken in (1, 7, 30):
        for number, batch in enumerate(loader, 1):
            assert batch["id"][0] == 5 * (number - 1)
            time.sleep(0.002)
            if number == taken:
                break
    assert ids(loader) == list(range(5 * BATCHES))


@pytest.mark.parametrize("rows", [None, 3])
def test_a_loader_that_gathers_elements_gathers_single_ones(url: str, rows: int | None) -> None:
    pipe = ParquetPipe(url) if rows is None else ParquetPipe(url).batch(rows)
    loader = DataLoader(pipe, batch_size=4, collate_fn=as_is, num_workers=2)
    found = [element for elements in loader for element in elements]
    assert {type(element) for element in found} == {dict}
    assert sorted(ids(found)) == list(range(5 * BATCHES))


@needs_relay
def test_a_loader_that_gives_what_is_there_gets_single_batches(url: str, items: list[Any]) -> None:
    loader = DataLoader(ParquetPipe(url).batch(5), batch_size=None, num_workers=2, in_order=False)
    assert sorted(ids(loader)) == list(range(5 * BATCHES))
    assert {type(item) for item in items} == {dict}


def test_a_run_never_waits_for_more_batches() -> None:
    class Elements:
        asked: ClassVar[list[int]] = []

        def __next__(self) -> str:
            return "batch"

        def received(self, most: int) -> list[str]:
            self.asked.append(most)
            return ["another"] if len(self.asked) == 1 else []

    runs = RunIterator(Elements(), 3, 8)  # type: ignore[type-var,arg-type]  # for a test
    assert [(run.worker, run.batches, run.is_last) for run in (next(runs), next(runs))] == [
        (3, ["batch", "another"], False),
        (3, ["batch"], False),
    ]
    assert Elements.asked == [7, 7]


def test_large_batches_are_sent_alone(tmp_path: Path, url: str) -> None:
    pq.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 10**6), 1000)}), tmp_path / "a")
    assert most_in_run(ParquetPipe(url).batch(5).pipeline, 8) == 8
    assert most_in_run(ParquetPipe(tmp_path / "a").batch(100).pipeline, 8) == 2
    assert most_in_run(ParquetPipe(tmp_path / "a").batch(400).pipeline, 8) == 1


def test_the_batches_of_a_run_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *device: self + 1)
    run = Run(1, [{"x": torch.zeros(2)}, (torch.ones(1), ["text"])], None, True).pin_memory()
    assert run.batches[0]["x"].tolist() == [1, 1]
    assert run.batches[1][0].tolist() == [2]
    assert run.batches[1][1] == ["text"]
    assert (run.worker, run.is_last) == (1, True)


def test_a_batch_that_cannot_be_pinned_is_an_error_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def pinned(tensor: torch.Tensor, *device: object) -> torch.Tensor:
        if tensor.item() == 1:
            raise ValueError("too much")
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    runs = iter([Run(0, [torch.tensor(each) for each in range(3)]).pin_memory(), Run(0, [], None, True)])
    lanes = RunMerger(1)
    found = list(outcomes(dealing(lanes, runs)))
    assert found == [torch.tensor(0), "error ValueError: too much", torch.tensor(2)]


def test_a_worker_whose_end_was_lost_does_not_take_the_batches_of_others_with_it() -> None:
    runs = iter([Run(0, ["a"]), Run(1, ["b", "c", "d"]), Run(1, [], None, True)])
    lanes = RunMerger(2)
    assert list(outcomes(dealing(lanes, runs))) == ["a", "b", "c", "d"]


@needs_relay
@pytest.mark.parametrize("collate", [as_is, default_convert])
def test_a_loader_that_makes_lists_of_elements_gets_single_ones(url: str, collate: Any) -> None:
    loader = DataLoader(ParquetPipe(url).batch(5), batch_size=2, collate_fn=collate, num_workers=1)
    assert [[batch["id"][0].item() for batch in pair] for pair in loader] == [
        [first, first + 5] for first in range(0, 5 * BATCHES, 10)
    ]


@needs_relay
@pytest.mark.parametrize("face", [ParquetPipe, ParquetIterable])
def test_only_the_loader_gets_runs_and_messages(url: str, face: Any) -> None:
    Source.pipe = face(url).batch(5)
    loader = DataLoader(Source.pipe, batch_size=None, num_workers=1, worker_init_fn=look_at_a_batch)
    assert ids(loader) == list(range(5 * BATCHES))
    assert set(DataLoader(Kinds(), batch_size=None, num_workers=1)) == {"dict"}


@needs_relay
def test_a_running_worker_keeps_to_what_the_loader_said_when_it_started(url: str) -> None:
    loader = DataLoader(ParquetPipe(url).batch(5), batch_size=None, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert ids(loader) == list(range(5 * BATCHES))
        loader.collate_fn, loader.num_workers = list, 3


def test_torch_warns_of_one_element_too_many(url: str) -> None:
    loader = DataLoader(Short(ParquetPipe(url).batch(5)), batch_size=None, num_workers=1)
    assert len(loader) == BATCHES - 1
    with pytest.warns(UserWarning, match="Length of IterableDataset"):
        assert ids(loader) == list(range(5 * BATCHES))


@needs_relay
def test_an_interrupt_after_a_run_has_arrived_loses_none_of_its_batches(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(torch.autograd.profiler.record_function):
        """Torch's record of its next step, which ends after the step has an item."""

        left = 4

        def __exit__(self, *given: Any) -> None:
            super().__exit__(*given)
            Interrupting.left -= 1
            if Interrupting.left in (0, 2):
                raise KeyboardInterrupt

    monkeypatch.setattr(torch.autograd.profiler, "record_function", Interrupting)
    monkeypatch.setattr(torch.autograd, "_profiler_enabled", lambda: True)  # otherwise there is no record
    iterator = iter(DataLoader(ParquetPipe(url).batch(5), batch_size=None, num_workers=2))
    found, interrupts = [], 0
    while len(found) < BATCHES:
        time.sleep(0.002)
        try:
            found.append(next(iterator)["id"].tolist())
        except KeyboardInterrupt:
            interrupts += 1
    assert found == [list(range(first, first + 5)) for first in range(0, 5 * BATCHES, 5)]
    assert interrupts == 2
