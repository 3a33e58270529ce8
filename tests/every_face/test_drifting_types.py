"""Directories as pandas, Spark and jobs over years leave them: each file stores a column in its own type."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import directory
from faces import THREADS, Face, installed_faces, plain
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.reports import verify
from parquetry.common.apps.reports.inspecting import inspect
from parquetry.common.base.errors import DecodeError, EmptySelectionError, SchemaError
from parquetry.common.dataset.index import write_index

NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY = 86_400 * 10**9
FAR = 253_402_300_799 * 10**9  # the end of the year 9999, in nanoseconds
COMPARED = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def counts(kind: pa.DataType) -> int:
    """The nanoseconds that a date or time counts."""
    return DAY if pa.types.is_date(kind) else NS[kind.unit]


@dataclass(frozen=True)
class Drift:
    """Types of one column, and its values: Python numbers, text, or for times nanoseconds.

    Attributes:
        values: the values that files of each type may hold.
        field: how the user declares the field; ``None`` if that is not needed.
        delivered: what a value is delivered as.
        literal: a value as a literal of a filter.
    """

    values: dict[pa.DataType, list[Any]]
    field: UnischemaField | None = None
    delivered: Callable[[Any], Any] = lambda value: value
    literal: Callable[[Any], Any] = lambda value: value


def times(units: dict[pa.DataType, list[int]], unit: str, zone: str | None = None, *, declared: bool = False) -> Drift:
    def literal(nanoseconds: int) -> pa.Scalar:
        return pa.scalar(nanoseconds // NS[unit], pa.timestamp(unit, zone))

    field = UnischemaField("x", f"datetime64[{unit}]") if declared else None
    return Drift(units, field, lambda nanoseconds: nanoseconds // NS[unit], literal)


NEAR = [-DAY, 0, 10**9, 11 * DAY]
WHOLE = [-3, 0, 1, 2**53, -(2**60)]
DRIFTS = {
    "units": times({pa.timestamp(unit): [*NEAR, *([10**6 + NS[unit]] if unit != "s" else [])] for unit in NS}, "ns"),
    "far": times({pa.timestamp("ms"): [*NEAR, FAR], pa.timestamp("us"): [*NEAR, FAR + 1000]}, "us"),
    "far, declared": times({pa.timestamp("us"): [*NEAR, FAR], pa.timestamp("ns"): [*NEAR, 5000]}, "us", declared=True),
    "dates": times({pa.date32(): [-DAY, 0, 11 * DAY], pa.timestamp("us"): [*NEAR, 1000]}, "us"),
    "days, declared": times({pa.date32(): [-DAY, 0], pa.timestamp("us"): [-DAY, 0]}, "s", declared=True),
    "zones": times({pa.timestamp("us", "UTC"): NEAR, pa.timestamp("ms", "Asia/Tokyo"): NEAR}, "us", "UTC"),
    "zone or none, declared": times(
        {pa.timestamp("us"): [*NEAR, FAR], pa.timestamp("ns", "UTC"): NEAR}, "us", "UTC", declared=True
    ),
    "integers and doubles": Drift(
        {pa.int64(): WHOLE, pa.float64(): [0.0, 0.5, 2.0**53, float("nan")], pa.null(): []},
        delivered=float,
        literal=float,
    ),
    "whole numbers, declared": Drift(
        {pa.int64(): [*WHOLE, 2**53 + 1], pa.float64(): [0.0, 1.0, 2.0**53]}, UnischemaField("x", np.int64), int, int
    ),
    "signs": Drift({pa.uint64(): [0, 7, 2**63 - 1], pa.int64(): [-(2**63), 0, 7], pa.int8(): [-1, 7]}),
    "unsigned, declared": Drift(
        {pa.uint64(): [0, 7, 2**64 - 1], pa.int64(): [0, 7, 2**63 - 1]}, UnischemaField("x", np.uint64)
    ),
    "floats": Drift({pa.float32(): [0.5, -2.0], pa.float64(): [0.1, 0.5], pa.float32(): [float(np.float32(0.1))]}),
    "text": Drift(
        {
            pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
            pa.dictionary(pa.uint32(), pa.large_string()): ["b", "é"],
            pa.string(): ["", "a"],
            pa.null(): [],
        }
    ),
    "bytes": Drift(
        {pa.binary(): ["a", "é"], pa.binary(2): ["ab"]},
        delivered=lambda text: text.encode(),
        literal=lambda text: text.encode(),
    ),
    "text as bytes, declared": Drift(
        {pa.string(): ["a", "é"], pa.binary(): ["a", "b"], pa.binary(2): ["ab"]},
        UnischemaField("x", bytes),
        delivered=lambda text: text.encode(),
    ),
    "bytes as text, declared": Drift({pa.string(): ["a", "é"], pa.binary(): ["a", "é"]}, UnischemaField("x", str)),
    "decimals": Drift(
        {
            pa.decimal128(9, 2): [Decimal("1.5"), Decimal("-2.25")],
            pa.decimal128(38, 0): [Decimal(10**37), Decimal(2)],
            pa.int64(): [Decimal(2), Decimal(2**62)],
        },
        delivered=lambda number: format(number.normalize(), "f"),
    ),
    "numbers as text, declared": Drift(
        {pa.int64(): [str(number) for number in WHOLE], pa.string(): ["-3", "x"]}, UnischemaField("x", str)
    ),
    "truth and numbers, declared": Drift({pa.bool_(): [0, 1], pa.int64(): [0, 1, 5]}, UnischemaField("x", np.int64)),
}


def column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Returns values of a drift as a file of this type stores them."""

    def stored(value: Any) -> Any:
        if value is None or pa.types.is_null(kind):
            return None
        if pa.types.is_temporal(kind):
            return value // counts(kind)
        if pa.types.is_boolean(kind):
            return bool(value)
        return int(value) if pa.types.is_integer(kind) else value

    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array([stored(value) for value in values], kind)


