"""The output of `inspect` for a dataset with known chunks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from builders import build, write_table
from movies import front, write_movie

from parquetry.common import Pipeline, mix
from parquetry.common.apps.reports import inspect, lint, to_json, verify
from parquetry.common.apps.reports import inspecting as module
from parquetry.common.base.errors import PipelineError
from parquetry.common.dataset.index import write_index

REAL = str(Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1")


def test_the_report_counts_files_row_groups_rows_and_nulls(tmp_path: Path) -> None:
    built = build(tmp_path, [[4, 6], [10]], names=("id", "drive", "speed", "image"), partition="drive")
    report = inspect(built.url)
    assert (report.files, report.row_groups, report.rows) == (2, 3, 20)
    assert (report.rows_per_group.least, report.rows_per_group.median, report.rows_per_group.most) == (4, 6, 10)
    assert report.partitions == ("drive",)
    assert (report.described, report.indexed) == ("parquetry", False)
    known, speed, image = report.field("id"), report.field("speed"), report.field("image")
    assert (known.minimum, known.maximum, known.nulls, known.statistics) == (0, 19, 0, 1.0)
    assert (speed.nullable, speed.nulls) == (True, 4)
    assert (image.codec, image.shape, image.stored) == ("image", (4, 3, 3), "binary")
    assert report.field("drive").partition
    assert to_json(report)["rows_per_group"] == {"least": 4, "median": 6, "most": 10}


def test_the_report_prints_in_80_columns_with_times_as_times(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "at": pa.array([0, 90], pa.timestamp("s")), "a_name": ["x", None]})
    report = inspect(write_table(tmp_path, table))
    lines = repr(report).splitlines()
    assert "rows         2" in lines
    assert not any("?" in line for line in lines)
    assert report.field("at").line()[-1] == "1970-01-01 00:00:00 ... 1970-01-01 00:01:30"
    assert "int64 or null" in repr(report)
    assert max(len(line) for line in lines if not line.startswith("dataset")) <= 80
    assert "<td>int64 or null</td>" in report._repr_html_()


def test_row_groups_of_one_size_and_usual_encodings_are_named_once(tmp_path: Path) -> None:
    table = pa.table({"city": ["Lima", "Oslo"] * 50, "x": [-0.0, 1.0] * 50})
    url = write_table(tmp_path, table, row_group_size=50, use_dictionary=["city"], compression="none")
    report = inspect(url)
    assert str(report.facts()["row groups"]).startswith("2 of 50 rows, ")
    assert report.field("city").line()[2] == "string, uncompressed 100%, dictionary"
    assert report.field("x").line()[2] == "double, uncompressed 100%"
    assert report.field("x").line()[-1] == "0 ... 1"


def test_a_sample_of_row_groups_tells_the_size_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(tmp_path, [[5] * 10], names=("id",))
    whole = inspect(built.url)
    monkeypatch.setattr(module, "_MOST_ROW_GROUPS", 4)
    sampled = inspect(built.url)
    assert (whole.sampled, sampled.sampled) == (10, 4)
    assert sampled.field("id").stored_bytes == pytest.approx(whole.field("id").stored_bytes, rel=0.2)


def test_nested_and_odd_columns_have_reports_too(tmp_path: Path) -> None:
    table = pa.table(
        {
            "point": [{"x": 1, "y": None}],
            "tags": [["a", "b"]],
            "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    report = inspect(write_table(tmp_path, table))
    assert report.described == "columns"
    assert report.field("point.x").maximum == 1
    assert report.field("tags").stored_bytes > 0
    assert all(field.stored_bytes > 0 for field in report.fields)


def test_an_index_is_noticed_and_changes_nothing_else(tmp_path: Path) -> None:
    built = build(tmp_path, [[4, 6], [10]], names=("id", "speed"))
    before = inspect(built.url)
    write_index(built.url)
    after = inspect(built.url)
    assert after.indexed
    assert [(f.name, f.nulls, f.minimum, f.stored_bytes) for f in after.fields] == [
        (f.name, f.nulls, f.minimum, f.stored_bytes) for f in before.fields
    ]


def test_an_empty_dataset_has_a_report(tmp_path: Path) -> None:
    report = inspect(write_table(tmp_path, pa.table({"id": pa.array([], pa.int64())})))
    assert (report.rows, report.field("id").minimum) == (0, None)


def test_petastorm_is_recognized_and_a_mix_is_refused() -> None:
    assert inspect(REAL).described == "petastorm"
    with pytest.raises(PipelineError, match="expected a pipeline over one dataset"):
        inspect(mix([Pipeline(REAL), Pipeline(REAL)], seed=1))


def test_a_delta_table_is_opened_as_one(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, pa.table({"id": [1, 2, 3]}))
    deltalake.write_deltalake(url, pa.table({"id": [7]}), mode="overwrite")
    report = inspect(url)
    assert (report.rows, str(report.kind)[:5]) == (1, "delta")


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (pa.timestamp("us"), "148108-07-06T14:00:27.387904"),
        (pa.timestamp("ns"), "2116-02-20T23:53:38.427387904"),
        (pa.duration("us"), "4611686018427387904 microseconds"),
    ],
)
def test_times_that_python_cannot_hold_are_reported(tmp_path: Path, kind: pa.DataType, shown: str) -> None:
    url = write_table(tmp_path, pa.table({"stamp": pa.array([0, 2**62], pa.int64()).cast(kind)}))
    assert to_json(inspect(url).field("stamp").maximum) == shown
    lint(url)
    assert verify(url).damages == ()


def test_videos_are_described(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")
    url = write_movie(tmp_path / "data", range(12), field=front(gop=4), row_group_rows=6)
    report = inspect(url)
    assert report.fields[1].stored == "front__file and front__frame"
    assert "front: the first video has 12 frames of 32 x 64 in h264, 3 of them stored whole" in report.notes()
    (video,) = (tmp_path / "data").glob("*.mp4")
    video.unlink()
    assert f"front: video '{video.name}': there is no such file" in inspect(url).notes()
