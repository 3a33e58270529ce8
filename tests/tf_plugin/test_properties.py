"""Random chains over random datasets on `ParquetDataset`: the rows of the list comprehension, in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest
from faces import TensorFlowFace, run_on_faces
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all examples."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.timeout(900, method="thread")  # PARQUETRY_EXAMPLES may ask for many
@examples(15)
@given(st.data())
def test_tf_data_gives_any_chain_as_a_list_comprehension_does(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, [TensorFlowFace(), TensorFlowFace(as_numpy=True)])
