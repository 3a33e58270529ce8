"""The PyTorch loaders under Petastorm's names."""

from __future__ import annotations

import decimal
import gc
import warnings
from collections import Counter, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ids import ids

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError
from parquetry.common.compat.petastorm import TransformSpec, WeightedSamplingReader, make_batch_reader, make_reader
from parquetry.common.compat.petastorm import reader as reader_module
from parquetry.common.compat.petastorm.ngram import NGram
from parquetry.common.compat.petastorm.predicates import in_lambda
from parquetry.common.compat.petastorm.spark import TorchDatasetContextManager, make_spark_converter

torch = pytest.importorskip("torch")
petastorm = pytest.importorskip("parquetry.petastorm.pytorch")

REAL = Path(__file__).parents[1] / "data" / "petastorm" / "0.12.1"
COUNT = 100
NUMBERS = ["id", "half", "flag", "wide", "wider", "image"]
BOTH = [petastorm.DataLoader, petastorm.BatchedDataLoader]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = [
        UnischemaField("id", np.int64),
        UnischemaField("half", np.float32),
        UnischemaField("flag", np.bool_),
        UnischemaField("wide", np.uint16),
        UnischemaField("wider", np.uint32),
        UnischemaField("image", np.uint8, (4, 3)),
        UnischemaField("name", str),
        UnischemaField("price", decimal.Decimal),
        UnischemaField("maybe", np.int32, nullable=True),
    ]
    rows = [
        {
            "id": i,
            "half": i / 2,
            "flag": i % 2 == 0,
            "wide": 65000 + i,
            "wider": 4_000_000_000 + i,
            "image": np.full((4, 3), i, np.uint8),
            "name": f"n{i}",
            "price": decimal.Decimal(i) / 8,
            "maybe": None if i % 3 == 0 else i,
        }
        for i in range(COUNT)
    ]
    place = tmp_path_factory.mktemp("torch") / "rows"
    write_dataset(place, Unischema("rows", fields), rows, row_group_rows=16)
    return str(place)


@pytest.fixture(autouse=True)
def _declared_schemas_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_past_warnings", {"batch_reader"})


def rows_of(url: str, fields: list[str] = NUMBERS, **options: Any) -> Any:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
    return make_reader(url, schema_fields=fields, **options)


def columns_of(url: str, fields: list[str], **options: Any) -> Any:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
    return make_batch_reader(url, schema_fields=fields, **options)


@pytest.mark.parametrize("loader", BOTH)
def test_batches_are_dicts_of_tensors_in_petastorms_types(url: str, loader: Any) -> None:
    with loader(rows_of(url), batch_size=8) as batches:
        read = list(batches)
    assert [len(batch["id"]) for batch in read] == [8] * 12 + [4]
    assert ids(read) == list(range(COUNT))
    first = read[0]
    assert list(first) == NUMBERS
    assert {name: value.dtype for name, value in first.items()} == {
        "id": torch.int64,
        "half": torch.float32,
        "flag": torch.uint8,
        "wide": torch.int32,
        "wider": torch.int64,
        "image": torch.uint8,
    }
    assert first["image"].shape == (8, 4, 3)
    assert first["wide"].tolist() == [65000 + i for i in range(8)]
    assert first["wider"].tolist() == [4_000_000_000 + i for i in range(8)]
    assert first["flag"].tolist() == [1, 0] * 4
    assert (first["image"][3] == 3).all()


def test_decimals_and_text_stay_lists(url: str) -> None:
    with petastorm.DataLoader(rows_of(url, ["id", "name", "price"]), batch_size=3) as batches:
        first = next(iter(batches))
    assert first["name"] == ["n0", "n1", "n2"]
    assert first["price"] == [decimal.Decimal(i) / 8 for i in range(3)]


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("capacity", [3, 11, 51, 1000])
def test_shuffling_gives_each_row_once_and_follows_torchs_seed(url: str, loader: Any, capacity: int) -> None:
    read = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with loader(rows_of(url, ["id"]), batch_size=7, shuffling_queue_capacity=capacity) as batches:
            read.append(list(batches))
    assert all(sorted(ids(batches)) == list(range(COUNT)) for batches in read)
    assert [len(batch["id"]) for batch in read[0]] == [7] * 14 + [2]
    assert ids(read[0]) == ids(read[1])
    assert ids(read[0]) != ids(read[2])
    if capacity >= 51:
        assert np.sum(np.diff(ids(read[0])) == 1) < COUNT / 10


