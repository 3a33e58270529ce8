"""Footers of other writers: whatever they claim, every row is found, and the reports say what cannot be true."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import footer_edits as edits
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from footer_edits import I64, MAX, MIN, NULLS, Struct, empty, long, not_a_number, short
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline
from parquetry.common.apps.reports import inspect, lint, verify
from parquetry.common.base.errors import DatasetError, EmptySelectionError, SchemaError
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.plan.selection.statistics import column_statistics

pytestmark = pytest.mark.versions

KINDS: dict[str, list[Any]] = {
    "int8": [1, 5, 9, 7],
    "int64": [1, 5, 9, 7],
    "uint64": [1, 2**63, 2**64 - 1, 7],
    "float": [1.5, -0.0, math.inf, 0.0],
    "bool": [True, False, True, False],
    "string": ["b", "é", "", "a"],
    "binary": [b"b", b"\xff", b"", b"a"],
    "date32": [dt.date(1969, 1, 1), dt.date(2020, 1, 9), dt.date(2020, 1, 1), dt.date(1970, 1, 1)],
    "timestamp": [-(2**63), 0, 9, 2**62],
    "duration": [-(2**63), 0, 9, 2**62],
    "time64": [0, 1, 86_399_999_999, 7],
    "decimal": [decimal.Decimal(text) for text in ("1.50", "-2.25", "0.00", "9.75")],
    "decimal of 38 digits": [decimal.Decimal(text) for text in ("1.50", "-2.25", "0.00", "9.75")],
}
TYPES = {
    **{name: pa.type_for_alias(name) for name in ("int8", "int64", "uint64", "bool", "string", "binary", "date32")},
    "float": pa.float64(),
    "timestamp": pa.timestamp("us"),
    "duration": pa.duration("ns"),
    "time64": pa.time64("us"),
    "decimal": pa.decimal128(9, 2),
    "decimal of 38 digits": pa.decimal128(38, 2),
}


def write(path: Path, kind: str, values: list[Any], rows: int | None = None) -> pa.Table:
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, TYPES[kind])})
    pq.write_table(table, path, row_group_size=rows or len(values))
    return table


def ids(path: Path, condition: pc.Expression) -> list[int]:
    try:
        return [int(row["id"]) for row in Pipeline(path, ["id"], executor="threads", workers=1).where(condition)]
    except EmptySelectionError:
        return []


def lies_about(kind: str) -> list[Callable[[Struct], None]]:
    """Returns the lies about a type that can be told from the truth."""
    possible = {not_a_number} if kind != "float" else set()
    if kind in ("string", "binary"):
        possible |= {short, long, empty}
    return [lie for lie in edits.LIES if lie not in possible]


@pytest.fixture(params=["core", "python"])
def checked_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Checks footers with the compiled core, or in Python."""
    if request.param == "python":
        monkeypatch.setattr("parquetry.common.parquet.footer_check.passes", lambda *_: False)
    return str(request.param)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_true_is_unknown(kind: str, indexed: bool, tmp_path: Path) -> None:
    lies, values = lies_about(kind), KINDS[kind]
    table = write(tmp_path / "a.parquet", kind, values * (len(lies) + 1), rows=len(values))

    def tell(footer: Struct) -> None:
        for lie, stated in zip(lies, edits.statistics_of(footer, 1), strict=False):  # the last row group is as it was
            lie(stated)

    edits.edit(tmp_path / "a.parquet", tell)
    if indexed:
        write_index(tmp_path)
    column = table.column("v")
    for value in (column[0], column[2]):
        for condition, expected in (
            (pc.field("v") == value, pc.equal(column, value)),
            (pc.field("v") != value, pc.not_equal(column, value)),
            (pc.field("v") < value, pc.less(column, value)),
            (~pc.field("v").isin(pa.array([value])), pc.invert(pc.is_in(column, pa.array([value])))),
        ):
            assert ids(tmp_path, condition) == np.flatnonzero(expected).tolist()
    report = inspect(str(tmp_path))
    assert report.indexed == indexed
    field = report.field("v")
    assert (field.impossible, field.minimum, field.maximum, field.nulls) == (len(lies), None, None, None)
    assert f"impossible in {len(lies)} row groups" in field.range_text(12)
    assert [found.field for found in lint(str(tmp_path)) if found.code == "impossible-statistics"] == ["v"]
    damages = verify(str(tmp_path)).damages
    assert [(damage.check, damage.row_group) for damage in damages] == [("statistics", n) for n in range(len(lies))]
    assert all(damage.what.startswith("field 'v': expected ") for damage in damages)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_null_count_proves_nothing_against_bounds(indexed: bool, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "int64", [1, 5, None, 7])

    def only_nulls(footer: Struct) -> None:
        for stated in edits.statistics_of(footer, 1):
            stated[NULLS] = I64, 4

    edits.edit(tmp_path / "a.parquet", only_nulls)
    if indexed:
        write_index(tmp_path)
    assert ids(tmp_path, pc.field("v") > 4) == [1, 3]
    (damage,) = verify(str(tmp_path)).damages
    assert damage.what == "field 'v': expected 4 nulls as the footer says, got 1."


