"""Verbs of `Pipeline` that take another form in other classes."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from builders import build
from drive_rows import write_drive

from parquetry.common import Pipeline, UnischemaField, mix


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": row["id"] * 2}


def test_map_and_filter_are_transform_and_where(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path), ["id", "speed"])
    output = [UnischemaField("double", np.int64)]
    assert drive.map(double, output).stages == drive.transform(double, output).stages
    assert drive.filter(pc.field("id") > 3).stages == drive.where(pc.field("id") > 3).stages
    assert drive.filter(bool, ["id"], batched=True).stages == drive.where(bool, ["id"], batched=True).stages
    assert [int(row["double"]) for row in drive.filter([("id", ">", 37)]).map(double, output)] == [76, 78]
    for name, verb in (("map", "transform"), ("filter", "where")):
        assert signature(getattr(Pipeline, name)).parameters == signature(getattr(Pipeline, verb)).parameters


def test_each_name_of_a_verb_says_whether_it_may_follow(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path))
    for verb in ("map", "filter", "hash_split", "fixed", "balance"):
        assert drive.accepts(verb)
    assert not drive.batch(3).accepts("hash_split")
    assert not drive.weigh("id").accepts("balance")


def test_explain_begins_in_plain_words(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path), ["id"])
    assert drive.explain().splitlines()[2] == (
        "An epoch reads all 40 rows of 2 files in the order of the files, and gives 40 rows."
    )
    some = drive.where(pc.field("id") < 10).shuffle(8, seed=3).shard(2, 0).batch(5)
    (said,) = [line for line in some.explain().splitlines() if line.startswith("An epoch")]
    assert (
        said
        == "An epoch reads 10 of 40 rows of 2 files in a new order, of which part 0 of 2 is read, and gives 1 batch of 5 rows."
    )


def test_a_seed_that_was_drawn_is_not_shown_as_one_of_yours(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path), ["id"])
    shuffled = drive.shuffle(8)
    seed = shuffled.drawn_seed
    assert f".shuffle(buffer_size=8)  # no seed (drew {seed})" in repr(shuffled)
    assert f"rows in blocks of at least 8, no seed (drew {seed}), a new order" in shuffled.explain()
    assert ".shuffle(buffer_size=8, seed=7)" in repr(drive.shuffle(8, seed=7))
    mixed = mix([drive, drive])
    assert f"no seed (drew {mixed.drawn_seed})" in mixed.explain()


def test_an_element_prints_as_a_table(tmp_path: Path) -> None:
    drive = Pipeline(write_drive(tmp_path), ["id", "name", "image"]).batch(8)
    assert repr(drive.element).splitlines()[:3] == [
        "a batch of 8 rows, each with",
        "field  dtype  shape      about      may be",
        "id     int64",
    ]
    assert "<td>image</td><td>uint8</td><td>(4, 5, 3)</td>" in drive.element._repr_html_()


@pytest.mark.parametrize(
    ("buffer_size", "memory_limit", "says"),
    [
        (None, 50, "a row group takes about {}, more than memory_limit (50 B), and is read in slices"),
        (5, 50, "a row group takes about {}, more than memory_limit (50 B), and is read in slices"),
        (
            1000,
            400,
            "a block takes about {}, more than memory_limit (400 B), and is read in slices into a temporary file",
        ),
    ],
)
def test_explain_tells_of_blocks_beyond_the_memory_limit(
    tmp_path: Path, buffer_size: int | None, memory_limit: int, says: str
) -> None:
    built = build(tmp_path / "data", [[20, 13], [7, 30]])
    pipeline = built.pipeline("id") if buffer_size is None else built.pipeline("id").shuffle(buffer_size, seed=1)
    assert "memory:" not in pipeline.explain()
    text = pipeline.with_options(memory_limit=memory_limit).explain()
    assert re.search(re.escape(says).replace(r"\{\}", r"[\d.]+ \w+"), text)
    kept = pipeline.cache(str(tmp_path / "cache")).with_options(memory_limit=50).explain()
    assert (
        "and is read into memory, which takes up to three times as much, because cache() keeps whole row groups" in kept
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.shuffle(4, seed=1).take(8), "take() after shuffle() keeps other rows in each epoch"),
        (lambda p: p.shuffle(4, seed=1).shard(2, 0).batch(2).skip(1).take(1), "skip() after shuffle()"),
        (lambda p: p.shuffle(4, reshuffle_each_iteration=False).take(8), "keeps other rows in each run"),
        (lambda p: p.weigh("id").skip(8), "skip() after weigh() keeps other rows in each epoch"),
        (lambda p: mix([p.shuffle(4, seed=1), p], seed=1).take(8), "take() after shuffle()"),
        (lambda p: p.shuffle(4, seed=1, reshuffle_each_iteration=False).take(8), None),
        (lambda p: p.take(8).shuffle(4), None),
        (lambda p: p.shard(2, 0).take(4).shuffle(4, seed=1), None),
        (lambda p: p.shuffle(4).repeat().take(8), None),
        (lambda p: mix([p.shuffle(4, seed=1).repeat(), p.repeat()], seed=1).take(8), None),
        (lambda p: p.batch(2).take(2), None),
        (lambda p: p.shuffle(4, seed=1).batch(2).take(2), None),  # a number of steps
        (lambda p: p.shuffle(4, seed=1).batch(2).skip(2), "skip() after shuffle()"),
        (lambda p: p.shuffle(4, seed=1).take(1), None),  # a look
    ],
)
def test_a_cut_of_an_order_that_changes_warns_that_it_is_no_split(
    make: Any, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = make(Pipeline("/data"))
    assert Pipeline.from_json(made.to_json()).stages == made.stages  # other processes say nothing
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (message is not None)
    assert all(str(message) in each and 'hash_split("id", [0.8, 0.2], 0)' in each for each in messages)
