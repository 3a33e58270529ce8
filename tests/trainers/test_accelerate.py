"""Accelerate deals rows to its ranks: each row once, as with any other dataset, and ``len()`` is exact."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset
from two_ranks import in_ranks, in_two_ranks

from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetPipe

FACES = {"iterable": ParquetIterable, "pipe": ParquetPipe}
DISPATCH = (None, True, False)  # dispatch_batches
FILTERED = range(23, 60)  # 37 rows: not divisible by any number of ranks, workers or batches


class Plain(IterableDataset):
    """Accelerate's standard case: a dataset that yields everything everywhere."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def plain(numbers: range, batch_size: int | None) -> Plain:
    """Returns the same rows, or batches of 4, as another kind of dataset."""
    if batch_size is not None:
        return Plain([{"id": torch.tensor(number)} for number in numbers])
    return Plain(
        [
            {"id": torch.tensor(part)}
            for part in [list(numbers[start : start + 4]) for start in range(0, len(numbers), 4)]
        ]
    )


def rows_of(url: str, face: str, numbers: range, batch_size: int | None) -> Any:
    dataset = FACES[face](url, ["id"]).where(pc.field("id") >= numbers.start)
    return dataset.batch(4) if batch_size is None else dataset


def prepared(dataset: Any, dispatch: bool | None, split: bool, stateful: bool = False, **options: Any) -> Any:
    config = DataLoaderConfiguration(dispatch_batches=dispatch, split_batches=split, use_stateful_dataloader=stateful)
    return Accelerator(cpu=True, dataloader_config=config).prepare(DataLoader(dataset, **options))


def seen(loader: Any, epochs: int = 1) -> dict[str, Any]:
    """Returns a loader's length, and the rows of each batch of each epoch; an error takes the place of the rest."""
    found: dict[str, Any] = {}
    try:
        found["length"] = len(loader)
    except Exception as error:
        found["length"] = f"{type(error).__name__}: {error}"
    try:
        found["epochs"] = [[batch["id"].tolist() for batch in loader] for _ in range(epochs)]
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


CASES = list(
    itertools.product(
        DISPATCH,
        [False, True],  # split_batches
        [0, 2],  # workers
        [False, True],  # drop_last
        [range(60), FILTERED],
        FACES,
    )
)
SHUFFLED = [(dispatch, workers) for dispatch in DISPATCH for workers in (0, 2)]
REFUSED = {
    "shard": "expected every row on each of 2 ranks, because it splits them.* Leave out shard",
    "text": r"expected fields of one shape.* got \['text'\].*DataLoaderConfiguration\(dispatch_batches=False\)",
    "forgotten": "expected rows for a loader that makes batches, got batches.* batch_size=None",
    "batches": r"which dispatch_batches=False deals to ranks, got batches. Leave out batch\(\)",
    "ahead": r"got use_stateful_dataloader=True with dispatch_batches=True.* Write split_batches=True and batches 2 times",
    "dropped": r"got transform\(drops=True\). Write DataLoader\(..., num_workers=1\)",
}


