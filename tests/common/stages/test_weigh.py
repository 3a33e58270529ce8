"""``weigh`` and ``balance``: how often rows come, and which ones in every epoch, on any ranks, after a restart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import Built, built_once
from drive_rows import drive_once
from ids import ids

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import (
    DatasetError,
    EmptySelectionError,
    FieldNotFoundError,
    PipelineError,
    StateError,
)
from parquetry.common.plan.plan import Plan

drive = drive_once(executor="threads", workers=1)
built = built_once([[3, 1, 4], [2], [0], [5, 2]])


def test_rows_come_in_storage_order_without_a_shuffle_and_again_in_each_epoch(drive: Pipeline) -> None:
    weighted = drive.weigh("price", seed=1)
    epochs = [ids(weighted) for _ in range(3)]
    assert all(found == sorted(found) for found in epochs)
    assert len({tuple(found) for found in epochs}) == 3
    assert ids(drive.weigh("price", seed=1).repeat(3)) == [number for found in epochs for number in found]


def test_a_shuffle_that_stays_the_same_keeps_the_draws(drive: Pipeline) -> None:
    same = drive.weigh("price", seed=1).shuffle(8, seed=2, reshuffle_each_iteration=False)
    assert ids(same) == ids(same)
    anew = drive.weigh("price", seed=1).shuffle(8, seed=2)
    assert Counter(ids(anew)) != Counter(ids(anew))


def test_it_works_before_or_after_shuffle_shard_and_repeat(drive: Pipeline) -> None:
    one = drive.weigh("price", 30, seed=1).shuffle(8, seed=2).shard(3, 1).repeat(2)
    other = drive.shuffle(8, seed=2).shard(3, 1).repeat(2).weigh("price", 30, seed=1)
    assert ids(one) == ids(other)


@pytest.mark.parametrize(
    "weights",
    [
        "price",
        UnischemaField("price", np.float64),
        pc.multiply(pc.field("id"), 0.25),
        np.arange(40) / 2,
        np.arange(40, dtype=np.int8),
        list(range(40)),
    ],
    ids=["field", "schema field", "expression", "array", "integers", "list"],
)
def test_weights_come_in_every_form(drive: Pipeline, weights: Any) -> None:
    assert ids(drive.weigh(weights, 60, seed=1)) == ids(drive.weigh(np.arange(40.0), 60, seed=1))


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
def test_every_form_goes_to_another_process_and_back(drive: Pipeline, executor: str) -> None:
    forms: list[Any] = ["price", pc.field("id") + 1, {"drive": {"d0": 1, "d1": 3}}, np.arange(40)]
    for weights in forms[:4] if executor == "threads" else forms[3:]:
        pipeline = drive.with_options(executor=executor).weigh(weights, 50, seed=np.int64(1)).batch(7)
        again = Pipeline.from_json(json.loads(json.dumps(pipeline.to_json())))
        assert again == pipeline
        assert hash(again) == hash(pipeline)
        assert ids(again) == ids(drive.weigh(weights, 50, seed=1))


def test_weights_of_an_array_count_rows_before_a_filter(drive: Pipeline) -> None:
    weights = np.zeros(40)
    weights[[3, 30, 35]] = [100, 1, 3]
    assert Counter(ids(drive.where(pc.field("id") >= 20).weigh(weights, 4, seed=1))) == {30: 1, 35: 3}
    assert Counter(ids(drive.skip(20).weigh(weights, 4, seed=1))) == {30: 1, 35: 3}


def test_values_may_be_null_or_have_no_weight(drive: Pipeline) -> None:
    names = {row["name"] for row in drive}
    assert None in names
    found = [row["name"] for row in drive.weigh({"name": {name: name is None for name in names}}, seed=1)]
    assert set(found) == {None}
    with pytest.raises(
        DatasetError, match=r"weigh: field 'name', file .*, row group 0, row 0: expected one of the val"
    ):
        ids(drive.weigh({"name": {"n1": 1}}))


def test_balance_of_classes_of_equal_size_gives_each_row_once(drive: Pipeline) -> None:
    assert ids(drive.balance("drive")) == list(range(40))


# --- states, ranks, seeds ---


def test_a_drawn_seed_is_kept_follows_the_shuffle_and_comes_back_with_a_state(drive: Pipeline) -> None:
    alone, other = drive.weigh("price", 9), drive.weigh("price", 9)
    assert alone.drawn_seed is not None
    iterator = iter(alone)
    taken = [int(next(iterator)["id"]) for _ in range(4)]
    state = iterator.state_dict()
    assert taken + ids(iter(other).load_state_dict(state)) == ids(Pipeline.from_json(alone.to_json()))
    with_shuffle = drive.weigh("price").shuffle(10, seed=5)
    assert with_shuffle.drawn_seed is None
    assert ids(with_shuffle) == ids(drive.weigh("price").shuffle(10, seed=5))
    with pytest.raises(StateError, match="saved for a different shuffle seed"):
        iter(drive.weigh("price", 9, seed=1)).load_state_dict(state)


def test_a_drawn_seed_on_several_ranks_warns(drive: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    drive.weigh("price").shard(2, 0)
    assert "weigh(seed=None) picked the random seed" in caplog.text


def test_rows_of_a_mix_may_be_weighed(drive: Pipeline) -> None:
    light, heavy = np.zeros(40), np.zeros(40)
    light[:10], heavy[30:] = 1, 1
    mixed = mix([drive.weigh(light, 20, seed=1), drive.weigh(heavy, 20, seed=1)], seed=1, stop="all")
    assert Counter(Counter(ids(mixed)).values()) == {2: 20}
    with pytest.raises(PipelineError, match=r"weigh\(\) must come before mix"):
        mixed.weigh("price")


def test_random_stages_draw_again_for_a_row_that_comes_again(drive: Pipeline) -> None:
    alone = np.zeros(40)
    alone[7] = 1
    pipeline = drive.weigh(alone, 64, seed=1).random_flip("image", seed=1)
    flips = {image.tobytes() for image in (row["image"] for row in pipeline)}
    assert len(flips) == 2
    batched = [batch["image"] for batch in pipeline.with_options(executor="sidecar").batch(64)]
    again = next(iter(drive.weigh(alone, 64, seed=1).random_flip("image", seed=1).batch(64)))["image"]
    assert np.array_equal(batched[0], again)
    assert np.array_equal(pipeline[5]["image"], again[5])


def test_weights_are_kept_with_the_selection(drive: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ids(drive.weigh("price", seed=1))
    monkeypatch.setattr("parquetry.common.engine.run.selecting.evaluate", None)
    assert ids(Pipeline(drive.urls[0]).weigh("price", seed=1)) == first


def test_blocks_hold_each_row_once_and_row_groups_come_in_order(built: Built) -> None:
    plan = built.pipeline("id").weigh(pc.field("id"), 60, seed=1).plan()
    assert isinstance(plan, Plan)
    reads = plan.reads(0, np.zeros(60, np.int64), np.arange(60))
    for read in reads:
        rows = plan.block_rows(read.key)
        assert all((np.diff(part) > 0).all() for part in rows.rows)
        assert plan.block_size(read.key).num_bytes > 0
    touched = [plan.block_rows(read.key).row_groups for read in reads]
    assert touched == sorted(touched)


def test_explain_says_what_is_drawn(drive: Pipeline) -> None:
    text = drive.weigh("price", 80, seed=9).shuffle(10, seed=1).explain()
    assert "order: 80 items drawn by weight from 39 rows in each epoch, seed 9; a row comes at most 4 times" in text
    assert ".weigh('price', num_items=80, seed=9)" in text
    assert "gives: 80 rows" in text


# --- refused calls ---


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"drive": 3}, r"weigh: expected the weights of one field's values, such as"),
        ({"drive": {"d0": 1}, "name": {}}, r"weigh: expected the weights of one field's values"),
        ({"drive": {"d0": -1}}, r"weigh: expected a weight >= 0 for drive='d0', got -1"),
        ({"drive": {("a",): 1}}, r"weigh: expected the values of 'drive' as numbers, strings or None"),
        (object(), r"weigh: expected a field's name, an expression, .* got object"),
        (np.ones((2, 2)), r"one weight for each row, got shape \(2, 2\)"),
        ([1, float("nan")], r"expected finite weights >= 0, got nan for row 1 of the array"),
        ([1, -2], r"expected finite weights >= 0, got -2.0 for row 1"),
        (pc.scalar(1), r"expected an expression over fields"),
    ],
)
def test_weights_that_are_none_are_refused_at_once(drive: Pipeline, weights: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        drive.weigh(weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("drive", r"weigh: expected numbers in field 'drive', got"),
        ("tags", r"weigh: expected numbers in field 'tags', got"),
        ("image", r"weigh: field 'image' is stored encoded"),
        (pc.field("drive"), r"weigh: expected numbers in .*drive, got"),
        (pc.subtract(pc.field("id"), 1), r"row group 0, row 0: expected a finite weight >= 0 in .*, got -1.0"),
        ({"tags": {1: 1}}, r"plain values that can be compared"),
        (np.ones(39), r"expected one weight for each of the dataset's 40 rows, before any filter, got 39"),
        (np.zeros(40), r"weigh\(<40 numbers>\): expected a weight above 0 for at least one row, got 0 for all 40"),
        (pc.multiply(pc.field("id"), 0), r"expected a weight above 0 for at least one row"),
    ],
)
def test_weights_that_do_not_fit_the_data_are_errors(drive: Pipeline, weights: Any, message: str) -> None:
    with pytest.raises((PipelineError, DatasetError), match=message):
        next(iter(drive.weigh(weights)))


def test_stored_weights_that_are_null_or_not_finite_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"w": pa.array([1.0, None, 2.0]), "v": [1.0, 2.0, float("inf")]}), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"a.parquet, row group 0, row 1: .* in field 'w', got null"):
        next(iter(Pipeline(tmp_path).weigh("w")))
    with pytest.raises(DatasetError, match=r"a.parquet, row group 0, row 2: .* in field 'v', got inf"):
        next(iter(Pipeline(tmp_path).weigh("v")))
    with pytest.raises(DatasetError, match=r"balance: field 'w', .*row 1: expected a value, got null"):
        next(iter(Pipeline(tmp_path).balance("w")))
    assert len(list(Pipeline(tmp_path).nulls("drop", "w").weigh("w", 7))) == 7


@pytest.mark.parametrize(
    "kind",
    [pa.float16(), pa.int8(), pa.uint64(), pa.bool_(), pa.decimal128(15, 2), pa.dictionary(pa.int8(), pa.int32())],
)
def test_numbers_of_every_type_are_weights(tmp_path: Path, kind: pa.DataType) -> None:
    weights = pa.array([0, 1, 1], pa.int32()).cast(
        pa.float32() if kind == pa.float16() else kind.value_type if pa.types.is_dictionary(kind) else kind
    )
    column = (
        pa.array(np.array([0, 1, 1], np.float16))
        if kind == pa.float16()
        else weights.dictionary_encode()
        if pa.types.is_dictionary(kind)
        else weights
    )
    pq.write_table(pa.table({"id": [0, 1, 2], "w": column}), tmp_path / "a.parquet")
    assert ids(Pipeline(tmp_path).weigh("w", 4)) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("verbs", "message"),
    [
        (lambda p: p.weigh("price", 0), "weigh: expected num_items to be an integer >= 1, got 0"),
        (lambda p: p.weigh("price", 1 << 31), "weigh: expected num_items to be at most"),
        (lambda p: p.weigh("price", 2.5), "weigh: expected num_items to be an integer"),
        (lambda p: p.weigh("price", seed="x"), "weigh: expected seed to be a 64-bit integer"),
        (lambda p: p.weigh("price").weigh("price"), r"weigh\(\) cannot be combined with weigh\(\)"),
        (lambda p: p.weigh("price").where(pc.field("id") > 3), r"where\(\) must come before weigh\(\)"),
        (lambda p: p.weigh("price").ngram(length=2), r"ngram\(\) cannot be combined with weigh\(\)"),
        (lambda p: p.ngram(length=2).weigh("price"), r"weigh\(\) cannot be combined with ngram\(\)"),
        (lambda p: p.batch(2).weigh("price"), r"weigh\(\) must come before batch\(\)"),
        (lambda p: p.shuffle(3).take(2).weigh("price"), r"weigh\(\) must come before take\(\)"),
        (lambda p: p.weigh("price").take(9).shuffle(3), r"shuffle\(\) must come before weigh\(\)"),
        (lambda p: p.cast("int32", "id").weigh("id"), r"weigh\(\) must come before cast"),
        (lambda p: p.balance(3), "weigh: expected field to be a str"),
    ],
)
def test_invalid_input_is_refused(drive: Pipeline, verbs: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        verbs(drive)


def test_a_field_that_is_not_there_and_no_rows_are_the_usual_errors(drive: Pipeline) -> None:
    with pytest.raises(FieldNotFoundError, match="wait"):
        next(iter(drive.weigh("wait")))
    with pytest.raises(EmptySelectionError):
        next(iter(drive.where(pc.field("id") > 100).weigh("price", 5)))
    assert list(drive.take(0).weigh("price", 5)) == []
    with pytest.raises(EmptySelectionError, match="3 items are fewer than 4 shards"):
        next(iter(drive.weigh("price", 3, seed=1).shard(4, 0, even="drop")))


_NOT_UTF8 = pa.array([b"\xff", b"ok", b"\xff"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**61, 0, 2**61]).cast(pa.timestamp("us")),
        pa.array([1000, 1001, 1000]).cast(pa.timestamp("ns")),
        pa.array([2**30, 0, 2**30], pa.date32()),
        pa.Array.from_buffers(pa.string(), 3, _NOT_UTF8.buffers()),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, b"b" * 16, b"a" * 16], pa.binary(16))),
    ],
    ids=["far timestamps", "nanoseconds", "far dates", "not UTF-8", "uuid"],
)
def test_values_without_a_class_in_python_are_balanced(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"id": range(3), "c": column}), tmp_path / "a.parquet")
    found = Counter(ids(Pipeline(tmp_path).balance("c", 4).select("id")))
    assert found == {0: 1, 1: 2, 2: 1}
