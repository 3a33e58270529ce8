"""Functions that return only the fields that they add or change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import PipelineError, TransformError

NEG = UnischemaField("neg", np.int64)
ROWS = [{"id": n, "x": None if n == 3 else n / 2, "name": f"n{n}", "codes": [n] * (n % 3), "when": n} for n in range(7)]
FORMS: dict[Any, Callable[[Any], Any]] = {
    False: lambda row: {"neg": -row["id"]},
    True: lambda batch: {"neg": -batch["id"]},
    "arrow": lambda batch: pa.record_batch({"neg": pc.negate(batch["id"])}),
}
WHOLE: dict[Any, Callable[[Any], Any]] = {
    False: lambda row: {**row, "neg": -row["id"]},
    True: lambda batch: {**batch, "neg": -batch["id"]},
    "arrow": lambda batch: batch.append_column("neg", pc.negate(batch["id"])),
}
"""The same functions, which also return the fields that they got."""


@pytest.fixture
def stored(tmp_path: Path) -> Pipeline:
    table = pa.Table.from_pylist(ROWS).set_column(4, "when", pa.array(range(7), pa.timestamp("ms")))
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=3)
    return Pipeline(tmp_path, executor="threads").cast("datetime64", "when")


def plain(rows: Any) -> list[dict[str, Any]]:
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()} for row in rows
    ]


@pytest.mark.parametrize("batched", FORMS)
@pytest.mark.parametrize("functions", [FORMS, WHOLE], ids=["partial", "whole"])
def test_fields_that_a_function_does_not_return_stay(stored: Pipeline, batched: Any, functions: Any) -> None:
    before, function = plain(stored), functions[batched]
    expected = [{**row, "neg": -row["id"]} for row in before]
    assert plain(stored.transform(function, [NEG], batched=batched)) == expected
    adding = stored.transform(function, adds=[NEG], batched=batched)
    assert plain(adding) == expected
    assert plain(Pipeline.from_json(adding.to_json())) == expected


def test_a_field_may_be_returned_for_some_rows_only(stored: Pipeline) -> None:
    def function(row: dict[str, Any]) -> dict[str, Any] | None:
        number = int(row["id"])
        changed = {"name": "new", "codes": [8, 9], "x": None} if number in (2, 5) else {}
        return None if number == 1 else {"neg": -number, **changed}

    kept = [row for row in plain(stored) if row["id"] != 1]
    changed = {"name": "new", "codes": [8, 9], "x": None}
    expected = [{**row, "neg": -row["id"], **(changed if row["id"] in (2, 5) else {})} for row in kept]
    assert plain(stored.transform(function, [NEG], drops=True)) == expected


def test_a_name_in_adds_stands_for_the_field_that_has_it(stored: Pipeline) -> None:
    doubled = stored.select("id", "x").transform(lambda row: {"id": 2 * row["id"]}, adds=["id"])
    assert plain(doubled) == [{"id": 2 * row["id"], "x": row["x"]} for row in ROWS]
    assert str(doubled).endswith("adds=('id',))")


def test_fields_of_windows_stay(stored: Pipeline) -> None:
    windows = stored.select("id", "name").ngram({0: ["id", "name"], 1: ["id"]})
    summed = windows.transform(lambda window: {"neg": window[0]["id"] + window[1]["id"]}, [NEG])
    assert [(int(w[0]["id"]), str(w[0]["name"]), int(w[1]["id"]), int(w["neg"])) for w in summed] == [
        (n, f"n{n}", n + 1, 2 * n + 1) for n in range(6)
    ]


CHANGED = r"row 0: expected values only for the fields in adds=, got other ones for \['name'\]\. Name these in adds"


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda row: dict(row), {"output": [NEG]}, r"expected the fields \['neg'\], got .*Return \{'neg': ...\}, or "
         r"\{\*\*row, 'neg': ...\}"),
        (lambda row: None, {"output": [NEG]}, r"expected a dict of fields, got NoneType"),
        (lambda row: {}, {"output": [NEG]}, r"expected the fields \['neg'\], got \[\]"),
        (lambda batch: {"id": batch["id"]}, {"output": [NEG], "batched": True}, r"\['id'\]\. Return .* or \{\*\*batch, 'neg'"),
        (lambda row: {**row, "neg": 1, "z": 2}, {"output": [NEG]}, r"expected only the fields .* got also \['z'\]"),
        (lambda row: {}, {"adds": ["x"]}, r"Return \{'x': ...\}, or \{\*\*row, 'x': ...\}"),
        (lambda row: {"id": 1}, {}, r"expected the fields .*Return every field: \{\*\*row, 'id': ...\}"),
        (lambda row: {"neg": 1}, {}, r"got \['neg'\]. Declare what .* in adds=\[UnischemaField\('neg', np.float32\), ...\]"),
        (lambda row: {**row, "neg": 1}, {}, r"got also \['neg'\]. Declare them in adds=\[UnischemaField\('neg'"),
        (lambda row: {**row, "neg": 1, "name": "a"}, {"adds": [NEG]}, CHANGED),
        (lambda row: {"neg": 1, "other": 2}, {"adds": [NEG]}, r"got also \['other'\]. Declare them in adds="),
        (lambda row: {"neg": 1.5}, {"adds": [NEG]}, r"expected values that int64 can hold|expected dtype int64"),
        (lambda batch: {}, {"adds": [NEG], "batched": True}, r"Return \{'neg': ...\}, or \{\*\*batch, 'neg': ...\}"),
        (
            lambda batch: WHOLE["arrow"](batch).set_column(2, "name", pa.array(["a"] * len(batch))),
            {"adds": [NEG], "batched": "arrow"},
            r"expected values only for the fields in adds=, got other ones for \['name'\]",
        ),
    ],
)  # fmt: skip
def test_a_result_that_was_not_declared_is_refused(stored: Pipeline, function: Any, options: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        list(stored.transform(function, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adds": ["neg"]}, r"field 'neg' of adds=\[...\]: expected its dtype and shape, .*UnischemaField\('neg'"),
        ({"adds": [NEG], "output": [NEG]}, r"expected output= or adds=, got both"),
        ({"adds": []}, "expected a field name"),
        ({"version": 1}, r"expected version= only with lengths=True"),
        ({"lengths": True}, r"expected output=\[...\] or adds=\[...\] with lengths=True, got neither"),
        ({"lengths": True, "adds": [NEG], "rng": True}, r"expected lengths=True without rng=True"),
        ({"lengths": True, "adds": [NEG], "drops": True}, r"expected lengths=True without drops=True"),
        ({"lengths": True, "adds": [NEG], "version": 1.5}, r"expected version= to be a text or an integer, got 1.5"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(stored: Pipeline, options: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        _ = stored.transform(lambda row: row, **options).element
