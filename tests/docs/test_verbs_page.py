"""The tables of ``docs/verbs.md`` have one example of each verb, with arguments that it takes."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from parquetry.common.pipeline.verbs import Verbs

PAGE = Path(__file__).resolve().parents[2] / "docs/verbs.md"
VERBS = {name for name in dir(Verbs) if not name.startswith("_")}


def examples() -> list[str]:
    """Returns the code in the first cells of the tables of verbs."""
    tables = PAGE.read_text(encoding="utf-8").partition("## Fields")[2].partition("## Nulls")[0]
    return re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)


def test_each_verb_has_an_example_that_it_accepts() -> None:
    shown = set()
    for example in examples():
        call = ast.parse(example.replace(r"\|", "|"), mode="eval").body
        assert isinstance(call, ast.Call), example
        assert isinstance(call.func, ast.Name), example
        name = call.func.id
        if name in VERBS:
            arguments = {each.arg: None for each in call.keywords if each.arg}
            inspect.signature(getattr(Verbs, name)).bind(None, *call.args, **arguments)
            shown.add(name)
    assert sorted(VERBS - shown) == []
