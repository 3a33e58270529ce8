"""Nulls inside lists: each policy, compared with plain Python."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import DecodeError, NullValueError, PipelineError
from parquetry.common.engine.columns.null_elements import filled, flagged
from parquetry.common.schema.ragged import RaggedArray

pytestmark = pytest.mark.versions

TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "numbers": (pa.list_(pa.int32()), st.integers(-9, 9), -1),
    "floats": (pa.large_list(pa.float16()), st.sampled_from([np.float16(0.5), np.float16(2.0)]), -1.5),
    "bools": (pa.list_(pa.bool_()), st.booleans(), True),
    "text": (pa.list_(pa.string()), st.sampled_from(["", "a", "éé"]), "?"),
    "pairs": (pa.list_(pa.list_(pa.int16(), 2)), st.integers(-9, 9), 7),
    "fixed": (pa.list_(pa.int64(), 2), st.integers(-9, 9), 5),
    "square": (pa.list_(pa.list_(pa.float32(), 2), 2), st.integers(-9, 9), 5),
}
"""The stored type, its innermost values, and the fill value."""


def _nulls(kind: pa.DataType) -> list[Any]:
    """A value with a null at each depth of a type."""
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else 1
    return [None, *([null] * size for null in _nulls(kind.value_type))] if hasattr(kind, "value_type") else [None]


def _stores_nulls(kind: pa.DataType) -> bool:
    """Whether this pyarrow writes and reads them: older versions do not for fixed-size lists."""
    file, nulls = io.BytesIO(), pa.table({"x": pa.array(_nulls(kind), kind)})
    try:
        pq.write_table(nulls, file)
        return bool(pq.read_table(file).equals(nulls))
    except pa.ArrowException:
        return False


NAMES = sorted(name for name, (kind, _, _) in TYPES.items() if _stores_nulls(kind))


def values_of(kind: pa.DataType, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draws values of a type, with nulls at every depth."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return inner | st.none()
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    inside = values_of(kind.value_type, inner)
    return st.lists(inside, min_size=size or 0, max_size=size or 3) | st.none()


def whole(value: Any, zero: Any, sizes: list[int | None]) -> Any:
    """Replaces nulls in a value with ``zero``."""
    if not sizes:
        return zero if value is None else value
    parts = [None] * (sizes[0] or 0) if value is None else value
    return [whole(part, zero, sizes[1:]) for part in parts]


def there(value: Any) -> Any:
    """Returns True for each value inside lists, ``None`` for nulls."""
    return [there(part) for part in value] if isinstance(value, list) else None if value is None else True


def has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(has_null, value)))


def plain(value: Any) -> Any:
    return [plain(part) for part in value] if isinstance(value, RaggedArray | list) else value.tolist()


def sizes_of(kind: pa.DataType) -> list[int | None]:
    if pa.types.is_fixed_size_list(kind):
        return [kind.list_size, *sizes_of(kind.value_type)]
    return [None, *sizes_of(kind.value_type)] if hasattr(kind, "value_type") else []


def written(directory: Path, rows: list[Any], kind: pa.DataType, cut: int = 0) -> Pipeline:
    """Writes rows to two files, in row groups of 3, with their numbers as ``id``."""
    for number, (first, last) in enumerate(((0, cut), (cut, len(rows)))):
        table = pa.table({"id": range(first, last), "x": pa.array(rows[first:last], kind)})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=3)
    return Pipeline(directory, executor="threads", workers=1)


@pytest.mark.slow
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_each_policy_does_what_python_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    kind, inner, value = TYPES[name]
    rows = data.draw(st.lists(values_of(kind, inner), min_size=1, max_size=8), "rows")
    cut = data.draw(st.integers(0, len(rows)), "rows of the first file")
    pipeline = written(tmp_path_factory.mktemp("lists"), rows, kind, cut)
    pipeline = pipeline.shuffle(3, seed=data.draw(st.integers(0, 9), "seed"))
    sizes, zero = sizes_of(kind), {"text": "", "bools": False}.get(name, 0)

    masked = pipeline.nulls("mask", "x", elements=True)
    for batch in masked.batch(5):
        order = [rows[number] for number in batch["id"]]
        assert plain(batch["x"]) == [whole(row, zero, sizes) for row in order]
        assert plain(batch["x__valid"]) == [whole(there(row), False, sizes) for row in order]
    for row in masked:
        assert plain(row["x"]) == whole(rows[row["id"]], zero, sizes)
        assert plain(row["x__valid"]) == whole(there(rows[row["id"]]), False, sizes)

    dropped = pipeline.nulls("drop", "x")
    left = {number: row for number, row in enumerate(rows) if not has_null(row)}
    assert len(dropped) == len(left)
    assert not left or {int(row["id"]): plain(row["x"]) for row in dropped} == left

    if None not in sizes or None not in rows:
        for batch in pipeline.nulls("fill", "x", value=value).batch(5):
            assert plain(batch["x"]) == [whole(rows[number], value, sizes) for number in batch["id"]]


def test_slices_and_what_is_hidden_under_null_lists_do_not_matter() -> None:
    values = pa.array([9, None, 1, None, 2, None, 8], pa.int32())
    lists = pa.LargeListArray.from_arrays(pa.array([0, 1, 3, 5, 7]), values, mask=pa.array([False, False, True, False]))
    assert lists.to_pylist() == [[9], [None, 1], None, [None, 8]]
    assert filled(lists.slice(1), (None,), 5).to_pylist() == [[5, 1], None, [5, 8]]
    numbers, flags = flagged(lists.slice(1, 2), (None,))
    assert (numbers.to_pylist(), flags.to_pylist()) == ([[0, 1], None], [[0, 1], None])


CODES = [[1, None], [2], [], [None], [4, 5]]


@pytest.fixture(params=["threads", "sidecar"])
def codes(request: pytest.FixtureRequest, tmp_path: Path) -> Pipeline:
    """Lists with nulls inside."""
    pipeline = written(tmp_path, CODES, pa.list_(pa.int16()), cut=2)
    return Pipeline(tmp_path, executor=request.param, workers=1) if request.param == "sidecar" else pipeline


def test_a_mask_of_elements_goes_into_windows_and_through_other_verbs(codes: Pipeline) -> None:
    windows = codes.rename({"x": "codes"}).ngram(length=2).nulls("mask", "codes", elements=True).cast("int64", "codes")
    found = [(plain(row["codes"]), plain(row["codes__valid"])) for row in windows]
    values = [[0 if value is None else value for value in row] for row in CODES]
    flags = [[value is not None for value in row] for row in CODES]
    pairs = ((0, 1), (1, 2), (2, 3), (3, 4)) if len(codes) == len(found) + 1 else ((0, 1), (2, 3), (3, 4))
    assert found == [([values[a], values[b]], [flags[a], flags[b]]) for a, b in pairs]
    padded = codes.nulls("mask", "x", elements=True).select("x__valid", "x").pad("x", "x__valid").batch(5)
    batch = next(iter(padded))
    assert batch["x"].tolist() == [[1, 0], [2, 0], [0, 0], [0, 0], [4, 5]]
    assert batch["x__valid"].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0], [1, 1]]


def test_joined_rows_are_filled(codes: Pipeline) -> None:
    joined = codes.nulls("fill", "x", value=-1)
    assert [row["x"].tolist() for row in joined.concat(3, "x", remainder="pad")] == [[1, -1, 2], [-1, 4, 5]]
    assert sum(len(batch["x"]) for batch in joined.bucket("x", [1], batch_size=2)) == 5
    with pytest.raises(PipelineError, match="it reads the stored values of 'x'"):
        codes.nulls("fill", "x", value=-1).encode("x")
    with pytest.raises(DecodeError, match=r"field 'x', .*row 0: expected a list without nulls inside"):
        next(iter(codes.concat(3, "x")))


def test_a_null_without_a_policy_fails_alone_and_says_what_to_write(codes: Pipeline) -> None:
    found, failed = [], []
    rows = iter(codes.select("x"))
    while True:
        try:
            found.append(next(rows)["x"].tolist())
        except StopIteration:
            break
        except DecodeError as error:
            failed.append(str(error))
    assert found == [[2], [], [4, 5]]
    assert len(failed) == 2
    assert "field 'x', file " in failed[0]
    assert "0.parquet, row group 0, row 0" in failed[0]
    for line in ("nulls('drop', 'x')", "nulls('fill', 'x', value=...)", "nulls('mask', 'x', elements=True)"):
        assert line in failed[1]
    later = codes.cast("int32", "x").nulls("fill", "x", value=100_000)
    with pytest.raises(DecodeError, match="before other verbs on the field"):
        next(iter(later))


def test_fixed_lists_fail_alone_too(tmp_path: Path) -> None:
    pipeline = written(tmp_path, [[1, 2], [3, None], [5, 6]], pa.list_(pa.int8(), 2)).select("x")
    rows = iter(pipeline)
    assert next(rows)["x"].tolist() == [1, 2]
    with pytest.raises(DecodeError, match=r"row 1: expected a list without nulls inside"):
        next(rows)
    assert next(rows)["x"].tolist() == [5, 6]


def test_times_are_filled_with_times(tmp_path: Path) -> None:
    day = datetime.date(2020, 1, 2)
    pipeline = written(tmp_path, [[day, None]], pa.list_(pa.date32())).nulls("fill", "x", value=0)
    assert next(iter(pipeline))["x"].tolist() == [18263, 0]
    assert plain(next(iter(pipeline.cast("datetime64", "x")))["x"])[0] == day


def test_a_null_list_of_unknown_length_cannot_be_filled(tmp_path: Path) -> None:
    pipeline = written(tmp_path, [[1], None, [None]], pa.list_(pa.int8()))
    with pytest.raises(PipelineError, match=r"where\(pc\.is_valid"):
        list(pipeline.nulls("fill", "x", value=0))
    left = pipeline.where(pc.is_valid(pc.field("x"))).nulls("fill", "x", value=0)
    assert [row["x"].tolist() for row in left] == [[1], [0]]
    inside = written(tmp_path, [[[1]], [None]], pa.list_(pa.list_(pa.int8())))
    with pytest.raises(DecodeError, match=r"row 1: expected a list without nulls inside"):
        list(inside.nulls("fill", "x", value=0))


def test_a_list_that_some_files_lack_is_null(tmp_path: Path) -> None:
    written(tmp_path, [[1, None]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"id": [7]}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"id": [8], "x": pa.array([[2, None]], pa.list_(pa.int8()))}), tmp_path / "3.parquet")
    pipeline = Pipeline(tmp_path, executor="threads").nulls("mask", "x", elements=True)
    assert [row["x"].tolist() for row in pipeline] == [[1, 0], [], [2, 0]]
    assert len(Pipeline(tmp_path).nulls("drop", "x")) == 0


def test_a_mask_of_elements_is_asked_for_by_name_and_of_stored_lists(tmp_path: Path) -> None:
    pipeline = written(tmp_path, [[1, None]], pa.list_(pa.int32()))
    for make in (lambda: pipeline.nulls("mask", elements=True), lambda: pipeline.nulls("drop", "x", elements=True)):
        with pytest.raises(PipelineError, match="expected elements=True only with 'mask' and field names"):
            make()
    with pytest.raises(PipelineError, match="field 'id': expected stored lists"):
        _ = pipeline.nulls("mask", "id", elements=True).element
    late = pipeline.transform(dict, [UnischemaField("x", np.int32, (None,))]).nulls("mask", "x", elements=True)
    with pytest.raises(PipelineError, match="got the output of an earlier stage"):
        _ = late.element
    masked = pipeline.nulls("mask", "x", elements=np.True_)
    assert Pipeline.from_json(json.loads(json.dumps(masked.to_json()))) == masked
    assert masked.element.outputs[-1].shape == (None,)
    with pytest.raises(NullValueError):
        list(written(tmp_path, [None], pa.list_(pa.int32())).nulls("error", "x"))
