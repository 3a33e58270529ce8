"""`ParquetPipe` in torch's own `DataLoader`: every row once, in the single-process order, epoch after epoch."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from builders import write_table
from hypothesis import given
from hypothesis import strategies as st
from ids import epoch_of, flat, id_of
from ids import ids_by_element as ids
from oracle import examples
from torch.utils.data import ChainDataset, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common import NdarrayCodec, Pipeline, UnischemaField
from parquetry.common.base.errors import DatasetError
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, as_is, to_list
from parquetry.torch_plugin.torch_internals import unlabelled


def make(url: str) -> ParquetPipe:
    return ParquetPipe(url, ["id"]).shuffle(10, seed=5)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["in-process", "two-workers"])
def test_rows_are_collated_by_the_loader_and_each_comes_once(url: str, options: dict[str, Any]) -> None:
    pipe = make(url)
    loader = DataLoader(pipe, batch_size=7, **options)
    orders = []
    for _ in range(2):
        batches = ids(loader)
        orders.append(flat(batches))
        assert len(loader) == len(batches)
        assert sorted(orders[-1]) == list(range(60))
        assert max(len(batch) for batch in batches) == 7
    assert orders[0] != orders[1]


@examples(30)
@given(
    rows=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    workers=st.integers(0, 5),
    drop_last=st.booleans(),
    batched=st.sampled_from([None, 1, 4]),
    kind=st.sampled_from([DataLoader, StatefulDataLoader]),
    form=st.sampled_from(
        [ParquetIterable.from_pipeline, ParquetPipe.from_pipeline, lambda p: ParquetPipe.from_pipeline(p).map(id_of)]
    ),
)
def test_a_loader_counts_the_batches_that_each_worker_makes_of_its_own_part(
    url: str, rows: int, batch_size: int, workers: int, drop_last: bool, batched: int | None, kind: Any, form: Any
) -> None:
    pipeline = Pipeline(url, ["id"]).take(rows)
    pipeline = pipeline if batched is None else pipeline.batch(batched)
    dataset, numbers = form(pipeline), list(range(len(pipeline)))
    parts = [numbers[worker :: max(workers, 1)] for worker in range(max(workers, 1))]
    made = [part[at : at + batch_size] for part in parts for at in range(0, len(part), batch_size)]
    made = [batch for batch in made if len(batch) == batch_size or not drop_last]
    assert len(kind(dataset, batch_size=batch_size, num_workers=workers, drop_last=drop_last)) == len(made)


@pytest.mark.parametrize(("count", "batch_size", "drop_last"), [(30, 16, True), (33, 16, False), (60, 7, False)])
def test_the_length_of_a_loader_whose_workers_collate_rows_is_that_of_its_passes(
    url: str, count: int, batch_size: int, drop_last: bool
) -> None:
    loader: Any = DataLoader(
        ParquetIterable(url, ["id"]).take(count), batch_size=batch_size, num_workers=4, drop_last=drop_last
    )
    assert len(loader) == len(list(loader))


def test_a_loader_whose_batches_cannot_be_counted_has_no_length(url: str) -> None:
    skipping = ParquetIterable(url, ["id"], on_error="skip")
    list(skipping)  # so that its rows are counted
    for dataset, message in (
        (skipping, "which loader worker leaves rows out"),
        (ParquetPipe(url, ["id"]).zip(ParquetPipe(url, ["id"])), "2 loader workers makes batches of its own part"),
        (ChainDataset([ParquetIterable(url, ["id"])]), "its own part of ChainDataset"),
    ):
        assert len(DataLoader(dataset, batch_size=7)) == 9
        with pytest.raises(TypeError, match=message):
            len(DataLoader(dataset, batch_size=7, num_workers=2))
        assert len(DataLoader(dataset, num_workers=2)) == 60  # batches of one


def test_a_worker_gives_every_second_row_of_the_epoch(url: str) -> None:
    pipe = make(url)
    batches = ids(DataLoader(pipe, batch_size=5, num_workers=2))
    assert flat(batches[0::2]) == epoch_of(pipe, 0)[0::2]
    assert flat(batches[1::2]) == epoch_of(pipe, 0)[1::2]


@pytest.mark.slow
def test_workers_forked_after_the_main_process_has_read_have_memory_of_their_own(url: str) -> None:
    pipe = ParquetPipe(url, ["id", "image"]).batch(4)
    for _ in range(2):
        assert ids(pipe) == epoch_of(pipe, 0)
    loader = DataLoader(pipe, batch_size=None, num_workers=2)
    for _ in range(3):
        for batch, expected in zip(loader, epoch_of(pipe, 0), strict=True):
            assert batch["id"].tolist() == expected
            assert batch["image"].amax(dim=(1, 2, 3)).tolist() == expected


def test_more_workers_than_batches_lose_nothing(url: str) -> None:
    pipe = make(url).batch(40)
    assert ids(DataLoader(pipe, batch_size=None, num_workers=3)) == epoch_of(pipe, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (DataLoader, {}),
        (DataLoader, {"num_workers": 2}),
        (DataLoader, {"num_workers": 1, "multiprocessing_context": "spawn"}),
        (StatefulDataLoader, {}),
        (StatefulDataLoader, {"num_workers": 2}),
    ],
)
def test_batches_that_are_left_as_they_are_equal_those_that_a_loader_looks_through(
    url: str, loader: Any, options: dict[str, Any]
) -> None:
    pipe = ParquetPipe(url).batch(16)
    looked = list(DataLoader(pipe, batch_size=None))
    left = list(loader(pipe, batch_size=None, collate_fn=as_is, **options))
    assert len(looked) == len(left) == 4
    for one, other in zip(looked, left, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            assert type(value) is type(other[name])
            for expected, found in zip(to_list(value), to_list(other[name]), strict=True):
                assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected


def test_a_batch_left_as_it_is_keeps_its_own_lists(url: str) -> None:
    batch = next(iter(ParquetPipe(url, ["drive"]).batch(16)))
    assert as_is(batch) is batch
    assert type(batch["drive"]) is list  # tokenizers insist on it


def test_every_kind_of_field_passes_through_a_worker(url: str) -> None:
    pipe = ParquetPipe(url).batch(9)
    for through, direct in zip(DataLoader(pipe, batch_size=None, num_workers=1), pipe, strict=True):
        for name, value in direct.items():
            for left, right in zip(to_list(through[name]), to_list(value), strict=True):
                assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
        assert through["points"].is_nested


def test_user_python_runs_in_the_loaders_workers(url: str) -> None:
    output = [UnischemaField("process", "int64")]
    pipe = ParquetPipe(url, ["id"]).transform(with_process, output).batch(10)
    batches = list(DataLoader(pipe, batch_size=None, num_workers=2))
    assert ids(batches) == [list(range(start, start + 10)) for start in range(0, 60, 10)]
    found = [set(batch["process"].tolist()) for batch in batches]
    assert all(len(processes) == 1 for processes in found)  # no process except the worker itself
    assert found[0] == found[2]
    assert found[0] != found[1]


def with_process(row: dict[str, Any]) -> dict[str, Any]:
    import os

    return {**row, "process": os.getpid()}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["in-process", "two-workers"])
def test_an_elementwise_pipe_is_loaded_like_its_source(url: str, options: dict[str, Any]) -> None:
    pipe = make(url).batch(7)
    loader = DataLoader(pipe.map(id_of), batch_size=None, **options)
    assert len(loader) == 9
    for epoch in range(2):
        assert [batch.tolist() for batch in loader] == epoch_of(pipe, epoch)


@pytest.mark.parametrize("workers", [0, 2])
def test_objects_that_the_training_loop_deletes_are_freed(url: str, workers: int) -> None:
    """Looking at the variables of the caller's frame would keep them alive until it ends."""
    data = ParquetIterable(url, ["id"]).batch(7)
    loader = DataLoader(data, batch_size=None, num_workers=workers)
    model = torch.nn.Linear(1, 1)
    assert len(loader) == len(list(loader))
    left = [weakref.ref(each) for each in (model, loader, data)]
    del model, loader, data
    gc.collect()
    assert [each() for each in left] == [None] * 3


