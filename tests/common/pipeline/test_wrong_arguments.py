"""Gives every argument of every verb, and every option, values of wrong types: each is a `PipelineError`, or works."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import every_case

from parquetry.common import ParquetryError, Pipeline, UnischemaField, mix
from parquetry.common.pipeline.verbs import Verbs
from parquetry.common.plan.options import OptionArguments


class Elementwise:
    """Compares as columns of data frames do."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("The truth value is ambiguous.")


VERBS = sorted({name for base in Verbs.__mro__[:-1] for name in vars(base) if not name.startswith("_")})
OPTIONS = sorted(OptionArguments.__annotations__)
ODD: list[Any] = [
    3,
    -1,
    2.5,
    float("nan"),
    1 << 70,
    True,
    None,
    "x",
    "",
    "a\ud800",
    "a\0b",
    b"b",
    object(),
    [],
    [1],
    (1, 2),
    {},
    {"id": 1},
    {3},
    range(3),
    len,
    int,
    Path("x"),
    np.arange(3),
    Elementwise(),
    np.array(2),
    np.int8(2),
    np.str_("x"),
    np.datetime64("NaT"),
]
USUAL = {"count": 2, "size": 2, "length": 2, "seed": 0, "rows": 2}
"""Good values for required arguments; a field's name for all others."""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory = tmp_path_factory.mktemp("rows")
    columns = {"id": np.arange(10), "text": ["a"] * 10, "list": [[1, 2]] * 10}
    pq.write_table(pa.table(columns), directory / "rows.parquet")
    return Pipeline(directory)


def arguments(parameters: list[inspect.Parameter], odd: str, value: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a call in which only the one named ``odd`` is unusual."""
    by_position, by_name = [], {}
    for each in parameters:
        named = each.kind is each.KEYWORD_ONLY
        if each.name == odd:
            given = value
        elif each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or (named and each.default is not each.empty):
            continue
        else:
            given = USUAL.get(each.name, "id") if each.default is each.empty else each.default
        if named:
            by_name[each.name] = given
        else:
            by_position.append(given)
    return by_position, by_name


@every_case("verb", VERBS)
def test_arguments_of_wrong_types_are_refused(pipeline: Pipeline, verb: str) -> None:
    method = getattr(pipeline, verb)
    parameters = list(inspect.signature(method).parameters.values())
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for value in ODD:
            by_position, by_name = arguments(parameters, parameter.name, value)
            try:
                assert method(*by_position, **by_name).element is not None
            except ParquetryError:
                continue
            except Exception as error:
                pytest.fail(f"{verb}({parameter.name}={value!r}) raised a raw {type(error).__name__}: {error}")


@every_case("option", OPTIONS)
def test_options_of_wrong_types_are_refused(pipeline: Pipeline, option: str) -> None:
    for value in ODD:
        try:
            pipeline.with_options(**{option: value})
        except ParquetryError:
            continue
        except Exception as error:
            pytest.fail(f"{option}={value!r} raised a raw {type(error).__name__}: {error}")


@every_case("verb", ["shufle", 3, None, ["batch"], np.arange(3)])
def test_accepts_knows_only_verbs(pipeline: Pipeline, verb: Any) -> None:
    with pytest.raises(ParquetryError, match="accepts: expected the name of a verb"):
        pipeline.accepts(verb)


@every_case("sources", [3, None, object()])
def test_a_mix_takes_a_list_of_pipelines(sources: Any) -> None:
    with pytest.raises(ParquetryError, match="mix: expected a list of pipelines"):
        mix(sources)


@every_case("address", [{}, {"url": 3}, {"id": 1}, 3, ["tcp://x:1"]])
def test_addresses_of_wrong_types_are_refused(address: Any) -> None:
    with pytest.raises(ParquetryError):
        Pipeline(address=address)


@every_case("dims", ["HWC", ["H", "W", "C"], dict.fromkeys("HWC").keys(), iter("HWC")])
def test_the_axes_of_a_field_are_named_in_order(dims: Any) -> None:
    assert UnischemaField("image", np.uint8, (None, None, 3), dims=dims).dims == ("H", "W", "C")
    for wrong in ({"H", "W", "C"}, 3, [1, 2, 3], np.array(3)):
        with pytest.raises(ParquetryError, match="expected a list of names"):
            UnischemaField("image", np.uint8, (None, None, 3), dims=wrong)


def test_a_range_is_a_list_of_numbers(pipeline: Pipeline) -> None:
    buckets = pipeline.bucket("list", range(2, 9, 3), batch_size=4)
    assert [len(batch["id"]) for batch in buckets] == [
        len(batch["id"]) for batch in pipeline.bucket("list", [2, 5, 8], batch_size=4)
    ]