def test_a_row_waits_in_the_queue_for_no_more_than_its_capacity(url: str) -> None:
    with petastorm.DataLoader(rows_of(url, ["id"]), shuffling_queue_capacity=10) as batches:
        read = ids(batches)
    assert all(row < place + 10 for place, row in enumerate(read))


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("capacity", [0, 3, 11, 1000])
def test_row_groups_are_dealt_out_in_batches(url: str, loader: Any, capacity: int) -> None:
    reader = columns_of(url, ["id", "half", "wide"])
    with loader(reader, batch_size=7, shuffling_queue_capacity=capacity) as batches:
        read = list(batches)
    assert [len(batch["id"]) for batch in read] == [7] * 14 + [2]
    assert sorted(ids(read)) == list(range(COUNT))
    for batch in read:
        assert batch["half"].tolist() == [i / 2 for i in batch["id"].tolist()]
        assert batch["wide"].dtype == torch.int32
    assert capacity or ids(read) == list(range(COUNT))


def test_text_of_row_groups_stays_a_list(url: str) -> None:
    with petastorm.DataLoader(columns_of(url, ["id", "name"]), batch_size=3) as batches:
        assert next(iter(batches))["name"] == ["n0", "n1", "n2"]


def test_a_custom_collation_gets_rows(url: str) -> None:
    with petastorm.DataLoader(rows_of(url, ["id", "name"]), batch_size=2, collate_fn=list) as batches:
        assert next(iter(batches)) == [{"id": 0, "name": "n0"}, {"id": 1, "name": "n1"}]


def test_a_custom_function_makes_the_tensors(url: str) -> None:
    def half(column: Any) -> Any:
        return torch.as_tensor(column).to(torch.float16)

    for reader in (rows_of(url, ["id"]), columns_of(url, ["id"])):
        with petastorm.BatchedDataLoader(reader, batch_size=4, transform_fn=half) as batches:
            assert next(iter(batches))["id"].dtype == torch.float16


def test_windows_are_collated_by_offset(url: str) -> None:
    ngram = NGram({0: ["id", "name"], 2: ["id"]}, 1, "id")
    with petastorm.DataLoader(rows_of(url, ngram), batch_size=4) as batches:  # type: ignore[arg-type]
        first = next(iter(batches))
    assert first[0]["id"].tolist() == [0, 1, 2, 3]
    assert first[0]["name"] == ["n0", "n1", "n2", "n3"]
    assert first[1] == {}
    assert first[2]["id"].tolist() == [2, 3, 4, 5]
    with (
        petastorm.BatchedDataLoader(rows_of(url, ngram)) as batches,  # type: ignore[arg-type]
        pytest.raises(ValueError, match="Use DataLoader for windows"),
    ):
        next(iter(batches))


@pytest.mark.parametrize("loader", BOTH)
def test_nulls_are_refused_with_the_fields_name(url: str, loader: Any) -> None:
    for reader in (rows_of(url, ["maybe"]), columns_of(url, ["maybe"])):
        with loader(reader) as batches, pytest.raises(TypeError, match="field 'maybe': Pytorch does not support"):
            next(iter(batches))


@pytest.mark.parametrize("loader", [petastorm.DataLoader, petastorm.BatchedDataLoader])
def test_a_url_in_place_of_a_reader_is_refused(url: str, loader: Any) -> None:
    with pytest.raises(PipelineError, match="expected the named tuples of make_reader or make_batch_reader, got"):
        next(iter(loader(url)))


