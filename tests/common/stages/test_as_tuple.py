"""``as_tuple``: rows and batches as tuples, the fields read for them, and the stages that may follow."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from drive_rows import drive_once

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import FieldNotFoundError, PipelineError
from parquetry.common.schema.element import Element
from parquetry.common.transport.served.wire import element_from_json, element_to_json

drive = drive_once()


def read(pipeline: Pipeline) -> list[str]:
    return [field.name for field in pipeline.plan().parts[0].program.fields]


def test_batches_are_tuples_in_the_order_given_whatever_the_schema_s_order(drive: Pipeline) -> None:
    batches = list(drive.as_tuple("image", "id").batch(16))
    assert all(type(batch) is tuple for batch in batches)
    assert [(image.shape, ids.tolist()) for image, ids in batches][2] == ((8, 4, 5, 3), list(range(32, 40)))


def test_parts_nest_to_any_depth_and_a_name_may_come_twice(drive: Pipeline) -> None:
    (row,) = drive.as_tuple({"a": "id", "b": ("drive", ["id", {"c": "id"}])}, "id").take(1)
    assert row == ({"a": 0, "b": ("d0", (0, {"c": 0}))}, 0)
    assert next(iter(drive.as_tuple("id"))) == (0,)


@pytest.mark.parametrize("early", [False, True])
def test_fields_that_are_not_named_are_not_read(drive: Pipeline, early: bool) -> None:
    base = drive if early else drive.nulls("error", "name").cast("float32", "id")
    assert read(base.as_tuple("image", "id")) == ["id", "image"] if early else ["id", "name", "image"]
    packed = drive.nulls("mask", "speed").pack("x", ["speed", "id"], "float32").as_tuple("x", "speed__valid")
    assert read(packed) == ["id", "speed"]
    x, valid = next(iter(packed.batch(3)))
    assert (x.tolist(), valid.tolist()) == ([[0, 0], [0.5, 1], [1, 2]], [False, True, True])
    padded = drive.pad("points", shape=(3, 3)).cast("int16", "points").as_tuple("points__length")
    assert [int(length) for (length,) in padded.take(5)] == [0, 1, 2, 3, 0]


def test_later_verbs_work_on_the_fields_of_the_tuple(drive: Pipeline) -> None:
    pairs = drive.as_tuple("image", "id").permute("image", dims=("C", "H", "W")).cast("float32", "id")
    pairs = pairs.where(pc.field("speed") > 15).shuffle(10, seed=1).repeat(2).skip(1).batch(4)
    image, ids = next(iter(pairs))
    assert (image.shape, ids.dtype) == ((4, 3, 4, 5), np.dtype("float32"))
    assert len(list(pairs)) == len(pairs)


def test_several_windows_are_labeled_by_their_offsets(drive: Pipeline) -> None:
    (stacked,) = drive.ngram(length=3).as_tuple("id").take(1)
    assert stacked[0].tolist() == [0, 1, 2]
    windows = drive.ngram({0: ["id"], 1: ["id", "speed"]})
    assert next(iter(windows.as_tuple("id", "speed", "1.id"))) == ({0: 0, 1: 1}, 0.5, 1)
    assert next(iter(drive.as_tuple("id").ngram(length=2)))[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("verb", "wanted"),
    [
        (lambda p: p.select("id"), "select"),
        (lambda p: p.rename({"id": "key"}), "rename"),
        (lambda p: p.transform(dict), "transform"),
        (lambda p: p.pack("x", ["id"]), "pack"),
        (lambda p: p.nulls("mask", "speed"), "nulls"),
        (lambda p: p.pad("points", shape=(3, 3)), "pad"),
        (lambda p: p.as_tuple("id"), "as_tuple"),
        (lambda p: p.ngram({0: ["id"]}), "ngram"),
    ],
)
def test_verbs_that_add_remove_or_rename_fields_are_refused_after_it(drive: Pipeline, verb: Any, wanted: str) -> None:
    with pytest.raises(PipelineError, match=rf"{wanted}\(\) must come before as_tuple\(\)"):
        verb(drive.as_tuple("id", "speed", "points"))


@pytest.mark.parametrize("parts", [(), ("",), (("id", ()),), ({},), ({1: "id"},), (3,), (None,)])
def test_parts_that_name_no_field_are_refused(drive: Pipeline, parts: tuple[Any, ...]) -> None:
    with pytest.raises(PipelineError, match="as_tuple: expected"):
        drive.as_tuple(*parts)


@pytest.mark.parametrize("early", [False, True])
def test_a_name_that_no_field_has_is_an_error(drive: Pipeline, early: bool) -> None:
    base = drive if early else drive.cast("float32", "id")
    with pytest.raises(FieldNotFoundError, match=r"field 'speeds': expected the name of a field"):
        _ = base.as_tuple("id", "speeds").element
    with pytest.raises(FieldNotFoundError, match=r"as_tuple: field 'spee\.': expected"):
        _ = base.as_tuple("id", "spee.").element


def test_the_stage_and_the_element_go_to_json_and_back(drive: Pipeline) -> None:
    pipeline = drive.as_tuple({"a": UnischemaField("id", np.int64), "b": "name"}, "id").batch(2)
    again = Pipeline.from_json(json.loads(json.dumps(pipeline.to_json())))
    assert again.stages == pipeline.stages
    assert hash(again) == hash(pipeline)
    assert "as_tuple({'a': 'id', 'b': 'name'}, 'id')" in str(again)
    sent: Element = element_from_json(json.loads(json.dumps(element_to_json(again.element))))
    assert sent == pipeline.element


def test_a_mix_takes_rows_by_name_and_makes_tuples_of_its_own(drive: Pipeline) -> None:
    with pytest.raises(PipelineError, match=r"expected rows by name, got as_tuple\(\). Call as_tuple\(\) on the mix"):
        mix([drive.as_tuple("id"), drive.as_tuple("id")])
    (row,) = mix([drive.select("id"), drive.select("id")], seed=1).as_tuple("id", "id").take(1)
    assert row == (0, 0)


def test_an_arrow_function_of_batches_comes_before_it(drive: Pipeline) -> None:
    rows = drive.select("id").transform(lambda batch: batch, batched="arrow").as_tuple("id")
    assert [n for (n,) in rows.take(2)] == [0, 1]