@pytest.mark.parametrize("indexed", [False, True])
def test_a_column_that_cannot_be_null_has_no_nulls_whatever_its_footer_says(indexed: bool, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"id": range(4), "v": [1, 5, 9, 7]}, schema=schema), tmp_path / "a.parquet")

    def only_nulls(footer: Struct) -> None:
        for stated in edits.statistics_of(footer, 1):
            stated.clear()
            stated[NULLS] = I64, 4

    edits.edit(tmp_path / "a.parquet", only_nulls)
    if indexed:
        write_index(tmp_path)
    assert ids(tmp_path, pc.field("v") > 4) == [1, 2, 3]
    assert inspect(str(tmp_path)).field("v").impossible == 1


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(
    ("kind", "bound"), [("int8", struct.pack("<i", 300)), ("decimal", b"\x7f\xff\xff\xff")], ids=["int8", "decimal"]
)
def test_bounds_that_their_type_does_not_hold_are_unknown(
    kind: str, bound: bytes, indexed: bool, tmp_path: Path
) -> None:
    table = write(tmp_path / "a.parquet", kind, KINDS[kind] * 2, rows=4)

    def tell(footer: Struct) -> None:
        first, _ = edits.statistics_of(footer, 1)
        first[MAX] = edits.BINARY, bound

    edits.edit(tmp_path / "a.parquet", tell)
    if indexed:
        write_index(tmp_path)
    assert ids(tmp_path, pc.field("v") == table["v"][2]) == [2, 6]
    known = column_statistics(StoredDataset([str(tmp_path)]), "v")
    assert (known.minimum.is_valid().to_pylist(), known.null_count.tolist()) == ([False, True], [-1, 0])
    assert inspect(str(tmp_path)).field("v").impossible == 1


def test_a_short_bound_in_one_of_many_row_groups_is_unknown(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "int64", list(range(40)), rows=1)  # with an index, each has a footer of its own

    def tell(footer: Struct) -> None:
        short(list(edits.statistics_of(footer, 1))[7])

    edits.edit(tmp_path / "a.parquet", tell)
    write_index(tmp_path)
    assert ids(tmp_path, pc.field("v").isin([6, 7])) == [6, 7]


@pytest.mark.usefixtures("checked_by")
def test_bounds_of_a_wrong_length_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, "int64", [1, 5, 9, 7], rows=2)

    def tell(footer: Struct) -> None:
        for lie, stated in zip((short, long), edits.statistics_of(footer, 1), strict=True):
            lie(stated)

    edits.edit(path, tell)
    assert ids(path, pc.field("v") != 1) == [1, 2, 3]
    assert inspect(str(path)).field("v").impossible == 2
    assert inspect(str(path)).field("id").impossible == 0


@pytest.mark.usefixtures("checked_by")
def test_the_row_groups_count_if_their_columns_have_as_many_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.parquet", "int64", [1, 5, 9, 7], rows=2)
    edits.edit(tmp_path / "a.parquet", lambda footer: edits.set_rows(footer, 0, of_groups=False))
    assert len(Pipeline(tmp_path)) == 4
    assert ids(tmp_path, pc.field("v") > 4) == [1, 2, 3]
    assert "counts the 4 rows of its row groups, got a count of 0" in caplog.text
    (damage,) = verify(str(tmp_path)).damages
    assert damage.check == "rows"
    assert damage.what == "footer: expected a count of 4 rows, as in its row groups, got 0."


@pytest.mark.usefixtures("checked_by")
@pytest.mark.parametrize("of_file", [True, False])
def test_a_row_group_cannot_have_fewer_rows_than_its_columns_have_values(of_file: bool, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "int64", [1, 5, 9, 7])
    edits.edit(tmp_path / "a.parquet", lambda footer: edits.set_rows(footer, 3, of_file=of_file, of_chunks=False))
    with pytest.raises(DatasetError, match=r"a\.parquet: .* a column chunk of 4 values in a row group of 3 rows"):
        list(Pipeline(tmp_path))


def test_rows_that_only_lists_could_confirm_must_be_those_of_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"l": [[1, 2], [3]]}), tmp_path / "a.parquet")
    edits.edit(tmp_path / "a.parquet", lambda footer: edits.set_rows(footer, 1, of_file=False, of_chunks=False))
    with pytest.raises(DatasetError, match="row groups of 1 rows together in a file of 2"):
        list(Pipeline(tmp_path))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_with_more_values_than_the_footer_counts_are_not_sound(tmp_path: Path, version: str) -> None:
    for name, column in {"flat": [1, 2, 3, 4, 5, 6], "lists": [[1], [2], [3], [4], [5], [6]]}.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({name: column}), path, data_page_size=8, data_page_version=version)
        edits.edit(path, lambda footer: edits.set_rows(footer, 3))
    assert verify(str(tmp_path / "flat.parquet")).damages[0].what == "expected 3 rows as the footer says, got 6."
    (damage,) = verify(str(tmp_path / "lists.parquet")).damages
    assert damage.check == "bytes"
    assert "expected 3 values in the pages of column 'lists.list.element', as the footer says, got 6" in damage.what