def test_arrays_of_text_are_refused_with_the_fields_name() -> None:
    not_null = in_lambda(["names"], lambda names: names is not None)
    with (
        petastorm.DataLoader(rows_of(str(REAL), ["names"], predicate=not_null)) as batches,
        pytest.raises(TypeError, match="field 'names': Pytorch does not support an array of"),
    ):
        next(iter(batches))
    numbers = TransformSpec(lambda row: {"names": np.zeros(2, np.int8)})
    reader = rows_of(str(REAL), ["names"], predicate=not_null, transform_spec=numbers)
    with petastorm.DataLoader(reader, batch_size=5) as batches:
        assert next(iter(batches))["names"].shape == (5, 2)


@pytest.mark.parametrize("loader", BOTH)
def test_a_loader_is_iterated_again_after_a_whole_pass_only(url: str, loader: Any) -> None:
    reader = rows_of(url, ["id"], shuffle_row_groups=True, seed=1)
    with loader(reader, batch_size=3) as batches:
        first, second = ids(batches), ids(batches)
        assert Counter(first) == Counter(second) == Counter(range(COUNT))
        assert first != second
        begun = iter(batches)
        next(begun)
        with pytest.raises(RuntimeError, match="You must finish a full pass"):
            next(iter(batches))
    assert reader.stopped


def test_a_pass_that_failed_is_the_last(url: str) -> None:
    def fail(batch: Any) -> Any:
        raise ZeroDivisionError("no")

    with petastorm.DataLoader(rows_of(url, ["id"]), collate_fn=fail) as batches:
        with pytest.raises(ZeroDivisionError):
            next(iter(batches))
        with pytest.raises(RuntimeError, match="the last one failed with ZeroDivisionError"):
            next(iter(batches))


@pytest.mark.parametrize("capacity", [10, 100, 200])
@pytest.mark.parametrize("batched", [False, True])
def test_the_first_rows_are_kept_in_memory_and_the_reader_is_stopped(url: str, capacity: int, batched: bool) -> None:
    make = columns_of if batched else rows_of
    reader = make(url, ["id", "half"], num_epochs=None if capacity < 200 else 1)
    with petastorm.InMemBatchedDataLoader(reader, batch_size=8, rows_capacity=capacity, num_epochs=3) as batches:
        assert reader.stopped
        read = list(batches)
    kept = min(capacity, COUNT)
    assert ids(read) == list(range(kept)) * 3
    assert all(batch["half"].tolist() == [i / 2 for i in batch["id"].tolist()] for batch in read)


def test_rows_in_memory_are_shuffled_in_each_epoch_by_the_seed(url: str) -> None:
    def read(seed: int) -> list[list[int]]:
        loader = petastorm.InMemBatchedDataLoader(
            rows_of(url, ["id"]), batch_size=10, num_epochs=3, seed=seed, shuffle=True
        )
        found = ids(loader)
        return [found[:100], found[100:200], found[200:]]

    epochs = read(5)
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert read(5) == epochs
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(6)).tolist()
    assert epochs[1] == order  # like Petastorm: epoch e of seed s is shuffled with s + e


def test_rows_in_memory_are_iterated_once(url: str) -> None:
    loader = petastorm.InMemBatchedDataLoader(rows_of(url, ["id"]), num_epochs=None)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="couldn't be used multiple times"):
        next(iter(loader))


def test_a_mix_of_readers_is_loaded(url: str) -> None:
    readers = [rows_of(url, ["id"]), rows_of(url, ["id"], filters=[("id", "<", 10)])]
    with (
        WeightedSamplingReader(readers, [0.5, 0.5], seed=1) as mixer,
        petastorm.DataLoader(mixer, batch_size=2) as batches,
    ):
        assert len(ids(batches)) >= 20 - 2


