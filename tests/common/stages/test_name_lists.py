"""Names may come one by one, or as any iterable of them; both make the same pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import every_case

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import PipelineError

NAMES = ("a", "b")
VERBS: dict[str, Callable[..., Pipeline]] = {
    "select": lambda *names: Pipeline("url").select(*names),
    "cast": lambda *names: Pipeline("url").cast("int8", *names),
    "nulls": lambda *names: Pipeline("url").nulls("drop", *names),
    "nested": lambda *names: Pipeline("url").nested(*names),
    "pad": lambda *names: Pipeline("url").pad(*names),
    "fixed": lambda *names: Pipeline("url").fixed(*names, shape=(2,)),
    "permute": lambda *names: Pipeline("url").permute(*names, dims=("H", "W")),
    "decimals": lambda *names: Pipeline("url").decimals("scaled", *names),
    "concat": lambda *names: Pipeline("url").concat(8, *names),
    "pack_rows": lambda *names: Pipeline("url").pack_rows(8, *names),
}


@every_case("verb", VERBS)
@every_case("form", [list, tuple, set, frozenset, np.array, iter, lambda names: dict.fromkeys(names).keys()])
def test_a_list_of_names_is_the_same_as_the_names(verb: str, form: Callable[[Any], Any]) -> None:
    assert VERBS[verb](form(NAMES)) == VERBS[verb](*NAMES)


@every_case("verb", VERBS)
def test_a_dict_is_refused_because_its_values_would_be_lost(verb: str) -> None:
    with pytest.raises(PipelineError, match=f"{verb}: expected a field name or regex, or several of them, got"):
        VERBS[verb]({"a": "x"})


def test_a_declared_field_in_a_list_still_declares() -> None:
    field = UnischemaField("a", np.int8)
    assert Pipeline("url").select([field, "b"]) == Pipeline("url").select(field, "b")


def test_one_declared_field_is_the_same_as_a_list_of_it() -> None:
    field = UnischemaField("a", np.int8)
    assert Pipeline("url").transform(dict, field).stages[0].output == (field,)


def test_urls_in_a_set_have_one_order_and_pipelines_in_a_set_are_refused() -> None:
    assert Pipeline({"/c", "/a", "/b"}).urls == ("/a", "/b", "/c")
    with pytest.raises(PipelineError, match="mix: expected a list of pipelines, got"):
        mix({Pipeline("a"), Pipeline("b")})
