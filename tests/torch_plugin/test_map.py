"""`ParquetMap`: rows by number for samplers, in stock loaders, and double sharding or shuffling."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from ids import ids
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common import Pipeline, TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import NullValueError, PipelineError
from parquetry.common.pipeline.pipeline_iterator import PipelineIterator
from parquetry.torch_plugin import ParquetIterable, ParquetMap, mix
from parquetry.torch_plugin.copies import Copy

FIELDS = ["id", "x", "image"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 images, in row groups of 7, whose pixels all differ."""
    shape = (4, 5, 3)
    schema = Unischema(
        "images", [UnischemaField("id", np.int64), UnischemaField("image", np.uint8, shape, TensorCodec())]
    )
    pixels = np.arange(60, dtype=np.uint8).reshape(shape)
    url = str(tmp_path_factory.mktemp("images"))
    write_dataset(url, schema, [{"id": number, "image": pixels + number} for number in range(60)], row_group_rows=7)
    return url


def make(url: str, *fields: str) -> ParquetMap:
    return ParquetMap(url, fields or FIELDS)


def cropped(url: str) -> ParquetMap:
    return make(url, "id", "image").random_crop("image", (2, 2), seed=3)


def flipped(url: str) -> ParquetMap:
    return make(url, "id", "image").random_flip("image", seed=3)


def crops_of(dataset: ParquetMap, epoch: int) -> Any:
    """Returns an iteration's images by row number."""
    rows = list(PipelineIterator(dataset.pipeline, epoch))
    return {int(row["id"]): row["image"] for row in rows}


# --- rows ---


def test_rows_that_fail_cannot_be_left_out(url: str) -> None:
    message = r"ParquetMap: expected on_error='raise', got 'skip': .* Use a ParquetIterable"
    with pytest.raises(PipelineError, match=message):
        ParquetMap(url, on_error="skip")
    with pytest.raises(PipelineError, match=message):
        ParquetMap.from_pipeline(Pipeline(url, on_error="skip"))
    with pytest.raises(PipelineError, match=message):
        ParquetMap(url).with_options(on_error="skip")


def test_rows_are_the_tensors_that_an_iterable_gives(url: str) -> None:
    dataset, expected = ParquetMap(url), list(ParquetIterable(url))
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 60
    assert_same([dataset[3], dataset[-1]], [expected[3], expected[-1]])
    assert_same(dataset.__getitems__([7, 0, 59]), [expected[number] for number in (7, 0, 59)])
    assert_same(dataset[torch.tensor([5, 1])], [expected[5], expected[1]])
    assert_same(dataset[torch.tensor(5)], expected[5])
    assert_same(dataset[2:4], expected[2:4])
    batches = dataset.shuffle(9, seed=1).batch(8)
    assert_same(list(batches), list(ParquetIterable(url).shuffle(9, seed=1).batch(8)))
    with pytest.raises(IndexError, match="row 60"):
        dataset[60]


def test_it_has_what_the_other_datasets_have_and_refuses_what_they_refuse(url: str, nullable_url: str) -> None:
    dataset = make(url).where(pc.field("id") > 30).with_options(workers=1, memory_limit=1)
    assert repr(dataset).startswith("ParquetMap(")
    assert dataset.element.outputs == dataset.pipeline.element.outputs
    assert "selection" in dataset.explain()
    assert ids(dataset) == list(range(31, 60))
    assert ids(make(url).repeat()[[61, 0]]) == [1, 0]
    with pytest.raises(TypeError, match="repeats forever"):
        len(make(url).repeat())
    with pytest.raises(NullValueError, match="field 'name'"):
        ParquetMap(nullable_url)[1]
    with pytest.raises(PipelineError, match=r"got transform\(drops=True\)"):
        make(url).transform(lambda row: row, drops=True)[0]
    with pytest.raises(PipelineError, match="For samplers, use a ParquetMap"):
        ParquetIterable(url)[0]
    with pytest.raises(PipelineError, match="set_epoch: expected an integer >= 0, got -1"):
        dataset.set_epoch(-1)