def test_the_real_dataset_is_loaded_from_every_pool() -> None:
    for pool in ("dummy", "thread", "process"):
        reader = make_reader(
            str(REAL), schema_fields=["id", "png", "matrix"], reader_pool_type=pool, workers_count=1, seed=1
        )
        with warnings.catch_warnings(), petastorm.BatchedDataLoader(reader, batch_size=16) as batches:
            warnings.simplefilter("error")
            read = list(batches)
        assert sorted(ids(read)) == list(range(60))
        assert read[0]["png"].shape == (16, 8, 6, 3)


def test_collation_keeps_what_torch_cannot_stack() -> None:
    collate = petastorm.decimal_friendly_collate
    assert collate([{}]) == {}
    made = collate([{"d": decimal.Decimal("1.0"), "i": 1}, {"d": decimal.Decimal("1.1"), "i": 2}])
    assert made["d"] == [decimal.Decimal("1.0"), decimal.Decimal("1.1")]
    assert made["i"].tolist() == [1, 2]
    first, second = collate(([decimal.Decimal("1.0"), 1], [decimal.Decimal("1.1"), 2]))
    assert first == (decimal.Decimal("1.0"), decimal.Decimal("1.1"))
    assert second.tolist() == [1, 2]
    assert collate(["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": "x"}, {"shuffling_queue_capacity": -1}])
@pytest.mark.parametrize("loader", BOTH)
def test_arguments_are_checked(loader: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="loader: expected"):
        loader(None, **options)


class OwnReader:
    """A third-party reader: it has only what a loader needs, and reuses its memory."""

    def __init__(self, *, batched: bool) -> None:
        self.batched_output = batched
        self.stopped = False
        self._batched = batched

    def __iter__(self) -> Any:
        memory = np.zeros(5, np.int64)
        for first in range(0, 20, 5):
            memory[:] = range(first, first + 5)
            if self._batched:
                yield namedtuple("Columns", ["id"])(memory)
            else:
                yield from ({"id": number} for number in memory)

    def stop(self) -> None:
        self.stopped = True

    def join(self) -> None:
        assert self.stopped


@pytest.mark.parametrize("loader", BOTH)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("capacity", [0, 8])
def test_a_reader_of_the_users_own_is_loaded(loader: Any, batched: bool, capacity: int) -> None:
    reader = OwnReader(batched=batched)
    with loader(reader, batch_size=3, shuffling_queue_capacity=capacity) as batches:
        assert sorted(ids(batches)) == list(range(20))
    assert reader.stopped


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda i: np.float32(i) if i < 20 else np.float64(i), "expected torch.float32, .* got torch.float64"),
        (lambda i: np.zeros(i % 2), r"expected one shape, got \[\(0,\), \(1,\)\]"),
        (lambda i: decimal.Decimal(int(i)), "Pytorch does not support an array of object"),
    ],
)
def test_values_without_a_common_tensor_type_are_refused_with_the_fields_name(url: str, change: Any, text: str) -> None:
    reader = rows_of(url, ["id"], transform_spec=TransformSpec(lambda row: {"id": change(row["id"])}))
    with (
        petastorm.BatchedDataLoader(reader, batch_size=10) as batches,
        pytest.raises(TypeError, match=f"field 'id': {text}"),
    ):
        list(batches)


def test_a_converters_loader_needs_no_context_that_is_kept(url: str) -> None:
    converter = make_spark_converter(url)
    loader = converter.make_torch_dataloader(batch_size=10, num_epochs=1, schema_fields=["id"]).__enter__()
    gc.collect()
    assert sorted(ids(loader)) == list(range(COUNT))
    loader.reader.stop()
    loader.reader.join()
    context = converter.make_torch_dataloader(batch_size=10, num_epochs=1, schema_fields=["id"])
    assert isinstance(context, TorchDatasetContextManager)
    with context as loader:
        assert context.loader is loader
        assert context.reader is loader.reader
    assert context.reader.stopped


def test_bytes_that_can_be_changed_stay_bytes() -> None:
    assert petastorm.decimal_friendly_collate([bytearray(b"a"), bytearray(b"b")]) == [b"a", b"b"]
