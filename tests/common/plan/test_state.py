"""States: other pipelines have other names, and anything that is not a state is refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders import Built, built_once
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from resume_cases import SIMPLE_CHAINS, corrupted, is_at_its_end

from parquetry.common import Pipeline, UnischemaField, contains
from parquetry.common.base.errors import StateError
from parquetry.common.plan.state import plan_hash
from parquetry.common.stages.functions import UserFunction, digest_of

LIMIT = 5
built = built_once([[5, 5], [10]], names=["id", "drive", "ts", "label"])


def _even(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2 == 0)


def _long(end: int) -> Callable[[Pipeline], Pipeline]:
    return lambda p: p.where(pc.field("id").isin([*range(2_000), end]))


def _above(least: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda row: bool(row["id"] > np.max(least))


class _Above:
    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, row: dict[str, Any]) -> bool:
        return bool(row["id"] > self.least)


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _named(row: dict[str, Any], least: int) -> bool:
    return bool(row["id"] > least)


OTHERS: list[tuple[Callable[[Pipeline], Pipeline], Callable[[Pipeline], Pipeline]]] = [
    (_long(3_000), _long(3_001)),
    (lambda p: p.where([("id", "in", [*range(500), 9])]), lambda p: p.where([("id", "in", [*range(499), 499, 10])])),
    (lambda p: p.where(pc.field("id") > pa.scalar(0.1)), lambda p: p.where(pc.field("id") > pa.scalar(0.1, pa.float32()))),
    (lambda p: p.where(pc.field("label") == "61"), lambda p: p.where(pc.field("label") == b"a")),
    (lambda p: p.where(contains("label", *map(str, range(900)))), lambda p: p.where(contains("label", *map(str, range(901))))),
    (lambda p: p.where(_even, fields=["id"]), lambda p: p.where(_even, fields=["ts"])),
    (lambda p: p.where(_even, fields=["id"]), lambda p: p.where(_even, fields=["id"], batched=True)),
    (lambda p: p.where(_above(1), fields=["id"]), lambda p: p.where(_above(2), fields=["id"])),
    (lambda p: p.where(_above(np.arange(5_000)), fields=["id"]), lambda p: p.where(_above(np.arange(5_001)), fields=["id"])),
    (lambda p: p.where(_above({"a", "b"}), fields=["id"]), lambda p: p.where(_above({"a", "c"}), fields=["id"])),
    (lambda p: p.where(_Above(1), fields=["id"]), lambda p: p.where(_Above(2), fields=["id"])),
    (lambda p: p.where(functools.partial(_named, least=1), fields=["id"]), lambda p: p.where(functools.partial(_named, least=2), fields=["id"])),
    (lambda p: p.transform(_same), lambda p: p.transform(_same, remove=["ts"])),
    (lambda p: p.transform(_same), lambda p: p.transform(_same, [UnischemaField("id", np.int32)])),
    (lambda p: p.shard(2, 0, even="none"), lambda p: p.shard(2, 0, policy="rowgroup_modulo")),
    (lambda p: p.nulls("fill", "label", value="x" * 5_000), lambda p: p.nulls("fill", "label", value="x" * 5_001)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_another_pipeline_has_another_name(built: Built, one: Any, other: Any) -> None:
    pipeline = built.pipeline("id", "ts", "label", executor="threads")
    state = iter(one(pipeline)).state_dict()
    assert plan_hash(one(pipeline).plan()) == state["pipeline"]
    assert plan_hash(Pipeline.from_json(one(pipeline).to_json()).plan()) == state["pipeline"]
    assert plan_hash(other(pipeline).plan()) != state["pipeline"]
    with pytest.raises(StateError, match=r"saved for a different (pipeline|canonical_shards)"):
        iter(other(pipeline)).load_state_dict(state)


def test_a_function_has_one_digest_wherever_it_is(built: Built) -> None:
    seen: list[int] = []

    def count(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(LIMIT)
        return row

    function = UserFunction(count)
    assert UserFunction.from_json(function.to_json()).digest == function.digest
    chain = built.pipeline("id", executor="threads").transform(count)
    iterator = iter(chain)
    next(iterator)
    again = iter(chain)
    again.load_state_dict(iterator.state_dict())
    assert int(next(again)["id"]) == 1
    members = [digest_of(lambda row: row in {"a", "b", "c"}), digest_of(lambda row: row in {"c", "b", "a"})]
    assert members[0] == members[1]


@pytest.mark.slow
@examples(250)
@given(st.data())
def test_a_corrupt_state_is_a_state_error_or_another_state(built: Built, data: st.DataObject) -> None:
    chain = data.draw(st.sampled_from(SIMPLE_CHAINS))(built.pipeline("id"))
    iterator = iter(chain)
    next(iterator)
    corrupt = data.draw(corrupted(iterator.state_dict()), "state")
    iterator.close()
    again = iter(data.draw(st.sampled_from([chain, chain.with_options(workers=2)])))
    try:
        again.load_state_dict(corrupt)
    except StateError:
        return
    first = next(again, None)
    again.close()
    assert first is not None or is_at_its_end(chain, corrupt)


def test_numbers_of_numpy_are_numbers(built: Built) -> None:
    state = iter(built.pipeline("id")).state_dict()
    iterator = iter(built.pipeline("id")).load_state_dict(
        {**state, "consumed": np.int64(3), "shards": np.array([0, 1])}
    )
    assert int(next(iterator)["id"]) == 3
    assert json.dumps(iterator.state_dict())


def test_a_state_of_another_order_is_refused(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(4, 1)
    state = iter(pipeline).state_dict()
    older = {name: value for name, value in state.items() if name != "order_version"}
    for order, version in ((older, 1), ({**state, "order_version": 3}, 3)):
        with pytest.raises(StateError, match=f"the order of version {version}, in which other rows .* the epoch again"):
            iter(pipeline).load_state_dict(order)


def test_a_position_past_the_end_is_refused(built: Built, tmp_path: Path) -> None:
    state = iter(built.pipeline("id")).state_dict()
    assert list(iter(built.pipeline("id")).load_state_dict({**state, "consumed": 20})) == []
    with pytest.raises(StateError, match="expected a position in 1 passes of 20 elements, got 21"):
        iter(built.pipeline("id")).load_state_dict({**state, "consumed": 21})
