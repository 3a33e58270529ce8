"""Files that store a column in different types: every query answers as if all files had one type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import directory, write_table
from delta_tables import add, commit, field, metadata, protocol
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, Unischema, UnischemaField, contains, hash_split
from parquetry.common.apps.tools import generate_metadata
from parquetry.common.base.errors import DecodeError, EmptySelectionError
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index import write_index
from parquetry.common.plan.selection.statistics import column_statistics

pytestmark = pytest.mark.versions

a = pc.field("a")
CODES = pa.dictionary(pa.int32(), pa.string())
Kind = tuple[pa.DataType, dict[pa.DataType, list[Any]]]
# name: (the dataset's type, values drawn for files of each type)
KINDS: dict[str, Kind] = {
    "integers and doubles": (pa.float64(), {pa.int32(): [-3, 0, 1, 2, 7], pa.float64(): [0.0, 0.5, 2.0, -1.25, float("nan")]}),
    "floats and doubles": (pa.float64(), {pa.float32(): [0.1, 0.25, 2.0], pa.float64(): [0.1, 0.25, -0.7]}),
    "unsigned and signed": (pa.int16(), {pa.uint8(): [0, 1, 255], pa.int16(): [-3, 0, 300]}),
    "short and long": (pa.int64(), {pa.int8(): [-128, 0, 7], pa.int64(): [-128, 2**53 + 1, -(2**63)]}),
    "text": (pa.large_string(), {CODES: ["a", "b"], pa.string(): ["b", "c"], pa.large_string(): ["a", "é"]}),
    "decimals": (
        pa.decimal128(12, 4),
        {pa.decimal128(9, 2): [Decimal("1.50"), Decimal("-2.25")], pa.decimal128(12, 4): [Decimal("1.5001"), Decimal("1.5")]},
    ),
    "lists": (pa.large_list(pa.float64()), {pa.list_(pa.int32()): [[1], [0, 2]], pa.list_(pa.float64()): [[1.0], [2.5], []]}),
    "nothing": (pa.int64(), {pa.null(): [None], pa.int64(): [0, 1, 2]}),
    "large integers and doubles": (
        pa.float64(),
        {pa.int64(): [-3, 0, 2**53, 2**60], pa.uint64(): [0, 2**53], pa.float64(): [0.0, 0.5, 2.0**60, float("nan")]},
    ),
    "unsigned and signed, long": (pa.int64(), {pa.uint64(): [0, 7, 2**63 - 1], pa.int64(): [-(2**63), 0, 7]}),
    "units of time": (
        pa.timestamp("ns"),
        {pa.timestamp(unit): [-(10**9), 0, 10**9] for unit in ("ms", "us", "ns")} | {pa.date32(): [-1, 0, 11]},
    ),
    "zones": (
        pa.timestamp("us", "UTC"),
        {pa.timestamp("us", "UTC"): [0, 10**9], pa.timestamp("ms", "Europe/Berlin"): [0, 10**6]},
    ),
    "durations": (pa.duration("us"), {pa.duration("s"): [0, 1, -5], pa.duration("us"): [0, 1, -5 * 10**6]}),
    "times of day": (pa.time64("us"), {pa.time32("ms"): [0, 1], pa.time64("us"): [0, 1, 1000]}),
    "bytes": (pa.large_binary(), {pa.binary(2): [b"ab"], pa.binary(): [b"a", b"\xff"]}),
    "long decimals": (
        pa.decimal256(40, 2),
        {pa.decimal128(9, 2): [Decimal("1.50"), Decimal(0)], pa.decimal128(38, 0): [Decimal(10**37), Decimal(0)]},
    ),
}  # fmt: skip
LITERALS: dict[str, list[Any]] = {
    "integers and doubles": [0, 1, 0.5, 2.0],
    "floats and doubles": [0.1, 0.25, 2.0],
    "unsigned and signed": [0, 1, 255, -3],
    "short and long": [-128, 7, 2**53 + 1],
    "text": ["a", "b", "é"],
    "decimals": [Decimal("1.5"), Decimal("1.5001"), Decimal("-2.25")],
    "nothing": [0, 1],
    "narrow decimals": [Decimal("1.5"), Decimal("-2.25")],
    "large integers and doubles": [0, 0.5, 2.0**60, 2**53],
    "unsigned and signed, long": [0, 7, -(2**63), 2**63 - 1],
    "units of time": [pa.scalar(count, pa.timestamp("ns")) for count in (-(10**9), 0, 1, 10**9, 86_400 * 10**9)],
    "zones": [pa.scalar(count, pa.timestamp("us", "UTC")) for count in (0, 1, 10**9)],
    "durations": [pa.scalar(count, pa.duration("us")) for count in (0, 1, 10**6, -5 * 10**6)],
    "times of day": [pa.scalar(count, pa.time64("us")) for count in (0, 1, 1000)],
    "bytes": [b"a", b"\xff", b"ab"],
    "long decimals": [Decimal(0), Decimal(10**37), Decimal("1.5")],
}
if hasattr(pa, "decimal32"):  # pyarrow 19
    KINDS["narrow decimals"] = (
        pa.decimal128(9, 2),
        {pa.decimal32(9, 2): [Decimal("1.50"), Decimal("-2.25"), Decimal(0)]},
    )


def write(root: Path, columns: Sequence[pa.Array], **options: Any) -> str:
    """Writes one file per column ``a``, with an ``id`` that counts rows across files."""
    root.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, column in enumerate(columns):
        ids = pa.array(range(first, first + len(column)), pa.int64())
        pq.write_table(pa.table({"id": ids, "a": column}), root / f"{number}.parquet", **options)
        first += len(column)
    return str(root)


def ids(pipeline: Pipeline) -> list[int]:
    try:
        return [int(row["id"] if "id" in row else row[0]["id"]) for row in pipeline]
    except EmptySelectionError:
        return []


def questions(name: str) -> st.SearchStrategy[Callable[[Pipeline], Pipeline]]:
    """Stages that use the stored values of ``a``."""
    literals = st.sampled_from(LITERALS.get(name, [0]))
    compared = st.tuples(st.sampled_from(["==", "!=", "<", ">=", ">", "<="]), literals)
    anything = [
        compared.map(lambda drawn: lambda p: p.where([("a", *drawn)])),
        st.lists(literals, min_size=1, max_size=2).map(lambda some: lambda p: p.where([("a", "in", some)])),
        st.lists(literals, min_size=1, max_size=2).map(lambda some: lambda p: p.where([("a", "not in", some)])),
        st.integers(0, 1).map(lambda part: lambda p: p.where(hash_split("a", [0.4, 0.6], part))),
        st.sampled_from([a.is_null(), a.is_valid(), ~a.is_null(nan_is_null=True)]).map(lambda e: lambda p: p.where(e)),
        st.just(lambda p: p.nulls("drop", "a")),
        st.just(lambda p: p.where(_is_known, fields=["a"])),
        st.just(lambda p: p.ngram({0: ["id"], 1: ["id"]}, group_by="a")),
    ]  # fmt: skip
    numbers = [
        a / 4 > 0,
        pc.negate(pc.add(a, 0)) < 0,
        pc.multiply(a, 3) == 3,
        a.cast(pa.float64(), safe=False) > 0.1,
        pc.equal(a, a.cast(pa.float64(), safe=False)),
    ]
    if name == "lists":
        sought = st.sampled_from([1, 2, 2.5, 0]).map(lambda value: lambda p: p.where(contains("a", value)))
        lengths = st.just(lambda p: p.where(pc.list_value_length(a) > 1))
        return st.one_of(sought, lengths, anything[4], anything[5])
    if name in ("integers and doubles", "floats and doubles", "unsigned and signed", "nothing"):
        anything.append(st.sampled_from(numbers).map(lambda e: lambda p: p.where(e)))
    return st.one_of(anything)


def _is_known(row: dict[str, Any]) -> bool:
    return row["a"] is not None and row["a"] == row["a"]


@pytest.mark.parametrize("name", KINDS)
@examples(4)
@given(st.data())
def test_every_question_has_the_answer_of_files_of_one_type(name: str, data: st.DataObject) -> None:
    wanted, types = KINDS[name]
    stored = data.draw(st.lists(st.sampled_from(list(types)), min_size=2, max_size=4), "types")
    columns = [
        pa.array(data.draw(st.lists(st.sampled_from([*types[kind], None]), min_size=1, max_size=4), "values"), kind)
        for kind in [*types, *stored[2:]]
    ]
    alike = [column.cast(wanted, safe=False) for column in columns]  # Arrow refuses all large integers as floats
    options = {
        "row_group_size": data.draw(st.integers(1, 3), "rows of a row group"),
        "write_statistics": data.draw(st.sampled_from([True, True, False]), "statistics"),
    }
    with directory() as root:
        mixed = write(root / "mixed", columns, **options)
        plain = write(root / "plain", alike, **options)
        if data.draw(st.booleans(), "index"):
            write_index(mixed)
        one, other = (Pipeline(url, ["id", "a"], executor="threads", workers=1) for url in (mixed, plain))
        for _ in range(3):
            ask = data.draw(questions(name), "question")
            assert ids(ask(one)) == ids(ask(other))
        assert repr([row["a"] for row in one]) == repr([row["a"] for row in other])
        parts = [ids(one.where(hash_split("a", [0.5, 0.5], part))) for part in (0, 1)] if name != "lists" else [[], []]
        assert name == "lists" or sorted(parts[0] + parts[1]) == list(range(sum(map(len, columns))))


def test_an_expression_computes_in_the_type_of_the_dataset(tmp_path: Path) -> None:
    halves = write(tmp_path / "a", [pa.array([0, 1, 2], pa.int32()), pa.array([0.5])])
    assert ids(Pipeline(halves, ["id"]).where(a / 4 > 0)) == [1, 2, 3]
    tenths = write(tmp_path / "b", [pa.array([0.1, 0.2], pa.float32()), pa.array([0.1, 0.2])])
    assert ids(Pipeline(tenths, ["id"]).where([("a", "in", [0.1])])) == [2]
    small = write(tmp_path / "c", [pa.array([1, 2], pa.uint8()), pa.array([1, -2], pa.int16())])
    assert ids(Pipeline(small, ["id"]).where(pc.negate(a) < 0)) == [0, 1, 2]


def test_equal_values_are_in_one_part_of_a_split_whatever_type_their_file_has(tmp_path: Path) -> None:
    numbers = pa.array(range(50), pa.int32())
    alone = write(tmp_path / "alone", [numbers])
    both = write(tmp_path / "both", [numbers, numbers.cast(pa.float64())])
    parts = [ids(Pipeline(both, ["id"]).where(hash_split("a", [0.5, 0.5], part))) for part in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(100))
    for part, found in enumerate(parts):
        assert [number + 50 for number in found if number < 50] == [number for number in found if number >= 50]
        before = ids(Pipeline(alone, ["id"]).where(hash_split("a", [0.5, 0.5], part)))
        assert before == [number for number in found if number < 50], "a new file moved rows to the other part"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.array(range(-25, 25), pa.int32()), pa.decimal128(12, 2)),
        (pa.array([2**63, 2**64 - 1, 5] * 8, pa.uint64()), pa.decimal128(22, 1)),
        (pa.array(range(50), pa.int32()).cast(pa.date32()), pa.timestamp("us")),
        (pa.array(range(50), pa.timestamp("ms")), pa.timestamp("ns")),
        (pa.array(range(50), pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array(range(50), pa.uint64()), pa.int64()),
        (pa.array(range(50)), pa.float64()),
        (pa.array(range(50), pa.int32()).cast(pa.decimal128(38, 0)), pa.decimal256(40, 2)),
        (pa.array(range(50), pa.duration("s")), pa.duration("us")),
        (pa.array(range(50), pa.time32("s")), pa.time64("us")),
        (pa.array([1.5, -0.0, 1e300, float("nan"), float("inf")] * 8, pa.float32()), pa.float64()),
    ],
    ids=str,
)
def test_a_column_that_widens_leaves_every_row_in_its_part(before: pa.Array, after: pa.DataType) -> None:
    for part in (0, 1):
        split = hash_split("a", [0.3, 0.7], part)
        assert split.mask(before).tolist() == split.mask(before.cast(after)).tolist()


def test_bounds_prune_in_the_type_of_the_dataset(tmp_path: Path) -> None:
    url = write(tmp_path, [pa.array([1, 5], pa.int32()), pa.array([2**40]), pa.array([7, 8], pa.int16())])
    for indexed in (False, True):
        if indexed:
            write_index(url)
        told = str(Pipeline(url, ["id"], executor="threads").where(a > 5).explain())
        assert indexed or "1 by statistics" in told
        assert ids(Pipeline(url, ["id"]).where(a > 5)) == [2, 3, 4]


def test_bounds_of_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    times = pa.array([36_000_000_000_999, 5], pa.int64()).view(pa.time64("ns"))
    url = write(tmp_path, [times])
    literal = pa.scalar(36_000_000_000_500, pa.int64()).cast(pa.time64("ns"))
    assert ids(Pipeline(url, ["id"]).where(a > literal)) == [0]


def test_a_declared_schema_does_not_hide_the_types_of_files(tmp_path: Path) -> None:
    url = write(tmp_path, [pa.array([1, 2], pa.uint8()), pa.array([1, -2], pa.int16())])
    generate_metadata(url, Unischema("s", [UnischemaField("id", np.int64), UnischemaField("a", np.int16)]))
    assert ids(Pipeline(url, ["id"]).where(pc.negate(a) < 0)) == [0, 1, 2]
    parts = [ids(Pipeline(url, ["id"]).where(hash_split("a", [0.5, 0.5], part))) for part in (0, 1)]
    assert sorted(parts[0] + parts[1]) == [0, 1, 2, 3]


def test_a_value_that_the_declared_type_does_not_hold_is_named_with_its_file(tmp_path: Path) -> None:
    url = write(tmp_path, [pa.array([1.5]), pa.array([2**53 + 1])])
    generate_metadata(url, Unischema("s", [UnischemaField("id", np.int64), UnischemaField("a", np.float64)]))
    with pytest.raises(
        DecodeError, match=r"1\.parquet, row group 0: field 'a', row 0: expected values of type double.*int64"
    ):
        ids(Pipeline(url, ["id"]).where(a > 0))


def test_scaled_decimals_have_one_scale_in_all_files(tmp_path: Path) -> None:
    columns = [pa.array([Decimal("1.50")], pa.decimal128(9, 2)), pa.array([Decimal("1.5001")], pa.decimal128(12, 4))]
    rows = list(Pipeline(write(tmp_path, columns)).decimals("scaled", "a"))
    assert [int(row["a"]) for row in rows] == [15000, 15001]


def test_windows_join_groups_and_times_of_files_of_different_types(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int32(), pa.float64())):
        table = pa.table(
            {
                "id": [2 * number, 2 * number + 1],
                "a": pa.array([1, 1], kind),
                "g": pa.array(["x", "x"]).cast(CODES) if number else pa.array(["x", "x"]),
                "t": pa.array([4 * number, 4 * number + 1], pa.int64() if number else pa.uint16()),
            }
        )
        pq.write_table(table, tmp_path / f"{number}.parquet")
    for group in ("a", "g"):
        windows = Pipeline(str(tmp_path)).ngram({0: ["id"], 1: ["id"]}, timestamp="t", group_by=group, max_gap=3)
        assert [int(row[0]["id"]) for row in windows] == [0, 1, 2]


def test_groups_of_windows_may_be_more_than_the_indices_of_one_file_count(tmp_path: Path) -> None:
    for file in range(2):
        names = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), [f"{file} {n}" for n in range(100)])
        table = pa.table({"id": range(file * 100, file * 100 + 100), "c": names})
        pq.write_table(table, tmp_path / f"{file}.parquet")
    assert len(Pipeline(tmp_path).ngram(length=1, timestamp="id", max_gap=1, group_by="c")) == 200


@pytest.mark.parametrize(
    "groups",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, None, None], pa.uint32()), ["a", "b"]),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16] * 2 + [b"b" * 16, None, None], pa.binary(16))),
    ],
    ids=["unsigned indices", "uuid"],
)
def test_windows_take_groups_of_stored_types(tmp_path: Path, groups: pa.Array) -> None:
    pq.write_table(pa.table({"id": range(5), "c": groups}), tmp_path / "a.parquet")
    windows = Pipeline(tmp_path).ngram(length=2, group_by="c").select("id")
    assert [row["id"].tolist() for row in windows] == [[0, 1], [3, 4]]


def test_a_widened_column_of_a_delta_table_is_asked_in_the_type_of_the_table(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    table = tmp_path / "t"
    table.mkdir()
    commit(
        table,
        0,
        protocol(["typeWidening", "timestampNtz"]),
        metadata([field("id", "long"), field("a", "double"), field("d", "timestamp_ntz"), field("m", "decimal(12,2)")]),
        add(table, "0.parquet", _table([0, 1, 2], pa.int32(), pa.date32(), pa.int16())),
        add(table, "1.parquet", _table([0.5], pa.float64(), pa.timestamp("us"), pa.decimal128(12, 2), first=3)),
    )
    pipeline = Pipeline.from_delta(str(table))
    assert sorted(ids(pipeline.where(a / 4 > 0))) == [1, 2, 3]
    assert sorted(ids(pipeline.where(a >= 1.5))) == [2]
    assert sorted(ids(pipeline.where(pc.field("d") == pa.scalar(0, pa.timestamp("us"))))) == [0, 3]
    assert sorted(ids(pipeline.where(pc.field("m") + Decimal("0.50") == Decimal("1.50")))) == [1]
    assert "1 by statistics" in str(pipeline.where(pc.field("m") > Decimal("1.00")).explain())
    parts = [ids(pipeline.where(hash_split("a", [0.5, 0.5], part))) for part in (0, 1)]
    assert sorted(parts[0] + parts[1]) == [0, 1, 2, 3]


def _table(values: list[Any], kind: pa.DataType, day: pa.DataType, money: pa.DataType, *, first: int = 0) -> pa.Table:
    whole = [int(value) for value in values]
    return pa.table(
        {
            "id": pa.array(range(first, first + len(values)), pa.int64()),
            "a": pa.array(values, kind),
            "d": pa.array(whole, pa.int32()).cast(pa.date32()).cast(day),
            "m": pa.array([Decimal(number) for number in whole], pa.decimal128(12, 2)).cast(money),
        }
    )


def test_a_null_struct_makes_its_dictionaries_null_whatever_the_statistics_say(tmp_path: Path) -> None:
    texts = pa.array(["a", "b", "c"]).dictionary_encode()
    struct = pa.StructArray.from_arrays([texts], names=["v"], mask=pa.array([False, True, False]))
    url = write_table(tmp_path, pa.table({"s": struct}))
    assert pq.read_metadata(tmp_path / "part.parquet").row_group(0).column(0).statistics.null_count == 0  # Arrow's
    for indexed in (False, True):
        if indexed:
            write_index(url)
        pipeline = Pipeline(url)
        for rows in (pipeline.where(pc.field("s.v").is_valid()), pipeline.where(pc.field("s.v") >= "a")):
            assert [row["s.v"] for row in rows] == ["a", "c"]
        assert [row["s.v"] for row in pipeline.where(pc.field("s.v").is_null())] == [None]
        assert [row["s.v"] for row in pipeline.nulls("drop", "s.v")] == ["a", "c"]


def test_only_text_inside_a_struct_has_an_unknown_number_of_nulls(tmp_path: Path) -> None:
    struct = pa.array([{"n": 1, "t": "a"}, {"n": 2, "t": "b"}])
    dataset = StoredDataset([write_table(tmp_path, pa.table({"s": struct, "t": ["a", "b"]}))])
    counts = {name: column_statistics(dataset, name).null_count.tolist() for name in ("s.n", "s.t", "t")}
    assert counts == {"s.n": [0], "s.t": [-1], "t": [0]}
