"""The worker processes of ``reader_pool_type="process"``: what they survive, and what they report."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from parquetry.common.base.errors import PipelineError, SidecarError, TransformError
from parquetry.common.compat.petastorm import TransformSpec, make_reader

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"


def read(spec: TransformSpec, **options: Any) -> list[int]:
    options = {"workers_count": 2, "schema_fields": ["id"], "shuffle_row_groups": False, **options}
    with make_reader(str(REAL), reader_pool_type="process", transform_spec=spec, **options) as reader:
        return [int(row.id) for row in reader]


@pytest.mark.slow
def test_user_code_runs_in_other_processes() -> None:
    own = os.getpid()
    pids = set(read(TransformSpec(lambda row: {"id": os.getpid()})))
    assert own not in pids
    assert 1 <= len(pids) <= 2


@pytest.mark.slow
def test_output_of_user_code_does_not_disturb_the_answers() -> None:
    assert read(TransformSpec(lambda row: print("noise") or row)) == list(range(60))


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_work_done_again(tmp_path: Path) -> None:
    mark = tmp_path / "died"

    def die_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 30 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    assert read(TransformSpec(die_once)) == list(range(60))
    assert mark.exists()


@pytest.mark.slow
def test_a_worker_that_dies_again_over_the_same_row_group_is_an_error() -> None:
    def die(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    with pytest.raises(SidecarError, match=r"died twice over row group 4 \(exit status -9\)"):
        read(TransformSpec(die))


@pytest.mark.slow
def test_an_exception_that_cannot_travel_arrives_as_its_text() -> None:
    def fail(row: Any) -> Any:
        class OddError(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__("odd one")

        raise OddError(1, 2)

    with pytest.raises(TransformError, match="odd one"):
        read(TransformSpec(fail))


def test_functions_that_cannot_travel_are_refused_at_once() -> None:
    lock = threading.Lock()
    with pytest.raises(PipelineError, match="cannot travel to another process"):
        read(TransformSpec(lambda row: {**row, "id": id(lock)}))


@pytest.mark.slow
def test_stopping_ends_the_processes(tmp_path: Path) -> None:
    def note(row: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / str(os.getpid())).touch()
        return row

    pool = {"reader_pool_type": "process", "workers_count": 2}
    with make_reader(str(REAL), transform_spec=TransformSpec(note), **pool) as reader:
        next(reader)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
