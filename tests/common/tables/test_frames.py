"""`Pipeline.from_pandas` and `from_polars`."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.tables import frames

pytestmark = pytest.mark.versions


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))


def kept() -> list[str]:
    return sorted(path.name for path in (frames.cache_root() / "frames").iterdir() if path.name != ".lock")


def test_a_pandas_frame_gives_its_rows() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "id": np.arange(5, dtype=np.int32),
            "text": ["a", "b", None, "d", "e"],
            "kind": pd.Categorical(["x", "y", "x", "y", "x"]),
            "at": pd.to_datetime(["2024-01-01"] * 5),
            "list": [np.arange(n) for n in range(5)],
        },
        index=list("vwxyz"),
    )
    pipeline = Pipeline.from_pandas(frame)
    rows = list(pipeline)
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["text"] for row in rows] == ["a", "b", None, "d", "e"]
    assert [row["kind"] for row in rows] == ["x", "y", "x", "y", "x"]
    assert rows[4]["list"].tolist() == [0, 1, 2, 3]
    assert set(rows[0]) == set(frame.columns)
    picked = Pipeline.from_pandas(frame, ["id"], executor="sidecar").where([("text", "=", "d")])
    assert [row["id"] for row in picked] == [3]


def test_equal_frames_have_equal_fingerprints_and_one_file() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.5, None, 3.0], "b": ["x", "y", None]})
    first = Pipeline.from_pandas(frame)
    again = Pipeline.from_pandas(pd.concat([frame[:1], frame[1:]]))
    assert again == first
    assert again.dataset.fingerprint == first.dataset.fingerprint
    assert len(kept()) == 1
    changed = Pipeline.from_pandas(frame.assign(b=["x", "y", "z"]))
    assert changed.dataset.fingerprint != first.dataset.fingerprint
    assert len(kept()) == 2


@pytest.mark.slow
def test_a_polars_frame_gives_its_rows() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "id": [1, 2, 3],
            "text": ["a", None, "c"],
            "day": [datetime.date(2024, 1, 1)] * 3,
            "kind": pl.Series(["x", "y", "x"], dtype=pl.Categorical),
            "vector": pl.Series([[1.0, 2.0]] * 3, dtype=pl.Array(pl.Float32, 2)),
        }
    )
    rows = list(Pipeline.from_polars(frame))
    assert [row["text"] for row in rows] == ["a", None, "c"]
    assert [row["kind"] for row in rows] == ["x", "y", "x"]
    assert rows[0]["vector"].tolist() == [1.0, 2.0]
    lazy = Pipeline.from_polars(frame.lazy().filter(pl.col("id") > 1))
    assert [row["id"] for row in lazy] == [2, 3]
    assert Pipeline.from_polars(frame.clone()) == Pipeline.from_polars(pl.concat([frame[:1], frame[1:]]))


def test_chunks_and_slices_do_not_change_the_name_of_a_frame() -> None:
    whole = pa.table({"n": [0, 1, None, 3], "t": ["a", None, "c", "d"], "l": [[1], [], None, [2, 3]]})
    longer = pa.concat_tables([whole.slice(3), whole, whole])
    assert frames.keep_table(whole) == frames.keep_table(longer.slice(1, 4))
    assert frames.keep_table(whole) == frames.keep_table(pa.concat_tables([whole.slice(0, 2), whole.slice(2)]))
    assert frames.keep_table(whole) != frames.keep_table(longer.slice(0, 4))
    assert frames.keep_table(whole) != frames.keep_table(whole.rename_columns(["n", "t", "m"]))


def test_large_frames_have_row_groups_that_can_be_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_ROW_GROUP_BYTES", 800)
    pipeline = Pipeline(frames.keep_table(pa.table({"n": pa.array(range(1000), pa.int64())})))
    assert len(pipeline.dataset.row_groups) == 10
    assert sorted(row["n"] for row in pipeline.shuffle(50, seed=1)) == list(range(1000))


def test_a_pipeline_continues_when_an_equal_frame_is_made_again() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1, 2]})
    pipeline = Pipeline.from_pandas(frame)
    assert len(list(pipeline)) == 2
    Pipeline.from_pandas(frame)
    assert len(list(pipeline)) == 2


def test_old_frames_go_when_there_are_too_many_but_not_those_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [frames.keep_table(pa.table({"n": [number]})) for number in range(3)]
    monkeypatch.setattr(frames, "_MOST_BYTES", 1)
    long_ago = os.stat(paths[0]).st_mtime - 3 * 24 * 3600
    os.utime(paths[0], (long_ago, long_ago))
    paths.append(frames.keep_table(pa.table({"n": [7]})))
    assert [os.path.exists(path) for path in paths] == [False, True, True, True]


def test_frames_that_cannot_be_rows_are_errors() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    with pytest.raises(DatasetError, match=r"expected a pandas\.DataFrame, got dict"):
        Pipeline.from_pandas({"a": [1]})
    with pytest.raises(DatasetError, match=r"expected a polars\.DataFrame or LazyFrame, got dict"):
        Pipeline.from_polars({"a": [1]})
    with pytest.raises(DatasetError, match="expected column names that are strings"):
        Pipeline.from_pandas(pd.DataFrame([[1, 2]]))
    with pytest.raises(DatasetError, match="expected columns that Arrow has a type for"):
        Pipeline.from_pandas(pd.DataFrame({"a": [np.zeros((2, 2))]}))
    with pytest.raises(DatasetError, match="Duplicate column names"):
        Pipeline.from_pandas(pd.DataFrame({"a": [1], "b": [2]}).rename(columns={"b": "a"}))
    with pytest.raises(DatasetError, match="expected columns with different names"):
        Pipeline.from_polars(pl.DataFrame())
    with pytest.raises(DatasetError, match=r"expected columns of values, got Python objects in \['a'\]"):
        Pipeline.from_polars(pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}))
    with pytest.raises(DatasetError, match="expected a LazyFrame that can be collected"):
        Pipeline.from_polars(pl.LazyFrame({"a": [1]}).select("missing"))
    with pytest.raises(PipelineError, match="got none from"):
        next(iter(Pipeline.from_polars(pl.DataFrame({"a": pl.Series([], dtype=pl.Int64)}))))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("pandas", "polars", "deltalake", "pyiceberg", "pyiceberg.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DatasetError, match=r"pip install 'parquetry\[frames\]'"):
        Pipeline.from_pandas(None)
    with pytest.raises(DatasetError, match=r"pip install 'parquetry\[frames\]'"):
        Pipeline.from_polars(None)
    with pytest.raises(DatasetError, match=r"pip install 'parquetry\[delta\]'"):
        Pipeline.from_delta("anywhere")
    with pytest.raises(DatasetError, match=r"pip install 'parquetry\[iceberg\]'"):
        Pipeline.from_iceberg("a.b.c")
