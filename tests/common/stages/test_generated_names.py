"""Fields that a verb adds never replace stored ones: a name that exists is an error that says how to choose another."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError

Verb = Callable[[Pipeline], Pipeline]


def stored(folder: Path, name: str) -> Pipeline:
    """A dataset with numbers ``x``, lists ``l`` and ``tokens``, and another column."""
    lists = pa.array([[1, None], [2], None], pa.list_(pa.int64()))
    tokens = pa.array([[1, 2], [3], [4, 5, 6]], pa.list_(pa.int64()))
    table = pa.table({"x": [1, None, 3], "l": lists, "tokens": tokens, name: pa.array([7, 8, 9])})
    return Pipeline(write_table(folder, table), executor="threads", workers=1)


CASES = [
    pytest.param("nulls", "x__valid", lambda p: p.nulls("mask", "x"), id="mask"),
    pytest.param("nulls", "l__valid", lambda p: p.nulls("mask", "l", elements=True), id="mask-of-elements"),
    pytest.param("pad", "tokens__length", lambda p: p.pad("tokens", shape=(4,)), id="pad"),
    pytest.param("bucket", "tokens__length", lambda p: p.bucket("tokens", boundaries=[2], batch_size=2), id="bucket"),
    pytest.param("pack 'v'", "v", lambda p: p.select("x", "v").nulls("fill", "x", value=0).pack("v", "x"), id="pack"),
]


@pytest.mark.parametrize(("called", "name", "verb"), CASES)
def test_a_stored_field_of_that_name_is_an_error_with_the_line_to_write(
    tmp_path: Path, called: str, name: str, verb: Verb
) -> None:
    told = f"{called}: expected no field '{name}', which it adds itself, got one."
    with pytest.raises(PipelineError, match=re.escape(told)) as error:
        verb(stored(tmp_path, name)).element  # noqa: B018
    new = f"stored_{name}"
    assert f"rename({{'{name}': '{new}'}})" in str(error.value)


@pytest.mark.parametrize(("called", "name", "verb"), CASES[:-1])
def test_after_that_line_both_fields_are_read(tmp_path: Path, called: str, name: str, verb: Verb) -> None:
    fields = stored(tmp_path, name).nulls("fill", name, value=0).rename({name: "other"})
    names = [output.name for output in verb(fields).element.outputs]
    assert {name, "other"} <= set(names)


def test_names_are_those_at_this_place(tmp_path: Path) -> None:
    base = stored(tmp_path, "flags").select("x", "flags")
    with pytest.raises(PipelineError, match="expected no field 'y__valid'"):
        base.rename({"x": "y", "flags": "y__valid"}).nulls("mask", "y").element  # noqa: B018
    with pytest.raises(PipelineError, match="expected no field 'x__valid'"):
        base.nulls("mask", "x").nulls("mask", "x").element  # noqa: B018  # its flags would all be true


def test_two_fields_of_a_window_do_not_meet(tmp_path: Path) -> None:
    windows = stored(tmp_path, "x__valid").ngram({0: ["x"], 1: ["x__valid"]}).nulls("mask", "x")
    rows: list[Any] = list(windows)
    assert [[bool(row[0]["x__valid"]), int(row[1]["x__valid"])] for row in rows] == [[True, 8], [False, 9]]
