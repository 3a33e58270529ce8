"""Arguments from numpy, pandas and pathlib: they become plain Python values in every stage, or an error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import every_case

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, contains, hash_split, write_dataset
from parquetry.common.base.errors import PipelineError, SchemaError
from parquetry.common.schema.field import Unischema
from parquetry.common.schema.plain import conformed, plain
from parquetry.common.stages.base import Stage, kinds

pytestmark = pytest.mark.versions


class Size(IntEnum):
    small = 4


@every_case("number", [np.int8, np.uint64, np.array, Size])
def test_every_form_of_a_number_makes_the_same_pipeline(number: Callable[[int], Any]) -> None:
    def chain(four: Any, directory: Any) -> Pipeline:
        pipeline = Pipeline("x", workers=four, memory_limit=four)
        pipeline = (
            pipeline.where(hash_split("a", [0.5, 0.5], 1, four))
            .ngram(["a"], length=four, stride=four)
            .cache(directory, four)
            .shard(5, four, "none", four)
        )
        pipeline = pipeline.shuffle(four, four).take(four).skip(four).random_crop("a", four, seed=four)
        return (
            pipeline.resize("a", (four, four))
            .batch(four, np.bool_(True))
            .repeat(four)
            .pad("a", shape=[four], value=four)
        )

    made, plain_one = chain(number(4), Path("/c")), chain(4, "/c")
    assert made == plain_one
    assert hash(made) == hash(plain_one)
    assert json.dumps(made.to_json()) == json.dumps(plain_one.to_json())
    assert Pipeline.from_json(json.loads(json.dumps(made.to_json()))) == made
    for stage in made.stages:
        if not hasattr(stage, "predicate"):
            assert _types(dataclasses.astuple(stage)) <= {int, str, bool, float, type(None)}  # type: ignore[call-overload]  # stages are dataclasses


def _types(value: Any) -> set[type]:
    return {kind for item in value for kind in _types(item)} if type(value) is tuple else {type(value)}


@every_case("wrong", [True, np.bool_(True), 3.0, np.float32(3), "3", [3], np.ones(1, int), 1 << 63, np.uint64(1 << 63)], ids=repr)  # fmt: skip
@every_case(
    "verb",
    [
        lambda p, n: p.batch(n),
        lambda p, n: p.take(n),
        lambda p, n: p.skip(n),
        lambda p, n: p.repeat(n),
        lambda p, n: p.shuffle(n, 1),
        lambda p, n: p.shard(n, 0),
        lambda p, n: p.shard(2, 0, canonical_shards=n),
        lambda p, n: p.ngram(length=n),
        lambda p, n: p.ngram(length=2, stride=n),
        lambda p, n: p.ngram({n if np.ndim(n) == 0 else (): ["a"]}),
        lambda p, n: p.cache("c", n),
        lambda p, n: p.resize("a", n),
        lambda p, n: p.center_crop("a", (n, 2)),
        lambda p, n: p.pad("a", shape=(n,)),
        lambda p, n: p.with_options(workers=n),
        lambda p, n: p.with_options(memory_limit=n),
    ],
)
def test_a_count_that_is_not_an_integer_of_64_bits_is_refused(verb: Callable[[Pipeline, Any], Any], wrong: Any) -> None:
    if isinstance(wrong, list | np.ndarray) and verb.__code__.co_names[0] == "resize":
        wrong = [1.5, 2]  # a list is a size
    with pytest.raises(PipelineError, match=r"expected .* got "):
        verb(Pipeline("x"), wrong)


def test_seeds_have_64_bits_with_or_without_a_sign() -> None:
    for seed in (-(1 << 63), (1 << 64) - 1, np.uint64(1 << 63)):
        assert Pipeline("x").shuffle(2, seed).drawn_seed is None
    with pytest.raises(PipelineError, match=r"shuffle: expected seed to be a 64-bit integer, got 18446744073709551616"):
        Pipeline("x").shuffle(2, 1 << 64)


def test_flags_are_flags() -> None:
    assert Pipeline("x").batch(2, 1).stages[0].drop_remainder is True  # type: ignore[arg-type, attr-defined]  # 1 is one
    with pytest.raises(PipelineError, match=r"batch: expected drop_remainder to be True or False, got 'no'"):
        Pipeline("x").batch(2, "no")  # type: ignore[arg-type]  # what is tested


def test_no_stage_goes_round_the_gate() -> None:
    assert len(kinds()) > 15
    assert [kind for kind in kinds().values() if "__post_init__" in vars(kind)] == []
    assert all(kind.__post_init__ is Stage.__post_init__ for kind in kinds().values())


def test_fields_and_codecs_hold_plain_numbers() -> None:
    field = UnischemaField("a", np.uint8, np.array([3, 4]), CompressedImageCodec("png", np.int64(7)))  # type: ignore[arg-type]  # what is tested
    assert field.shape == (3, 4)
    assert json.dumps(field.to_json())
    with pytest.raises(SchemaError, match=r"shape of field 'a': expected axes >= 0 or None, got \(2.5,\)"):
        UnischemaField("a", np.uint8, (2.5,))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(SchemaError, match=r"expected quality to be a 64-bit integer, got True"):
        CompressedImageCodec("png", True)


def test_a_writer_takes_numbers_of_numpy(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("id", np.int64)])
    rows = [{"id": number} for number in range(300)]
    write_dataset(str(tmp_path / "d"), schema, rows, row_group_rows=np.uint8(100), files=np.int8(3))  # type: ignore[arg-type]  # what is tested
    assert len(list((tmp_path / "d").glob("*.parquet"))) == 3
    with pytest.raises(PipelineError, match="row_group_rows: expected an integer >= 1 or None, got True"):
        write_dataset(str(tmp_path / "e"), schema, rows, row_group_rows=True)


def test_predicates_hold_plain_values() -> None:
    assert contains("a", np.int64(3), np.str_("x")) == contains("a", 3, "x")
    assert hash_split("a", np.array([0.25, 0.75]), np.int8(1), np.int8(100)) == hash_split("a", [0.25, 0.75], 1, 100)  # type: ignore[arg-type]  # what is tested


def test_values_that_are_not_plain_are_left_as_they_are() -> None:
    stamp = np.datetime64("2020-01-01")
    assert plain(stamp) is stamp
    assert plain([np.float32(0.5), [np.str_("a")], None]) == (0.5, ("a",), None)
    assert conformed(3, float | None) == 3.0
    with pytest.raises(TypeError, match="a sequence of 2"):
        conformed((1,), tuple[int, int])