def drop_odd(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["id"] % 2 == 0 else None


def measure(url: str) -> dict[Any, Any]:
    """Returns everything one rank sees."""
    found: dict[Any, Any] = {}
    for dispatch, split, workers, drop_last, numbers, face in CASES:
        for name, dataset, given in ((face, rows_of(url, face, numbers, 4), workers), ("plain", plain(numbers, 4), 0)):
            loader = prepared(dataset, dispatch, split, num_workers=given, batch_size=4, drop_last=drop_last)
            found[dispatch, split, workers, drop_last, numbers, face, name] = seen(loader)
    for dispatch, workers in SHUFFLED:
        dataset = ParquetIterable(url, ["id"]).shuffle(20)  # no seed: ranks agree on one
        loader = prepared(dataset, dispatch, False, num_workers=workers, batch_size=5)
        found["shuffled", dispatch, workers] = seen(loader, epochs=2)
    for face, workers in itertools.product(FACES, (0, 2)):
        loader = prepared(rows_of(url, face, range(60), None), None, False, num_workers=workers, batch_size=None)
        found["batched", face, workers] = seen(loader)
    for shuffled, workers in itertools.product([False, True], (0, 2)):
        rows = ParquetMap(url, ["id"]).where(pc.field("id") >= FILTERED.start)
        loader = prepared(rows, None, False, num_workers=workers, batch_size=4, shuffle=shuffled)
        found["map", shuffled, workers] = seen(loader, epochs=2)
    weighed = ParquetMap(url, ["id"]).balance("id", 40, seed=1)
    found["map", "weighed"] = seen(prepared(weighed, None, False, batch_size=4), epochs=2)
    found.update(measure_errors(url))
    found["text"] = [batch["text"] for batch in prepared(ParquetIterable(url), False, False, batch_size=5)]
    return found


def refused_at_once(rows: Any) -> dict[str, Any]:
    """Accelerate asks a stateful loader for its state at once, which begins a pass."""
    try:
        return seen(prepared(rows, None, False, stateful=True, batch_size=4))
    except PipelineError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def measure_errors(url: str) -> dict[Any, Any]:
    rows = ParquetPipe(url, ["id"])
    return {
        ("refused", "shard"): seen(prepared(rows.shard(), None, False, batch_size=4)),
        ("refused", "text"): seen(prepared(ParquetIterable(url), None, False, batch_size=4)),
        ("refused", "forgotten"): seen(prepared(rows.batch(4), None, False)),
        ("refused", "batches"): seen(prepared(rows.batch(4), False, False, batch_size=None)),
        ("refused", "ahead"): refused_at_once(rows),
        ("refused", "dropped"): seen(
            prepared(rows.transform(drop_odd, drops=True), None, False, batch_size=4, num_workers=2)
        ),
    }


@pytest.fixture(scope="module")
def ranks(url: str) -> list[dict[Any, Any]]:
    return in_two_ranks(measure, url)


def rows_in(parts: Any, epoch: int = 0) -> Counter[int]:
    return Counter(row for found in parts for batch in found["epochs"][epoch] for row in batch)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_dealt_as_in_any_dataset(ranks: list[Any], case: Any) -> None:
    dispatch, split, _, drop_last, numbers, face = case
    parts = [rank[(*case, face)] for rank in ranks]
    for found, expected in zip(parts, (rank[(*case, "plain")] for rank in ranks), strict=True):
        assert "error" not in found, found
        batches, others = found["epochs"][0], expected["epochs"][0]
        assert batches[:-1] == others[:-1]  # the last one is filled up with rows of the worker that reads it
        assert [len(batch) for batch in batches] == [len(batch) for batch in others]
        if dispatch is False and split and len(batches) % 2:
            assert "TypeError: len(): Accelerate with split_batches=True" in found["length"]
            assert "Write DataLoader(..., batch_size=2) and split_batches=False" in found["length"]
        else:
            assert found["length"] == len(batches)
    together = rows_in(parts)
    assert set(together) <= set(numbers) if drop_last else set(together) == set(numbers)
    assert len(together) == len(rows_in(rank[(*case, "plain")] for rank in ranks))


@pytest.mark.parametrize("case", SHUFFLED, ids=str)
def test_every_epoch_has_each_row_once_in_an_order_of_its_own(ranks: list[Any], case: Any) -> None:
    parts = [rank[("shuffled", *case)] for rank in ranks]
    assert [part["length"] for part in parts] == [6, 6]
    for epoch in range(2):
        assert rows_in(parts, epoch) == Counter(range(60))
    assert parts[0]["epochs"][0] != parts[0]["epochs"][1]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_the_pipeline_are_dispatched(ranks: list[Any], face: str, workers: int) -> None:
    parts = [rank["batched", face, workers] for rank in ranks]
    assert rows_in(parts) == Counter(range(60))
    assert [part["length"] for part in parts] == [8, 8]
    assert [len(part["epochs"][0]) for part in parts] == [8, 8]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_by_number_come_once_in_each_epoch(ranks: list[Any], shuffled: bool, workers: int) -> None:
    parts = [rank["map", shuffled, workers] for rank in ranks]
    for epoch in range(2):  # 37 rows in batches of 4: Accelerate fills up the last batches with the first rows
        assert set(rows_in(parts, epoch)) == set(FILTERED)
        assert sum(rows_in(parts, epoch).values()) == 40
        assert [len(part["epochs"][epoch]) for part in parts] == [part["length"] for part in parts] == [5, 5]
    assert (parts[0]["epochs"][0] != parts[0]["epochs"][1]) == shuffled


def test_rows_drawn_by_weight_are_the_same_on_every_rank(ranks: list[Any]) -> None:
    parts = [rank["map", "weighed"] for rank in ranks]
    for epoch in range(2):
        assert len(rows_in(parts, epoch)) == sum(rows_in(parts, epoch).values()) == 40


@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_would_lose_rows_or_hang_are_refused_on_every_rank(ranks: list[Any], what: str) -> None:
    for rank in ranks:
        error = rank["refused", what]["error"]
        assert error.startswith("PipelineError: Accelerate: ")
        assert re.search(REFUSED[what], error), error


def test_text_reaches_ranks_that_read_for_themselves(ranks: list[Any]) -> None:
    texts = [text for rank in ranks for batch in rank["text"] for text in batch]
    assert sorted(texts) == sorted(f"row {number}" for number in range(60))


TOGETHER, STOP, EPOCH = 6, 4, 1  # rows of all ranks in a step; the step and the epoch in which the run stops
RESUMED = list(itertools.product(DISPATCH, [False, True], [0, 2], FACES))
STATEFUL = [case for case in RESUMED if (case[0] is False) != case[1]]  # a loader of one process, or one that splits


def resumable(url: str, case: Any, ranks: int, stateful: bool) -> Any:
    dispatch, split, workers, face = case
    size = TOGETHER if split else TOGETHER // ranks
    dataset = FACES[face](url, ["id"]).shuffle(20, seed=3)
    return prepared(dataset, dispatch, split, stateful, batch_size=size, num_workers=workers)


def begun(loader: Any) -> list[list[int]]:
    for _ in range(EPOCH):
        seen(loader)
    return [batch["id"].tolist() for batch in itertools.islice(loader, STOP)]


def stop(url: str) -> dict[Any, Any]:
    """Returns what one of two ranks sees until it stops in the middle of an epoch."""
    found: dict[Any, Any] = {(case, "steps"): begun(resumable(url, case, 2, False)) for case in RESUMED}
    for case in STATEFUL:
        loader = resumable(url, case, 2, True)
        found[case, "state"] = begun(loader), loader.state_dict()
    return found


def resume(url: str, ranks: int, states: dict[Any, Any]) -> dict[Any, Any]:
    """Returns what one of some ranks sees in the rest of the epoch."""
    found = {}
    for case in RESUMED:
        again = skip_first_batches(resumable(url, case, ranks, False), STOP)
        again.set_epoch(EPOCH)
        found[case, "steps"] = seen(again)
    for case, state in states.items():
        loader = resumable(url, case, ranks, True)
        loader.load_state_dict(state)
        loader.set_epoch(EPOCH)
        found[case, "state"] = seen(loader)
    return found


@pytest.fixture(scope="module")
def stopped(url: str) -> list[dict[Any, Any]]:
    return in_two_ranks(stop, url)


@pytest.fixture(scope="module", params=[1, 2, 3])
def resumed(url: str, stopped: list[dict[Any, Any]], request: pytest.FixtureRequest) -> list[dict[Any, Any]]:
    return in_ranks(
        request.param, resume, url, request.param, {case: stopped[0][case, "state"][1] for case in STATEFUL}
    )


@pytest.mark.parametrize("case", RESUMED, ids=str)
def test_any_number_of_ranks_continues_the_epoch_of_two(stopped: list[Any], resumed: list[Any], case: Any) -> None:
    dispatch, _, workers, _ = case
    if len(resumed) == 1 and dispatch is False and workers:
        pytest.skip("one rank alone has torch's loader, whose workers fill batches with rows of their own")
    rest = [rank[case, "steps"] for rank in resumed]
    assert len({len(rank["epochs"][0]) for rank in rest}) == 1
    taken = Counter(row for rank in stopped for batch in rank[case, "steps"] for row in batch)
    assert taken + rows_in(rest) == Counter(range(60))


@pytest.mark.parametrize("case", STATEFUL, ids=str)
def test_the_state_of_two_ranks_continues_their_epoch_or_is_refused(
    stopped: list[Any], resumed: list[Any], case: Any
) -> None:
    rest = [rank[case, "state"] for rank in resumed]
    if len(resumed) == 1 and case[0] is False:
        assert "StateError: StatefulDataLoader: expected a state with the position" in rest[0]["error"]
        assert rest[0]["error"].endswith(f"Resume with skip_first_batches(loader, {STOP}).")
        return
    assert len({len(rank["epochs"][0]) for rank in rest}) == 1
    taken = Counter(row for rank in stopped for batch in rank[case, "state"][0] for row in batch)
    assert taken + rows_in(rest) == Counter(range(60))


FROM_ONE = [case for case in RESUMED if case[0] is not False or not case[2]]  # other workers mix rows, see above


def stop_alone(url: str) -> dict[Any, Any]:
    """Returns what one process sees until it stops in the middle of an epoch."""
    found: dict[Any, Any] = {(case, "steps"): begun(resumable(url, case, 1, False)) for case in FROM_ONE}
    for case in STATEFUL:
        loader = resumable(url, case, 1, True)
        found[case, "state"] = begun(loader), loader.state_dict()
    return found


@pytest.fixture(scope="module")
def stopped_alone(url: str) -> dict[Any, Any]:
    return in_ranks(1, stop_alone, url)[0]


@pytest.fixture(scope="module")
def joined(url: str, stopped_alone: dict[Any, Any]) -> list[dict[Any, Any]]:
    return in_two_ranks(resume, url, 2, {case: stopped_alone[case, "state"][1] for case in STATEFUL})


@pytest.mark.parametrize("case", FROM_ONE, ids=str)
def test_two_ranks_continue_the_epoch_of_one_process(stopped_alone: Any, joined: list[Any], case: Any) -> None:
    rest = [rank[case, "steps"] for rank in joined]
    assert len({len(rank["epochs"][0]) for rank in rest}) == 1
    taken = Counter(row for batch in stopped_alone[case, "steps"] for row in batch)
    assert taken + rows_in(rest) == Counter(range(60))


@pytest.mark.parametrize("case", STATEFUL, ids=str)
def test_the_state_of_one_process_continues_its_epoch_or_is_refused(
    stopped_alone: Any, joined: list[Any], case: Any
) -> None:
    rest = [rank[case, "state"] for rank in joined]
    if case[0] is False and case[2]:
        for rank in rest:
            assert re.search("got one that a single process saved", rank["error"])
            assert rank["error"].endswith(f"Resume with skip_first_batches(loader, {STOP}).")
        return
    assert len({len(rank["epochs"][0]) for rank in rest}) == 1
    taken = Counter(row for batch in stopped_alone[case, "state"][0] for row in batch)
    assert taken + rows_in(rest) == Counter(range(60))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_continues_in_its_own_order(url: str, face: str, workers: int) -> None:
    def loader() -> Any:
        return prepared(FACES[face](url, ["id"]).shuffle(20, seed=3), None, False, batch_size=6, num_workers=workers)

    epochs = seen(loader(), epochs=3)["epochs"]
    again = skip_first_batches(loader(), 4)
    again.set_epoch(1)
    assert seen(again)["epochs"] == [epochs[1][4:]]
    later = loader()
    later.set_epoch(2)
    assert seen(later)["epochs"] == [epochs[2]]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_is_resumed_by_its_state(url: str, face: str, workers: int) -> None:
    config = DataLoaderConfiguration(use_stateful_dataloader=True)

    def loader() -> Any:
        dataset = FACES[face](url, ["id"]).shuffle(20, seed=3)
        found = DataLoader(dataset, batch_size=6, num_workers=workers)
        return Accelerator(cpu=True, dataloader_config=config).prepare(found)

    whole = seen(loader(), epochs=2)["epochs"]
    stopped = loader()
    head = [batch["id"].tolist() for batch in stopped]
    for batch in stopped:
        head.append(batch["id"].tolist())
        if len(head) == 13:
            break
    again = loader()
    again.load_state_dict(stopped.state_dict())
    assert head + seen(again)["epochs"][0] == whole[0] + whole[1]
