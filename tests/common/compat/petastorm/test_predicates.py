"""Predicates: each alone, and the rows each keeps in both kinds of reader."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError
from parquetry.common.compat.petastorm import make_batch_reader, make_reader
from parquetry.common.compat.petastorm.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)

COUNT = 60


class Below(PredicateBase):
    """A user-defined predicate, which works on one row and on columns."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def get_fields(self) -> list[str]:
        return ["id"]

    def do_include(self, values: Any) -> Any:
        return values["id"] < self.limit


@pytest.fixture
def url(tmp_path: Path) -> str:
    fields = [
        UnischemaField("id", np.int64),
        UnischemaField("name", str),
        UnischemaField("drive", str),
        UnischemaField("tags", str, (None,), nullable=True),
        UnischemaField("speed", np.int32, nullable=True),
    ]
    rows = [
        {
            "id": i,
            "name": f"n{i}",
            "drive": f"d{i // 20}",
            "tags": None if i % 5 == 0 else [f"t{j}" for j in range(i % 4)],
            "speed": None if i % 3 == 0 else i,
        }
        for i in range(COUNT)
    ]
    write_dataset(tmp_path / "rows", Unischema("rows", fields), rows, row_group_rows=7, partition_by=("drive",))
    return str(tmp_path / "rows")


def by_rows(url: str, predicate: PredicateBase, **options: Any) -> list[int]:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, "schema_fields": ["id"], **options}
    with make_reader(url, predicate=predicate, **options) as reader:
        return [int(row.id) for row in reader]


@pytest.fixture
def by_columns(monkeypatch: pytest.MonkeyPatch) -> Any:
    from parquetry.common.compat.petastorm import reader as reader_module

    monkeypatch.setattr(reader_module, "_past_warnings", {"batch_reader"})  # the dataset has a schema, on purpose

    def read(url: str, predicate: PredicateBase) -> list[int]:
        options: dict[str, Any] = {"reader_pool_type": "dummy", "shuffle_row_groups": False, "schema_fields": ["id"]}
        with make_batch_reader(url, predicate=predicate, **options) as reader:
            return [int(i) for batch in reader for i in batch.id]

    return read


IN_SET = in_set({"n3", "n50", "n99"}, "name")
THIRDS = in_set(range(0, COUNT, 3), "id")
CASES: list[tuple[PredicateBase, list[int]]] = [
    (IN_SET, [3, 50]),
    (in_set({"d1"}, "drive"), list(range(20, 40))),
    (in_set({None}, "speed"), list(range(0, COUNT, 3))),
    (in_intersection(["t2", "zz"], "tags"), [i for i in range(COUNT) if i % 5 and i % 4 == 3]),
    (in_negate(IN_SET), [i for i in range(COUNT) if i not in (3, 50)]),
    (in_reduce([THIRDS, in_set(range(30), "id")], all), list(range(0, 30, 3))),
    (in_reduce([THIRDS, in_set({1}, "id")], any), sorted([1, *range(0, COUNT, 3)])),
    (in_lambda(["id"], lambda id: id % 7 == 2), list(range(2, COUNT, 7))),
    (in_lambda(["id", "drive"], lambda id, drive: (id % 2 == 0) & (drive == "d2")), list(range(40, COUNT, 2))),
    (in_lambda(["id"], lambda id, state: id < state, 4), [0, 1, 2, 3]),
    (in_negate(in_lambda(["id"], lambda id: id >= 5)), [0, 1, 2, 3, 4]),
    (in_reduce([in_lambda(["id"], lambda id: id < 9), THIRDS], all), [0, 3, 6]),
    (Below(11), list(range(11))),
]


@pytest.mark.parametrize(
    ("predicate", "expected"), CASES, ids=[f"{n}-{type(c[0]).__name__}" for n, c in enumerate(CASES)]
)
def test_rows_for_which_a_predicate_holds_are_read_one_by_one_and_in_batches(
    url: str, predicate: PredicateBase, expected: list[int], by_columns: Any
) -> None:
    assert by_rows(url, predicate) == expected
    assert by_rows(url, predicate, reader_pool_type="thread", workers_count=2) == expected
    if not predicate.by_row:
        pytest.importorskip("pandas")
    assert by_columns(url, predicate) == expected


