"""Every failure raises one clear error with its location, and every error crosses processes unchanged."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders import Built, build, built_once, write_table
from cases import every_case

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base import errors
from parquetry.common.base.errors import (
    DatasetError,
    DecodeError,
    EmptySelectionError,
    FieldNotFoundError,
    ParquetryError,
    PipelineError,
    SchemaError,
    TransformError,
)

F = UnischemaField
built = built_once([[3, 1, 4], [2], [5, 2]])


def plain(directory: Path, **columns: Any) -> Pipeline:
    """Returns a pipeline over a plain Parquet file with two row groups."""
    table = pa.table(columns)
    return Pipeline(write_table(directory, table, row_group_size=max(1, len(table) // 2)), executor="threads")


# --- the tree ---


CLASSES = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, ParquetryError)]


@every_case("kind", CLASSES)
def test_every_error_pickles_unchanged(kind: type[ParquetryError]) -> None:
    error = kind("field 'x': expected 1, got 2. Do this.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.args == error.args
    assert str(again) == str(error) == "field 'x': expected 1, got 2. Do this."


@every_case("kind", CLASSES)
def test_every_error_is_found_by_its_name(kind: type[ParquetryError]) -> None:
    assert errors.error_class(kind.__name__) is kind


def test_an_unknown_name_becomes_the_root_of_the_tree() -> None:
    assert errors.error_class("NewerError") is ParquetryError
    assert errors.error_class("annotations") is ParquetryError


def test_the_drawn_tree_is_the_real_one() -> None:
    tree = (errors.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    drawn = re.findall(r"^\W*(\w+Error)\b", tree, re.MULTILINE)
    assert {kind.__name__ for kind in CLASSES} <= set(drawn)
    for kind, base in (
        (SchemaError, ValueError),
        (FieldNotFoundError, KeyError),
        (errors.CodecUnavailableError, ImportError),
        (DatasetError, OSError),
        (TransformError, RuntimeError),
    ):
        assert issubclass(kind, base)


# --- names, URLs, arguments ---


@every_case("verb", ["select", "where", "filter function", "ngram", "timestamp", "group_by", "remove"])
def test_a_wrong_field_name_is_reported_with_the_existing_fields(built: Built, verb: str) -> None:
    make: dict[str, Any] = {
        "select": lambda p: p.select("sped"),
        "where": lambda p: p.where(pc.field("sped") > 1),
        "filter function": lambda p: p.where(bool, fields=["sped"]),
        "ngram": lambda p: p.ngram({0: ["sped"]}),
        "timestamp": lambda p: p.ngram(length=2, timestamp="sped"),
        "group_by": lambda p: p.ngram(length=2, group_by="sped"),
        "remove": lambda p: p.transform(dict, remove=["sped"]),
    }
    with pytest.raises(FieldNotFoundError, match=r"field 'sped': expected the name of a field .* Fields are: .*speed"):
        next(iter(make[verb](built.pipeline())))


def test_a_wrong_regular_expression_is_reported(built: Built) -> None:
    with pytest.raises(FieldNotFoundError, match=r"field pattern '\(': not a name, and not a regular expression"):
        built.pipeline("(").element  # noqa: B018  # what is made first decides


@every_case("url", ["no/such/directory", "file:///no/such/file.parquet"])
def test_a_wrong_url_is_reported(url: str) -> None:
    with pytest.raises(
        DatasetError, match=r"expected a directory or a Parquet file, found nothing there. Check the URL"
    ):
        Pipeline(url).schema  # noqa: B018


def test_a_wrong_url_names_a_file_that_is_called_nearly_so(tmp_path: Path) -> None:
    (tmp_path / "clicks.parquet").touch()
    with pytest.raises(DatasetError, match=r"Check the URL\. Did you mean 'clicks\.parquet'\?$"):
        Pipeline(tmp_path / "clicks.parqet").schema  # noqa: B018
    with pytest.raises(DatasetError, match=r"Check the URL\.$"):
        Pipeline(tmp_path / "views.csv").schema  # noqa: B018


def test_a_directory_without_parquet_is_reported(tmp_path: Path) -> None:
    (tmp_path / "_notes.parquet").write_text("x")
    with pytest.raises(DatasetError, match="expected Parquet files, found none among 1 files"):
        Pipeline(str(tmp_path)).schema  # noqa: B018


@every_case(
    ("make", "message"),
    [
        (lambda p: p.shard(4, 4), r"shard: expected index from 0 to num_shards - 1 = 3, got 4"),
        (lambda p: p.shard(4, -1), r"expected index from 0 to num_shards - 1 = 3, got -1"),
        (lambda p: p.shard(0, 0), r"shard: expected num_shards to be an integer >= 1, got 0"),
        (lambda p: p.shard(2, 0, even="both"), r"expected even to be one of \('pad', 'drop', 'none'\), got 'both'"),
        (lambda p: p.shard(2, 0, canonical_shards=0), r"expected canonical_shards to be an integer >= 1, got 0"),
        (lambda p: p.shuffle(0), r"shuffle: expected buffer_size to be an integer >= 1, got 0"),
        (lambda p: p.shuffle(2, seed="x"), r"expected seed to be a 64-bit integer, got 'x'"),
        (lambda p: p.batch(0), r"batch: expected batch_size to be an integer >= 1, got 0"),
        (lambda p: p.batch(True), r"expected batch_size to be an integer >= 1, got True"),
        (lambda p: p.take(-1), r"take: expected count to be an integer >= 0, got -1"),
        (lambda p: p.skip(1.5), r"skip: expected count to be an integer >= 0, got 1.5"),
        (lambda p: p.repeat(-2), r"repeat: expected count to be an integer >= 0, got -2"),
        (lambda p: p.select(), r"select: expected at least one field name or regex, got \(\)"),
        (lambda p: p.select(3), r"select: expected a field name or regex, or several of them, got 3"),
        (lambda p: p.select(["id", None]), r"select: expected a field name or regex, or several of them, got None"),
        (lambda p: p.nulls("drop", []), r"nulls: expected a field name or regex, or several of them, got \(\[\],\)"),
        (lambda p: p.concat("tokens", 16), r"concat: expected a field name or regex, or several of them, got 16"),
        (lambda p: p.hash_split("id", 0.8, 0), r"hash_split\('id'\): expected fractions such as \[0.8, 0.2\], got 0.8"),
        (lambda p: p.transform(dict, remove=3), r"transform: expected a field name or regex, or several of them, got 3"),
        (lambda p: p.ngram(length=2, group_by=3), r"ngram: expected a field name or regex, or several of them, got 3"),
        (lambda p: p.transform(dict, output=3), r"expected UnischemaField values in output, got 3"),
        (lambda p: p.cache(""), r"cache: expected a directory, got ''"),
        (lambda p: p.pad("points", shape=5), r"pad: expected shape to be a sequence .*, got 5"),
        (lambda p: p.pad("points", shape=("a", 3)), r"pad: expected shape to have integers >= 0 or None, got \('a', 3\)"),
        (lambda p: p.fixed("points", shape=(-1, 3)), r"fixed: expected shape to have integers >= 0 or None, got"),
        (lambda p: p.permute("image", dims=None), r"permute: expected dims to be a sequence, got None"),
        (lambda p: p.where(lambda row: True), r"where\(function\): expected fields=\[\.\.\.\]"),
        (lambda p: p.where(pc.field("id") > 1, fields=["id"]), r"fields= is for functions"),
        (lambda p: p.where([("id", "~", 3)]), r"expected one of the operators"),
        (lambda p: p.transform(dict, output=["x"]), r"expected UnischemaField values in output, got 'x'"),
        (lambda p: p.with_options(threads=3), r"with_options: expected .*got \['threads'\]"),
        (lambda p: p.with_options(workers=0), r"expected workers to be an integer >= 1 or None, got 0"),
        (lambda p: p.with_options(executor="fork"), r"expected executor to be one of .* or None, got 'fork'"),
        (lambda p: p.batch(2).batch(2), r"batch: expected at most one in a pipeline, got a second"),
        (lambda p: p.batch(2).shuffle(2), r"shuffle\(\) must come before batch\(\)"),
        (lambda p: p.shuffle(2).take(3).where(pc.field("id") > 1), r"where\(\) must come before take\(\)"),
        (lambda p: p.ngram(length=2).where(pc.field("id") > 1), r"where\(\) must come before ngram\(\)"),
        (lambda p: p.transform(dict).where(pc.field("id") > 1), r"where\(\) must come before transform\(\).*stored values of 'id'"),
        (lambda p: p.repeat(2).take(3).shuffle(2), r"shuffle\(\) must come before repeat\(\)\.take\(\)"),
    ],
)  # fmt: skip
def test_an_invalid_stage_is_refused_where_it_is_called(built: Built, make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make(built.pipeline())


@every_case("urls", [[], [1], 3, None])
def test_values_that_are_not_urls_are_refused(urls: Any) -> None:
    with pytest.raises(PipelineError, match="expected a URL, a path, or a list of them, got"):
        Pipeline(urls)


def test_storage_options_that_are_no_dict_are_refused_without_showing_them() -> None:
    with pytest.raises(PipelineError, match=r"expected storage_options to be a dict, got str\.$"):
        Pipeline("url", storage_options="secret")  # type: ignore[arg-type]


@every_case("stored", ["text", {}, None])
def test_what_is_no_stored_pipeline_is_refused(stored: Any) -> None:
    with pytest.raises(PipelineError, match=r"stored pipeline: expected what to_json\(\) returned, got"):
        Pipeline.from_json(stored)


def test_the_length_of_an_endless_pipeline_is_a_type_error(built: Built) -> None:
    with pytest.raises(TypeError, match=r"the pipeline repeats forever. Give repeat\(\) a count, or use take\(\)"):
        len(built.pipeline().repeat())


# --- the selection ---


def test_an_empty_selection_says_what_left_nothing(built: Built) -> None:
    pipeline = built.pipeline().where(pc.field("id") < 9).where(pc.field("speed") > 1000)
    message = (
        r"got none from 3 files with 6 row groups and 17 rows.*where\(\(id < 9\)\) left 9.*\(speed > 1000\)\) left 0"
    )
    for _ in range(2):
        with pytest.raises(EmptySelectionError, match=message):
            next(iter(pipeline))


def test_nothing_taken_is_no_error(built: Built) -> None:
    assert list(built.pipeline().take(0)) == []
    assert list(built.pipeline().skip(1000).batch(3)) == []
    assert list(built.pipeline().repeat(0)) == []


def test_dropping_everything_says_how_many_shards_there_are(built: Built) -> None:
    with pytest.raises(EmptySelectionError, match="leaves nothing, because 17 items are fewer than 18 shards"):
        next(iter(built.pipeline().shard(18, 0, even="drop")))
    with pytest.raises(EmptySelectionError, match="leaves nothing, because 17 items are fewer than 18 shards"):
        next(iter(built.pipeline().shard(18, 0, even="drop", canonical_shards=1)))
    for nothing in (
        built.pipeline().shard(3, 0, even="drop").skip(6),
        built.pipeline().shard(2, 0, even="drop").take(0),
    ):
        with pytest.raises(EmptySelectionError, match=r"leaves nothing, because take\(\) or skip\(\) leaves out all"):
            next(iter(nothing))


@every_case("name", ["image", "points", "packed"])
def test_an_expression_on_a_coded_field_is_refused_with_the_way_out(built: Built, name: str) -> None:
    with pytest.raises(
        PipelineError, match=rf"field '{name}' is stored encoded .*Use where\(function, fields=\['{name}'\]\)"
    ):
        next(iter(built.pipeline().where(pc.field(name) != b"")))
    assert len(built.pipeline("id").where(pc.field(name).is_valid())) > 0  # whether there is a value is known


def test_an_expression_of_another_type_is_refused(built: Built) -> None:
    with pytest.raises(PipelineError, match="expected literals and functions that fit the column types"):
        next(iter(built.pipeline().where(pc.field("id") == "text")))


def test_a_condition_that_is_none_is_refused(built: Built) -> None:
    with pytest.raises(PipelineError, match=r"expected literals and functions .*not a condition"):
        next(iter(built.pipeline().where(pc.add(pc.field("id"), 1))))


def test_a_predicate_that_raises_says_for_which_row(built: Built) -> None:
    def broken(row: dict[str, Any]) -> bool:
        return bool(1 / (int(row["id"]) - 5))

    message = (
        r"(?s)broken\) failed for file .*part-000\.parquet, row group 2, row 1: ZeroDivisionError.*Traceback.*in broken"
    )
    with pytest.raises(TransformError, match=message):
        next(iter(built.pipeline().where(broken, fields=["id"])))


@every_case(
    ("answer", "batched", "message"),
    [
        (lambda row: "yes", False, r"expected True or False, got str"),
        (lambda batch: [1, 0], True, r"expected a bool array of shape \(3,\), got int64 \(2,\)"),
        (lambda batch: batch["id"], True, r"expected a bool array of shape \(3,\), got int64 \(3,\)"),
        (lambda batch: True, True, r"expected a bool array of shape \(3,\), got bool \(\)"),
    ],
)
def test_a_predicate_that_returns_no_condition_is_reported(
    built: Built, answer: Any, batched: bool, message: str
) -> None:
    with pytest.raises(TransformError, match=message):
        next(iter(built.pipeline().where(answer, fields=["id"], batched=batched)))


# --- windows ---


@every_case(
    ("arguments", "message"),
    [
        ({}, r"ngram: expected one of length=n, fields=\{offset: \[names\]\}, offsets=\{name: offsets\}, got none"),
        ({"fields": {0: ["id"]}, "length": 2}, r"got fields=\{offset: \[names\]\} and length="),
        ({"length": 0}, r"expected length to be an integer >= 1, got 0"),
        ({"length": 2, "stride": 0}, r"expected stride to be an integer >= 1, got 0"),
        ({"length": 2, "max_gap": 3}, r"max_gap needs timestamp="),
        ({"length": 2, "max_gap": -1, "timestamp": "ts"}, r"expected max_gap >= 0, got -1"),
        ({"length": 2, "max_gap": float("nan"), "timestamp": "ts"}, r"expected max_gap >= 0, got nan"),
        ({"length": 2, "max_gap": "1s", "timestamp": "ts"}, r"expected max_gap to be a number or a time difference"),
        ({"fields": {"now": ["id"]}}, r"expected fields=\{offset: \[names\]\}, got"),
        ({"fields": {0: 3}}, r"expected fields=\{offset: \[names\]\}, got"),
    ],
)
def test_an_invalid_window_is_refused(built: Built, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        built.pipeline().ngram(**arguments)


@every_case("name", ["label", "image", "tags", "flag"])
def test_a_time_stamp_that_is_not_a_number_is_refused(tmp_path: Path, name: str) -> None:
    built = build(tmp_path, [[4]], change=lambda row: {**row, "label": "x", "flag": True})
    with pytest.raises(PipelineError, match=rf"expected timestamp='{name}' to be a number or a time"):
        next(iter(built.pipeline().ngram(length=2, timestamp=name)))


@every_case("name", ["image", "tags", "pair"])
def test_a_group_that_cannot_be_compared_is_refused(built: Built, name: str) -> None:
    with pytest.raises(PipelineError, match=rf"ngram: expected group_by='{name}' to be"):
        next(iter(built.pipeline().ngram(length=2, group_by=name)))


def test_a_time_difference_on_a_plain_number_is_refused(built: Built) -> None:
    with pytest.raises(PipelineError, match=r"expected max_gap as a number, because 'ts' is int64 without a unit"):
        next(iter(built.pipeline().ngram(length=2, timestamp="ts", max_gap=np.timedelta64(1, "s"))))


def test_decreasing_time_stamps_are_reported_with_file_and_row(tmp_path: Path) -> None:
    built = build(tmp_path, [[3], [2, 4]], change=lambda row: {**row, "ts": 5 if row["id"] == 6 else row["ts"]})
    pipeline = built.pipeline("id").ngram(length=2, timestamp="ts")
    with pytest.raises(
        DatasetError,
        match=r"part-001\.parquet, row group 1, row 1: expected timestamps in 'ts' that do not decrease, got 5 after 1000\. "
        r"Name the field that tells recordings apart in group_by=",
    ):
        next(iter(pipeline))
    assert len(built.pipeline("id").where(pc.field("id") != 6).ngram(length=2, timestamp="ts")) == 6


def test_a_time_stamp_that_is_null_is_reported_with_file_and_row(built: Built) -> None:
    with pytest.raises(
        DatasetError,
        match=r"part-000\.parquet, row group 0, row 0: expected a timestamp in 'speed', got null.*is_valid",
    ):
        next(iter(built.pipeline().ngram(length=2, timestamp="speed")))


def test_a_nan_time_stamp_is_reported_as_decreasing(built: Built) -> None:
    with pytest.raises(
        DatasetError, match=r"row group 0, row 1: expected timestamps in 'odd' that do not decrease, got 0.5 after nan"
    ):
        next(iter(built.pipeline().ngram(length=2, timestamp="odd")))


# --- transforms ---


def _with(**values: Any) -> Any:
    return lambda row: {**row, **values}


@every_case(
    ("returned", "field", "message"),
    [
        (
            np.float64(1),
            F("y", np.float32),
            r"field 'y', file .*row group 0, row 0: expected dtype float32, got float64",
        ),
        (np.ones(2, np.int32), F("y", np.float32, (2,)), r"expected dtype float32, got int32"),
        ("text", F("y", np.int64), r"expected dtype int64, got <U4"),
        (1.5, F("y", np.int64), r"expected dtype int64, got float64"),
        (300, F("y", np.int8), r"expected values that int8 can hold, got 300"),
        (-1, F("y", np.uint8), r"expected values that uint8 can hold, got -1"),
        (1e300, F("y", np.float32), r"expected values that float32 can hold, got 1e\+300"),
        (np.ones(3, np.float32), F("y", np.float32, (2,)), r"expected shape \(2,\), got \(3,\)"),
        (np.ones((2, 2), np.float32), F("y", np.float32, (None,)), r"expected shape \(None,\), got \(2, 2\)"),
        (None, F("y", np.float32), r"expected a value, got None. Declare the field nullable=True"),
        (None, F("y", str), r"expected a value, got None. Declare the field nullable=True"),
        (3, F("y", str), r"expected str, got int"),
        ("x\ud800", F("y", str), r"row 0: expected text that UTF-8 can hold, got 'x\\ud800'\. text\.encode\(errors"),
        (["a", "\udcff"], F("y", str, (None,)), r"row 0: expected text that UTF-8 can hold, got '\\udcff'"),
        ("x", F("y", bytes), r"expected bytes, got str"),
        (["a", None], F("y", str, (2,)), r"expected str, got NoneType"),
    ],
)
def test_a_transform_that_breaks_its_declaration_is_reported(
    built: Built, returned: Any, field: UnischemaField, message: str
) -> None:
    pipeline = built.pipeline("id").transform(_with(y=returned), [field], batched=False)
    with pytest.raises(TransformError, match=message):
        next(iter(pipeline))


@every_case(
    ("returned", "message"),
    [
        (np.zeros(2, np.int64), r"field 'y': expected 4 rows, as in its input, got 2"),
        (np.int64(3), r"field 'y': expected 4 rows, as in its input, got int64"),
        (np.zeros((4, 2), np.int64), r"field 'y', file .*expected shape \(\), got \(2,\)"),
        (np.zeros(4, np.int32), r"field 'y', file .*expected dtype int64, got int32"),
    ],
)
def test_a_batched_transform_that_breaks_its_declaration_is_reported(built: Built, returned: Any, message: str) -> None:
    pipeline = built.pipeline("id").batch(4).transform(_with(y=returned), [F("y", np.int64)])
    with pytest.raises(TransformError, match=message):
        next(iter(pipeline))


def fails_on_seven(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 7:
        raise KeyError("seven")
    return row


def test_a_transform_that_raises_says_where_and_keeps_its_traceback(built: Built) -> None:
    pipeline = built.pipeline("id").transform(fails_on_seven)
    message = r"(?s)transform fails_on_seven failed for file .*part-000\.parquet, row group 2, row 3: KeyError\('seven'\).*Traceback.*line \d+, in fails_on_seven"
    with pytest.raises(TransformError, match=message) as caught:
        list(pipeline.with_options(executor="threads"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_removing_every_field_is_refused(built: Built) -> None:
    with pytest.raises(PipelineError, match="expected at least one field to remain, got none"):
        built.pipeline("id").transform(dict, remove=[".*"]).element  # noqa: B018


# --- mismatched stored data ---


def test_lists_of_another_fixed_length_are_refused(tmp_path: Path) -> None:
    built = build(tmp_path, [[2]], names=("id", "pair"))
    for number, kind in enumerate([pa.list_(pa.int16(), 3), pa.list_(pa.int16())]):
        column = pa.array([[1, 2, 3], [4, 5, 6]], kind)
        write_table(tmp_path, pa.table({"id": [2, 3], "pair": column}), f"z{number}.parquet")
        with pytest.raises(
            DecodeError,
            match=rf"z{number}\.parquet, row group 0: field 'pair': expected a column that holds int16 \(2,\)",
        ):
            list(built.pipeline().skip(2 * number).where(pc.field("id") >= 2))
        (tmp_path / f"z{number}.parquet").unlink()
