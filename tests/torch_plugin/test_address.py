"""The PyTorch face of a served pipeline: the same elements, epochs, workers, ranks and states as over files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from faces import plain
from torch.utils.data import DataLoader
from torch.utils.data.graph_settings import apply_sharding

from parquetry.common import Pipeline
from parquetry.common.base.errors import NullValueError
from parquetry.common.server import ArrowServer, ServerAddress, serve
from parquetry.torch_plugin import ParquetNode, ParquetPipe


@pytest.fixture(params=["batches", "rows"])
def pipeline(url: str, request: pytest.FixtureRequest) -> Pipeline:
    rows = Pipeline(url, workers=1, executor="threads").shuffle(20, seed=3)
    return rows.batch(8) if request.param == "batches" else rows


@pytest.fixture
def server(pipeline: Pipeline) -> Iterator[ArrowServer]:
    with serve(pipeline) as running:
        yield running


def elements(source: Any) -> list[Any]:
    return [plain(element) for element in source]


def test_epochs_equal_the_pipelines(server: ArrowServer, pipeline: Pipeline) -> None:
    served, own = ParquetPipe(address=server.address), ParquetPipe.from_pipeline(pipeline)
    for _ in range(2):
        assert elements(served) == elements(own)


def test_a_node_reads_it_too(server: ArrowServer, pipeline: Pipeline) -> None:
    assert elements(ParquetNode(address=server.address)) == elements(ParquetNode.from_pipeline(pipeline))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_divide_it(server: ArrowServer, pipeline: Pipeline, workers: int) -> None:
    served = DataLoader(ParquetPipe(address=server.address), batch_size=None, num_workers=workers)
    own = DataLoader(ParquetPipe.from_pipeline(pipeline), batch_size=None, num_workers=workers)
    assert elements(served) == elements(own)


def test_ranks_divide_it(server: ArrowServer, pipeline: Pipeline) -> None:
    found: list[int] = []
    for rank in range(2):
        pipe = ParquetPipe(address=server.address).sharding_filter()
        apply_sharding(pipe, 2, rank)
        for element in pipe:
            ids = plain(element["id"])
            found += ids if isinstance(ids, list) else [ids]
    assert sorted(found) == list(range(60))


def test_a_state_goes_from_the_served_pipe_to_files_and_back(server: ArrowServer, pipeline: Pipeline) -> None:
    served = iter(ParquetPipe(address=server.address))
    for _ in range(3):
        next(served)
    state, rest = served.state_dict(), elements(served)
    for pipe in (ParquetPipe(address=server.address), ParquetPipe.from_pipeline(pipeline)):
        pipe.load_state_dict(state)
        assert elements(pipe) == rest


def test_tensors_may_be_changed_in_place(url: str) -> None:
    with serve(Pipeline(url, ["id", "image"]).batch(8)) as server:
        batch = next(iter(ParquetPipe(address=server.address)))
        batch["image"].add_(1)
        assert batch["image"][0, 0, 0, 0].item() == 1


def test_two_loaders_share_an_epoch(url: str) -> None:
    with serve(Pipeline(url, ["id"]).batch(8)) as server:
        address = ServerAddress(url=server.address, shared=True)
        first, second = iter(ParquetPipe(address=address)), iter(ParquetPipe(address=address))
        got = [next(first), next(second), *first, *second]
        assert sorted(int(row) for batch in got for row in batch["id"]) == list(range(60))


def test_nulls_are_errors(nullable_url: str) -> None:
    with serve(Pipeline(nullable_url).batch(4)) as server, pytest.raises(NullValueError, match="field 'name'"):
        elements(ParquetPipe(address=server.address))
