"""`pack` against columns joined by numpy, straight from storage and after other steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, mix, write_dataset
from parquetry.common.apps.testing import assert_resumable, assert_same
from parquetry.common.base.errors import DecodeError, FieldNotFoundError, NullValueError, PipelineError
from parquetry.common.engine.run.block import BlockParts

pytestmark = pytest.mark.versions

ROWS = 47
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64")


def column(dtype: str, *shape: int) -> np.ndarray:
    """Numbers small enough for every dtype."""
    numbers = np.random.default_rng(len(dtype) + sum(shape)).integers(0, 100, (ROWS, *shape))
    return (numbers % 2 == 0) if dtype == "bool" else (numbers / (3 if "float" in dtype else 1)).astype(dtype)


VALUES: dict[str, np.ndarray] = {
    "id": np.arange(ROWS),
    **{f"c_{dtype}": column(dtype) for dtype in DTYPES},
    "pair": column("int16", 2),
    "vector": column("float32", 3),
    "coded": column("float32", 4),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("table") / "data"
    fields = [UnischemaField(name, value.dtype, value.shape[1:]) for name, value in VALUES.items()]
    fields[-1] = fields[-1].replace(codec=NdarrayCodec())
    extra = [
        UnischemaField("maybe", np.float32, nullable=True),
        UnischemaField("text", str),
        UnischemaField("ragged", np.int32, (None,)),
        UnischemaField("matrix", np.float32, (2, 2)),
        UnischemaField("wide", np.int64),
        UnischemaField("unsigned", np.uint64),
    ]
    rows = []
    for number in range(ROWS):
        row: dict[str, Any] = {name: value[number] for name, value in VALUES.items()}
        row |= {"maybe": None if number == 20 else np.float32(number), "text": "a", "unsigned": np.uint64(number)}
        row |= {"ragged": np.arange(number % 3, dtype=np.int32), "matrix": np.zeros((2, 2), np.float32)}
        rows.append(row | {"wide": np.int64(1 << 40 if number == 33 else number)})
    write_dataset(directory, Unischema("table", [*fields, *extra]), rows, row_group_rows=6)
    return directory


def beside(names: list[str], dtype: Any) -> np.ndarray:
    """Packs the columns with numpy."""
    return np.concatenate([VALUES[name].reshape(ROWS, -1).astype(dtype) for name in names], axis=1)


names = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=8, unique=True)


@examples(25)
@given(
    names=names,
    dtype=st.sampled_from([None, "float32", "float64", "float16"]),
    shuffled=st.booleans(),
    batch=st.sampled_from([1, 5, 16]),
)
def test_a_packed_row_is_its_columns_side_by_side(
    url: Path, names: list[str], dtype: str | None, shuffled: bool, batch: int
) -> None:
    wanted = beside(names, dtype or np.result_type(*(VALUES[name].dtype for name in names)))
    pipeline = Pipeline(url, ["id", *names], executor="threads", workers=2)
    pipeline = pipeline.shuffle(20, seed=3) if shuffled else pipeline
    packed = pipeline.pack("x", names, dtype, keep=True).batch(batch)
    after = pipeline.transform(lambda rows: rows, batched=True).pack("x", names, dtype, keep=True).batch(batch)
    assert packed.element.outputs[-1].shape == wanted.shape[1:]
    assert packed.element.outputs[-1].dtype == wanted.dtype
    batches = list(packed)
    for each in batches:
        assert np.array_equal(each["x"], wanted[each["id"]])
        assert each["x"].dtype == wanted.dtype
    assert_same(list(after), batches)


def test_stored_columns_are_packed_without_columns_of_their_own(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    single = BlockParts.column
    monkeypatch.setattr(BlockParts, "column", lambda self, number: made.append(number) or single(self, number))
    pipeline = Pipeline(url, ["c_int8", "pair", "text"], executor="threads").pack("x", ["pair", "c_int8"])
    assert_same(np.concatenate([each["x"] for each in pipeline.batch(9)]), beside(["pair", "c_int8"], np.int16))
    assert set(made) == {2}  # the text


def test_the_fields_go_unless_they_are_kept(url: Path) -> None:
    pipeline = Pipeline(url, ["id", "c_int8", "pair"])
    assert [output.name for output in pipeline.pack("x", ["pair", "c_int8"]).element.outputs] == ["id", "x"]
    kept = pipeline.pack("x", ["pair", "c_int8"], keep=True)
    assert [output.name for output in kept.element.outputs] == ["id", "c_int8", "pair", "x"]
    assert pipeline.pack("pair", ["pair", "id"]).element.outputs[-1].shape == (3,)


def test_names_keep_the_order_of_the_call_and_regexes_that_of_the_schema(url: Path) -> None:
    first = next(iter(Pipeline(url).pack("x", ["vector", "c_.*", "c_int8"], "float64").batch(ROWS)))
    wanted = beside(["vector", *(f"c_{dtype}" for dtype in DTYPES)], "float64")
    assert np.array_equal(first["x"], wanted)


def test_integers_that_do_not_fit_are_named_and_only_where_they_are_asked_for(url: Path) -> None:
    packed = Pipeline(url, ["id", "wide"], executor="threads").pack("x", ["id", "wide"], "int32")
    assert np.concatenate([each["x"] for each in packed.take(33).batch(4)]).max() == 32
    with pytest.raises(DecodeError, match=r"field 'wide', .*row group 5, row 3: .* int32 can hold, got 1099511627776"):
        list(packed.batch(4))
    floats = next(iter(Pipeline(url, ["wide"]).pack("x", "wide", "float64").batch(ROWS)))
    assert floats["x"].max() == 1 << 40


def test_nulls_are_an_error_or_have_a_policy(url: Path) -> None:
    base = Pipeline(url, ["id", "maybe"], executor="threads")
    assert len(list(base.pack("x", ["id", "maybe"]).take(20))) == 20
    with pytest.raises(
        NullValueError, match=r"pack 'x', field 'maybe', .*row group 3, row 2: expected a value, found null"
    ):
        list(base.pack("x", ["id", "maybe"]).batch(7))
    filled = next(iter(base.nulls("fill", "maybe", value=-1).pack("x", ["id", "maybe"]).batch(ROWS)))
    assert filled["x"][20].tolist() == [20, -1]
    dropped = next(iter(base.nulls("drop", "maybe").pack("x", ["id", "maybe"]).batch(ROWS)))
    assert dropped["x"].shape == (ROWS - 1, 2)
    masked = next(iter(base.nulls("mask", "maybe").pack("x", ["maybe", "maybe__valid"]).batch(ROWS)))
    assert masked["x"][19:22].tolist() == [[19, 1], [0, 0], [21, 1]]


def test_fields_with_other_steps_of_a_window_and_flags_of_its_edges_are_packed_as_they_are(url: Path) -> None:
    windows = Pipeline(url, ["id", "c_int64"]).ngram(offsets={"id": [1, 0], "c_int64": [0, 1]}, edges="clamp")
    batch = next(iter(windows.pack("x", ["id", "c_int64", "id__is_pad"]).batch(ROWS)))
    number, numbers = np.arange(ROWS), VALUES["c_int64"]
    later = np.minimum(number + 1, ROWS - 1)
    first = np.stack([later, numbers, number == ROWS - 1], axis=1)
    second = np.stack([number, numbers[later], np.zeros(ROWS)], axis=1)
    assert_same(batch["x"], np.stack([first, second], axis=1).astype(np.int64))


def test_windows_are_packed_at_every_step(url: Path) -> None:
    base = Pipeline(url, ["id", "pair"])
    wanted = beside(["pair", "id"], np.int64)
    stacked = base.ngram(length=3)
    for pipeline in (stacked.pack("x", ["pair", "id"]), base.pack("x", ["pair", "id"]).ngram(length=3)):
        found = np.concatenate([each["x"] for each in pipeline.batch(7)])
        assert_same(found, np.stack([wanted[first : first + 3] for first in range(ROWS - 2)]))
    offsets = base.ngram({0: ["id", "pair"], 1: ["id", "pair"]}).pack("x", ["pair", "id"])
    for number, window in enumerate(offsets):
        assert window[0]["x"].tolist() == wanted[number].tolist()
        assert window[1]["x"].tolist() == wanted[number + 1].tolist()


def test_it_works_with_filters_shards_caches_and_mixes(url: Path, tmp_path: Path) -> None:
    wanted = beside(["c_int8", "vector"], np.float32)
    base = Pipeline(url, ["id", "c_int8", "vector"])
    for pipeline in (
        base.where([("id", ">", 9)]).pack("x", ["c_int8", "vector"]),
        base.pack("x", ["c_int8", "vector"]).where([("id", ">", 9)]).shuffle(10, seed=1).shard(2, 1),
        base.cache(tmp_path / "cache").pack("x", ["c_int8", "vector"]),
        mix([base, base], seed=1).pack("x", ["c_int8", "vector"]),
        mix([base.pack("x", ["c_int8", "vector"])] * 2, seed=1),
        base.pack("x", ["c_int8", "vector"]).with_options(executor="sidecar", workers=1),
    ):
        for batch in pipeline.batch(6):
            assert np.array_equal(batch["x"], wanted[batch["id"]])


def test_plain_files_of_others_are_packed(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1, 2, 3], pa.int32()),
            "b": [0.5, 1.5, 2.5],
            "c": pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
        }
    )
    pq.write_table(table, tmp_path / "plain.parquet")
    batch = next(iter(Pipeline(tmp_path / "plain.parquet").pack("x", "[ab]").batch(3)))
    assert batch["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]


def test_it_resumes_at_every_step(url: Path) -> None:
    pipeline = Pipeline(url, ["pair", "c_int8"]).shuffle(9, seed=1).pack("x", ["pair", "c_int8"]).batch(8)
    assert_resumable(lambda: iter(pipeline))
    assert Pipeline.from_json(pipeline.to_json()) == pipeline
    assert "decode: x: 2 fields side by side (pair, c_int8)" in pipeline.explain()
    assert "x: int16 (3,)" in pipeline.explain()


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda p: p.pack("x", "text"), "expected numbers or vectors of fixed length, got field 'text'"),
        (lambda p: p.pack("x", "ragged"), "got field 'ragged'"),
        (lambda p: p.pack("x", "matrix"), "got field 'matrix'"),
        (lambda p: p.pack("id", "pair"), "pack 'id': expected no field 'id', which it adds itself"),
        (lambda p: p.pack("", "pair"), "expected a name for the new field"),
        (lambda p: p.pack("x", []), "expected a field name or regex"),
        (lambda p: p.pack("x", "pair", "text"), "expected a numeric dtype"),
        (lambda p: p.pack("x", "pair", "U3"), "expected a numeric dtype"),
        (lambda p: p.pack("x", "pair", {"pair": "int8"}), "expected a numeric dtype"),
        (lambda p: p.pack("x", "c_float32", "int32"), "can hold field 'c_float32', float32, got int32"),
        (lambda p: p.pack("x", "c_int8", "bool"), "can hold field 'c_int8', int8, got bool"),
        (lambda p: p.pack("x", ["unsigned", "id"]), "which only floats can hold, and not exactly"),
    ],
)
def test_invalid_input_is_refused_before_anything_is_read(url: Path, verb: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        verb(Pipeline(url)).element  # noqa: B018


def test_a_name_that_matches_nothing_is_refused(url: Path) -> None:
    with pytest.raises(FieldNotFoundError, match="nothing"):
        Pipeline(url).pack("x", "nothing").element  # noqa: B018