def test_a_mix_is_by_number_as_well(url: str) -> None:
    mixed = mix([make(url, "id").take(9), ParquetIterable(url, ["id"])], seed=1, stop="all")
    assert isinstance(mixed, ParquetMap)
    assert ids(mixed) == [int(row["id"]) for row in mixed.pipeline]


# --- loaders ---


@pytest.mark.parametrize("workers", [0, 2])
def test_stock_loaders_take_every_row_once_with_any_sampler(url: str, workers: int) -> None:
    dataset = make(url, "id")
    generator = torch.Generator().manual_seed(1)
    shuffled = ids(DataLoader(dataset, batch_size=7, shuffle=True, num_workers=workers, generator=generator))
    assert sorted(shuffled) == list(range(60))
    assert shuffled != sorted(shuffled)
    grouped = BatchSampler(SequentialSampler(dataset), 8, drop_last=True)
    batches = list(DataLoader(dataset, batch_sampler=grouped, num_workers=workers))
    assert [len(batch["id"]) for batch in batches] == [8] * 7
    assert ids(batches) == list(range(56))


@pytest.mark.slow
def test_rows_that_the_loader_collates_equal_batch(url: str) -> None:
    loader = DataLoader(make(url), batch_size=8, num_workers=1, multiprocessing_context="spawn")
    assert_same(list(loader), list(ParquetIterable(url, FIELDS).batch(8)))


def test_weights_splits_and_sums_take_it_as_any_dataset(url: str) -> None:
    dataset = make(url, "id")
    weights = [float(number == 17) for number in range(60)]
    assert ids(DataLoader(dataset, sampler=WeightedRandomSampler(weights, 5))) == [17] * 5
    parts = random_split(dataset, [0.5, 0.5], torch.Generator().manual_seed(2))
    assert sorted(ids(DataLoader(parts[0], batch_size=4)) + ids(DataLoader(parts[1], batch_size=4))) == list(range(60))
    assert ids(DataLoader(ConcatDataset([Subset(dataset, [3, 1]), dataset]), batch_size=4))[:4] == [3, 1, 0, 1]


def test_ranks_of_a_distributed_sampler_read_each_row_once(url: str) -> None:
    parts = []
    for rank in range(3):
        sampler: Any = DistributedSampler(make(url, "id"), 3, rank, seed=5)
        sampler.set_epoch(1)
        parts.append(ids(DataLoader(make(url, "id"), batch_size=6, sampler=sampler)))
    assert [len(part) for part in parts] == [20, 20, 20]
    assert sorted(number for part in parts for number in part) == list(range(60))


def test_a_stateful_loader_resumes_in_the_middle_of_its_samplers_order(url: str) -> None:
    def loader() -> Any:
        return StatefulDataLoader(
            make(url, "id"), batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(4)
        )

    whole, first, again = ids(loader()), loader(), loader()
    iterator = iter(first)
    begun = ids([next(iterator), next(iterator)])
    again.load_state_dict(first.state_dict())
    assert begun + ids(again) == whole


# --- epochs ---


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}],
    ids=["in-process", "worker", "persistent"],
)
def test_random_crops_of_each_pass_equal_those_of_its_epoch(images: str, options: dict[str, Any]) -> None:
    dataset = cropped(images)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, **options)
    for epoch in (0, 1, 5):
        if epoch == 5:
            dataset.set_epoch(5)
        expected = crops_of(dataset, epoch)
        for batch in loader:
            for number, image in zip(batch["id"].tolist(), batch["image"], strict=True):
                assert image.numpy().tolist() == expected[number].tolist()
    assert_same(dataset[8]["image"].numpy(), crops_of(dataset, 5)[8])


