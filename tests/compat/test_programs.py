"""Families of public programs that use Petastorm with PyTorch: the same calls and arguments, unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from petastorm import TransformSpec, make_batch_reader, make_reader  # noqa: E402
from petastorm.codecs import NdarrayCodec, ScalarCodec  # noqa: E402
from petastorm.predicates import in_lambda  # noqa: E402
from petastorm.pytorch import DataLoader  # noqa: E402
from petastorm.spark import SparkDatasetConverter, make_spark_converter  # noqa: E402
from petastorm.spark.spark_dataset_converter import TorchDatasetContextManager  # noqa: E402
from petastorm.unischema import UnischemaField  # noqa: E402

from parquetry import write_dataset  # noqa: E402

EVENTS = TransformSpec(  # five items in a field, at the level of the module
    lambda row: {"coord": row["coord"].astype(np.float32), "sa": np.ones((len(row["coord"]), 2), np.float32)},
    removed_fields=["event"],
    edit_fields=[
        ("coord", np.float32, (None, 3), NdarrayCodec(), False),
        ("sa", np.float32, (None, 2), NdarrayCodec(), False),
    ],
)


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
    pq.write_table(pa.table({"id": np.arange(4)}), tmp_path / "part-0.parquet")
    with make_reader(f"file://{tmp_path}", predicate=in_lambda(["id"], lambda i: i > 1), num_epochs=1) as reader:
        for _ in range(3):
            reader.reset()
            assert sorted(int(row.id) for row in reader) == [2, 3]
