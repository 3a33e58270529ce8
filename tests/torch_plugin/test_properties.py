"""Random chains over random datasets on `ParquetIterable` and `ParquetMap`, alone and in a loader, `ParquetPipe` and
`ParquetNode`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from faces import MapFace, NodeFace, TorchFace, run_on_faces, run_resumed
from hypothesis import given
from hypothesis import strategies as st
from mishaps import run_changed, run_failing, run_limited, run_refilling, run_skipping, run_unmeasured
from oracle import examples

pytestmark = pytest.mark.slow
FACES = [TorchFace(), TorchFace(kind="ParquetPipe"), NodeFace()]
LOADERS = [TorchFace(1), TorchFace(2, kind="ParquetPipe"), TorchFace(3)]


@examples(20)
@given(st.data())
def test_datasets_pipes_and_nodes_give_any_chain_as_a_list_comprehension_does(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, FACES)


@examples(10)
@given(st.data())
def test_rows_by_number_equal_those_of_any_chain(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, [*[MapFace()] * 9, MapFace(2)])


@examples(10)
@given(st.data())
def test_a_loader_gives_any_chain_in_the_single_process_order(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, LOADERS)


@examples(15)
@given(st.data())
def test_any_chain_resumes_where_it_was_stopped(cache: Path, data: st.DataObject) -> None:
    run_resumed(data, cache, FACES)


@examples(15)
@given(st.data())
def test_an_element_that_fails_is_one_element_and_the_others_are_given(data: st.DataObject) -> None:
    run_failing(data, [*FACES, *FACES, *LOADERS])


@examples(15)
@given(st.data())
def test_rows_that_fail_are_left_out_and_the_others_fill_their_places(data: st.DataObject) -> None:
    run_skipping(data, [*FACES, *FACES, *LOADERS])


@examples(6)
@given(st.data())
def test_all_elements_before_one_error_too_many_come(data: st.DataObject) -> None:
    run_limited(data, FACES)


@examples(15)
@given(st.data())
def test_batches_of_a_bucket_are_refilled_without_rows_that_fail(data: st.DataObject) -> None:
    run_refilling(data, [*FACES, *FACES, *LOADERS])


@examples(15)
@given(st.data())
def test_rows_without_a_length_are_as_if_they_were_not_stored(data: st.DataObject) -> None:
    run_unmeasured(data, [*FACES, *FACES, *LOADERS])


@pytest.mark.nightly
@examples(15)
@given(st.data())
def test_files_that_change_between_epochs_are_noticed_and_a_new_equal_dataset_reads_them(
    data: st.DataObject,
) -> None:
    run_changed(data, [*FACES, *FACES, *LOADERS])
