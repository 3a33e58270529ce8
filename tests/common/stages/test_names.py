"""Every verb after a rename does what it does on fields that were stored under those names."""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from cases import every_case
from faces import plain

from parquetry.common import Pipeline, TensorCodec, Unischema, UnischemaField
from parquetry.common.base.errors import ParquetryError
from parquetry.common.stages.base import Decision, Stage, kinds
from parquetry.common.stages.encode import Encode
from parquetry.common.stages.functions import UserFunction
from parquetry.common.stages.names import NewNames
from parquetry.common.stages.ngram import Ngram
from parquetry.common.stages.nulls import Nulls
from parquetry.common.stages.predicates.expression import expression_to_json
from parquetry.common.stages.weigh import (
    ClassWeights,
    ExpressionWeights,
    FieldWeights,
    RowWeights,
    ValueWeights,
    Weigh,
    Weights,
)
from parquetry.common.stages.where import Where, WhereFunction
from parquetry.common.write.writer import DatasetWriter

ROWS = 6
FIELDS: dict[str, tuple[UnischemaField, Any]] = {
    "number": (UnischemaField("x", np.int64), lambda row: np.int64(row // 2)),
    "list": (UnischemaField("x", np.int32, (None,)), lambda row: np.arange(row % 3, dtype=np.int32)),
    "text": (UnischemaField("x", str), lambda row: "x"),
    "decimal": (UnischemaField("x", decimal.Decimal), decimal.Decimal),
    "image": (UnischemaField("x", np.uint8, (4, 3, 3), TensorCodec()), lambda row: np.full((4, 3, 3), row, np.uint8)),
    "vector": (UnischemaField("x", np.float32, (2,), dims=("x",)), lambda row: np.full(2, row, np.float32)),
}
"""The contents of the only field."""
POSITIVE = pc.field("x") > 0
WEIGHTS: list[Weights] = [
    FieldWeights("x"),
    ExpressionWeights(expression_to_json(pc.field("x") + 1)),
    ValueWeights("x", ((0, 1.0), (1, 2.0), (2, 0.0))),
    ClassWeights("x"),
    RowWeights(np.arange(ROWS, dtype="<f8").tobytes()),
]
MORE: dict[str, list[Stage]] = {
    "where": [Where.of(POSITIVE)],
    "where_function": [WhereFunction(UserFunction(lambda row: row["x"] > 0), ("x",)),
                       WhereFunction(UserFunction(lambda row: row["x"] > 0), ("[^y]",), batched=True)],
    "ngram": [Ngram(length=2, timestamp="x"), Ngram(length=2, group_by=("x",)), Ngram(offsets=((0, ("x",)),))],
    "nulls": [Nulls("drop", ("x",)), Nulls("drop", ("[xy]",)), Nulls("mask", ("x",))],
    "encode": [Encode("x")],
    "weigh": [Weigh(weights) for weights in WEIGHTS],
}  # fmt: skip
"""More uses of a verb than its sample."""
STAGES = [stage for verb, kind in sorted(kinds().items()) for stage in (kind.sample(), *MORE.get(verb, ()))]
READING = {Decision.ITEMS, Decision.WINDOWS, Decision.JOINS, Decision.WEIGHTS}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Returns for each kind of field a dataset that stores it as ``x``, and one that stores it as ``old``."""
    root = tmp_path_factory.mktemp("names")
    return {kind: (_written(root / kind, "x", *made), _written(root / f"{kind}-old", "old", *made))
            for kind, made in FIELDS.items()}  # fmt: skip


def _written(directory: Path, name: str, field: UnischemaField, value: Any) -> str:
    schema = Unischema("Names", [field.replace(name=name)])
    with DatasetWriter(directory, schema) as writer:
        writer.write_rows({name: value(row)} for row in range(ROWS))
    return str(directory)


def _elements(pipeline: Pipeline, stage: Stage) -> tuple[Sequence[str], list[Any]]:
    made = pipeline._with_stage(stage)
    names = [str(output.path) for output in made.element.outputs]
    return names, [plain(element) for element in itertools.islice(made, 20)]


@every_case("stage", STAGES, ids=str)
def test_a_verb_after_a_rename_does_what_it_does_on_stored_names(
    urls: dict[str, Any], stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for cache("x")
    fitting = 0
    for named, old in urls.values():
        try:
            wanted = _elements(Pipeline(named, executor="threads", workers=1), stage)
        except (ParquetryError, AssertionError):
            continue
        fitting += 1
        assert _elements(Pipeline(old, executor="threads", workers=1).rename({"old": "x"}), stage) == wanted
    assert fitting, "expected a kind of field that the verb works on"


@every_case("verb", [verb for verb, kind in sorted(kinds().items()) if kind.sample().decides in READING])
def test_a_verb_that_reads_storage_declares_a_value_that_names_fields(verb: str) -> None:
    before = NewNames((("old", "x"),)).translated
    assert any(before(stage) != stage for stage in (kinds()[verb].sample(), *MORE.get(verb, ())))