def test_functions_of_columns_need_no_pandas(url: str, by_columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parquetry.common.compat.petastorm.filtering.has_pandas", lambda: False)
    assert by_columns(url, in_lambda(["id"], lambda id: id % 7 == 2)) == list(range(2, COUNT, 7))


def test_a_predicate_of_columns_gives_an_answer_for_each_row(url: str, by_columns: Any) -> None:
    pytest.importorskip("pandas")
    with pytest.raises(PipelineError, match="in_lambda: expected 7 answers"):
        by_columns(url, in_lambda(["id"], lambda id: True))


def test_the_predicates_fields_need_not_be_among_those_that_are_read(url: str) -> None:
    with make_reader(url, schema_fields=["name"], predicate=in_set({7}, "id"), reader_pool_type="dummy") as reader:
        (row,) = reader
    assert row._fields == ("name",)
    assert row.name == "n7"


def test_a_predicate_sees_only_its_own_fields_with_petastorms_types(url: str) -> None:
    seen: list[dict[str, Any]] = []

    class Spy(PredicateBase):
        def get_fields(self) -> set[str]:
            return {"id", "drive"}

        def do_include(self, values: dict[str, Any]) -> bool:
            seen.append(dict(values))
            return True

    assert len(by_rows(url, Spy())) == COUNT
    assert {frozenset(values) for values in seen} == {frozenset({"id", "drive"})}
    assert {(type(values["id"]), type(values["drive"])) for values in seen} == {(np.int64, np.str_)}


def test_a_partition_predicate_is_asked_once_for_each_partition_and_its_files_are_not_read(url: str) -> None:
    asked: list[str] = []
    predicate = in_lambda(["drive"], lambda drive, seen: seen.append(drive) or drive == "d1", asked)
    with make_reader(url, predicate=predicate, schema_fields=["id"]) as reader:
        assert sorted(int(row.id) for row in reader) == list(range(20, 40))
        assert reader.diagnostics["items_produced"] == 3
    assert sorted(asked) == ["d0", "d1", "d2"]


@pytest.mark.parametrize("fields", [[], ["bogus"], ["id", "bogus"]])
def test_unknown_or_no_fields_fail_when_the_first_row_is_read(url: str, fields: list[str]) -> None:
    with (
        make_reader(url, predicate=in_lambda(fields, lambda *values: True), reader_pool_type="dummy") as reader,
        pytest.raises(ValueError, match=r"expected get_fields\(\) to name fields"),
    ):
        next(reader)


def test_a_predicates_exception_reaches_the_reader_unchanged(url: str) -> None:
    def fail(id: int) -> bool:
        raise ZeroDivisionError("no")

    for pool in ("dummy", "thread", "process"):
        with (
            make_reader(url, predicate=in_lambda(["id"], fail), reader_pool_type=pool, workers_count=1) as reader,
            pytest.raises(ZeroDivisionError, match="no"),
        ):
            next(reader)


def test_arguments_of_predicates_are_checked() -> None:
    with pytest.raises(ValueError, match="expected a list of field names"):
        in_lambda("id", len)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="derived from PredicateBase"):
        in_negate(len)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="derived from PredicateBase"):
        in_reduce([THIRDS, len], all)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="subset_index is out of range"):
        in_pseudorandom_split([0.5, 0.5], 2, "id")
    assert in_intersection(["a", "b"], "id").do_include({"id": np.str_("a")})
    assert not in_intersection(["ab", "b"], "id").do_include({"id": "a"})
    with pytest.raises(ValueError, match="to be iterable"):
        in_intersection([1], "id").do_include({"id": 5})
    with pytest.raises(ValueError, match="expected the field 'id'"):
        in_pseudorandom_split([1.0], 0, "id").do_include({"name": 1})


# --- the pseudorandom split -------------------------------------------------------------------------------------------


def subset_of(value: Any, fractions: list[float]) -> int | None:
    """The plain formula: returns the part that a value falls into, ``None`` if no fraction covers it."""
    bucket = int(hashlib.md5(str(value).encode("utf-8")).hexdigest(), 16) % sys.maxsize
    low = 0.0
    for index, fraction in enumerate(fractions):
        high = low + fraction  # in floats, one by one
        if low * (sys.maxsize - 1) <= bucket < high * (sys.maxsize - 1):
            return index
        low = high
    return None


@pytest.mark.parametrize("fractions", [[0.3, 0.4, 0.1, 0.0, 0.2], [0.1] * 10, [0.25, 0.25], [1.0], [0.7, 0.2, 0.1]])
def test_a_pseudorandom_split_is_petastorms_for_every_value(fractions: list[float]) -> None:
    values: list[Any] = [*(f"guid_{i}" for i in range(800)), *range(-300, 300), *(np.int64(i) for i in range(50))]
    values += [1.5, np.float32(0.1), True, np.bool_(False), b"raw", np.str_("ünï"), None, ""]
    parts = [in_pseudorandom_split(fractions, index, "key") for index in range(len(fractions))]
    for value in values:
        chosen = [index for index, part in enumerate(parts) if part.do_include({"key": value})]
        assert chosen == ([] if subset_of(value, fractions) is None else [subset_of(value, fractions)])


def test_values_that_petastorm_has_split_stay_where_they_were() -> None:
    # Recorded from Petastorm 0.12.1 with fractions 0.3, 0.4, 0.1, 0.0, 0.2.
    fractions = [0.3, 0.4, 0.1, 0.0, 0.2]
    expected = {"guid_0": 1, "guid_1": 2, "guid_2": 0, "guid_3": 4, "guid_5": 1, 0: 0, 1: 0, 2: 4, 3: 0, 4: 2}
    for value, part in expected.items():
        found = [i for i in range(5) if in_pseudorandom_split(fractions, i, "key").do_include({"key": value})]
        assert found == [part], value


def test_the_parts_of_a_split_cover_a_dataset_once(url: str, by_columns: Any) -> None:
    fractions = [0.5, 0.2, 0.3]
    for field in ("name", "id", "speed"):
        parts = [by_rows(url, in_pseudorandom_split(fractions, i, field)) for i in range(3)]
        assert sorted(i for part in parts for i in part) == list(range(COUNT))
        assert [by_columns(url, in_pseudorandom_split(fractions, i, field)) for i in range(3)] == parts
