"""`ParquetrySource`: Ray Data gets each row of a pipeline once, in order, with its values."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from builders import Built, build, built_once
from faces import plain

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, PipelineError

ray = pytest.importorskip("ray")
from parquetry import ParquetrySource  # noqa: E402  # needs Ray

ROWS = 100


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, because it names sockets
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=directory)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    yield
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


built = built_once([[20, 13], [7, 0, 30], [30]])


def rows_of(pipeline: Any, tasks: int = 3, **options: Any) -> list[dict[str, Any]]:
    dataset = ray.data.read_datasource(ParquetrySource(pipeline, **options), override_num_blocks=tasks)
    return [plain(row) for row in dataset.take_all()]


CHAINS: dict[str, Callable[[Pipeline[Any]], Pipeline[Any]]] = {
    "as stored": lambda rows: rows,
    "shuffled": lambda rows: rows.shuffle(20, seed=3),
    "filtered": lambda rows: rows.where(pc.field("id") > 40).shuffle(20, seed=3),
    "a rank of three": lambda rows: rows.shuffle(20, seed=3).shard(3, 1),
    "repeated": lambda rows: rows.take(30).repeat(2),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_rows_come_once_in_order_with_their_values(built: Built, chain: Callable[[Any], Any]) -> None:
    pipeline = chain(built.pipeline())
    assert rows_of(pipeline) == [plain(row) for row in pipeline]


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_batches_become_rows_again(built: Built, chain: Callable[[Any], Any]) -> None:
    pipeline = chain(built.pipeline("id", "image", "points")).batch(7)
    expected = [
        {name: plain(values[row]) for name, values in batch.items()}
        for batch in pipeline
        for row in range(len(batch["id"]))
    ]
    assert rows_of(pipeline) == expected


def test_an_epoch_can_be_chosen(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(20, seed=3)
    epochs = [[int(row["id"]) for row in pipeline] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch in range(2):
        assert [row["id"] for row in rows_of(built.pipeline("id").shuffle(20, seed=3), epoch=epoch)] == epochs[epoch]


def test_windows_have_their_offsets_in_names(built: Built) -> None:
    pipeline = built.pipeline("id", "small").ngram({0: ["id", "small"], 1: ["id"]})
    expected = [
        {f"{offset}/{name}": plain(value) for offset, fields in row.items() for name, value in fields.items()}
        for row in pipeline
    ]
    assert rows_of(pipeline) == expected


def test_rows_that_a_function_drops_are_read_by_one_task(built: Built) -> None:
    pipeline = built.pipeline("id").transform(lambda row: row if row["id"] % 2 else None, drops=True)
    source = ParquetrySource(pipeline)
    assert len(source.get_read_tasks(8)) == 1
    assert source.estimate_inmemory_data_size() is None
    assert [row["id"] for row in rows_of(pipeline)] == list(range(1, ROWS, 2))


def test_no_row_group_is_cut_for_more_tasks_than_there_are(built: Built) -> None:
    source = ParquetrySource(built.pipeline("id"))
    assert len(source.get_read_tasks(200)) == 6
    assert [task.metadata.num_rows for task in source.get_read_tasks(3)] == [33, 33, 34]
    assert len(ParquetrySource(built.pipeline("id").take(2)).get_read_tasks(200)) == 2
    assert source.estimate_inmemory_data_size() >= 8 * ROWS


def test_arrays_are_rays_tensors(built: Built) -> None:
    dataset = ray.data.read_datasource(ParquetrySource(built.pipeline("image", "points")))
    batch = next(iter(dataset.iter_batches(batch_size=10)))
    assert (batch["image"].dtype, batch["image"].shape) == (np.uint8, (10, 4, 3, 3))
    assert batch["points"][1].shape[1:] == (3,)


def test_datasets_of_the_plug_ins_are_taken(built: Built) -> None:
    from parquetry.torch_plugin import ParquetIterable

    assert len(rows_of(ParquetIterable(built.url, ["id"]).shuffle(10, seed=1))) == ROWS


def test_endless_sources_are_refused(built: Built) -> None:
    with pytest.raises(PipelineError, match=r"repeats forever\. Give repeat\(\) a count"):
        ParquetrySource(built.pipeline("id").repeat())


def test_a_dataset_that_changes_before_it_is_read_is_an_error(tmp_path: Path) -> None:
    built = build(tmp_path, [[20], [20]], names=("id",))
    source = ParquetrySource(built.pipeline())
    first = sorted(Path(built.url).glob("[!_]*.parquet"))[0]
    shutil.copy(first, first.with_name("part-999.parquet"))
    for task in source.get_read_tasks(2):
        with pytest.raises(DatasetError, match="expected the files that were there when it was opened"):
            list(ray.cloudpickle.loads(ray.cloudpickle.dumps(task))())  # as a worker gets it
