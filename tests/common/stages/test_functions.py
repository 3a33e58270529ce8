"""User functions as values: equal, hashed, and sent as JSON without being loaded on the way."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError
from parquetry.common.stages.functions import UserFunction


def double(number: int) -> int:
    return 2 * number


def test_it_is_equal_to_what_became_of_its_json() -> None:
    given = UserFunction(double)
    came = UserFunction.from_json(json.loads(json.dumps(given.to_json())))
    assert (came, came.digest, came.name, hash(came)) == (given, given.digest, "double", hash(given))
    assert "function" not in vars(came)  # none of this loads it
    assert came.to_json() == given.to_json()
    assert came(4) == 8


def test_functions_that_cannot_be_pickled_are_equal_only_to_themselves() -> None:
    lock = threading.Lock()

    def one() -> None:
        lock.acquire()

    def other() -> None:
        lock.acquire()

    assert UserFunction(one) == UserFunction(one)
    assert UserFunction(one) != UserFunction(other)


def test_a_pipeline_from_json_loads_its_functions_when_it_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    write_dataset(tmp_path / "rows", schema, [{"id": number} for number in range(6)])
    (tmp_path / "loaded_late.py").write_text("def add(row):\n    return {'id': row['id'] + 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("loaded_late")
    text = Pipeline(str(tmp_path / "rows"), executor="threads").transform(module.add).to_json()
    monkeypatch.delitem(sys.modules, "loaded_late")
    came = Pipeline.from_json(text)
    assert "loaded_late" not in sys.modules
    assert [int(row["id"]) for row in came] == [1, 2, 3, 4, 5, 6]
    assert "loaded_late" in sys.modules


def test_a_function_that_cannot_be_loaded_says_why_when_it_is_needed() -> None:
    value = UserFunction(double).to_json()
    came = UserFunction.from_json({**value, "pickle": "AAAA"})
    with pytest.raises(PipelineError, match="user function double: cannot be loaded in another process"):
        came(1)