def test_the_loader_can_switch_the_shuffle_off_and_on(url: str) -> None:
    assert ids(DataLoader(make(url).batch(60), batch_size=None, shuffle=False)) == [list(range(60))]
    pipe = ParquetPipe(url, ["id"]).batch(60)
    loader = DataLoader(pipe, batch_size=None, shuffle=True)
    first, second = ids(loader), ids(loader)
    assert sorted(first[0]) == sorted(second[0]) == list(range(60))
    assert len({tuple(first[0]), tuple(second[0]), tuple(range(60))}) == 3
    assert (first, second) == (epoch_of(pipe, 0), epoch_of(pipe, 1))


def test_an_error_in_a_worker_keeps_its_class_and_message(url: str, tmp_path: Any) -> None:
    with pytest.raises(DatasetError, match="nowhere"):
        list(DataLoader(ParquetPipe(str(tmp_path / "nowhere")), batch_size=None, num_workers=1))
    loader = DataLoader(ParquetPipe(url, ["id"]).map(fail), batch_size=None, num_workers=1)
    with pytest.raises(ValueError, match="seven"):
        list(loader)


def fail(element: dict[str, Any]) -> Any:
    if element["id"] == 7:
        raise ValueError("seven")
    return element


@pytest.mark.parametrize("face", [ParquetPipe, ParquetIterable])
def test_a_loader_of_batches_without_bad_rows_has_no_length(face: Any, tmp_path: Path) -> None:
    field = UnischemaField("x", np.float32, (2,), NdarrayCodec())
    good = bytes(field.storage.encode(field, np.zeros(2, np.float32)))
    cells = pa.array([b"damaged" if row % 17 == 3 else good for row in range(300)], pa.binary())
    url = write_table(tmp_path, pa.table({"x": cells}), row_group_size=40)
    loader = DataLoader(face(url, [field], on_error="skip").batch(16), batch_size=None)
    for _ in range(2):  # also when the rows that fail are known
        with pytest.raises(TypeError, match=r"each loader worker may end with a short batch"):
            len(loader)
        assert sum(len(batch["x"]) for batch in loader) == 282


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_a_profiler_sees_each_step_of_the_loader(url: str, kind: Any) -> None:
    pipe = ParquetPipe(url, ["id"]).batch(4)
    plain = [batch["id"].tolist() for batch in kind(pipe, batch_size=None)]
    with torch.profiler.profile() as profile:
        seen = [batch["id"].tolist() for batch in kind(pipe, batch_size=None)]
    assert seen == plain
    labels = [event.name for event in profile.events() if event.name.startswith("enumerate(DataLoader)#")]
    assert len(labels) == len(plain) + 1


def test_a_step_of_torch_that_is_not_known_stays_as_it_is() -> None:
    def following(self: Any) -> int:
        return 1

    assert unlabelled(following) is following
    assert unlabelled(print) is print