def write(root: Path, columns: Sequence[pa.Array], **options: Any) -> None:
    """Writes one file per column ``x``, with an ``id`` that counts rows across files."""
    first = 0
    for number, values in enumerate(columns):
        ids = pa.array(range(first, first + len(values)), pa.int64())
        pq.write_table(pa.table({"id": ids, "x": values}), root / f"{number}.parquet", **options)
        first += len(values)


def ids(face: Face, pipeline: Pipeline) -> list[int]:
    try:
        return [row["id"] for row in face.elements(pipeline.select("id"))]
    except EmptySelectionError:
        return []


@pytest.mark.parametrize("name", DRIFTS)
@examples(6)
@given(st.data())
def test_files_of_any_types_are_one_column(name: str, data: st.DataObject) -> None:
    drift = DRIFTS[name]
    kinds = data.draw(st.lists(st.sampled_from(list(drift.values)), min_size=2, max_size=4), "types")
    files = [
        data.draw(st.lists(st.sampled_from([*drift.values[kind], None]), min_size=1, max_size=5)) for kind in kinds
    ]
    values = [value for file in files for value in file]
    literals = st.sampled_from([value for value in values if value is not None and value == value] or [None])
    with directory() as root:
        columns = [column(kind, file) for kind, file in zip(kinds, files, strict=True)]
        columns += [column(kind, []) for kind in drift.values]  # files without rows have types, too
        write(
            root,
            columns,
            row_group_size=data.draw(st.integers(1, 3), "rows of a row group"),
            write_statistics=data.draw(st.sampled_from([True, True, False]), "statistics"),
        )
        if data.draw(st.booleans(), "index"):
            write_index(root)
        pipeline = Pipeline(root, None if drift.field is None else [drift.field, ".*"], workers=1)
        wanted = [None if value is None else drift.delivered(value) for value in values]
        assert [row["x"] for row in THREADS.elements(pipeline)] == plain(wanted)
        for _ in range(3):
            sign, literal = data.draw(st.sampled_from(list(COMPARED)), "sign"), data.draw(literals, "literal")
            if literal is None:
                continue
            matches = [n for n, v in enumerate(values) if v is not None and COMPARED[sign](v, literal)]
            assert ids(THREADS, pipeline.where([("x", sign, drift.literal(literal))])) == matches
            matches = [n for n, v in enumerate(values) if v is not None and v == literal]
            assert ids(THREADS, pipeline.where([("x", "in", [drift.literal(literal)])])) == matches
        assert ids(THREADS, pipeline.where(pc.field("x").is_null())) == [n for n, v in enumerate(values) if v is None]
        assert drift.field is not None or verify(str(root)).damages == ()


