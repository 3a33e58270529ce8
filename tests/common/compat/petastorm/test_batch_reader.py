"""`make_batch_reader`: columns of row groups, as in Petastorm where it is correct."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import int96_column, write_int96
from cases import every_case

from parquetry.common.base.errors import PipelineError, SchemaError, TransformError
from parquetry.common.compat.petastorm import TransformSpec, make_batch_reader
from parquetry.common.compat.petastorm import reader as reader_module
from parquetry.common.compat.petastorm.errors import NoFieldsError
from parquetry.common.compat.petastorm.ngram import NGram
from parquetry.common.compat.petastorm.predicates import in_lambda, in_set
from parquetry.common.compat.petastorm.unischema import UnischemaField

pytestmark = pytest.mark.versions

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"
COUNT = 40
GROUND = datetime.datetime(2005, 2, 25, 3, 30)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Writes 40 rows of plain Parquet in row groups of 16, 16 and 8."""
    table = pa.table(
        {
            "id": pa.array(range(COUNT), pa.int32()),
            "text": [f"hello_{i}" for i in range(COUNT)],
            "maybe": [None if i % 5 == 0 else f"m{i}" for i in range(COUNT)],
            "half": [i * 0.66 for i in range(COUNT)],
            "gaps": pa.array([None if i % 4 == 0 else float(i) for i in range(COUNT)], pa.float32()),
            "holes": pa.array([None if i % 4 == 0 else i + 2**53 for i in range(COUNT)], pa.int64()),
            "flag": [i % 2 == 0 for i in range(COUNT)],
            "raw": [bytes([i, 0]) for i in range(COUNT)],
            "price": [decimal.Decimal(i) / 8 for i in range(COUNT)],
            "day": pa.array([datetime.date(2019, 1, 2)] * COUNT, pa.date32()),
            "when": pa.array([GROUND + datetime.timedelta(hours=i) for i in range(COUNT)], pa.timestamp("us", "UTC")),
            "vector": pa.array([list(range(i, i + 3)) for i in range(COUNT)], pa.list_(pa.int32())),
            "ragged": pa.array([None if i == 9 else list(range(i % 3)) for i in range(COUNT)], pa.list_(pa.int64())),
            "small": pa.array(list(range(COUNT)), pa.uint8()),
        }
    )
    (tmp_path / "plain").mkdir()
    pq.write_table(table, tmp_path / "plain" / "part.parquet", row_group_size=16)
    return f"file://{tmp_path}/plain"


def batches(url: str, **options: Any) -> list[Any]:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
    with make_batch_reader(url, **options) as reader:
        assert reader.batched_output
        return list(reader)


