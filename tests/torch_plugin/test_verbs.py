"""Verbs on pipe and node: those of the pipeline, shards of launchers, mixes, and tuples and masks through loaders."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.graph_settings import apply_sharding

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common import mix as mix_pipelines
from parquetry.common.base.errors import PipelineError, StateError
from parquetry.common.pipeline.pipeline_iterator import PipelineIterator
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe, mix

FACES = [ParquetPipe, ParquetNode]


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes ten frames with named axes, and variable-length values, every fourth of them null."""
    schema = Unischema(
        "frames",
        [
            UnischemaField("id", np.int64),
            UnischemaField("frame", np.uint8, (4, 5, 3), dims=("H", "W", "C")),
            UnischemaField("values", np.float32, (None,), nullable=True),
            UnischemaField("speed", np.float64, nullable=True),
        ],
    )
    directory = str(tmp_path_factory.mktemp("frames"))
    rows = [
        {
            "id": number,
            "frame": np.arange(60, dtype=np.uint8).reshape(4, 5, 3) + number,
            "values": np.arange(number % 3, dtype=np.float32),
            "speed": None if number % 4 == 0 else number / 2,
        }
        for number in range(10)
    ]
    write_dataset(directory, schema, rows, row_group_rows=3)
    return directory


def test_padded_and_masked_fields_pass_through_loader_workers(frames: str) -> None:
    pipe = ParquetPipe(frames, ["id", "values", "speed"]).pad("values").nulls("mask", "speed").batch(4)
    direct = list(pipe)
    assert direct[0]["speed__valid"].tolist() == [False, True, True, True]
    assert direct[0]["speed"].tolist() == [0.0, 0.5, 1.0, 1.5]
    for left, right in zip(DataLoader(pipe, batch_size=None, num_workers=2), direct, strict=True):
        assert list(left) == list(right)
        assert all(torch.equal(left[name], right[name]) for name in left)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, "id", pc.multiply(batch.column(0), 2))


@pytest.mark.parametrize("face", FACES)
def test_a_shard_without_arguments_is_the_launchers(url: str, face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    assert [row["id"].item() for row in face(url, ["id"]).shard()] == list(range(20, 40))
    monkeypatch.delenv("RANK")
    with pytest.raises(PipelineError, match="expected num_shards and index, or a launcher's variables"):
        face(url, ["id"]).shard()


def test_a_mix_is_a_pipe_in_every_respect(url: str) -> None:
    def make() -> ParquetPipe:
        sources = [ParquetPipe(url, ["id"]).shuffle(10, seed=1), ParquetNode(url, ["id"]).take(12)]
        return mix(sources, weights=[3, 1], seed=4, stop="all").batch(8)

    pipe = make()
    assert isinstance(pipe, ParquetPipe)
    sources = [ParquetPipe(url, ["id"]).shuffle(10, seed=1).pipeline, ParquetPipe(url, ["id"]).take(12).pipeline]
    assert pipe.pipeline == mix_pipelines(sources, weights=[3, 1], seed=4, stop="all").batch(8)
    epochs = [[batch["id"].tolist() for batch in PipelineIterator(pipe.pipeline, epoch)] for epoch in range(2)]
    assert sorted(number for batch in epochs[0] for number in batch) == sorted([*range(60), *range(12)])
    assert epochs[0] != epochs[1]
    loader = DataLoader(pipe, batch_size=None, num_workers=2)
    assert len(loader) == 9
    assert [[batch["id"].tolist() for batch in loader] for _ in range(2)] == epochs
    parts = []
    for index in range(2):
        rank = make()
        apply_sharding(rank, 2, index)
        parts += [number for batch in rank for number in batch["id"].tolist()]
    assert sorted(parts) == sorted(number for batch in epochs[0] for number in batch)


def test_a_state_of_a_mix_of_other_shuffles_is_refused(url: str) -> None:
    def make(seed: int) -> ParquetPipe:
        return mix([ParquetPipe(url, ["id"]).shuffle(10, seed=seed), ParquetPipe(url, ["id"])], seed=4)

    make(1).load_state_dict(make(1).state_dict())
    with pytest.raises(StateError, match="saved for a different pipeline"):
        make(2).load_state_dict(make(1).state_dict())


def test_the_state_of_a_mix_brings_back_the_seeds_that_were_drawn(url: str) -> None:
    def make() -> ParquetPipe:
        return mix([ParquetPipe(url, ["id"]).shuffle(10), ParquetPipe(url, ["id"]).shuffle(10)], stop="all").batch(8)

    first, other = make(), make()
    iterator = iter(first)
    next(iterator)
    state = iterator.state_dict()
    left = [batch["id"].tolist() for batch in iterator]
    other.load_state_dict(state)
    assert [batch["id"].tolist() for batch in other] == left
    again = make()
    again.load_state_dict(state)
    assert [batch["id"].tolist() for batch in DataLoader(again, batch_size=None, num_workers=2)] == left


def test_a_mix_of_batches_is_refused(url: str) -> None:
    with pytest.raises(PipelineError, match="expected pipelines of rows, got one with batch"):
        mix([ParquetPipe(url, ["id"]).batch(3), ParquetPipe(url, ["id"])])


@pytest.mark.parametrize(
    "make",
    [
        lambda pipe: pipe.permute("image", dims=("C", "H", "W")),
        lambda pipe: pipe.transform(doubled, batched="arrow"),
        lambda pipe: pipe.transform(len, drops=True),
        lambda pipe: pipe.decimals("float64", "id"),
        lambda pipe: pipe.fixed("points", shape=(3, 2)),
        lambda pipe: pipe.hash_split("id", [0.5, 0.5], 0, seed=1),
        lambda pipe: pipe.shard(4, 1, even="drop", canonical_shards=8),
        lambda pipe: pipe.shard(4, 1, policy="rowgroup_modulo"),
    ],
)
def test_a_verb_does_what_the_pipeline_does_and_travels(url: str, make: Any) -> None:
    for face in FACES:
        made = make(face.from_pipeline(ParquetPipe(url).pipeline))
        assert type(made) is face
        assert made.pipeline.stages == make(Pipeline(url)).stages
    assert len(pickle.loads(pickle.dumps(make(ParquetPipe(url)).pipeline)).stages) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_tuples_pass_through_loaders_as_batches_and_as_rows(frames: str, workers: int) -> None:
    pairs = ParquetIterable(frames).as_tuple("frame", "id")
    for frame, ids in DataLoader(pairs.batch(4), batch_size=None, num_workers=workers):
        assert torch.equal(frame[:, 0, 0, 0], ids.to(torch.uint8))
    numbers = [n for _, ids in DataLoader(pairs, batch_size=3, num_workers=workers) for n in ids.tolist()]
    assert sorted(numbers) == list(range(10))


def test_a_function_that_carries_a_generator_of_torch_is_warned_of(url: str, caplog: pytest.LogCaptureFixture) -> None:
    generator = torch.Generator().manual_seed(1)
    ParquetIterable(url, ["id"]).transform(lambda row: {"id": float(torch.rand((), generator=generator))})
    assert ["carries a Generator. Each process" in each for each in caplog.messages] == [True]