def test_rows_without_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2]}).select([]), path)
    edits.edit(path, lambda footer: edits.set_rows(footer, 2))
    uses: list[Callable[[Pipeline], Any]] = [len, list, Pipeline.head, Pipeline.explain, lambda pipeline: pipeline[0]]
    for use in uses:
        with pytest.raises(SchemaError, match=r"a\.parquet: expected files with columns, got none"):
            use(Pipeline(path))
    assert inspect(str(path)).fields == ()


@pytest.mark.usefixtures("checked_by")
def test_an_empty_list_may_have_no_type(tmp_path: Path) -> None:
    nothing = edits.LIST, (0, [])

    def without_type(footer: Struct) -> None:
        footer[5] = nothing  # key-value metadata
        for group in edits.groups_of(footer):
            group[4] = nothing  # sorting columns
        for chunk in edits.chunks_of(footer, 1):
            chunk[8] = chunk[13] = nothing  # key-value metadata, encoding statistics

    write(tmp_path / "a.parquet", "int64", [1, 5, 9, 7])
    edits.edit(tmp_path / "a.parquet", without_type)
    assert ids(tmp_path, pc.field("v") > 4) == [1, 2, 3]
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "b.parquet")

    def without_groups(footer: Struct) -> None:
        footer[edits.GROUPS] = nothing

    edits.edit(tmp_path / "b.parquet", without_groups)
    assert len(Pipeline(tmp_path / "b.parquet")) == 0
    pq.write_table(pa.table({"id": [1]}).select([]), tmp_path / "c.parquet")

    def without_columns(footer: Struct) -> None:
        for group in edits.groups_of(footer):
            group[edits.COLUMNS] = nothing

    edits.edit(tmp_path / "c.parquet", without_columns)
    assert inspect(str(tmp_path / "c.parquet")).row_groups == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("of", [pa.timestamp, pa.duration])
def test_the_smallest_time_hides_no_member(of: Callable[[str], pa.DataType], unit: str, tmp_path: Path) -> None:
    """Numpy takes it for NaT, and sorts it after all others."""
    kind = of(unit)
    least = -(2**63) if unit != "s" or of is pa.duration else -(2**53)  # Parquet has no timestamps in seconds
    pq.write_table(pa.table({"id": range(3), "v": pa.array([least, 0, 9], kind)}), tmp_path / "a.parquet")
    member = pc.field("v").isin(pa.array([0], kind))
    assert ids(tmp_path, member) == [1]
    assert ids(tmp_path, ~member) == [0, 2]


COUNTS = {"timestamp": pa.timestamp("ns"), "duration": pa.duration("s"), "uint64": pa.uint64(), "int64": pa.int64()}


@examples(15)
@given(st.data())
def test_members_are_found_by_the_order_of_arrow(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(COUNTS)))
    counts = [0, 9, 2**63, 2**64 - 1] if kind == "uint64" else [-(2**63), -(2**63) + 1, -1, 0, 9, 2**63 - 1]
    values = data.draw(st.lists(st.sampled_from([*counts, None]), min_size=1, max_size=8))
    members = pa.array(data.draw(st.lists(st.sampled_from(counts), min_size=1, max_size=4)), COUNTS[kind])
    column = pa.array(values, COUNTS[kind])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.parquet"
        table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": column})
        pq.write_table(table, path, row_group_size=data.draw(st.integers(1, 8)))
        within = np.asarray(pc.is_in(column, members))
        assert ids(path, pc.field("v").isin(members)) == np.flatnonzero(within).tolist()
        assert ids(path, ~pc.field("v").isin(members)) == np.flatnonzero(~within).tolist()


@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_reports_compare_the_smallest_time(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", kind, KINDS[kind], rows=1)
    field = inspect(str(tmp_path)).field("v")
    assert (np.asarray(field.minimum).astype(np.int64), np.asarray(field.maximum).astype(np.int64)) == (-(2**63), 2**62)
    assert verify(str(tmp_path)).damages == ()
    write(tmp_path / "a.parquet", kind, [0, 9, 9, 9])

    def tell(footer: Struct) -> None:
        for stated in edits.statistics_of(footer, 1):
            stated[MAX] = stated[MIN] = edits.BINARY, struct.pack("<q", -(2**63))

    edits.edit(tmp_path / "a.parquet", tell)
    (damage,) = verify(str(tmp_path)).damages
    assert "expected values <= " in damage.what
