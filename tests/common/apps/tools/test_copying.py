"""`copy`: fields, rows, layout, and resuming after an interruption."""

from __future__ import annotations

import contextlib
import decimal
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from builders import write_table

from parquetry.common import CompressedImageCodec, Pipeline, TensorCodec, Unischema, UnischemaField, mix, write_dataset
from parquetry.common.apps.tools import copy, copying
from parquetry.common.apps.tools.copy_job import CopyJob
from parquetry.common.base.errors import DatasetError, FieldNotFoundError, ParquetryError, PipelineError, SchemaError

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"
COUNT = 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fields = [
        UnischemaField("id", np.int64),
        UnischemaField("drive", str),
        UnischemaField("name", str, nullable=True),
        UnischemaField("image", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg", 50)),
        UnischemaField("grid", np.float32, (2, 2)),
        UnischemaField("price", decimal.Decimal),
    ]
    images = np.random.default_rng(1).integers(0, 255, (COUNT, 16, 16, 3)).astype(np.uint8)
    rows = [
        {
            "id": i,
            "drive": f"d{i // 20}",
            "name": None if i % 4 == 0 else f"n{i}",
            "image": images[i],
            "grid": np.full((2, 2), i, np.float32),
            "price": decimal.Decimal(i) / 8,
        }
        for i in range(COUNT)
    ]
    write_dataset(tmp_path / "source", Unischema("s", fields), rows, row_group_rows=8, partition_by=("drive",))
    return tmp_path / "source"


def rows_of(place: Path | str, **options: Any) -> list[dict[str, Any]]:
    return list(Pipeline(place, executor="threads", **options))


def row_groups_of(place: Path) -> list[int]:
    sizes = []
    for path in sorted(place.rglob("*.parquet")):
        footer = pq.read_metadata(path)
        sizes += [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    return sizes


def quiet(source: Any, target: Path, **options: Any) -> Any:
    return copy(source, target, progress=False, **options)


def planned(
    source: Path,
    fields: list[str] | None = None,
    *,
    where: Any = None,
    partition_by: tuple[str, ...] | None = None,
    stripe_bytes: int = 1,
) -> copying.CopyPlan:
    """Plans the copy that `quiet` makes with the same arguments."""
    return copying.plan_copy(
        source,
        fields,
        (),
        where,
        partition_by,
        None,
        row_group_bytes=None,
        files=1,
        petastorm_compatible=False,
        source_options=None,
        stripe_bytes=stripe_bytes,
    )


def test_everything_is_copied_in_the_same_partitions(source: Path, tmp_path: Path) -> None:
    report = quiet(source, tmp_path / "target")
    assert (report.rows, report.files, report.resumed_stripes) == (COUNT, 2, 0)
    np.testing.assert_equal(rows_of(tmp_path / "target"), rows_of(source))
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["_common_metadata", "drive=d0", "drive=d1"]
    assert "40 rows of 6 fields in 2 files" in str(report)


def test_stored_bytes_are_copied_and_not_compressed_again(source: Path, tmp_path: Path) -> None:
    quiet(source, tmp_path / "target", partition_by=())
    before = pa.concat_tables([pq.read_table(path, partitioning=None) for path in sorted(source.rglob("*.parquet"))])
    after = pq.read_table(tmp_path / "target" / "part-00000.parquet")
    assert after.column("image").to_pylist() == before.column("image").to_pylist()
    assert after.schema.field("price").type == before.schema.field("price").type


def test_a_petastorm_dataset_is_copied_with_its_values(tmp_path: Path) -> None:
    quiet(REAL, tmp_path / "target")
    np.testing.assert_equal(rows_of(tmp_path / "target"), rows_of(REAL))
    assert b"parquetry.unischema.v1" in pq.read_schema(tmp_path / "target" / "_common_metadata").metadata


def test_fields_and_rows_are_chosen(source: Path, tmp_path: Path) -> None:
    report = quiet(
        source,
        tmp_path / "target",
        field_regex=["id", "pri.*"],
        not_null_fields="name",
        where=(pc.field("id") > 10) & (pc.field("drive") == "d0"),
    )
    wanted = [i for i in range(11, 20) if i % 4]
    assert [row["id"] for row in rows_of(tmp_path / "target")] == wanted
    assert list(report.schema.fields) == ["id", "price"]
    assert report.rows == len(wanted)


def test_dnf_tuples_choose_rows_too(source: Path, tmp_path: Path) -> None:
    quiet(source, tmp_path / "target", field_regex="id", where=[("id", "in", [3, 30])])
    assert [row["id"] for row in rows_of(tmp_path / "target")] == [3, 30]


def test_the_layout_is_new(source: Path, tmp_path: Path) -> None:
    quiet(source, tmp_path / "one", partition_by=(), row_group_rows=15)
    assert row_groups_of(tmp_path / "one") == [15, 15, 10]
    quiet(source, tmp_path / "other", field_regex=["id", "name"], partition_by="name", where=[("id", "<", 4)])
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == [
        "_common_metadata",
        "name=__HIVE_DEFAULT_PARTITION__",
        "name=n1",
        "name=n2",
        "name=n3",
    ]


def test_nothing_to_copy_makes_an_empty_dataset(source: Path, tmp_path: Path) -> None:
    report = quiet(source, tmp_path / "target", where=[("id", "<", 0)], partition_by=())
    assert report.rows == 0
    assert Pipeline(tmp_path / "target").schema.fields.keys() == Pipeline(source).schema.fields.keys()


def test_stripes_keep_the_order_of_rows(source: Path, tmp_path: Path) -> None:
    report = quiet(source, tmp_path / "target", partition_by=(), stripe_bytes=1)
    assert report.files == 6
    assert [row["id"] for row in rows_of(tmp_path / "target")] == list(range(COUNT))


class InterruptedCopyError(RuntimeError):
    pass


@pytest.mark.parametrize("after", [0, 2, 5])
def test_an_interrupted_copy_is_not_seen_and_resumes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    target = tmp_path / "target"
    real, done = copying.to_stored, []

    def interrupted(*arguments: Any) -> Any:
        if len(done) == after:
            raise InterruptedCopyError
        done.append(1)
        return real(*arguments)

    monkeypatch.setattr(copying, "to_stored", interrupted)
    options: dict[str, Any] = {"partition_by": (), "stripe_bytes": 1, "row_group_rows": 4}
    with pytest.raises(InterruptedCopyError):
        quiet(source, target, **options)
    with pytest.raises(DatasetError, match="expected Parquet files"):
        rows_of(target)
    monkeypatch.setattr(copying, "to_stored", real)
    report = quiet(source, target, **options)
    assert report.resumed_stripes == after
    np.testing.assert_equal(
        [{**row, "drive": None} for row in rows_of(target)], [{**row, "drive": None} for row in rows_of(source)]
    )
    assert not any(path.name.startswith(".") for path in target.iterdir())


def test_a_copy_interrupted_while_it_renames_files_resumes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"

    with monkeypatch.context() as patch:
        patch.setattr("parquetry.common.apps.tools.copy_job.write_metadata", Mock(side_effect=InterruptedCopyError))
        with pytest.raises(InterruptedCopyError):
            quiet(source, target, stripe_bytes=1)
    report = quiet(source, target, stripe_bytes=1)
    assert report.rows == COUNT
    np.testing.assert_equal(rows_of(target), rows_of(source))


def test_files_that_others_write_during_a_copy_stay(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    real = copying.to_stored

    def disturbed(*arguments: Any) -> Any:
        (target / "part-9.parquet").write_bytes(b"theirs")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(copying, "to_stored", disturbed)
        with pytest.raises(DatasetError, match=r"expected an empty target, got 1 entries such as 'part-9.parquet'"):
            quiet(source, target)
    with pytest.raises(DatasetError, match=r"expected an empty target, got 1 entries such as 'part-9.parquet'"):
        quiet(source, target)
    assert (target / "part-9.parquet").read_bytes() == b"theirs"
    (target / "part-9.parquet").unlink()
    assert quiet(source, target).resumed_stripes == 1


def test_one_copy_runs_at_a_time(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    real, others = copying.to_stored, []

    def disturbed(*arguments: Any) -> Any:
        monkeypatch.setattr(copying, "to_stored", real)
        for options in ({}, {"where": [("id", "<", 5)], "overwrite": True}):
            with pytest.raises(DatasetError, match=r"target': process \d+ copies to it\. Wait for it") as refused:
                quiet(source, target, **options)
            others.append(refused)
        return real(*arguments)

    monkeypatch.setattr(copying, "to_stored", disturbed)
    assert quiet(source, target).rows == COUNT
    assert len(others) == 2
    assert quiet(source, target, where=[("id", "<", 5)], overwrite=True).rows == 5


def test_a_copy_that_another_has_finished_does_not_begin_again(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    job = planned(source).job(target, None, overwrite=False)
    quiet(source, target, stripe_bytes=1)
    with pytest.raises(DatasetError, match="another copy just ended there"), job.alone():
        pass
    assert len(rows_of(target)) == COUNT


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("moment", ["before it looks", "before it begins", "before it runs"])
def test_of_two_copies_that_begin_together_one_runs(tmp_path: Path, moment: str, overwrite: bool) -> None:
    """Another copy may begin at any moment; no stripes are written under its name."""
    root = str(tmp_path / "target")

    def begin(fingerprint: str) -> CopyJob:
        return CopyJob(pafs.LocalFileSystem(), root, fingerprint, sources=(), overwrite=overwrite)

    others: list[CopyJob | None] = []

    def other(job: CopyJob | None = None) -> None:
        if not others:
            others.append(None)
            with contextlib.suppress(DatasetError):
                others[0] = begin("other")

    with pytest.MonkeyPatch.context() as patch:
        for name, when in (("_check_target", "before it looks"), ("_locked", "before it begins")):
            if when == moment:
                real = getattr(CopyJob, name)
                patch.setattr(CopyJob, name, lambda job, real=real: (other(job), real(job))[1])
        own = None
        with contextlib.suppress(DatasetError):
            own = begin("own")
    other()
    running = []
    for job in (own, others[0]):
        if job is not None:
            with contextlib.suppress(DatasetError), job.alone():
                running.append(job)
                assert job._noted() == {"fingerprint": job._fingerprint, "moving": False}
    assert len(running) == 1


@pytest.mark.parametrize("ends", ["fails", "completes", "is killed"])
def test_a_late_attempt_is_in_no_later_copy(source: Path, tmp_path: Path, ends: str) -> None:
    """A task of a cluster may run on after its copy has ended, with as many rows as the next copy."""
    target = tmp_path / "target"
    plan = planned(source, ["id"], where=[("id", "<", COUNT // 2)], partition_by=(), stripe_bytes=copying.STRIPE_BYTES)
    job = plan.job(target, None, overwrite=False)

    def attempt() -> None:
        place = job.attempt(0)
        for _ in copying.write_stripe(plan, 0, job.filesystem, place):
            pass
        job.check_current(place)

    if ends == "fails":
        with pytest.raises(DatasetError, match="another task"), job.alone():
            raise DatasetError("another task")
        assert not target.exists()
    elif ends == "completes":
        with job.alone():
            for _ in copying.write_stripe(plan, 0, job.filesystem, job.place(0)):
                pass
            plan.complete(job, 0)
        assert len(rows_of(target)) == COUNT // 2
    if ends == "is killed":
        attempt()
    else:
        with pytest.raises(DatasetError, match="it has ended, or another copy began there"):
            attempt()
        assert not (target / ".parquetry-copy").exists()
    report = quiet(
        source, target, field_regex=["id"], where=[("id", ">=", COUNT // 2)], partition_by=(), overwrite=True
    )
    assert report.resumed_stripes == 0
    assert [row["id"] for row in rows_of(target)] == list(range(COUNT // 2, COUNT))
    with pytest.raises(DatasetError, match="it has ended, or another copy began there"):
        attempt()


def test_an_attempt_that_ends_while_the_files_are_moved_is_late(source: Path, tmp_path: Path) -> None:
    plan = planned(source, ["id"])
    job = plan.job(tmp_path / "target", None, overwrite=False)
    attempt = job.attempt(0)
    for _ in copying.write_stripe(plan, 0, job.filesystem, attempt):
        pass
    job._note(moving=True)
    with pytest.raises(DatasetError, match="so this part is late"):
        job.check_current(attempt)
    assert [path.name for path in Path(attempt).parent.iterdir()] == ["job.json"]


def test_files_of_a_late_attempt_count_for_no_other_copy(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    left = target / ".parquetry-copy" / "stripe-00000"
    write_table(left, pa.table({"id": [99] * COUNT}))
    (left / "_common_metadata").write_bytes(b"")
    assert quiet(source, target, field_regex=["id"]).resumed_stripes == 0
    assert [row["id"] for row in rows_of(target)] == list(range(COUNT))


@pytest.mark.parametrize(
    "wrong", [{"partition_by": "grid"}, {"row_group_rows": 0}, {"files": 0}, {"not_null_fields": "absent"}], ids=str
)
def test_a_wrong_argument_leaves_nothing_in_the_way(source: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    target = tmp_path / "above" / "target"
    with pytest.raises(ParquetryError):
        quiet(source, target, **wrong)
    assert not target.exists()
    assert quiet(source, target).rows == COUNT


@pytest.mark.parametrize(
    ("pattern", "target"),
    [("**/*.parquet", "new"), ("drive=*", "drive=all"), ("*", "new/deep"), ("d*/", "drive=d0/new"), ("drive=*", "")],
)
def test_a_target_that_its_pattern_matches_is_refused(source: Path, pattern: str, target: str) -> None:
    with pytest.raises(DatasetError, match="expected a target"):
        quiet(f"{source}/{pattern}", source / target, overwrite=True)
    assert len(rows_of(source)) == COUNT


@pytest.mark.parametrize(
    ("pattern", "target"),
    [("drive=*", "new"), ("drive=*", "_drive=new"), ("*/*.parquet", "_new")],
)
def test_a_target_beside_what_its_pattern_matches_is_fine(source: Path, pattern: str, target: str) -> None:
    assert quiet(f"{source}/{pattern}", source / target).rows == COUNT
    assert len(rows_of(f"{source}/{pattern}")) == COUNT


def test_a_pipeline_or_what_wraps_one_is_copied_with_its_rows_and_fields(source: Path, tmp_path: Path) -> None:
    rows = Pipeline(source, ["id", "drive", "name"]).where(pc.field("id") >= 3).skip(2)
    wanted = [{name: row[name] for name in ("id", "name")} for row in rows_of(source)[5:]]
    quiet(rows, tmp_path / "pipeline", field_regex=["id", "name"])
    assert rows_of(tmp_path / "pipeline") == wanted

    class Wraps:
        pipeline = rows.select("id", "name")

    quiet(Wraps(), tmp_path / "wrapped")
    assert rows_of(tmp_path / "wrapped") == wanted
    with pytest.raises(FieldNotFoundError):
        quiet(rows, tmp_path / "absent", field_regex=["image"])
    with pytest.raises(PipelineError, match=r"copy: expected a pipeline over one dataset.*, got shuffle, batch"):
        quiet(rows.shuffle(3).batch(2), tmp_path / "other")
    with pytest.raises(PipelineError, match="one that is mixed or served"):
        quiet(mix([rows, rows]), tmp_path / "other")


@pytest.mark.parametrize("stripe_bytes", [0, -1, "1", 1.5])
def test_a_stripe_has_a_size(source: Path, tmp_path: Path, stripe_bytes: Any) -> None:
    with pytest.raises(PipelineError, match="stripe_bytes: expected an integer of at least 1"):
        quiet(source, tmp_path / "target", stripe_bytes=stripe_bytes)


def test_a_pattern_that_names_its_files_matches_none_that_a_copy_writes(tmp_path: Path) -> None:
    for number in range(2):
        write_table(tmp_path / f"d{number}", pa.table({"id": [number]}), "rows.parquet")
    for pattern in ("*/rows.parquet", "**/rows.parquet"):
        assert quiet(f"{tmp_path}/{pattern}", tmp_path / "copy", overwrite=True).rows == 2
        assert [row["id"] for row in rows_of(f"{tmp_path}/{pattern}")] == [0, 1]


def test_a_file_is_not_a_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(DatasetError, match="expected a directory or nothing, got a file"):
        quiet(source, tmp_path / "file", overwrite=True)


def test_a_file_that_another_process_removes_is_noticed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    real = CopyJob.complete

    def complete(*arguments: Any, **options: Any) -> int:
        files = real(*arguments, **options)
        next(target.rglob("part-*")).unlink()
        return files

    monkeypatch.setattr(CopyJob, "complete", complete)
    with pytest.raises(DatasetError, match=rf"expected {COUNT} rows there, found {COUNT // 2}\. Did another process"):
        quiet(source, target)


def test_another_copy_that_was_begun_is_not_mixed_in(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"

    with monkeypatch.context() as patch:
        patch.setattr(copying, "to_stored", Mock(side_effect=InterruptedCopyError))
        with pytest.raises(InterruptedCopyError):
            quiet(source, target)
    with pytest.raises(DatasetError, match="found a different unfinished one"):
        quiet(source, target, where=[("id", "<", 5)])
    assert quiet(source, target, where=[("id", "<", 5)], overwrite=True).rows == 5


def test_a_dataset_at_the_target_stays_unless_it_is_to_go(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    quiet(source, target)
    with pytest.raises(DatasetError, match="expected an empty target"):
        quiet(source, target, field_regex="id")
    assert len(rows_of(target)[0]) == 6
    (target / "thesis").mkdir()
    (target / "thesis" / "notes.txt").write_text("mine")
    with pytest.raises(
        DatasetError, match=r"expected a dataset to replace, found other files such as 'thesis/notes.txt'"
    ):
        quiet(source, target, field_regex="id", where=[("id", "<", 7)], overwrite=True)
    (target / "thesis" / "notes.txt").unlink()
    (target / "_old").mkdir()
    (target / "thesis").rename(target / "_old" / "thesis")
    (target / "_old" / "part-0.parquet").touch()
    with pytest.raises(DatasetError, match=r"found other files such as '_old/part-0\.parquet'"):
        quiet(source, target, field_regex="id", where=[("id", "<", 7)], overwrite=True)
    (target / "_old" / "part-0.parquet").unlink()
    quiet(source, target, field_regex="id", where=[("id", "<", 7)], overwrite=True)
    assert rows_of(target) == [{"id": i} for i in range(7)]


def test_a_copy_may_be_for_petastorm(source: Path, tmp_path: Path) -> None:
    quiet(source, tmp_path / "target", field_regex=["id", "drive", "image"], petastorm_compatible=True, stripe_bytes=1)
    keys = pq.read_schema(tmp_path / "target" / "_common_metadata").metadata
    assert b"dataset-toolkit.unischema.v1" in keys
    assert keys[b"dataset-toolkit.num_row_groups_per_file.v1"].count(b"part-") == 6
    with pytest.raises(SchemaError, match="field 'grid': Petastorm has no TensorCodec"):
        quiet(source, tmp_path / "other", petastorm_compatible=True)
    assert isinstance(Pipeline(source).schema.grid.storage, TensorCodec)


def test_a_progress_bar_counts_rows(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    copy(source, tmp_path / "target")
    assert "40/40" in capfd.readouterr().err
    quiet(source, tmp_path / "other")
    assert capfd.readouterr().err == ""


def test_fields_that_are_not_there_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FieldNotFoundError, match="bogus"):
        quiet(source, tmp_path / "target", field_regex="bogus")
    with pytest.raises(FieldNotFoundError, match="bogus"):
        quiet(source, tmp_path / "target", not_null_fields=["bogus"])
    assert not (tmp_path / "target").exists()


def test_a_source_that_changed_is_copied_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(copying, "to_stored", Mock(side_effect=InterruptedCopyError))
        with pytest.raises(InterruptedCopyError):
            quiet(source, tmp_path / "target")
    shutil.copy(next(source.rglob("*.parquet")), source / "drive=d1" / "more.parquet")
    with pytest.raises(DatasetError, match="found a different unfinished one"):
        quiet(source, tmp_path / "target")


def tensors(nulls: bool = False) -> pa.ExtensionArray:
    values = pa.array([[1, 2, 3, 4], None if nulls else [0, 0, 0, 0], [5, 6, 7, 8]], pa.list_(pa.int32(), 4))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2, 2)), values)


LARGE = decimal.Decimal(10) ** 30  # needs more digits than the default type leaves before the point


@pytest.mark.parametrize(
    ("column", "element"),
    [
        pytest.param(pa.array([[LARGE]], pa.list_(pa.decimal128(38, 0))), pa.decimal128(38, 0), id="decimals"),
        pytest.param(pa.array([[LARGE]], pa.large_list(pa.decimal128(38, 0))), pa.decimal128(38, 0), id="large list"),
        pytest.param(pa.array([[[LARGE]]], pa.list_(pa.list_(pa.decimal128(38, 0)))), None, id="lists of lists"),
        pytest.param(pa.array([[LARGE**2]], pa.list_(pa.decimal256(76, 0))), pa.decimal256(76, 0), id="decimal256"),
        pytest.param(pa.array([[("a", LARGE)]], pa.map_(pa.string(), pa.decimal128(38, 0))), None, id="map"),
        pytest.param(pa.array([[1]], pa.list_(pa.timestamp("us", "UTC"))), pa.timestamp("us", "UTC"), id="zone"),
        pytest.param(pa.array([[1]], pa.list_(pa.time64("us"))), None, id="times"),
        pytest.param(pa.array([[1]], pa.list_(pa.date32())), pa.date32(), id="dates"),
        pytest.param(tensors(), None, id="tensors"),
        pytest.param(tensors(nulls=True), None, id="tensors with a null"),
        pytest.param(pa.ListArray.from_arrays([0, 2, 3], tensors()), None, id="lists of tensors"),
    ],
)
def test_values_inside_lists_keep_their_type(column: pa.Array, element: pa.DataType | None, tmp_path: Path) -> None:
    url = write_table(tmp_path / "from", pa.table({"x": column}))
    copy(url, tmp_path / "to")
    assert repr(list(Pipeline(tmp_path / "to"))) == repr(list(Pipeline(url)))
    if element is not None:
        (file,) = (tmp_path / "to").glob("*.parquet")
        assert pq.read_schema(file).field("x").type.value_type == element


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pa.array([[decimal.Decimal("1.5")]], pa.list_(pa.decimal128(5, 1))), "float64"),
        (pa.array([[1]], pa.list_(pa.timestamp("us"))), "int64"),
    ],
    ids=str,
)
def test_lists_that_are_read_as_another_dtype_are_stored_as_that(column: pa.Array, dtype: str, tmp_path: Path) -> None:
    rows = Pipeline(write_table(tmp_path / "from", pa.table({"x": column})), [UnischemaField("x", dtype, (None,))])
    copy(rows, tmp_path / "to")
    assert repr(list(Pipeline(tmp_path / "to"))) == repr(list(rows))
