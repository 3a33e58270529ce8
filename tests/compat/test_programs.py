"""Families of public programs that use Petastorm with PyTorch: the same calls and arguments, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from petastorm import TransformSpec, make_batch_reader, make_reader  # noqa: E402
from petastorm.codecs import NdarrayCodec, ScalarCodec  # noqa: E402
from petastorm.etl.dataset_metadata import infer_or_load_unischema  # noqa: E402
from petastorm.predicates import in_lambda  # noqa: E402
from petastorm.pytorch import BatchedDataLoader, DataLoader  # noqa: E402
from petastorm.spark import SparkDatasetConverter, make_spark_converter  # noqa: E402
from petastorm.spark.spark_dataset_converter import TorchDatasetContextManager  # noqa: E402
from petastorm.unischema import UnischemaField  # noqa: E402

from parquetry import write_dataset  # noqa: E402

REAL = Path(__file__).parents[1] / "data" / "petastorm" / "0.12.1"
EVENTS = TransformSpec(  # five items in a field, at the level of the module
    lambda row: {"coord": row["coord"].astype(np.float32), "sa": np.ones((len(row["coord"]), 2), np.float32)},
    removed_fields=["event"],
    edit_fields=[
        ("coord", np.float32, (None, 3), NdarrayCodec(), False),
        ("sa", np.float32, (None, 2), NdarrayCodec(), False),
    ],
)


def pieces(directory: Path, key: str, values: list[Any], rows: int = 4) -> list[str]:
    """Writes a file into each of some partition directories; returns their URLs."""
    urls = []
    for number, value in enumerate(values):
        folder = directory / f"{key}={value}"
        folder.mkdir(parents=True)
        ids = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"id": ids, "value": ids / 2}), folder / "part-0.parquet")
        urls.append(f"file://{folder}/part-0.parquet")
    return urls


# --- SynapseML's tests of its compatibility module --------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_filters_choose_a_partition(tmp_path: Path, pool: str) -> None:
    pieces(tmp_path, "group", ["a", "b"])
    options = {"reader_pool_type": pool, "workers_count": 1, "num_epochs": 1, "shuffle_row_groups": False}
    with make_batch_reader(f"file://{tmp_path}", filters=[("group", "=", "a")], **options) as reader:
        (batch,) = list(reader)
    assert batch.id.tolist() == [0, 1, 2, 3]
    assert batch.group.tolist() == ["a"] * 4


def test_a_row_reader_of_plain_files_transforms(tmp_path: Path) -> None:
    pieces(tmp_path, "group", ["a"])
    spec = TransformSpec(
        lambda row: {**row, "doubled_value": 2 * row["value"]},
        edit_fields=[("doubled_value", np.float64, (), False)],
    )
    with make_reader(f"file://{tmp_path}", transform_spec=spec, shuffle_row_groups=False) as reader:
        rows = list(reader)
    assert [(int(row.id), float(row.doubled_value)) for row in rows] == [(i, float(i)) for i in range(4)]


@pytest.mark.parametrize("values", [["a", "b"], [3, 7], ["__HIVE_DEFAULT_PARTITION__", "a"]])
def test_files_of_a_list_have_the_columns_of_the_partitions_around_them(tmp_path: Path, values: list[Any]) -> None:
    urls = pieces(tmp_path, "group", values)
    expected = [None if str(value).startswith("__HIVE") else value for value in values]
    for chosen in (urls, urls[-1:]):
        with make_batch_reader(chosen, shuffle_row_groups=False) as reader:
            batches = list(reader)
            assert isinstance(reader.dataset.paths, list)
        assert [value for batch in batches for value in batch.group.tolist()] == np.repeat(
            np.array(expected[-len(chosen) :], object), 4
        ).tolist()
    with make_batch_reader(urls[0]) as reader:  # one URL, as in Petastorm
        assert "group" not in reader.schema.fields


def test_files_of_a_list_in_unlike_directories_have_no_such_column(tmp_path: Path) -> None:
    urls = [*pieces(tmp_path, "group", ["a"]), *pieces(tmp_path, "kind", ["b"])]
    with make_batch_reader(urls) as reader:
        assert list(reader.schema.fields) == ["id", "value"]


def test_a_null_integer_partition_is_nan_and_no_loader_trains_on_it(tmp_path: Path) -> None:
    pieces(tmp_path, "year", [2025, "__HIVE_DEFAULT_PARTITION__"])
    with make_batch_reader(f"file://{tmp_path}", shuffle_row_groups=False) as reader:
        years = {int(batch.id[0]): batch.year for batch in reader}
    assert (years[0].dtype, years[4].dtype) == (np.int64, np.float64)
    assert np.isnan(years[4]).all()
    for loader in (DataLoader, BatchedDataLoader):
        with (
            loader(make_batch_reader(f"file://{tmp_path}"), 4) as batches,
            pytest.raises(TypeError, match="field 'year': Pytorch does not support nulls"),
        ):
            list(batches)
    with make_reader(f"file://{tmp_path}", shuffle_row_groups=False) as rows:
        assert {row.year for row in rows} == {2025, None}


def test_the_launcher_of_processes_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from petastorm.workers_pool import process_pool

    monkeypatch.setattr(process_pool, "exec_in_new_process", None, raising=False)  # has no effect here


def test_the_schema_of_pyarrows_dataset_is_loaded_or_inferred(tmp_path: Path) -> None:
    pieces(tmp_path, "group", ["a", "b"])
    inferred = infer_or_load_unischema(pq.ParquetDataset(tmp_path))
    assert {field.name: field.numpy_dtype for field in inferred.fields.values()} == {
        "id": np.int64,
        "value": np.float64,
        "group": np.str_,
    }
    declared = infer_or_load_unischema(pq.ParquetDataset(REAL))
    with make_reader(f"file://{REAL}") as reader:
        assert list(declared.fields) == list(infer_or_load_unischema(reader.dataset).fields)
    assert declared.png.shape == (8, 6, 3)


# --- physics: ragged events, a collate function -----------------------------------------------------------------------


def test_ragged_events_are_collated_by_a_function(tmp_path: Path) -> None:
    fields = [UnischemaField("event", np.int64, (), ScalarCodec(pa.int64()), False)]
    fields += [UnischemaField("coord", np.float64, (None, 3), NdarrayCodec(), False)]
    from petastorm.unischema import Unischema

    rows = ({"event": n, "coord": np.full((n + 1, 3), n, np.float64)} for n in range(8))
    write_dataset(tmp_path, Unischema("events", fields).to_parquetry(), rows, petastorm_compatible=True)

    def collate(events: list[dict[str, np.ndarray]]) -> tuple[torch.Tensor, list[int]]:
        return torch.from_numpy(np.concatenate([e["coord"] for e in events])), [len(e["sa"]) for e in events]

    reader = make_reader(
        f"file://{tmp_path}", num_epochs=1, transform_spec=EVENTS, seed=3, workers_count=2, shuffle_rows=True
    )
    with DataLoader(reader, batch_size=3, collate_fn=collate) as loader:
        batches = list(loader)
    assert sorted(size for _, sizes in batches for size in sizes) == list(range(1, 9))
    assert all(len(coord) == sum(sizes) and coord.dtype == torch.float32 for coord, sizes in batches)


# --- Databricks: files of a table, TorchDistributor, converters -------------------------------------------------------


def images(directory: Path) -> list[str]:
    """Writes two files of image bytes and labels; returns their URLs."""
    for number in range(2):
        content = [bytes([number, i]) for i in range(8)]
        table = pa.table({"content": content, "label": np.arange(8) + 8 * number, "path": ["p"] * 8})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=4)
    return [f"file://{directory}/{number}.parquet" for number in range(2)]


def decoded(frame: pd.DataFrame) -> pd.DataFrame:
    frame["image"] = frame["content"].map(lambda data: np.full((3, 4, 4), data[1], np.float32))
    return frame[["image", "label"]]


IMAGES = TransformSpec(
    decoded, edit_fields=[("image", np.float32, (3, 4, 4), False)], selected_fields=["image", "label"]
)


def test_an_endless_loader_of_files_is_closed_and_opened_again(tmp_path: Path) -> None:
    files = images(tmp_path)
    for _ in range(2):
        reader = make_batch_reader(
            files,
            transform_spec=IMAGES,
            cur_shard=0,
            shard_count=2,
            workers_count=2,
            reader_pool_type="thread",
            results_queue_size=20,
            num_epochs=None,
        )
        loader = DataLoader(reader, 16)
        batches = iter(loader)
        first = [next(batches) for _ in range(3)]
        assert [batch["image"].shape for batch in first] == [(16, 3, 4, 4)] * 3
        assert len({int(label) for batch in first for label in batch["label"]}) == 8
        loader.__exit__(None, None, None)


def test_a_context_manager_is_made_by_hand(tmp_path: Path) -> None:
    options = {"num_epochs": 1, "transform_spec": IMAGES, "workers_count": 2}
    with TorchDatasetContextManager(images(tmp_path), 4, options, 0, None) as loader:
        assert sorted(int(label) for batch in loader for label in batch["label"]) == list(range(16))


def test_a_converter_of_files_makes_loaders(tmp_path: Path) -> None:
    images(tmp_path)
    converter = make_spark_converter(f"file://{tmp_path}")
    assert len(converter) == 16
    assert SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF == "petastorm.spark.converter.parentCacheDirUrl"
    with converter.make_torch_dataloader(batch_size=8, num_epochs=1, workers_count=16, transform_spec=IMAGES) as loader:
        assert sum(len(batch["label"]) for batch in loader) == 16


# --- others -----------------------------------------------------------------------------------------------------------


def test_columns_without_an_attributes_name_say_how_to_read_them(tmp_path: Path) -> None:
    table = pa.table({"# Timestamp": ["1"], "Gear Type": ["a"], "speed": [1.5]})
    pq.write_table(table, tmp_path / "ships.parquet")
    with pytest.raises(ValueError, match=r"\['# Timestamp', 'Gear Type'\].*schema_fields=\[\.\.\.\].*rename"):
        make_batch_reader(f"file://{tmp_path}/ships.parquet")
    with make_batch_reader(f"file://{tmp_path}/ships.parquet", schema_fields=["speed"]) as reader:
        assert next(reader).speed.tolist() == [1.5]


def test_files_of_pandas_are_read(tmp_path: Path) -> None:
    pd.DataFrame({"name": ["a", "b"], "id": [1, 2]}).to_parquet(tmp_path / "rows.parquet")
    with make_batch_reader(f"file://{tmp_path}/rows.parquet") as reader:
        (batch,) = list(reader)
    assert batch.name.tolist() == ["a", "b"]


def test_a_predicate_and_a_reset_in_a_loop(tmp_path: Path) -> None:
    pieces(tmp_path, "group", ["a"])
    with make_reader(f"file://{tmp_path}", predicate=in_lambda(["id"], lambda i: i > 1), num_epochs=1) as reader:
        for _ in range(3):
            reader.reset()
            assert sorted(int(row.id) for row in reader) == [2, 3]