def in_lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


@pytest.mark.parametrize("name", DRIFTS)
def test_lists_of_any_types_are_one_column(tmp_path: Path, name: str) -> None:
    drift = DRIFTS[name]
    write(tmp_path, [in_lists(column(kind, values)) for kind, values in drift.values.items()])
    field = None if drift.field is None else drift.field.replace(shape=(None,))
    rows = THREADS.elements(Pipeline(tmp_path, None if field is None else [field, ".*"]))
    values = [drift.delivered(value) for values in drift.values.values() for value in values]
    assert [row["x"] for row in rows] == plain([[value] for value in values])


FILES: list[dict[str, pa.Array]] = [
    {
        "t": pa.array([0, 1], pa.timestamp("us")),
        "n": pa.nulls(2),
        "i": pa.array([2**53 + 1, 2]),
        "s": pa.array(["a", "b"]).dictionary_encode(),
        "z": pa.array([0, FAR // 1000], pa.timestamp("us")),
        "c": pa.array([0, FAR // 1000], pa.timestamp("us")),
        "l": pa.array([[1], []]),
    },
    {
        "t": pa.array([5, 1000], pa.timestamp("ns")),
        "n": pa.array([3, None]),
        "i": pa.array([1.0, 7.0]),
        "s": pa.array(["c", "a"]),
        "z": pa.array([1, 2], pa.timestamp("ms", "UTC")),
        "c": pa.array([-1, 1999], pa.timestamp("ns")),
        "l": pa.array([[0.5], [2.0]]),
    },
    {
        "t": pa.array([1, 2], pa.date32()),
        "n": pa.array([0.5, 2.5]),
        "i": pa.array([9, None], pa.uint8()),
        "s": pa.array(["d", "a"], pa.large_string())
        .dictionary_encode()
        .cast(pa.dictionary(pa.int8(), pa.large_string())),
        "z": pa.array([3000, 4000], pa.timestamp("ns", "Europe/Berlin")),
        "c": pa.array([1, 2], pa.timestamp("ms")),
        "l": pa.array([[], [7]], pa.list_(pa.int8())),
    },
]
DELIVERED: dict[str, list[Any]] = {
    "t": [0, 1000, 5, 1000, DAY, 2 * DAY],
    "n": [-1.0, -1.0, 3.0, -1.0, 0.5, 2.5],
    "i": [2**53 + 1, 2, 1, 7, 9, None],
    "s": ["a", "b", "c", "a", "d", "a"],
    "z": [0, FAR // 1000, 1000, 2000, 3, 4],
    "c": [0, FAR // 1000, -1, 1, 1000, 2000],
    "l": [[1.0], [], [0.5], [2.0], [], [7.0]],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("drift")
    for number, columns in enumerate(FILES):
        pq.write_table(pa.table({"id": [2 * number, 2 * number + 1], **columns}), root / f"{number}.parquet")
    return str(root)


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_every_face_reads_drifting_files_alike(url: str, face: Face) -> None:
    declared: list[str | UnischemaField] = [UnischemaField("i", np.int64), UnischemaField("z", "datetime64[us]"), ".*"]
    late = pa.scalar(FAR // 1000, pa.timestamp("us", "UTC"))
    filters = [("z", "<=", late), ("t", "!=", pa.scalar(1, pa.timestamp("us"))), ("i", ">", 1)]
    rows = Pipeline(url, declared).where(filters).nulls("fill", "n", value=-1)
    rows = rows.cast("datetime64[us]", "c").cast("int64", "c").nulls("drop", "t", "i", "s", "z", "l")
    wanted = [{"id": n, **{name: values[n] for name, values in DELIVERED.items()}} for n in (0, 4)]
    assert face.elements(rows) == wanted


@pytest.mark.parametrize("indexed", [False, True])
def test_a_cast_reads_the_fractions_of_a_newer_file_beside_declared_integers(tmp_path: Path, indexed: bool) -> None:
    root = tmp_path / "data"
    write_dataset(root, Unischema("rows", [UnischemaField("x", np.int64)]), [{"x": 2**53 + 1}, {"x": 2}])
    pq.write_table(pa.table({"x": [3.5, 4.0]}), root / "z.parquet")
    if indexed:
        write_index(root)
    assert [row["x"] for row in THREADS.elements(Pipeline(root).cast("float64", "x"))] == [2.0**53, 2.0, 3.5, 4.0]
    with pytest.raises(DecodeError, match=r"z\.parquet, row group 0: field 'x', row 0: expected values of type int64"):
        list(Pipeline(root, executor="threads"))


@pytest.mark.parametrize("indexed", [False, True])
def test_explain_and_inspect_say_which_files_have_which_type(tmp_path: Path, indexed: bool) -> None:
    write(tmp_path, [pa.array([1]), pa.array([2]), pa.array([0.5]), pa.array([2], pa.int8())])
    if indexed:
        write_index(tmp_path)
    files = [str(tmp_path / f"{number}.parquet") for number in range(4)]
    counts = ["some files (such as ", "some files (such as "] if indexed else [f"2 files ({files[0]}, ", "1 file ("]
    stored = (
        rf"stored as int64 in {re.escape(counts[0])}.*\) and as double in {re.escape(counts[1] + files[2])}\) and as "
        rf"int8 in {re.escape(counts[1] + files[3])}\), and "
    )
    rows = Pipeline(tmp_path)
    assert re.search(rf"columns: 'x' is {stored}read as double\n", rows.explain())
    assert re.search(rf"columns: 'x' is {stored}cast to int16 from each\n", rows.cast("int16", "x").explain())
    assert "columns:" not in rows.select("id").explain()
    (note,) = inspect(tmp_path).field("x").notes()
    assert re.fullmatch(rf"x: {stored}read as double", note)
    assert inspect(tmp_path).field("id").notes() == []


def test_verify_reads_columns_as_the_pipeline_declares_or_casts_them(tmp_path: Path) -> None:
    times = [pa.array([0, FAR // 1000], pa.timestamp("us")), pa.array([7, 8], pa.timestamp("ns", "UTC"))]
    for number, (values, when) in enumerate(zip([[2**53 + 1, 2], [1.0, 2.0]], times, strict=True)):
        table = pa.table({"x": values, "t": when, "l": [[1], [1, 2]]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    write_index(tmp_path)
    rows = Pipeline(tmp_path)
    declared = rows.select(UnischemaField("x", np.int64), UnischemaField("t", "datetime64[ms]"), "l")
    for pipeline, wrong in (
        (rows, [f"field 'x', row 0: .*{2**53 + 1}"]),
        (declared, [r"1\.parquet, .* field 't', row 0: .*timestamp\[ms.*, got 1970-01-01 .*007"]),
        (rows.cast("float32", "x").cast("datetime64[s]", "t"), []),
        (rows.cast("int8", "x"), [f"field 'x', row 0: expected a number that int8 can hold, got {2**53 + 1}"]),
    ):
        found = verify(pipeline)
        assert len(found.damages) == len(wrong)
        assert all(re.search(what, damage.what) for what, damage in zip(wrong, found.damages, strict=True))
        assert "x" not in found.undecoded


MISFITS = {
    "an integer": (pa.float64(), pa.array([1, 2**53 + 1, 2**53 + 3]), pa.array([0.5]), "int64", 9007199254740993),
    "a time": (pa.timestamp("ns"), pa.array([0, FAR // 1000], pa.timestamp("us")), pa.array([0], pa.timestamp("ns")),
        r"datetime64\[us\]", "9999-12-31"),
    "a sign": (pa.int64(), pa.array([0, 2**63], pa.uint64()), pa.array([-1]), "uint64", 2**63),
    "a length": (pa.duration("ns"), pa.array([0, 2**62], pa.duration("s")), pa.array([0], pa.duration("ns")),
        r"timedelta64\[s\]", 2**62),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", MISFITS)
def test_the_first_value_that_does_not_fit_is_named_with_its_row_and_what_to_write(
    tmp_path: Path, name: str, turned: bool
) -> None:
    kind, long, other, dtype, value = MISFITS[name]
    write(tmp_path, [other, long] if turned else [long, other])
    pipeline = Pipeline(tmp_path, executor="threads")
    file = "1" if turned else "0"
    reason = (
        rf"{file}\.parquet, row group 0: field 'x', row 1: expected values of type {str(kind).replace('[', '.')[:8]}.*, "
        rf"got .*{value}.*fields=\[UnischemaField\('x', '{dtype}'\), '\.\*'\]"
    )
    for asked in (pipeline, pipeline.where(pc.field("x").is_valid()), pipeline.nulls("drop", "x").batch(2)):
        with pytest.raises(DecodeError, match=reason):
            list(asked)
    (damage,) = verify(str(tmp_path)).damages
    assert f"field 'x', row 1: expected values of type {kind}" in damage.what
    assert inspect(str(tmp_path)).fields[1].stored == str(kind)


def test_large_integers_beside_fractions_are_rounded_as_the_error_says(tmp_path: Path) -> None:
    write(tmp_path, [pa.array([2**53 + 1]), pa.array([0.5])])
    with pytest.raises(DecodeError, match=r"or let cast\('float64', 'x'\) round it\.$"):
        list(Pipeline(tmp_path, executor="threads"))
    assert [row["x"] for row in THREADS.elements(Pipeline(tmp_path).cast("float64", "x"))] == [2.0**53, 0.5]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("others", [[], [pa.array([0.5])], [pa.array([0.5], pa.float32()), pa.array([0.5])]])
@pytest.mark.parametrize(("dtype", "whole"), [("float32", 2**24), ("float16", 2**11)])
def test_floats_are_rounded_as_declared_and_integers_are_not(
    tmp_path: Path, dtype: str, whole: int, others: list[pa.Array], nested: bool
) -> None:
    field = UnischemaField("x", dtype, (None,) if nested else ())
    for value in (2 * whole + 4, whole + 1):
        write(tmp_path, [in_lists(each) if nested else each for each in (*others, pa.array([value]))])
        pipeline = Pipeline(tmp_path, [field, ".*"], executor="threads")
        if value > whole + 1:
            made = THREADS.elements(pipeline)[-1]["x"]
            assert made == ([float(value)] if nested else float(value))
            continue
        with pytest.raises(DecodeError, match=rf"field 'x'.*{value}"):
            list(pipeline)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("datetime64[D]", pa.array([1], pa.date32()), pa.array([0, 1], pa.timestamp("us"))),
        ("datetime64[us]", pa.array([1], pa.timestamp("us")), pa.array([1000, 1], pa.timestamp("ns"))),
        ("int64", pa.array([1]), pa.array([1.0, 1.5])),
        ("int64", pa.array([7]), pa.array(["7", "007"])),
        ("str", pa.array(["a"]), pa.array([b"a", b"\xff"])),
    ],
    ids=["a time of day", "nanoseconds", "a fraction", "zeros", "text that is not UTF-8"],
)
def test_a_value_that_the_declared_type_would_change_is_refused(
    tmp_path: Path, field: str, right: pa.Array, wrong: pa.Array, nested: bool
) -> None:
    write(tmp_path, [in_lists(values) if nested else values for values in (right, wrong)])
    shape = (None,) if nested else ()
    pipeline = Pipeline(tmp_path, [UnischemaField("x", field, shape), ".*"], executor="threads")
    with pytest.raises(DecodeError, match=r"1\.parquet, row group 0: field 'x', row 1: expected values of type"):
        list(pipeline)


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_times_of_files_that_agree_keep_their_time_of_day_or_are_refused_as_dates(
    tmp_path: Path, zone: str | None
) -> None:
    for count, number in ((DAY // 1000, 1), (DAY // 1000 - 1, None)):
        write(tmp_path, [pa.array([count], pa.timestamp("us", zone))])
        pipeline = Pipeline(tmp_path, [UnischemaField("x", "datetime64[D]")], executor="threads")
        if number is not None:
            assert [row["x"] for row in pipeline] == [number]
            continue
        with pytest.raises(DecodeError, match=r"field 'x': expected a column that holds datetime64\[D\]"):
            list(pipeline)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (pa.null(), UnischemaField("x", np.float32)),
        (pa.null(), UnischemaField("x", str, (None,))),
        (pa.list_(pa.null()), UnischemaField("x", np.float32, (None,))),
    ],
)
def test_a_column_of_nothing_but_nulls_has_the_declared_type(
    tmp_path: Path, kind: pa.DataType, field: UnischemaField, indexed: bool
) -> None:
    write(tmp_path, [pa.nulls(2, kind), pa.nulls(1, kind)])
    if indexed:
        write_index(tmp_path)
    rows = Pipeline(tmp_path, [field, "id"])
    assert THREADS.elements(rows) == [{"id": n, "x": None} for n in range(3)]
    assert ids(THREADS, rows.where(pc.field("x").is_valid())) == []
    with pytest.raises(
        SchemaError, match=r"null cannot become a tensor.*\[UnischemaField\('x', 'float32'\), '\.\*'\]\."
    ):
        list(Pipeline(tmp_path))


@pytest.mark.parametrize("files", [1, 2])
def test_a_declared_unit_that_arrow_does_not_have_is_refused_before_anything_is_read(
    tmp_path: Path, files: int
) -> None:
    write(tmp_path, [pa.array([60_000_000 * number], pa.timestamp("us")) for number in range(files)])
    with pytest.raises(SchemaError, match=r"field 'x': expected times in .*cast\('datetime64\[m\]', 'x'\)"):
        list(Pipeline(tmp_path, [UnischemaField("x", "datetime64[m]")], executor="threads"))
    rows = THREADS.elements(Pipeline(tmp_path, ["x"]).cast("datetime64[m]", "x").cast("int64", "x"))
    assert [row["x"] for row in rows] == list(range(files))


def test_times_that_may_be_local_are_not_taken_for_utc_unless_the_user_says_so(tmp_path: Path) -> None:
    write(tmp_path, [pa.array([0], pa.timestamp("us")), pa.array([7], pa.timestamp("us", "UTC"))])
    reason = (
        r"field 'x': .*timestamp\[us\] in .*0\.parquet and timestamp\[us, tz=UTC\] in .*1\.parquet.*as UTC: fields="
    )
    with pytest.raises(SchemaError, match=reason) as error:
        list(Pipeline(tmp_path))
    line = str(error.value).partition("fields=")[2].partition("].")[0] + "]"
    for asked in (Pipeline(tmp_path, eval(line)), Pipeline(tmp_path).cast("int64", "x")):  # our own text
        assert [row["x"] for row in THREADS.elements(asked)] == [0, 7]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "field"),
    [(["a"], [1], "str"), (["a"], [b"b"], "str"), ([True], [1], "int64"), ([True], [1.5], "float64")],
    ids=["text", "bytes", "truth", "truth and fractions"],
)
def test_types_that_mean_something_else_need_a_declaration_which_the_error_shows(
    tmp_path: Path, first: list[object], second: list[object], field: str, nested: bool
) -> None:
    write(tmp_path, [in_lists(pa.array(values)) if nested else pa.array(values) for values in (first, second)])
    shape = ", (None,)" if nested else ""
    with pytest.raises(SchemaError, match=re.escape(f"fields=[UnischemaField('x', '{field}'{shape}), '.*']")):
        list(Pipeline(tmp_path))
    rows = THREADS.elements(Pipeline(tmp_path, [UnischemaField("x", field, (None,) if nested else ()), ".*"]))
    values = [_as(field, value) for value in (*first, *second)]
    assert rows == [{"id": n, "x": [value] if nested else value} for n, value in enumerate(values)]


def _as(field: str, value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else np.dtype(field).type(value).item()


def test_a_column_that_nothing_can_be_done_for_is_left_out_as_the_error_shows(tmp_path: Path) -> None:
    write(tmp_path, [pa.array([Decimal("1.5")]), pa.array([1.5])])
    with pytest.raises(SchemaError, match="leave the field out with") as error:
        list(Pipeline(tmp_path))
    line = str(error.value).partition("select(")[2].partition(").*')")[0] + ").*'"
    assert THREADS.elements(Pipeline(tmp_path).select(eval(line))) == [{"id": 0}, {"id": 1}]


def test_windows_measure_gaps_in_the_unit_that_the_user_declares(tmp_path: Path) -> None:
    write(
        tmp_path, [pa.array([0, 1000, 2001], pa.timestamp("us")), pa.array([3_001_000, 3_002_000], pa.timestamp("ns"))]
    )
    for unit, windows in (("us", [0, 3]), ("ns", [3])):
        rows = Pipeline(tmp_path, [UnischemaField("x", f"datetime64[{unit}]"), ".*"], executor="threads")
        found = rows.ngram({0: ["id"], 1: ["id"]}, timestamp="x", max_gap=1000, span_row_groups=True)
        assert [int(row[0]["id"]) for row in found] == windows
