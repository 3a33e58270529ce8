"""Chains as text: valid ones make the same pipeline as Python, and others are refused with a clear message."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow.compute as pc
import pytest

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, contains, hash_split
from parquetry.common.apps.reports import apply_chain
from parquetry.common.apps.reports.chain import VERBS
from parquetry.common.base.errors import PipelineError

BASE = Pipeline("somewhere")
SPEED = pc.field("speed")


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("", BASE),
        (" . ", BASE),
        ('where(field("speed") > 3).shuffle(1_000, seed=7).batch(64)', BASE.where(SPEED > 3).shuffle(1000, 7).batch(64)),
        ('.where(~((pc.field("speed") * 2 >= -1.5) | field("speed").is_null()))', BASE.where(~((SPEED * 2 >= -1.5) | SPEED.is_null()))),
        ('filter(field("speed").isin([1, 2]) & pc.starts_with(field("name"), "n"))', BASE.where(SPEED.isin([1, 2]) & pc.starts_with(pc.field("name"), "n"))),
        ('where([("speed", ">", 3)])', BASE.where([("speed", ">", 3)])),
        ('where(contains("tags", "a"))', BASE.where(contains("tags", "a"))),
        ('where(~contains("tags", "a"))', BASE.where(~contains("tags", "a"))),
        ('where(~hash_split("id", [0.5, 0.5], 0))', BASE.where(~hash_split("id", [0.5, 0.5], 0))),
        ('ngram({0: ["id"], 1: ["id"]}, timestamp="ts", max_gap=timedelta(seconds=2))', BASE.ngram({0: ["id"], 1: ["id"]}, timestamp="ts", max_gap=datetime.timedelta(seconds=2))),
        ('select(UnischemaField("image", "uint8", (None, None, 3), CompressedImageCodec("jpeg")))', BASE.select(UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg")))),
        ('cast(np.float16, "speed").repeat(None)', BASE.cast(np.float16, "speed").repeat()),
        ("select('a')\n  .take(3)", BASE.select("a").take(3)),
    ],
)  # fmt: skip
def test_a_chain_makes_what_python_makes(text: str, made: Pipeline) -> None:
    assert apply_chain(BASE, text) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shufle(3)", "Did you mean 'shuffle'"),
        ("batch(4", "('(' was never closed at column 6)"),
        ("shuffle(5).batch((4)", "('(' was never closed at column 17)"),
        ("batch(4))", "(unmatched ')' at column 9)"),
        ("shuffle(bufer_size=3)", "no argument 'bufer_size'. Did you mean 'buffer_size'"),
        ("batch()", "missing a required argument: 'batch_size'"),
        ("batch(0)", "batch"),
        ("batch(true)", "Did you mean 'True'"),
        ('where(field("a") > 3 and field("b") > 3)', "expected '&' with parentheses around both sides"),
        ('where(not field("a"))', "expected '~'"),
        ('where(1 < field("a") < 3)', "one comparison"),
        ('where(field("a") in [1])', "isin"),
        ('where(field("a").is_nul())', "Did you mean 'is_null'"),
        ('where(feld("a"))', "Did you mean 'field'"),
        ('where(pc.start_with(field("a"), "b"))', "Did you mean 'starts_with'"),
        ('where(pc.binary_repeat("a", 3))', "a function of a field"),
        ('where(lambda row: True, fields=["a"])', "Python function"),
        ("transform(print)", "needs a Python function"),
        ("select(a)", 'Write "a" for a string'),
        ('take("a" * 3)', "expected numbers"),
        ("take(__import__('os').getpid())", "no function '__import__'"),
        ("take(*[3])", "expected a number"),
        ("take(**{'rows': 3})", "arguments by name"),
        ("take(2 ** 3)", "one of"),
        ("take(3", "column"),
        ("take", "a verb with its arguments"),
        ("take(3).dataset", "a verb with its arguments"),
        ("select().stages", "a verb with its arguments"),
        ("_replace(urls=())", "there is no verb '_replace'"),
        ("to_json()", "there is no verb"),
        ("data/part-1.parquet", "Put a pattern in quotes"),
        ("(" * 5000, "chain"),
        ("take(-" + "-" * 5000 + "3)", "chain"),
    ],
)  # fmt: skip
def test_a_bad_chain_gets_an_error_that_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=r"chain|batch") as raised:
        apply_chain(BASE, text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_verb_can_be_called() -> None:
    assert {"where", "ngram", "shuffle", "resize", "encode", "bucket"} <= set(VERBS)
    assert all(callable(getattr(Pipeline, verb)) for verb in VERBS)
