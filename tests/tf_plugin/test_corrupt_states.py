"""A corrupt state is a `StateError`, from Python or from the op: never another error, never an empty pass."""

from __future__ import annotations

import pytest
import tensorflow as tf
from builders import Built, built_once
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from resume_cases import SIMPLE_CHAINS, corrupted, is_at_its_end

from parquetry.common.base.errors import StateError
from parquetry.tf_plugin import ParquetDataset

pytestmark = pytest.mark.timeout(900, method="thread")  # PARQUETRY_EXAMPLES may request many
built = built_once([[5, 5], [10]], names=["id", "drive", "ts", "label"])


@pytest.mark.slow
@examples(25)
@given(st.data())
def test_a_corrupt_state_is_refused_or_another_state(built: Built, data: st.DataObject) -> None:
    pipeline = data.draw(st.sampled_from(SIMPLE_CHAINS))(built.pipeline("id", workers=1))
    dataset = ParquetDataset.from_pipeline(pipeline)
    next(iter(dataset))
    corrupt = data.draw(corrupted(dataset.state_dict(1)), "state")
    if data.draw(st.booleans(), "made anew"):
        dataset = ParquetDataset.from_pipeline(pipeline)
    try:
        dataset.load_state_dict(corrupt)
        first = next(iter(dataset), None)
    except StateError:
        return
    except tf.errors.InvalidArgumentError as error:
        if "state" not in error.message:
            raise
        return
    assert first is not None or is_at_its_end(pipeline, corrupt)