@pytest.mark.parametrize("pool", ["dummy", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_each_row_group_is_a_named_tuple_of_columns(url: str, pool: str) -> None:
    read = batches(url, reader_pool_type=pool, workers_count=2)
    assert [len(batch.id) for batch in read] == [16, 16, 8]
    first = read[0]
    np.testing.assert_array_equal(first.id, np.arange(16, dtype=np.int32), strict=True)
    np.testing.assert_array_equal(first.text, np.array([f"hello_{i}" for i in range(16)]), strict=True)
    assert first.maybe.tolist() == [None if i % 5 == 0 else f"m{i}" for i in range(16)]
    np.testing.assert_array_equal(first.half, np.array([i * 0.66 for i in range(16)]), strict=True)
    assert first.gaps.dtype == np.float32
    assert np.isnan(first.gaps[::4]).all()
    assert first.holes.dtype == np.int64
    assert first.holes.tolist() == [None if i % 4 == 0 else i + 2**53 for i in range(16)]
    assert first.flag.dtype == bool
    assert first.raw.tolist() == [bytes([i, 0]) for i in range(16)]
    assert first.price.tolist() == [decimal.Decimal(i) / 8 for i in range(16)]
    assert first.day.tolist() == [datetime.date(2019, 1, 2)] * 16
    assert first.when.dtype == np.dtype("datetime64[ns]")
    assert first.when[1] == np.datetime64("2005-02-25T04:30")
    np.testing.assert_array_equal(first.vector, np.arange(16)[:, None] + np.arange(3), strict=False)
    assert first.vector.dtype == np.int32
    assert first.ragged[9] is None
    assert first.ragged[2].tolist() == [0, 1]
    assert first.small.dtype == np.uint8


def test_columns_are_selected_by_regex_and_the_rest_is_not_there(url: str) -> None:
    assert batches(url, schema_fields=["id", "h.*f"])[0]._fields == ("id", "half")
    with pytest.raises(RuntimeError, match="No fields matching the criteria"):
        batches(url, schema_fields=["bogus"])


def test_filters_shards_and_epochs_apply_to_row_groups(url: str) -> None:
    read = batches(url, filters=[("half", ">", 6.0), ("id", "<", 20)], schema_fields=["id"], num_epochs=2)
    assert [batch.id.tolist() for batch in read] == [list(range(10, 16)), list(range(16, 20))] * 2
    assert [b.id[0] for b in batches(url, cur_shard=1, shard_count=2)] == [16]


def test_row_groups_without_a_row_left_do_not_come(url: str) -> None:
    read = batches(url, predicate=in_set({20, 35}, "id"), schema_fields=["id"])
    assert [batch.id.tolist() for batch in read] == [[20], [35]]


def test_encoded_columns_of_a_declared_schema_come_as_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_past_warnings", set())
    with pytest.warns(UserWarning, match="Please use make_reader"):
        read = batches(str(REAL), schema_fields=["id", "count_u16", "png", "drive"])
    assert [len(batch.id) for batch in read] == [8, 8, 4] * 3
    assert read[0].png[0][:4] == b"\x89PNG"
    assert read[0].count_u16.dtype == np.int32
    assert set(read[3].drive) == {"d1"}


def test_nested_columns_are_left_out_with_a_warning(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "deep": [{"a": 1}, {"a": 2}]}), tmp_path / "part.parquet")
    with pytest.warns(UserWarning, match=r"ignoring columns that Petastorm's readers do not support: \['deep.a'\]"):
        (batch,) = batches(str(tmp_path))
    assert batch._fields == ("id",)


@pytest.mark.filterwarnings("ignore:dataset .*columns:UserWarning")
@pytest.mark.parametrize("chosen", [None, ["a"]])
def test_a_dataset_without_a_column_that_can_be_read_says_why(tmp_path: Path, chosen: list[str] | None) -> None:
    for number, values in enumerate([[1], ["text"]]):
        pq.write_table(pa.table({"a": values}), tmp_path / f"{number}.parquet")
    with pytest.raises(SchemaError, match=r"field 'a': .* got int64 in .*0\.parquet and string in .*1\.parquet"):
        batches(str(tmp_path), schema_fields=chosen)


@pytest.mark.filterwarnings("ignore:dataset .*columns:UserWarning")
def test_a_dataset_of_types_that_petastorm_does_not_read_says_how_to_read_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"deep": [[[1]]]}), tmp_path / "part.parquet")
    with pytest.raises(NoFieldsError, match=r"types of \['deep'\]: name them in schema_fields=\[\.\.\.\] to read them"):
        batches(str(tmp_path))


OTHERS = {
    "u16": pa.array([1, 2], pa.uint16()),
    "u64": pa.array([1, 2], pa.uint64()),
    "u64s": pa.array([[1], [2]], pa.list_(pa.uint64())),
    "time": pa.array([datetime.time(1), datetime.time(2)]),
    "code": pa.array(["a", "b"]).dictionary_encode(),
    "deep": pa.array([[[1]], [[2]]]),
    "half": pa.array(np.array([1, 2], np.float16)),
}


