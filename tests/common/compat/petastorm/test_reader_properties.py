"""Any combination of predicate, filter, shuffle, parts, shard and transform yields the rows of a list comprehension."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.compat.petastorm import TransformSpec, make_batch_reader, make_reader
from parquetry.common.compat.petastorm.predicates import in_lambda, in_set

FILES = [[5, 1, 9], [7], [4, 4]]
UNIT_OF_ROW = [row_group for row_group, size in enumerate(size for file in FILES for size in file) for _ in range(size)]
COUNT = len(UNIT_OF_ROW)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("rows")
    number = 0
    for position, groups in enumerate(FILES):
        rows = sum(groups)
        ids = np.arange(number, number + rows)
        table = pa.table({"id": ids, "third": ids % 3, "text": [f"t{i}" for i in ids]})
        with pq.ParquetWriter(place / f"part-{position}.parquet", table.schema) as writer:
            at = 0
            for size in groups:
                writer.write_table(table.slice(at, size))
                at += size
        number += rows
    return str(place)


def options() -> st.SearchStrategy[dict[str, Any]]:
    shards = st.integers(1, 6).flatmap(lambda count: st.tuples(st.integers(0, count - 1), st.just(count)))
    return st.fixed_dictionaries(
        {
            "seed": st.sampled_from([None, 0, 7]),
            "shuffle_rows": st.booleans(),
            "shuffle_row_groups": st.booleans(),
            "shuffle_row_drop_partitions": st.integers(1, 6),
            "num_epochs": st.integers(1, 2),
            "filter": st.sampled_from([None, ("id", ">=", 11), ("third", "!=", 1)]),
            "predicate": st.sampled_from([None, "even", "set"]),
            "shard": st.one_of(st.none(), shards),
            "transform": st.booleans(),
        }
    )


def arguments(chosen: dict[str, Any]) -> dict[str, Any]:
    chosen = dict(chosen)
    predicate, shard, transform = chosen.pop("predicate"), chosen.pop("shard"), chosen.pop("transform")
    condition = chosen.pop("filter")
    made: dict[str, Any] = {
        **chosen,
        "reader_pool_type": "dummy",
        "filters": None if condition is None else [condition],
    }
    if predicate is not None:
        even = in_lambda(["id"], lambda id: id % 2 == 0)
        made["predicate"] = even if predicate == "even" else in_set(range(0, COUNT, 3), "id")
    if shard is not None:
        made["cur_shard"], made["shard_count"] = shard
    if transform:
        made["transform_spec"] = TransformSpec(selected_fields=["text", "id", "third"])
    return made


def expected(chosen: dict[str, Any]) -> list[int]:
    shard = chosen["shard"] or (0, 1)
    tests = {
        None: lambda i: True,
        ("id", ">=", 11): lambda i: i >= 11,
        ("third", "!=", 1): lambda i: i % 3 != 1,
        "even": lambda i: i % 2 == 0,
        "set": lambda i: i % 3 == 0,
    }
    kept = [
        i
        for i in range(COUNT)
        if tests[chosen["filter"]](i) and tests[chosen["predicate"]](i) and UNIT_OF_ROW[i] % shard[1] == shard[0]
    ]
    return sorted(kept * chosen["num_epochs"])


def check(chosen: dict[str, Any], read: list[tuple[int, int, str]]) -> None:
    assert sorted(i for i, _, _ in read) == expected(chosen)
    assert all(third == i % 3 and text == f"t{i}" for i, third, text in read)
    if not (chosen["shuffle_rows"] or chosen["shuffle_row_groups"]):
        each = len(read) // chosen["num_epochs"]
        assert [i for i, _, _ in read] == sorted(i for i, _, _ in read[:each]) * chosen["num_epochs"]


@examples(60)
@given(chosen=options())
def test_rows_match_a_list_comprehension(url: str, chosen: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a shard may end up empty
        with make_reader(url, **arguments(chosen)) as reader:
            check(chosen, [(int(row.id), int(row.third), str(row.text)) for row in reader])


@pytest.mark.slow
@examples(60)
@given(chosen=options())
def test_columns_match_a_list_comprehension(url: str, chosen: dict[str, Any]) -> None:
    if chosen["predicate"] == "even":
        chosen = {**chosen, "predicate": "set"}  # whole columns would need pandas
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with make_batch_reader(url, **arguments(chosen)) as reader:
            batches = list(reader)
    check(
        chosen,
        [
            (int(i), int(third), str(text))
            for batch in batches
            for i, third, text in zip(batch.id, batch.third, batch.text, strict=True)
        ],
    )


def test_an_empty_dataset_gives_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "part.parquet")
    for make in (make_reader, make_batch_reader):
        with pytest.warns(UserWarning, match="No matching data"):
            reader = make(str(tmp_path))
        with reader:
            assert list(reader) == []
