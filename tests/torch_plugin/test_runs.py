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
from torch.utils.data import DataLoader, dataloader

from parquetry.common.engine.read.shared_tables import can_share
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, as_is
from parquetry.torch_plugin.relay import most_in_run
from parquetry.torch_plugin.runs import Lanes, Run, RunIterator

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

    lanes = Lanes(len(workers))
    found = [each.replace("ValueError: ", "") for each in outcomes(lambda: lanes.following(lambda: next(of_torch)))]
    assert found == list(one_by_one(named))
    assert lanes.taken == sum(element.startswith("batch") for elements in named for element in elements)


@needs_relay
@pytest.mark.parametrize("face", [ParquetPipe, ParquetIterable])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_that_wait_for_the_loop_come_in_runs(url: str, items: list[Any], face: Any, workers: int) -> None:
    expected = list(ids_by_element(DataLoader(face(url).shuffle(40, seed=1).batch(5), batch_size=None)))
    found = []
    loader = DataLoader(face(url).shuffle(40, seed=1).batch(5), batch_size=None, num_workers=workers)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of IterableDataset")  # there would be more elements than `len()`
        assert len(loader) == BATCHES
        for batch in loader:
            found.append(batch["id"].tolist())
            time.sleep(0.002)
    assert found == expected
    assert {type(item) for item in items} == {Run}
    assert len(items) < BATCHES * 2 // 3


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
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    run = Run(1, [{"x": torch.zeros(2)}, (torch.ones(1), ["text"])], None, True).pin_memory()
    assert run.batches[0]["x"].tolist() == [1, 1]
    assert run.batches[1][0].tolist() == [2]
    assert run.batches[1][1] == ["text"]
    assert (run.worker, run.is_last) == (1, True)