def test_columns_that_petastorm_leaves_out_come_if_they_are_named(tmp_path: Path) -> None:
    table = pa.table({"u": pa.array([1, 2], pa.uint8()), **OTHERS, "id": [1, 2]})
    (tmp_path / "key=7").mkdir()
    pq.write_table(table, tmp_path / "key=7" / "part.parquet")
    with pytest.warns(
        UserWarning, match=r"leaving out the columns \['u16', .*, 'half'\], .* Name them in schema_fields"
    ):
        (batch,) = batches(str(tmp_path))
    assert batch._fields == ("key", "u", "id")
    with pytest.warns(UserWarning, match=r"leaving out the columns \['u16', 'u64', 'u64s'\]"):
        assert batches(str(tmp_path), schema_fields=["u.*"])[0]._fields == ("u",)
    (batch,) = batches(str(tmp_path), schema_fields=[*OTHERS, "i.*"])
    assert batch._fields == (*OTHERS, "id")
    assert batch.u64.dtype == np.uint64
    assert batch.code.tolist() == ["a", "b"]


@pytest.mark.filterwarnings("error::UserWarning")  # that a column is left out
def test_text_as_pandas_3_writes_it_is_a_column(tmp_path: Path) -> None:
    text = pa.array(["a", None], pa.large_string())
    lists = pa.array([["a"], ["b", "c"]], pa.list_(pa.large_string()))
    pq.write_table(pa.table({"text": text, "lists": lists}), tmp_path / "part.parquet")
    (batch,) = batches(str(tmp_path))
    assert batch.text.tolist() == ["a", None]
    assert [value.tolist() for value in batch.lists] == [["a"], ["b", "c"]]


DRIFTING = {
    "units": (pa.array([0, 1], pa.timestamp("us")), pa.array([7], pa.timestamp("ns")), [0, 1000, 7]),
    "zones": (pa.array([0, 1], pa.timestamp("us")), pa.array([7], pa.timestamp("us", "UTC")), [0, 1000, 7000]),
    "nothing first": (pa.nulls(1), pa.array([7]), [None, 7]),
    "a missing number": (pa.array([7]), pa.array([1.5, 2.0]), [7.0, 1.5, 2.0]),
    "codes": (pa.array(["a"]).dictionary_encode(), pa.array(["b"]), ["a", "b"]),
}


@pytest.mark.filterwarnings("error::UserWarning")  # that a column is left out
@every_case("name", DRIFTING)
def test_columns_whose_files_differ_in_type_are_not_left_out(tmp_path: Path, name: str) -> None:
    *files, values = DRIFTING[name]
    for number, column in enumerate(files):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    assert [value for batch in batches(str(tmp_path)) for value in batch.x.tolist()] == values


def test_a_column_whose_files_mean_different_things_needs_a_declaration(tmp_path: Path) -> None:
    for number, column in enumerate(([1, 2], ["a", "b"])):
        pq.write_table(pa.table({"id": [0, 1], "x": column}), tmp_path / f"{number}.parquet")
    with pytest.raises(SchemaError, match=r"field 'x': .*schema_fields=\[UnischemaField\('x', 'str'\), '\.\*'\]"):
        batches(str(tmp_path))
    assert [batch._fields for batch in batches(str(tmp_path), schema_fields=["id"])] == [("id",)] * 2
    read = batches(str(tmp_path), schema_fields=[UnischemaField("x", "str"), ".*"])
    assert [batch.x.tolist() for batch in read] == [["1", "2"], ["a", "b"]]


def test_partitions_are_typed_by_their_directories(tmp_path: Path) -> None:
    for value in ("0", "1"):
        (tmp_path / f"key={value}" / "name=x").mkdir(parents=True)
        pq.write_table(pa.table({"id": [int(value)]}), tmp_path / f"key={value}" / "name=x" / "part.parquet")
    read = batches(str(tmp_path))
    assert [(b.id[0], b.key[0], b.name[0]) for b in read] == [(0, 0, "x"), (1, 1, "x")]
    assert read[0].key.dtype == np.int64
    assert batches(str(tmp_path), schema_fields=["id"])[0]._fields == ("id",)


