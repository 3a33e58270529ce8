"""Every parser on mutated inputs returns a value or raises an error its caller expects. `make fuzz` runs longer."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator

import pytest

from fuzz import compiled_targets
from fuzz.inputs import changed, corpus_of
from fuzz.targets import TARGETS

_INPUTS = {"index": 60, "requests": 100, "pages": 300, "selections": 150}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()  # a damaged file causes a warning
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_values_or_expected_errors(name: str) -> None:
    draw, corpus = random.Random(f"{name} 1"), corpus_of(name)
    inputs = [*corpus, b"", *(changed(draw, corpus) for _ in range(_INPUTS.get(name, 400)))]
    for data in inputs:
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"target {name} failed for {data[:2000]!r}") from error


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", compiled_targets.NAMES)
def test_the_harness_of_a_parser_in_cpp_compiles(name: str) -> None:
    compiled_targets.check(name)
