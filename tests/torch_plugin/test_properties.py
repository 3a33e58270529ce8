"""Random chains over random datasets on `ParquetIterable`, alone and in a loader, `ParquetPipe` and `ParquetNode`."""

from __future__ import annotations

from pathlib import Path

import pytest
from faces import NodeFace, TorchFace, run_on_faces
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all examples."""
    return tmp_path_factory.mktemp("cache")


@examples(20)
@given(st.data())
def test_datasets_pipes_and_nodes_give_any_chain_as_a_list_comprehension_does(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, [TorchFace(), TorchFace(kind="ParquetPipe"), NodeFace()])


@examples(10)
@given(st.data())
def test_a_loader_gives_any_chain_in_the_single_process_order(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, [TorchFace(1), TorchFace(2, kind="ParquetPipe"), TorchFace(3)])
