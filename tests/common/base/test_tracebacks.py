"""Tracebacks of parquetry's errors: the caller's frames and the message, without parquetry's frames between."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drive_rows import drive_once

from parquetry.common import (
    Pipeline,
    RaggedArray,
    Unischema,
    UnischemaField,
    contains,
    hash_split,
    mix,
    write_dataset,
)
from parquetry.common.apps.reports.chain import apply_chain
from parquetry.common.base.errors import FieldNotFoundError, ParquetryError, PipelineError, TransformError
from parquetry.common.base.other_names import did_you_mean
from parquetry.common.base.tracebacks import shortens

drive = drive_once(["id", "speed"])


def files_of(error: BaseException) -> list[str]:
    """Returns the files of a traceback's frames, from the outermost to the one that raised."""
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def asks_for(key: str) -> Callable[[Any], Any]:
    return lambda row: {"id": row[key]}


WRONG: dict[str, Callable[[Pipeline], object]] = {
    "a verb": lambda drive: drive.batch(-1),
    "a constructor": lambda drive: Pipeline(drive.urls, workers=0),
    "a class method": lambda drive: Pipeline.from_image_folder("/nothing/there"),
    "a function": lambda drive: mix([]),
    "the writer": lambda drive: write_dataset("/nothing/there", Unischema("none", []), []),
    "a property": lambda drive: Pipeline(drive.urls, ["idd"]).element,
    "a length": lambda drive: len(Pipeline("/nothing/there")),
    "iteration": lambda drive: next(iter(Pipeline(drive.urls, ["idd"]))),
    "a failing element": lambda drive: list(drive.with_options(executor="threads").transform(asks_for("idd"))),
    "a row by number": lambda drive: drive.where(pc.field("idd") > 3)[0],
    "the first rows": lambda drive: Pipeline(drive.urls, ["idd"]).head(),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_leave_every_public_method_with_the_callers_frames_alone(drive: Pipeline, what: str) -> None:
    with pytest.raises(ParquetryError) as caught:
        WRONG[what](drive)
    assert set(files_of(caught.value)) == {Path(__file__).name}


def test_the_environment_shows_every_frame(drive: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_FULL_TRACEBACK", "1")
    with pytest.raises(PipelineError) as caught:
        drive.batch(-1)
    assert {"verbs.py", "batch.py"} <= set(files_of(caught.value))


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_function_that_fails_is_shown_with_its_own_frames(drive: Pipeline, executor: str) -> None:
    with pytest.raises(TransformError) as caught:
        list(drive.with_options(executor=executor).transform(asks_for("ids")))
    shown = str(caught.value)
    assert Path(__file__).name in shown
    assert "row[key]" in shown
    assert "engine/steps" not in shown
    assert "It was given 'id', 'speed'. Did you mean 'id'?" in shown


def test_the_callers_own_error_stays_whole_as_the_context_of_ours(drive: Pipeline) -> None:
    def fails() -> None:
        try:
            int("no number")
        except ValueError:
            drive.batch(-1)

    with pytest.raises(PipelineError) as caught:
        fails()
    assert isinstance(caught.value.__context__, ValueError)
    assert files_of(caught.value.__context__) == [Path(__file__).name]


def test_an_error_of_another_class_keeps_its_frames() -> None:
    @shortens
    def fails() -> None:
        raise KeyError("ours, and not on purpose")

    with pytest.raises(KeyError) as caught:
        fails()
    assert "tracebacks.py" in files_of(caught.value)


@pytest.mark.parametrize("called", ["shufle", "bach", "wehre"])
def test_a_verb_that_is_misspelled_names_the_one_that_is_near(drive: Pipeline, called: str) -> None:
    meant = {"shufle": "shuffle", "bach": "batch", "wehre": "where"}[called]
    with pytest.raises(
        AttributeError, match=rf"'Pipeline' object has no attribute '{called}'. Did you mean '{meant}'\?$"
    ):
        getattr(drive, called)
    assert not hasattr(drive, "nothing_like_it")


def test_a_keyword_that_is_misspelled_names_the_one_that_is_near(drive: Pipeline) -> None:
    wrong: dict[str, Any] = {"bufer_size": 3}
    with pytest.raises(TypeError, match=r"^shuffle\(\) .* argument 'bufer_size'. Did you mean 'buffer_size'\?$"):
        drive.shuffle(**wrong)


def test_arguments_that_a_verb_does_not_take_name_those_that_it_takes(drive: Pipeline) -> None:
    with pytest.raises(TypeError, match=r"^batch\(\) got an .* 'zzz'. It takes batch_size, drop_remainder\.$"):
        drive.batch(4, zzz=3)
    with pytest.raises(TypeError, match=r"^batch\(\) missing .* 'batch_size'. It takes batch_size, drop_remainder\.$"):
        drive.batch()
    with pytest.raises(
        TypeError, match=r"^Pipeline\(\) takes from 1 to 3 .* were given. It takes url_or_urls, fields, "
    ):
        Pipeline("a", "b", "c")


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda p: p.limit(3), "take"),
        (lambda p: p.remove_columns("id"), "select"),
        (lambda p: p.shuffle_buffer(10), "shuffle"),
        (lambda p: p.window(3), "ngram"),
        (lambda p: p.fillna(0), "nulls"),
        (lambda p: p.dropna(), "nulls"),
        (lambda p: p.astype("int8"), "cast"),
        (lambda p: p.fields, "schema"),
        (lambda p: p.Batch, "batch"),
        (lambda p: p.horizontal_flip("image"), "random_flip"),
        (lambda p: p.random_split([0.8, 0.2]), "hash_split"),
        (lambda p: p.batch(2, drop_last=True), "drop_remainder"),
        (lambda p: p.shard(world_size=2, rank=0), "num_shards"),
        (lambda p: Pipeline(p.urls, columns=["id"]), "fields"),
        (lambda p: Pipeline(p.urls, num_workers=2), "workers"),
        (lambda p: p.with_options(worker=2), "workers"),
        (lambda p: hash_split("id", [0.5, 0.5], 0, sed=1), "seed"),
        (lambda p: contains("id", 1, evry=True), "every"),
    ],
)
def test_a_name_of_another_library_names_ours(drive: Pipeline, call: Any, meant: str) -> None:
    with pytest.raises((AttributeError, TypeError, PipelineError), match=rf"Did you mean '{meant}'\?$"):
        call(drive)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("count", r"len\(\.\.\.\) counts its elements"),
        ("stats", r"iterator\.stats\(\)"),
        ("inspect", r"describe\(\) what the values are"),
        ("with_format", "ParquetIterable gives torch tensors"),
        ("iter_batches", r"rows, or batches after batch\(n\)"),
        ("interleave", r"parquetry\.mix\("),
        ("plot", r"parquetry\.plot\(batch\)"),
        ("color_jitter", r"transform\(fn\)"),
    ],
)
def test_a_name_that_no_verb_stands_for_says_what_to_write(drive: Pipeline, name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. (?!Did you mean).*{meant}"):
        getattr(drive, name)
    with pytest.raises(PipelineError, match=rf"no verb '{name}'\. (?!Did you mean).*{meant}.* Verbs are: "):
        apply_chain(drive, f"{name}()")


def test_a_keyword_that_a_function_of_the_callers_does_not_take_is_left_alone() -> None:
    def inner(buffer_size: int) -> None: ...

    @shortens
    def outer(buffer_size: int = 0) -> None:
        inner(bufer_size=3)

    pythons_own = r"(\. Did you mean 'buffer_size'\?)" if sys.version_info >= (3, 13) else ""
    with pytest.raises(TypeError, match=rf"'bufer_size'{pythons_own}$"):
        outer()


def test_a_field_that_is_misspelled_names_the_one_that_is_near(drive: Pipeline) -> None:
    with pytest.raises(FieldNotFoundError, match=r"Fields are: .*\. Did you mean 'speed'\?$"):
        _ = Pipeline(drive.urls, ["sped"]).element
    with pytest.raises(FieldNotFoundError, match=r"Did you mean 'id'\?$"):
        _ = Pipeline(drive.urls, ["ID"]).element
    assert did_you_mean("zzz", ["id", "speed"]) == ""


def test_a_struct_that_is_asked_for_names_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"gps": [{"lat": 1.0, "lon": 2.0}]}), path)
    with pytest.raises(FieldNotFoundError, match=r"gps.lat, gps.lon. Members of 'gps' are fields of their own.$"):
        _ = Pipeline(path, ["gps"]).element


