"""Public names, their parameters, and the command's options are on the pages, and the pages name no others."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from parquetry.common.apps.command.app import app
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.pipeline.verbs import Verbs

ROOT = Path(__file__).resolve().parents[2]
INSIDE = {"architecture.md", "development.md", "benchmarks.md", "benchmarks-limit.md", "benchmarks-method.md"}
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in INSIDE),
    *sorted((ROOT / "docs/cookbook").glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
]
"""The pages for users. Those about the inside name what is inside."""
MODULES = {
    "parquetry": "",
    "parquetry.common.server": "",
    "parquetry.common.compat.ray_data": "ray",
    "parquetry.common.apps.reports": "",
    "parquetry.common.compat.spark": "pyspark",
    "parquetry.common.apps.tools": "",
    "parquetry.tf_plugin": "tensorflow",
    "parquetry.torch_plugin": "torch",
}
"""The modules that a user imports from, and the framework that each needs."""
MADE_HERE = {"NestedArray", "NestedTensors", "RaggedArray"}  # no user makes one
EVERYWHERE = {"--debug", "--help", "--json", "--storage-option"}
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_CALL = re.compile(r"(?<!model\.)\b(\w+)\(([^()]*)\)")  # `model.fit` is Keras's
_IMPORT = re.compile(r"from (parquetry[\w.]*) import (?:\(([\w,\s]+)\)|([\w, ]+))")


@functools.cache
def text() -> str:
    """All pages for users, one after the other."""
    return "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def public_names() -> Iterator[tuple[str, str]]:
    for module, framework in MODULES.items():
        if not framework or find_spec(framework):
            yield from ((module, name) for name in importlib.import_module(module).__all__)


def value_of(module: str, name: str) -> Any:
    """Returns a public value, or ``None`` if its framework is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return None


def parameters(function: Callable[..., Any]) -> set[str]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)} - {"self"}


@functools.cache
def callables() -> dict[str, list[Callable[..., Any]]]:
    """Every public function, class and method by its name."""
    known: dict[str, list[Callable[..., Any]]] = defaultdict(list)
    for module, name in public_names():
        value = value_of(module, name)
        if callable(value):
            known[name].append(value)
        if inspect.isclass(value) and name not in MADE_HERE:
            for method in (each for each in dir(value) if not each.startswith("_")):
                if callable(member := inspect.getattr_static(value, method, None)) or isinstance(
                    member, classmethod | staticmethod
                ):
                    known[method].append(getattr(value, method))
    return known


def commands() -> Iterator[tuple[str, set[str]]]:
    """Yields each command and its options."""

    def below(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        yield name, {option for option in options if option.startswith("--")}
        for key, inner in getattr(command, "commands", {}).items():
            yield from below(inner, f"{name} {key}".strip())

    yield from below(typer.main.get_command(app), "")


@pytest.mark.slow
def test_every_public_name_is_on_a_page() -> None:
    words = set(re.findall(r"\w+", text()))
    missing = sorted({f"{module}.{name}" for module, name in public_names() if name not in words})
    assert missing == [], "name it where a user would look for it, with a few words on what it does"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["functions and classes", "verbs", "statistics"])
def test_every_parameter_is_on_a_page(kind: str) -> None:
    words = set(re.findall(r"\w+", text()))
    functions: list[tuple[str, Any]] = []
    if kind == "verbs":
        functions = [(name, getattr(Verbs, name)) for name in dir(Verbs) if not name.startswith("_")]
    elif kind == "statistics":
        functions = [("LoaderStats", LoaderStats)]
    else:
        for module, name in public_names():
            value = value_of(module, name)
            is_report = module.endswith("reports") and inspect.isclass(value)
            if not is_report and name not in MADE_HERE and not name.endswith(("Report", "Error")):
                functions.append((name, value))
    missing = {f"{name}({each}=)" for name, value in functions if callable(value) for each in parameters(value) - words}
    assert sorted(missing) == []


def test_the_table_of_options_has_those_of_each_command() -> None:
    page = (ROOT / "docs/command.md").read_text(encoding="utf-8")
    table = page.partition("## Every option")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w -]+)`[^|]*\|(.*)\|$", table, re.MULTILINE)
    shown = {name: set(re.findall(r"--[\w-]+", options)) for name, options in rows}
    groups = {"state", "cache"}
    known = {name or "parquetry": options - EVERYWHERE for name, options in commands() if name not in groups}
    assert shown == known


def test_the_pages_give_commands_only_options_that_they_have() -> None:
    known = dict(commands())
    wrong = []
    for name, rest in re.findall(r"parquetry ((?:cache |state )?[a-z-]+)([^`\n]*)", text()):
        options = set(re.findall(r"(?<![\w-])--[\w-]+", rest.partition("#")[0]))
        wrong += sorted(f"parquetry {name} {option}" for option in options - known.get(name, options))
    assert wrong == []


@pytest.mark.slow
def test_the_pages_give_functions_only_parameters_that_they_have() -> None:
    wrong = set()
    for code in _CODE.findall(text()):
        for name, arguments in _CALL.findall(code):
            functions = callables().get(name)
            if functions is None:
                continue
            accepted = {each for function in functions for each in parameters(function)}
            passes_on = any("**" in str(inspect.signature(each)) for each in functions if parameters(each))
            named = set(re.findall(r"(?<![\w.])([a-z_]\w*)=(?!=)", re.sub(r'"[^"]*"', '""', arguments)))
            wrong |= {f"{name}({each}=)" for each in named - accepted if not passes_on}
    assert sorted(wrong) == []


@pytest.mark.slow
def test_the_pages_import_only_names_that_there_are() -> None:
    wrong = set()
    for module, several, one_line in _IMPORT.findall(text()):
        for name in re.findall(r"\w+", several or one_line.partition(" as ")[0]):
            try:
                found = hasattr(importlib.import_module(module), name) or find_spec(f"{module}.{name}") is not None
            except ImportError:
                continue  # its framework is not installed
            if not found:
                wrong.add(f"from {module} import {name}")
    assert sorted(wrong) == []
