"""The data loaders of Horovod's Spark estimators: their calls to Petastorm, three passes each, without Horovod."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from petastorm import TransformSpec, make_batch_reader, make_reader  # noqa: E402
from petastorm.fs_utils import FilesystemResolver  # noqa: E402
from petastorm.pytorch import BatchedDataLoader, InMemBatchedDataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:hdfs_driver:UserWarning", "ignore:pyarrow_serialize:UserWarning")

ROWS = 24
BATCH = 4
PASSES = 3


class Ranks:
    """Horovod's rank and size, for one of two processes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = lambda: rank
        self.size = lambda: size


@pytest.fixture
def train_dir(tmp_path: Path) -> str:
    """Writes what an estimator's ``prepare_data`` leaves: plain columns, as Spark writes them."""
    directory = tmp_path / "intermediate_train_data"
    directory.mkdir()
    for number in range(2):
        ids = np.arange(number * ROWS // 2, (number + 1) * ROWS // 2)
        features = pa.array([[i, i / 2] for i in ids], pa.list_(pa.float64()))
        table = pa.table({"features": features, "id": ids, "label": ids % 2})
        pq.write_table(table, directory / f"part-{number}.parquet", row_group_size=3)
    return f"file://{directory}"


def estimator_reader(url: str, hvd: Any, transform: Any = None, **options: Any) -> Any:
    """Opens a reader as the data modules of all three estimators do."""
    spec = TransformSpec(transform, edit_fields=None, removed_fields=None) if transform else None
    factory, more = (make_reader, {"pyarrow_serialize": True}) if spec else (make_batch_reader, {})
    arguments: dict[str, Any] = {
        "num_epochs": None,
        "cur_shard": hvd.rank(),
        "reader_pool_type": "thread",
        "workers_count": 2,
        "shard_count": hvd.size(),
        "hdfs_driver": "libhdfs",
        "schema_fields": ["features", "id", "label"],
        "storage_options": None,
        "transform_spec": spec,
        "shuffle_rows": True,
        "shuffle_row_groups": True,
        "seed": 0,
    }
    return factory(url, **{**arguments, **more, **options})


class PassLoader:
    """Makes a loader for each pass over one reader, which it resets between them."""

    def __init__(self, reader: Any, batch_size: int, capacity: int = 0, steps: int = -1) -> None:
        self.reader, self.batch_size, self.capacity, self.steps = reader, batch_size, capacity, steps
        self.log: list[str] = []

    def batches(self) -> Iterator[Any]:
        if self.reader.last_row_consumed:
            self.log.append(f"resetting the reader of {self.reader.dataset.paths}")
            self.reader.reset()
        loader = BatchedDataLoader(self.reader, batch_size=self.batch_size, shuffling_queue_capacity=self.capacity)
        for step, batch in enumerate(loader):
            if step == self.steps:
                break
            yield batch


class EndlessLoader(PassLoader):
    """Takes every pass from one iterator."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.reader.num_epochs is None
        self.iterator = iter(
            BatchedDataLoader(self.reader, batch_size=self.batch_size, shuffling_queue_capacity=self.capacity)
        )

    def batches(self) -> Iterator[Any]:
        for _ in range(self.steps):
            yield next(self.iterator)


class InMemoryLoader(EndlessLoader):
    """Takes every pass from rows in memory; the reader is read once."""

    def __init__(self, reader: Any, batch_size: int, num_epochs: int, steps: int, shuffle: bool) -> None:
        self.steps = steps
        self.iterator = iter(
            InMemBatchedDataLoader(
                reader, batch_size=batch_size, num_epochs=num_epochs, rows_capacity=batch_size * steps, shuffle=shuffle
            )
        )


def three_passes(loader: Any) -> list[list[int]]:
    """Returns the ids of three passes; checks that each row's values belong together."""
    passes = []
    for _ in range(PASSES):
        batches = list(loader.batches())
        for batch in batches:
            assert torch.equal(batch["label"], batch["id"] % 2)
            assert torch.equal(batch["features"], torch.stack([batch["id"].double(), batch["id"] / 2], 1))
        passes.append([int(i) for batch in batches for i in batch["id"]])
    return passes


@pytest.mark.parametrize("capacity", [0, 10])
@pytest.mark.parametrize("transform", [None, lambda row: row], ids=["batch reader", "row reader"])
def test_passes_that_reset_the_reader_have_every_row(train_dir: str, transform: Any, capacity: int) -> None:
    with estimator_reader(train_dir, Ranks(0, 1), transform, num_epochs=1) as reader:
        loader = PassLoader(reader, BATCH, capacity)
        passes = three_passes(loader)
    assert [sorted(ids) for ids in passes] == [list(range(ROWS))] * PASSES
    assert len({tuple(ids) for ids in passes}) == PASSES
    assert loader.log == [f"resetting the reader of {train_dir.removeprefix('file://')}"] * (PASSES - 1)


def test_passes_in_another_thread_have_every_row(train_dir: str) -> None:
    """As the asynchronous loaders make them."""
    with (
        estimator_reader(train_dir, Ranks(0, 1), num_epochs=1) as reader,
        ThreadPoolExecutor(1) as thread,
    ):
        passes = thread.submit(three_passes, PassLoader(reader, BATCH)).result()
    assert [sorted(ids) for ids in passes] == [list(range(ROWS))] * PASSES


def test_endless_readers_give_each_rank_its_shard_in_every_pass(train_dir: str) -> None:
    """Two ranks with eight row groups of three rows: three steps of four rows are one pass over a shard."""
    seen = []
    for rank in range(2):
        with estimator_reader(train_dir, Ranks(rank, 2)) as reader:
            assert reader  # the estimators test a reader for truth, and Petastorm's has no length
            assert not hasattr(reader, "__len__")
            passes = three_passes(EndlessLoader(reader, BATCH, steps=3))
        assert {tuple(sorted(ids)) for ids in passes} == {tuple(sorted(passes[0]))}
        seen += passes[0]
    assert sorted(seen) == list(range(ROWS))


def test_a_pass_of_fewer_steps_goes_on_where_the_reader_is(train_dir: str) -> None:
    with estimator_reader(train_dir, Ranks(0, 1), shuffle_rows=False, shuffle_row_groups=False, num_epochs=1) as reader:
        passes = three_passes(PassLoader(reader, 3, steps=2))
    assert [len(ids) for ids in passes] == [6, 6, 6]
    assert len({i for ids in passes for i in ids}) == 18


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_in_memory_are_the_same_in_every_pass(train_dir: str, shuffle: bool) -> None:
    reader = estimator_reader(train_dir, Ranks(0, 1), shuffle_rows=shuffle)
    passes = three_passes(InMemoryLoader(reader, BATCH, num_epochs=PASSES, steps=ROWS // BATCH, shuffle=shuffle))
    assert [sorted(ids) for ids in passes] == [list(range(ROWS))] * PASSES
    assert (len({tuple(ids) for ids in passes}) > 1) == shuffle
    assert reader.stopped


def test_a_data_module_closes_its_readers_and_may_reset_them_before_it_reads(train_dir: str) -> None:
    """As Lightning does: a sanity check may reset the validation reader before anything was read of it."""
    reader = estimator_reader(train_dir, Ranks(0, 1), num_epochs=1, shuffle_rows=False, shuffle_row_groups=False)
    reader.reset()
    reader.reset()
    passes = three_passes(PassLoader(reader, BATCH))
    assert passes[0] == list(range(ROWS))
    reader.__exit__(None, None, None)
    reader.stop()
    reader.join()


def test_a_loader_with_other_leading_arguments_can_be_derived(train_dir: str) -> None:
    class NamedLoader(BatchedDataLoader):
        def __init__(self, name: str = "", limit: int = -1, verbose: bool = False, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.name = name

    with NamedLoader("train", -1, True, estimator_reader(train_dir, Ranks(0, 1), num_epochs=1), BATCH) as loader:
        assert sum(len(batch["id"]) for batch in loader) == ROWS
        assert loader.name == "train"


def test_a_store_gets_the_file_system_of_its_url(train_dir: str) -> None:
    resolver = FilesystemResolver(train_dir, user=None, hdfs_driver="libhdfs")
    assert resolver.filesystem().exists(resolver.get_dataset_path())