def test_windows_need_rows(url: str) -> None:
    with pytest.raises(PipelineError, match="Use make_reader for windows"):
        make_batch_reader(url, NGram({0: ["id"]}, 1, "id"))


# --- transforms -------------------------------------------------------------------------------------------------------


def test_fields_are_removed_and_selected_without_pandas(url: str) -> None:
    removed = batches(url, schema_fields=["id", "half", "text"], transform_spec=TransformSpec(removed_fields=["half"]))
    assert removed[0]._fields == ("id", "text")
    selected = batches(url, transform_spec=TransformSpec(selected_fields=["text", "id"]))
    assert selected[0]._fields == ("text", "id")


@pytest.mark.slow
def test_a_function_gets_and_gives_the_row_group_as_a_data_frame(url: str) -> None:
    pd = pytest.importorskip("pandas")

    def change(frame: Any) -> Any:
        assert isinstance(frame, pd.DataFrame)
        assert (frame["id"] % 2 == 0).all()
        frame["double"] = frame["half"] * 2
        frame["matrix"] = frame["id"].map(lambda i: np.full((2, 3), i, dtype=np.float64))
        return frame.drop(columns=["half"])

    spec = TransformSpec(
        change,
        edit_fields=[("double", np.float32, (), False), ("matrix", np.float32, (2, 3), False)],
        removed_fields=["half"],
    )
    for pool in ("dummy", "process"):
        read = batches(
            url,
            schema_fields=["id", "half", "text"],
            transform_spec=spec,
            predicate=in_lambda(["id"], lambda id: id % 2 == 0),
            reader_pool_type=pool,
            workers_count=1,
        )
        assert read[0]._fields == ("id", "text", "double", "matrix")
        assert read[0].double.dtype == np.float32
        assert read[0].matrix.dtype == np.float32
        assert read[0].matrix.shape == (8, 2, 3)
        np.testing.assert_array_equal(read[0].matrix[:, 0, 0], read[0].id)
        assert read[0].text.tolist() == [f"hello_{i}" for i in range(0, 16, 2)]


def test_a_function_may_change_how_many_rows_there_are(url: str) -> None:
    pytest.importorskip("pandas")
    spec = TransformSpec(lambda frame: frame[frame["id"] % 16 == 3])
    assert [batch.id.tolist() for batch in batches(url, schema_fields=["id"], transform_spec=spec)] == [[3], [19], [35]]
    nothing = TransformSpec(lambda frame: frame[frame["id"] < 0])
    assert batches(url, schema_fields=["id"], transform_spec=nothing) == []


def test_integers_with_nulls_pass_through_a_frame_unrounded(url: str) -> None:
    pytest.importorskip("pandas")
    read = batches(url, schema_fields=["id", "holes"], transform_spec=TransformSpec(lambda frame: frame))
    assert read[0].holes.tolist() == [None if i % 4 == 0 else i + 2**53 for i in range(16)]


@pytest.fixture
def gaps(tmp_path: Path) -> str:
    """Writes two row groups, with nulls only in the first."""
    table = pa.table(
        {
            "number": pa.array([1, None, 3, 4], pa.int32()),
            "flag": [True, None, False, True],
            "text": ["a", None, "c", "d"],
            "list": [[1], None, [3], [4]],
        }
    )
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=2)
    return str(tmp_path)


def test_a_function_sees_nulls_as_arrow_gives_them_to_pandas(gaps: str) -> None:
    pytest.importorskip("pandas")
    seen = []
    read = batches(gaps, transform_spec=TransformSpec(lambda frame: seen.append(frame.copy()) or frame))
    assert [str(seen[0][name].dtype) for name in ("number", "flag", "text")] == ["float64", "object", "object"]
    assert [str(seen[1][name].dtype) for name in ("number", "flag", "text")] == ["int32", "bool", "object"]
    assert np.isnan(seen[0]["number"][1])
    assert seen[0]["flag"][1] is None
    assert seen[0]["text"][1] is None
    for batch, plain in zip(read, batches(gaps), strict=True):
        for name in plain._fields:
            assert getattr(batch, name).dtype == getattr(plain, name).dtype
            assert getattr(batch, name).tolist() == getattr(plain, name).tolist()


