"""`trace`: a file of events, and nothing left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import parquetry
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics.tracing import ENVIRONMENT


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "t"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


def test_a_trace_has_the_work_of_each_thread_and_leaves_only_its_file(tmp_path: Path, temporary: Path) -> None:
    url = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(60), "text": ["a"] * 60}), url, row_group_size=20)
    pipeline = parquetry.Pipeline(str(url), executor="threads").batch(10)
    before = iter(pipeline)
    next(before)
    with parquetry.trace(tmp_path / "trace.json"):
        list(before)  # started earlier
        list(pipeline)
    list(pipeline)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = [event["name"] for event in spans]
    assert names.count("load a row group") >= 3
    assert {"decode", "hand over", "wait for an element"} <= set(names)
    assert all(event["dur"] >= 0 and event["pid"] == os.getpid() for event in spans)
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in spans} == set(threads)
    assert any(name.startswith("parquetry-decode") for name in threads.values())
    assert ENVIRONMENT not in os.environ
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("path", [3, True, None])
def test_a_trace_goes_to_a_path_and_not_to_a_descriptor(path: object) -> None:
    with pytest.raises(TypeError, match="PathLike"), parquetry.trace(path):  # type: ignore[arg-type]
        pass


def test_a_trace_in_a_trace_is_refused_and_an_error_ends_the_trace(tmp_path: Path, temporary: Path) -> None:
    def fails() -> None:
        with parquetry.trace(tmp_path / "one.json"):
            raise KeyError

    with parquetry.trace(tmp_path / "two.json"), pytest.raises(PipelineError, match="expected no other trace"):
        fails()
    with pytest.raises(KeyError):
        fails()
    assert json.loads((tmp_path / "one.json").read_text())["traceEvents"] == []
    assert not list(temporary.iterdir())


def test_a_process_started_by_one_that_is_traced_may_trace_for_itself(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(temporary / "of another process"))
    with parquetry.trace(tmp_path / "own.json"):
        assert os.environ[ENVIRONMENT] != str(temporary / "of another process")
    assert os.environ[ENVIRONMENT] == str(temporary / "of another process")