def test_rows_outside_of_loaders_are_of_the_epoch_that_was_set_and_travel(images: str) -> None:
    dataset = cropped(images)
    dataset.set_epoch(2)
    expected = crops_of(dataset, 2)
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert_same(each[4]["image"].numpy(), expected[4])
    assert_same(dataset.take(9)[4]["image"].numpy(), crops_of(dataset, 0)[4])


def test_a_shuffle_in_its_own_order_is_another_one_in_each_pass(url: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = make(url, "id").shuffle(20, seed=3)
    loader = DataLoader(dataset, batch_size=8)
    for epoch in range(2):
        assert ids(loader) == [int(row["id"]) for row in PipelineIterator(dataset.pipeline, epoch)]
    assert not caplog.records


def _copies(dataset: Any, workers: int, draws: int = 12, load: Any = DataLoader) -> list[Any]:
    """Returns the images of two passes in which a sampler gives one row several times."""
    sampler = WeightedRandomSampler([float(number == 7) for number in range(len(dataset))], draws)
    loader = load(dataset, batch_size=3, sampler=sampler, num_workers=workers)
    return [[image.numpy().tobytes() for batch in loader for image in batch["image"]] for _ in range(2)]


class _Wrapped(Dataset[Any]):
    def __init__(self, rows: ParquetMap) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_copies_of_a_row_have_crops_of_their_own(images: str, workers: int) -> None:
    dataset = flipped(images)
    alone = _copies(dataset, workers)
    assert all(len(set(flips)) == 2 for flips in alone)
    assert alone[0] != alone[1]
    assert _copies(flipped(images), 0, load=StatefulDataLoader) == alone
    assert alone[0][0] == crops_of(dataset, 0)[7].tobytes()  # the first one is that of the epoch
    for wrapped in (
        _Wrapped(flipped(images)),
        Subset(flipped(images), range(60)),
        ConcatDataset([flipped(images)] * 2),
    ):
        assert _copies(wrapped, workers) == alone, wrapped
    later = Subset(ConcatDataset([Subset(make(images, "id", "image"), range(20)), flipped(images)]), range(20, 80))
    assert _copies(later, workers) == alone


def _number(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**row, "number": rng.random()}


class _Batches(Sampler[list[int]]):
    """Batches of a program, of one to three numbers, in which a number comes again and again."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[7] * (1 + place % 3) for place in range(8)])

    def __len__(self) -> int:
        return 8


SAMPLED: dict[str, Callable[[], dict[str, Any]]] = {
    "numbers": lambda: {"batch_size": 2, "sampler": _drawing()},
    "single numbers": lambda: {"batch_size": None, "sampler": _drawing()},
    "batches": lambda: {"batch_sampler": _Batches()},
}


def _drawing() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * 4, 16, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_copies_go_on_after_a_loader_has_resumed(images: str, name: str, options: dict[str, Any]) -> None:
    def loader() -> Any:
        rows = make(images, "id").transform(_number, [UnischemaField("number", np.float64)], rng=True, seed=3)
        return StatefulDataLoader(rows, **SAMPLED[name](), **options)

    def numbers(elements: Iterable[Any]) -> list[float]:
        return [float(number) for each in elements for number in np.atleast_1d(each["number"])]

    whole = numbers(loader())
    assert len(set(whole)) == len(whole) == 16 - (name == "batches")
    begun = loader()
    iterator = iter(begun)
    head = numbers(next(iterator) for _ in range(4))
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    assert head + numbers(resumed) == whole
    following = numbers(resumed)
    assert len(set(following) - set(whole)) == len(whole)  # the next pass counts from its own beginning
    assert len(following) == len(whole)


def test_copies_of_a_batch_have_crops_of_their_own(images: str) -> None:
    batches = flipped(images).batch(8)
    sampler = WeightedRandomSampler([float(number == 2) for number in range(len(batches))], 3)
    made = [batch["image"].numpy().tobytes() for batch in DataLoader(batches, batch_size=None, sampler=sampler)]
    assert len(set(made)) == 3


def test_numbers_that_come_once_are_plain(images: str) -> None:
    loader = DataLoader(cropped(images), batch_size=4, shuffle=True)
    assert iter(loader)._parquetry_copies is None
    assert iter(DataLoader(make(images), sampler=WeightedRandomSampler([1.0], 3)))._parquetry_copies is None
    again = pickle.loads(pickle.dumps(Copy(3, 2)))
    assert (again, again.copies, again - 1, (again - 1).copies) == (3, 2, 2, 2)


# --- double sharding or shuffling ---


def test_a_sampler_that_would_deal_again_is_refused(url: str) -> None:
    dataset = make(url, "id").shard(2, 0)
    sampler: Any = DistributedSampler(dataset, 2, 0)
    with pytest.raises(
        PipelineError, match=r"because DistributedSampler splits them, got a pipeline with shard\(2, 0\)"
    ):
        iter(DataLoader(dataset, sampler=sampler))
    with pytest.raises(PipelineError, match="Leave out shard"):
        iter(DataLoader(Subset(dataset, range(9)), batch_sampler=BatchSampler(sampler, 2, drop_last=False)))
    assert ids(DataLoader(dataset, sampler=DistributedSampler(dataset, 1, 0, shuffle=False))) == list(range(30))
    assert sorted(ids(DataLoader(dataset, shuffle=True))) == list(range(30))


class ShardOfBatches:
    """Like Accelerate's: deals batches of another sampler to processes."""

    num_processes = 2

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Any:
        return iter(list(self.batch_sampler)[::2])


@pytest.mark.parametrize(
    "drawn",
    [
        lambda url: make(url, "id").shuffle(9),
        lambda url: mix([make(url, "id")]),
        lambda url: make(url, "id").weigh(np.ones(60)),
    ],
)
def test_numbers_that_differ_from_rank_to_rank_are_not_dealt(url: str, drawn: Any) -> None:
    dataset = drawn(url)
    sampler = ShardOfBatches(BatchSampler(SequentialSampler(dataset), 4, drop_last=False))
    with pytest.raises(PipelineError, match="on each of 2 ranks, because ShardOfBatches splits them, got shuffle"):
        iter(DataLoader(dataset, batch_sampler=sampler))
    assert len(ids(DataLoader(make(url, "id").shuffle(9, seed=1), batch_sampler=sampler))) == 32
    assert sorted(ids(DataLoader(dataset))) == list(range(60))


def test_ranks_that_each_read_every_row_are_warned_of_once(
    url: str, on_rank: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make(url, "id")
    list(DataLoader(dataset, batch_size=5))
    on_rank(1, 2)
    list(DataLoader(dataset, batch_size=5, sampler=DistributedSampler(dataset, 2, 1)))
    list(DataLoader(dataset.shard(2, 1), batch_size=5))
    assert caplog.messages == []
    for _ in range(2):
        list(DataLoader(dataset, batch_size=5, shuffle=True))
    (message,) = caplog.messages
    assert message.startswith("ParquetMap: each of 2 ranks reads every row, because neither the sampler (RandomSampler")
    assert message.endswith("Pass sampler=DistributedSampler(dataset), or write dataset.shard().")


def test_two_shuffles_over_each_other_are_warned_of_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = make(url, "id").shuffle(9, seed=1)
    for options in ({"shuffle": False}, {"sampler": DistributedSampler(dataset, 2, 0, shuffle=False)}):
        iter(DataLoader(dataset, **options))
    iter(DataLoader(make(url, "id").shuffle(9, seed=1, reshuffle_each_iteration=False), shuffle=True))
    assert not caplog.records
    for _ in range(2):
        iter(DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), 2, drop_last=False)))
    assert [record.getMessage()[:37] for record in caplog.records] == ["RandomSampler chooses rows by number,"]


def test_a_pipeline_may_be_given(url: str) -> None:
    pipeline = Pipeline(url, ["id"]).take(3)
    assert ids(ParquetMap(pipeline)) == ids(ParquetMap.from_pipeline(pipeline)) == [0, 1, 2]