def test_declared_integers_may_come_back_as_floats_that_are_whole(gaps: str) -> None:
    pytest.importorskip("pandas")
    for nullable, change in (
        (True, lambda frame: frame["number"] * 2),
        (False, lambda frame: frame["number"].fillna(7)),
    ):
        edit = [("new", np.int16, (), nullable)]
        spec = TransformSpec(lambda frame, change=change: frame.assign(new=change(frame)), edit_fields=edit)
        first = batches(gaps, transform_spec=spec)[0].new
        assert first.dtype == np.int16
        assert first.tolist() == ([2, None] if nullable else [1, 7])
    for nullable, change, text in [
        (True, lambda frame: frame["number"] / 2, "expected dtype int16, got float64"),
        (True, lambda frame: frame["number"] * 1e5, "expected dtype int16, got float64"),
        (False, lambda frame: frame["number"], "expected a value, got null"),
    ]:
        edit = [("new", np.int16, (), nullable)]
        spec = TransformSpec(lambda frame, change=change: frame.assign(new=change(frame)), edit_fields=edit)
        with pytest.raises(TransformError, match=f"field 'new': {text}"):
            batches(gaps, transform_spec=spec)
    with pytest.raises(TransformError, match="field 'number': expected dtype int32, got float64"):
        batches(gaps, transform_spec=TransformSpec(lambda frame: frame.assign(number=frame["number"] / 2)))


def test_text_that_pandas_made_has_none_for_null(gaps: str) -> None:
    pytest.importorskip("pandas")
    spec = TransformSpec(lambda frame: frame.assign(text=frame["text"].astype("string")))
    assert batches(gaps, transform_spec=spec)[0].text.tolist() == ["a", None]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda frame: frame.drop(columns=["new"]), "expected the function to return the fields"),
        (lambda frame: frame.assign(more=1), "expected the function to return the fields"),
        (lambda frame: {"id": [1]}, "expected the function to return a DataFrame"),
        (lambda frame: frame.assign(new="x"), "field 'new': expected dtype float32"),
        (
            lambda frame: frame.assign(new=[np.zeros(2)] * len(frame)),
            r"field 'new': expected shape \(\), got \(2,\)",
        ),
    ],
)
def test_a_function_must_give_what_it_declares(url: str, change: Any, text: str) -> None:
    pytest.importorskip("pandas")
    spec = TransformSpec(
        lambda frame: change(frame.assign(new=np.float32(1))), edit_fields=[("new", np.float32, (), False)]
    )
    with pytest.raises(TransformError, match=text):
        batches(url, schema_fields=["id"], transform_spec=spec)


def test_a_function_without_pandas_says_what_to_install(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("parquetry.common.compat.petastorm.frames.importlib.import_module", absent)
    with pytest.raises(PipelineError, match=r"pip install 'parquetry\[petastorm\]'"):
        batches(url, schema_fields=["id"], transform_spec=TransformSpec(lambda frame: frame))


def test_int96_timestamps_are_exact_and_filtered_by_their_true_values(tmp_path: Path) -> None:
    stamps = [-62_135_596_800_000_000, -1, 2**55, 253_402_300_799_999_999]
    table = pa.table({"id": range(4), "at": int96_column(stamps)})
    url = f"file://{write_int96(tmp_path / 'a.parquet', table, created_by='impala version 2.0')}"
    (batch,) = batches(url)
    assert batch.at.dtype == np.dtype("datetime64[us]")
    assert batch.at.astype(np.int64).tolist() == stamps
    assert [b.id.tolist() for b in batches(url, filters=[("at", ">", np.datetime64("2500-01-01"))])] == [[2, 3]]
