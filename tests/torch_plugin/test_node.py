"""`ParquetNode` with the nodes and the loader of `torchdata.nodes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ids import epoch_of, flat
from torchdata.nodes import BaseNode, Batcher, Loader, ParallelMapper, Prefetcher, Unbatcher

from parquetry.common import Pipeline
from parquetry.torch_plugin import ParquetNode


def id_of(element: dict[str, Any]) -> Any:
    return element["id"].tolist()


def make(url: str) -> ParquetNode:
    return ParquetNode(url, ["id"]).shuffle(10, seed=5)


GRAPHS: dict[str, Callable[[str], BaseNode]] = {
    "batches": lambda url: ParallelMapper(make(url).batch(7), id_of, num_workers=0),
    "rows": lambda url: ParallelMapper(make(url), id_of, num_workers=0),
    "threads": lambda url: ParallelMapper(make(url).batch(7), id_of, num_workers=2),
    "prefetch": lambda url: Prefetcher(ParallelMapper(make(url), id_of, num_workers=0), prefetch_factor=3),
    "batcher": lambda url: Batcher(ParallelMapper(make(url), id_of, num_workers=0), 7, drop_last=False),
    "unbatcher": lambda url: Unbatcher(Batcher(ParallelMapper(make(url), id_of, num_workers=0), 7, drop_last=False)),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_a_loader_goes_through_the_epochs_and_resumes_where_it_was(url: str, graph: Callable[[str], BaseNode]) -> None:
    rows = [epoch_of(make(url).pipeline, epoch) for epoch in range(4)]
    loader = Loader(graph(url))
    epochs = [list(loader) for _ in range(3)]
    assert [flat(epoch) for epoch in epochs] == rows[:3]
    steps = len(epochs[1])
    for taken in (0, 1, steps // 2, steps - 1):
        loader = Loader(graph(url))
        list(loader)
        iterator = iter(loader)
        head = [next(iterator) for _ in range(taken)]
        state = loader.state_dict()
        assert head + list(iterator) == epochs[1]
        fresh = Loader(graph(url))
        fresh.load_state_dict(state)
        assert list(fresh) == epochs[1][taken:]
        assert flat(list(fresh)) == rows[2]


def test_a_loader_saved_at_the_end_resumes_with_the_next_epoch(url: str) -> None:
    loader = Loader(make(url))
    list(loader)
    fresh = Loader(make(url))
    fresh.load_state_dict(loader.state_dict())
    assert [id_of(row) for row in fresh] == epoch_of(make(url).pipeline, 1)


def test_a_pass_of_which_nothing_was_taken_does_not_count(url: str) -> None:
    node = make(url)
    node.reset()
    node.reset()
    assert node.state_dict()["iteration"] == 0
    next(node)
    node.reset()
    assert node.state_dict()["iteration"] == 1
    node.set_epoch(6)
    node.reset()
    assert [id_of(row) for row in node] == epoch_of(node.pipeline, 6)


def test_it_has_the_verbs_of_the_pipeline(url: str) -> None:
    node = ParquetNode.from_pipeline(Pipeline(url)).select("id").take(4).batch(3, drop_remainder=True).repeat(2)
    assert [id_of(batch) for batch in node] == [[0, 1, 2], [0, 1, 2]]
    assert isinstance(node, BaseNode)
    assert repr(node).startswith("ParquetNode('")


def test_a_closed_node_can_be_reset(url: str) -> None:
    node = ParquetNode(url, ["id"])
    next(node)
    node.close()
    node.close()
    node.reset()
    assert len([*node]) == 60
