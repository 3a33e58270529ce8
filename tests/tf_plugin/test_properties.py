"""Random chains over random datasets on `ParquetDataset`: the rows of a list comprehension, in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest
from faces import TensorFlowFace, run_on_faces, run_resumed
from hypothesis import given
from hypothesis import strategies as st
from mishaps import run_changed, run_failing, run_limited, run_refilling, run_skipping, run_unmeasured
from oracle import examples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="thread")]  # PARQUETRY_EXAMPLES may request many
FACES = [TensorFlowFace(), TensorFlowFace(as_numpy=True)]


@examples(8)
@given(st.data())
def test_tf_data_gives_any_chain_as_a_list_comprehension_does(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, FACES)


@examples(8)
@given(st.data())
def test_any_chain_resumes_where_it_was_stopped(cache: Path, data: st.DataObject) -> None:
    run_resumed(data, cache, [TensorFlowFace()])


@examples(5)
@given(st.data())
def test_an_element_that_fails_is_one_element_and_the_others_are_given(data: st.DataObject) -> None:
    run_failing(data, FACES)


@examples(5)
@given(st.data())
def test_rows_that_fail_are_left_out_and_the_others_fill_their_places(data: st.DataObject) -> None:
    run_skipping(data, FACES)


@examples(6)
@given(st.data())
def test_all_elements_before_one_error_too_many_come(data: st.DataObject) -> None:
    run_limited(data, FACES)


@examples(5)
@given(st.data())
def test_batches_of_a_bucket_are_refilled_without_rows_that_fail(data: st.DataObject) -> None:
    run_refilling(data, FACES)


@examples(5)
@given(st.data())
def test_rows_without_a_length_are_as_if_they_were_not_stored(data: st.DataObject) -> None:
    run_unmeasured(data, FACES)


@examples(5)
@given(st.data())
def test_files_that_change_between_epochs_are_noticed_and_a_new_equal_dataset_reads_them(
    data: st.DataObject,
) -> None:
    run_changed(data, FACES)
