"""``transform(rng=True)``: seeds, copies of rows, what is refused, and warnings of generators that functions carry."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import PipelineError

NOISE = [UnischemaField("noise", np.int64)]
GENERATOR = np.random.default_rng(1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory: Path = tmp_path_factory.mktemp("functions")
    return build(directory, [[5, 5], [10]], names=["id", "ts"]).pipeline("id")


def _noise(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**row, "noise": rng.integers(1 << 62)}


def _drawn(pipeline: Pipeline) -> list[int]:
    return [int(row["noise"]) for row in pipeline]


def test_a_seed_decides_the_numbers(rows: Pipeline) -> None:
    seeded = [_drawn(rows.transform(_noise, NOISE, rng=True, seed=seed)) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1]
    assert not set(seeded[0]) & set(seeded[2])
    followed = [_drawn(rows.shuffle(20, seed=seed).transform(_noise, NOISE, rng=True)) for seed in (1, 1, 2)]
    assert followed[0] == followed[1] != followed[2]
    drawn = [rows.transform(_noise, NOISE, rng=True) for _ in range(2)]
    assert not set(_drawn(drawn[0])) & set(_drawn(drawn[1]))
    assert _drawn(Pipeline.from_json(drawn[0].to_json())) == _drawn(drawn[0].at_epoch(0))  # type: ignore[arg-type]
    assert drawn[0].drawn_seed is not None
    assert "seed" not in str(drawn[0].stages[-1])
    assert rows.transform(dict).drawn_seed is None


def test_two_calls_and_copies_of_a_row_draw_independently(rows: Pipeline) -> None:
    twice = rows.shuffle(20, seed=1).transform(_noise, NOISE, rng=True).rename({"noise": "first"})
    both = list(twice.transform(_noise, NOISE, rng=True))
    assert not {int(row["first"]) for row in both} & {int(row["noise"]) for row in both}
    assert len(set(_drawn(rows.weigh(np.arange(20) == 3, 40, seed=1).transform(_noise, NOISE, rng=True)))) == 40
    source = rows.shuffle(20, seed=1)
    assert len(set(_drawn(mix([source, source], seed=2, stop="all").transform(_noise, NOISE, rng=True)))) == 40


def test_numbers_pass_through_windows_and_dropped_rows(rows: Pipeline) -> None:
    noisy = rows.transform(_noise, NOISE, rng=True, seed=3)
    alone = dict(zip(range(20), _drawn(noisy), strict=True))
    windows = list(noisy.ngram(length=3))
    assert all([alone[number] for number in each["id"].tolist()] == each["noise"].tolist() for each in windows)

    def keep_odd(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any] | None:
        return _noise(row, rng) if row["id"] % 2 else None

    kept = rows.transform(keep_odd, NOISE, drops=True, rng=True, seed=3).transform(lambda row: row)
    assert _drawn(kept) == [alone[number] for number in range(1, 20, 2)]


def test_functions_of_batches_get_no_generator(rows: Pipeline) -> None:
    for refused in (
        lambda: rows.transform(_noise, NOISE, batched=True, rng=True),
        lambda: rows.batch(4).transform(_noise, NOISE, rng=True).element,
    ):
        with pytest.raises(PipelineError, match="expected rng=True only with a function of single rows"):
            refused()
    with pytest.raises(PipelineError, match="expected seed= only with rng=True"):
        rows.transform(dict, seed=3)


class _Augment:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "noise": self.rng.random()}

    def method(self, row: dict[str, Any]) -> dict[str, Any]:
        return self(row)


def _closes_over(value: Any) -> Any:
    return lambda row: (value, row)[1]


def _of_a_module(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "noise": GENERATOR.random()}


def _default(row: dict[str, Any], rng: Any = GENERATOR) -> dict[str, Any]:
    return {**row, "noise": rng.random()}


class _Closed:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # as proxies of other libraries
        raise RuntimeError("not here")


CARRIED: list[tuple[str, Any]] = [
    ("Generator", _closes_over(GENERATOR)),
    ("RandomState", _closes_over(np.random.RandomState(1))),
    ("Random", _closes_over({"rng": [random.Random(1)]})),
    ("Generator", _closes_over(_Augment(GENERATOR))),
    ("Generator", _Augment(GENERATOR)),
    ("Generator", _Augment(GENERATOR).method),
    ("Generator", functools.partial(_default, rng=GENERATOR)),
    ("Generator", _default),
    ("Generator", _of_a_module),
    ("", _closes_over([1, np.arange(3), {"a"}])),
    ("", _Augment(3)),
    ("", _closes_over(_Closed())),
    ("", dict),
]


@pytest.mark.parametrize(("kind", "function"), CARRIED, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(CARRIED)])
def test_a_function_that_carries_a_generator_is_warned_of(
    rows: Pipeline, caplog: pytest.LogCaptureFixture, kind: str, function: Any
) -> None:
    rows.transform(function)
    assert [f"carries a {kind}. Each process" in each for each in caplog.messages] == [True] * bool(kind)


def test_a_filter_that_carries_a_generator_is_warned_of(rows: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    rows.where(lambda number: GENERATOR.random() < number, fields=["id"])
    [message] = caplog.messages
    assert message.startswith("where: ")
    assert "carries a Generator. Each rank and each restart would keep other rows." in message