def test_windows_of_a_number_of_rows_name_length(drive: Pipeline) -> None:
    for four in (4, np.int64(4)):
        with pytest.raises(PipelineError, match=r"For windows of 4 rows, write ngram\(length=4\)"):
            drive.ngram(four)  # type: ignore[arg-type]


def test_attributes_of_arrays_say_what_ragged_values_have_instead() -> None:
    ragged = RaggedArray(np.arange(3), np.array([[1], [2]]))
    with pytest.raises(AttributeError, match=r"no attribute 'shape'. Its rows differ in shape: shapes has the shape"):
        _ = ragged.shape  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'\.$"):
        _ = ragged.nothing  # type: ignore[attr-defined]


def test_data_frames_are_named_where_others_are_expected(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2]})
    schema = Unischema("a", [UnischemaField("a", np.int64)])
    with pytest.raises(PipelineError, match=r"got a pandas DataFrame. Write from_pandas\(frame\)"):
        Pipeline(frame)
    for wrong in ((frame,), (schema, frame)):
        with pytest.raises(
            PipelineError, match=r"got a pandas DataFrame.*name in frame.columns.*frame.to_parquet\(path\)"
        ):
            write_dataset(tmp_path / "out", *wrong)
    with pytest.raises(TypeError, match="got no rows"):
        write_dataset(tmp_path / "out", schema)
    write_dataset(tmp_path / "out", schema, {name: frame[name].to_numpy() for name in frame.columns})
    assert [int(row["a"]) for row in Pipeline(tmp_path / "out")] == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda drive: drive.shufle(3),
        lambda drive: drive.shuffle(bufer_size=3),
        lambda drive: drive.batch(-1),
    ],
)
def test_an_error_that_is_being_handled_is_shown_as_well(drive: Pipeline, wrong: Callable[[Any], object]) -> None:
    handled = ValueError("the caller's")
    try:
        raise handled
    except ValueError:
        with pytest.raises(Exception, match=r"shuffle|batch") as caught:
            wrong(drive)
    assert caught.value.__context__ is handled
    assert not caught.value.__suppress_context__


def test_a_module_of_the_callers_named_like_one_of_python_keeps_its_frames(drive: Pipeline, tmp_path: Path) -> None:
    named: dict[str, Any] = {"__name__": "profile"}
    exec(compile("def fails(row):\n    return row['ids']", str(tmp_path / "profile.py"), "exec"), named)
    with pytest.raises(TransformError, match=r"profile\.py"):
        list(drive.with_options(executor="threads").transform(named["fails"]))
