"""Frames are written to videos beside the Parquet files: both appear together or not at all, and read as they were."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from cases import every_case
from movies import HEIGHT, WIDTH, front, number_of, numbers_of, painted, write_movie
from processes import run_python

from parquetry.common import (
    DatasetWriter,
    Pipeline,
    Unischema,
    UnischemaField,
    VideoCodec,
    VideoReference,
    write_dataset,
)
from parquetry.common.apps.tools.copying import copy
from parquetry.common.apps.tools.rewriting import rewrite
from parquetry.common.base.errors import EncodeError, PipelineError, SchemaError
from parquetry.common.schema.spark_types import spark_arrow_type

pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")

ID = UnischemaField("id", np.int64)


def videos(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.mp4"))


def shown(url: object) -> dict[int, int]:
    rows = [*Pipeline(str(url), executor="threads")]
    return {int(row["id"]): number_of(row["front"]) for row in rows}


def same(numbers: range) -> dict[int, int]:
    return {number: number for number in numbers}


@every_case("codec", ["av1", "h264", "hevc"])
def test_frames_come_back(codec: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp(codec) / "data"
    write_movie(root, range(30), field=front(codec), files=2)
    assert shown(root) == same(range(30))
    assert len(videos(root)) == 2


def test_encoders_print_nothing(tmp_path: Path) -> None:
    program = "from movies import front, write_movie; write_movie({!r}, range(3), field=front({!r}))"
    for codec in ("av1", "h264", "hevc"):  # each in a process of its own: an encoder asks once whether to print
        path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        done = run_python("-c", program.format(str(tmp_path / codec), codec), env={**os.environ, "PYTHONPATH": path})
        assert (done.stdout, done.stderr) == ("", ""), codec


def test_the_stored_columns_name_video_and_frame(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_movie(root, range(5))
    table = pq.read_table(root / "part-00000.parquet")
    assert table.column_names == ["id", "front__file", "front__frame"]
    assert table["front__file"].unique().to_pylist() == videos(root)
    assert table["front__frame"].to_pylist() == [*range(5)]
    assert [field.name for field in Pipeline(str(root)).schema] == ["id", "front"]
    assert "leaves out" not in Pipeline(str(root)).explain()


def test_a_dataset_may_be_moved(tmp_path: Path) -> None:
    write_movie(tmp_path / "data", range(5))
    os.rename(tmp_path / "data", tmp_path / "elsewhere")
    assert shown(tmp_path / "elsewhere") == same(range(5))
    assert shown(f"{tmp_path}/else*/part-*.parquet") == same(range(5))


def test_each_partition_has_videos_of_its_own(tmp_path: Path) -> None:
    schema = Unischema("s", [ID, UnischemaField("day", str), front()])
    rows = [{"id": n, "day": "ab"[n % 2], "front": painted(n)} for n in range(12)]
    write_dataset(tmp_path / "data", schema, rows, partition_by="day")
    assert [os.path.dirname(name) for name in videos(tmp_path / "data")] == ["day=a", "day=b"]
    assert shown(tmp_path / "data") == same(range(12))


def test_frames_are_added_to_a_dataset(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_movie(root, range(5))
    write_movie(root, range(5, 9), mode="append")
    assert shown(root) == same(range(9))
    assert len(videos(root)) == 2


def test_columns_of_frames_are_written(tmp_path: Path) -> None:
    schema = Unischema("s", [ID, front()])
    with DatasetWriter(tmp_path / "data", schema) as writer:
        writer.write_columns({"id": range(4), "front": np.stack([painted(number) for number in range(4)])})
        writer.write({"id": 4, "front": painted(4)})
    assert shown(tmp_path / "data") == same(range(5))


def test_a_dataset_goes_to_a_store(tmp_path: Path) -> None:
    target = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    schema = Unischema("s", [ID, front()])
    write_dataset("/data", schema, [{"id": n, "front": painted(n)} for n in range(4)], filesystem=target)
    rows = [*Pipeline("/data", filesystem=target, executor="threads")]
    assert numbers_of([row["front"] for row in rows]) == [0, 1, 2, 3]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    schema = Unischema("s", [ID, front()])

    def rows() -> object:
        for number in range(50):
            yield {"id": number, "front": painted(number)}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path / "data", schema, rows(), row_group_rows=10)  # type: ignore[arg-type]
    assert not (tmp_path / "data").exists()
    with pytest.raises(EncodeError, match=r"field 'front'.*\(32, 64, 3\)"):
        write_dataset(tmp_path / "data", schema, [{"id": 0, "front": np.zeros((4, 6, 3), np.uint8)}])
    assert not (tmp_path / "data").exists()


def test_a_size_that_an_encoder_refuses_is_named(tmp_path: Path) -> None:
    field = UnischemaField("front", np.uint8, (2, 2, 3), VideoCodec("av1"))
    with pytest.raises(EncodeError, match=r"field 'front', frame 0 .*cannot encode it as av1"):
        write_dataset(tmp_path / "data", Unischema("s", [field]), [{"front": np.zeros((2, 2, 3), np.uint8)}])
    assert not (tmp_path / "data").exists()


@every_case("name", ["front__file", "front__frame"])
def test_a_field_with_the_name_of_a_column_of_frames_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaError, match=f"field '{name}': expected a name that no other column has"):
        DatasetWriter(tmp_path / "data", Unischema("s", [front(), UnischemaField(name, np.int64)]))


def test_a_schema_may_say_where_frames_are_already(tmp_path: Path) -> None:
    write_movie(tmp_path / "movie", range(20))
    view = UnischemaField(
        "view", np.uint8, (HEIGHT, WIDTH, 3), VideoReference(file="path", frame="shot", root=str(tmp_path / "movie"))
    )
    schema = Unischema("s", [UnischemaField("path", str), UnischemaField("shot", np.int64), view])
    (name,) = videos(tmp_path / "movie")
    write_dataset(tmp_path / "data", schema, [{"path": name, "shot": 19 - n} for n in range(20)])
    assert pq.read_schema(tmp_path / "data" / "part-00000.parquet").names == ["path", "shot"]
    assert [number_of(row["view"]) for row in Pipeline(str(tmp_path / "data"))] == [*range(19, -1, -1)]
    with pytest.raises(EncodeError, match="'view'"):
        write_dataset(tmp_path / "more", schema, [{"path": name, "shot": 0, "view": painted(0)}])


def test_tools_that_copy_stored_values_refuse_frames(tmp_path: Path) -> None:
    url = write_movie(tmp_path / "data", range(5))
    for tool in (copy, rewrite):
        with pytest.raises(PipelineError, match="field 'front': expected values in the Parquet files"):
            tool(url, tmp_path / "copy")
    assert copy(url, tmp_path / "copy", "id").rows == 5
    again = Unischema("again", [ID, front(gop=1)])
    write_dataset(tmp_path / "again", again, Pipeline(url))
    assert shown(tmp_path / "again") == same(range(5))
    with pytest.raises(SchemaError, match="Spark writes no videos"):
        spark_arrow_type(front())
    with pytest.raises(SchemaError, match="Petastorm has no VideoCodec"):
        write_movie(tmp_path / "petastorm", range(2), petastorm_compatible=True)


def test_stored_frames_are_raw_pixels(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", Unischema("s", [ID, front()])) as writer:
        writer.write_stored(pa.table({"id": [0], "front": [painted(7).tobytes()]}))
    assert shown(tmp_path / "data") == {0: 7}
