"""Lists of lists with varying lengths at every level, against plain Python."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common import NdarrayCodec, NestedArray, Pipeline, Unischema, UnischemaField, mix, write_dataset
from parquetry.common.base.errors import DecodeError, PipelineError, SchemaError, StateError, TransformError
from parquetry.common.server import serve
from parquetry.common.transport.served.wire import element_from_json, element_to_json

LEAVES: dict[str, tuple[pa.DataType, Any]] = {
    "int32": (pa.int32(), st.integers(-9, 9)),
    "float16": (pa.float16(), st.sampled_from([0.5, -2.0])),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.sampled_from(["", "a", "éé"])),
    "pair": (pa.list_(pa.int8(), 2), st.lists(st.integers(-9, 9), min_size=2, max_size=2)),
}


def values_of(leaf: st.SearchStrategy[Any], levels: int) -> st.SearchStrategy[Any]:
    """Draws lists nested to a number of levels, some empty at each level."""
    return st.lists(values_of(leaf, levels - 1), max_size=3) if levels else leaf


def type_of(leaf: pa.DataType, levels: int, large: bool) -> pa.DataType:
    """Returns a type of lists of lists, alternating with large lists."""
    if not levels:
        return leaf
    inside = type_of(leaf, levels - 1, not large)
    return pa.large_list(inside) if large else pa.list_(inside)


def written(directory: Path, rows: list[Any], kind: pa.DataType, cut: int = 0) -> Path:
    """Writes rows to two files, in row groups of 3, with their numbers as ``id``."""
    directory.mkdir(exist_ok=True)
    for number, (first, last) in enumerate(((0, cut), (cut, len(rows)))):
        table = pa.table({"id": range(first, last), "x": pa.array(rows[first:last], kind)})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=3)
    return directory


def plain(value: Any) -> Any:
    """Converts to nested Python lists."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nested")


@pytest.mark.slow
@given(data=st.data(), name=st.sampled_from(sorted(LEAVES)), levels=st.integers(1, 4))
def test_values_are_what_was_written(directory: Path, data: st.DataObject, name: str, levels: int) -> None:
    kind, leaf = LEAVES[name]
    values = values_of(leaf, levels) | (st.none() if data.draw(st.booleans(), "nulls") else st.nothing())
    rows = data.draw(st.lists(values, min_size=1, max_size=9), "rows")
    cut = data.draw(st.integers(0, len(rows)), "rows of the first file")
    url = written(directory / "data", rows, type_of(kind, levels, data.draw(st.booleans(), "large")), cut)
    pipeline = Pipeline(url, executor="threads", workers=1).nested("x")
    (output,) = [output for output in pipeline.element.outputs if output.name == "x"]
    assert output.levels == levels
    chain = data.draw(st.sampled_from(["", "shuffle", "windows", "mask", "where"]), "chain")
    if chain == "shuffle":
        pipeline = pipeline.shuffle(3, seed=1).repeat(2)
    if chain == "where":
        pipeline = pipeline.where(pc.field("id") >= 1)
    if chain == "windows":
        pipeline = pipeline.ngram(length=2)
    if chain == "mask":
        pipeline = pipeline.nulls("mask", "x")
        rows = [[] if row is None else row for row in rows]
    if len(pipeline) == 0:
        return
    found = [(plain(row["id"]), plain(row["x"])) for row in pipeline]
    for batch in pipeline.batch(4):
        found += zip(plain(batch["id"]), plain(batch["x"]), strict=True)
    for number, value in found:
        expected = [rows[step] for step in number] if isinstance(number, list) else rows[number]
        assert value == expected
    assert len(found) == 2 * len(pipeline)


BOXES = [[[1, 2], [3]], [], [[], [4, 5, 6]], [[7]], [[], []], [[8], [9], [10]]]
KIND = pa.list_(pa.list_(pa.int32()))


@pytest.fixture(scope="module")
def boxes_url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("boxes"), BOXES, KIND, cut=4)


@pytest.fixture(params=["threads", "sidecar"])
def boxes(request: pytest.FixtureRequest, boxes_url: Path) -> Pipeline:
    """Returns a pipeline over two levels of lists of numbers."""
    return Pipeline(boxes_url, executor=request.param, workers=1).nested("x")


def test_a_batch_is_values_and_offsets_and_a_row_has_one_level_less(boxes: Pipeline) -> None:
    batch = next(iter(boxes.batch(3)))["x"]
    assert isinstance(batch, NestedArray)
    assert batch.dtype == np.int32
    assert [offsets.tolist() for offsets in batch.offsets] == [[0, 2, 2, 4], [0, 2, 3, 3, 6]]
    assert batch[-1].tolist() == BOXES[2]
    assert [part.tolist() for part in batch[2]] == BOXES[2]
    assert [part.tolist() for part in batch[1:]] == BOXES[1:3]
    assert batch[2][1].dtype == np.int32
    with pytest.raises(IndexError, match="entry 3 of 3"):
        batch[3]
    assert repr(batch) == "NestedArray(3 lists, levels=2, dtype=int32)"
    row = next(iter(boxes))["x"]
    assert (row.values.tolist(), [offsets.tolist() for offsets in row.offsets]) == ([1, 2, 3], [[0, 2, 3]])


def test_other_verbs_work_on_it(boxes: Pipeline, tmp_path: Path) -> None:
    chain = boxes.rename({"x": "boxes"}).cast(np.int64, "boxes").encode("boxes", range(1, 11)).cache(str(tmp_path))
    chain = chain.shuffle(4, seed=3).shard(2, 0).repeat(2).batch(2).as_tuple("boxes", {"n": "id"})
    found = {}
    for values, rest in chain:
        assert values.dtype == np.int64
        found.update(zip(rest["n"].tolist(), values.tolist(), strict=True))
    assert all(value == [[n - 1 for n in part] for part in BOXES[key]] for key, value in found.items())
    assert len(found) >= 3
    assert boxes[3]["x"].tolist() == BOXES[3]
    assert boxes.batch(2)[1]["x"].tolist() == BOXES[2:4]
    mixed = mix([boxes, boxes], weights=[1, 1], seed=1).batch(5)
    assert all(BOXES[key] == value for b in mixed for key, value in zip(b["id"], b["x"].tolist(), strict=True))
    windows = boxes.ngram({0: ["x"], 1: ["id", "x"]}).batch(3)
    first = next(iter(windows))
    assert (first[0]["x"].tolist(), first[1]["x"].tolist()) == (BOXES[:3], BOXES[1:4])


def test_it_goes_to_json_and_has_a_state_of_its_own(boxes: Pipeline, boxes_url: Path) -> None:
    again = Pipeline.from_json(json.loads(json.dumps(boxes.to_json())))
    assert again == boxes
    assert element_from_json(json.loads(json.dumps(element_to_json(boxes.element)))) == boxes.element
    assert "x: int32 (None, None) or null, nested lists of 2 levels" in boxes.explain()
    rows = iter(boxes.shuffle(3, seed=5))
    next(rows)
    rest = [row["x"].tolist() for row in iter(boxes.shuffle(3, seed=5)).load_state_dict(rows.state_dict())]
    assert rest == [row["x"].tolist() for row in rows]
    with pytest.raises(StateError):
        iter(Pipeline(boxes_url).select("id").shuffle(3, seed=5)).load_state_dict(rows.state_dict())


def first_of_each(row: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(row["x"], NestedArray)
    return {**row, "x": [part[:1] for part in row["x"]]}


def as_python(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "x": row["x"].tolist()}


def kept(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "n": np.array([len(row) for row in rows["x"]])}


COUNT = UnischemaField("n", np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_functions_get_it_and_return_nested_lists(boxes: Pipeline, batch: bool) -> None:
    def collected(pipeline: Pipeline) -> list[Any]:
        if not batch:
            return [row["x"].tolist() for row in pipeline]
        return [value for part in pipeline.batch(4) for value in part["x"].tolist()]

    assert collected(boxes.transform(first_of_each)) == [[part[:1] for part in row] for row in BOXES]
    assert collected(boxes.transform(as_python)) == BOXES
    assert collected(boxes.transform(dict).cast("int8", "x")) == BOXES
    counted = boxes.transform(kept, [COUNT], batched=True)
    assert collected(counted) == BOXES
    assert [int(row["n"]) for row in counted] == [len(row) for row in BOXES]
    assert collected(boxes.transform(lambda batch: batch, batched="arrow")) == BOXES


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "expected nested lists of 2 levels"),
        (["a"], "expected nested lists of 2 levels"),
        ([[1.5]], "expected dtype int32|values that int32 can hold"),
        (None, "got None"),
    ],
)
def test_the_result_of_a_function_is_checked(boxes_url: Path, value: Any, message: str) -> None:
    pipeline = Pipeline(boxes_url, executor="threads").nested("x").nulls("error", "x")
    with pytest.raises(TransformError, match=message):
        next(iter(pipeline.transform(lambda row: {**row, "x": value})))


GRID = UnischemaField("grid", np.int32, (None, None), nullable=True)
WORDS = UnischemaField("words", np.str_, (None, None))
PAIRS = UnischemaField("pairs", np.float32, (None, 2))


def grid_of(number: int) -> list[list[int]]:
    """Lists of different lengths, no lists, and empty ones."""
    return [list(range(size)) for size in range(number)]


def with_lists(row: dict[str, Any]) -> dict[str, Any]:
    number = int(row["id"])
    words = [["a"] * number, [], ["é"]]
    return {"id": number, "grid": grid_of(number) if number else None, "words": words, "pairs": [[1.5, 2.5]] * number}


def batch_with_lists(batch: dict[str, Any]) -> dict[str, Any]:
    rows = [with_lists({"id": number}) for number in batch["id"].tolist()]
    return {key: batch["id"] if key == "id" else [row[key] for row in rows] for key in ("id", "grid", "words", "pairs")}


def arrow_with_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch_with_lists({"id": batch["id"].to_numpy()})
    kinds = {"grid": pa.list_(pa.list_(pa.int32())), "words": None, "pairs": pa.list_(pa.list_(pa.float32(), 2))}
    arrays = [batch["id"], *(pa.array(rows[name], kind) for name, kind in kinds.items())]
    return pa.RecordBatch.from_arrays(arrays, names=["id", *kinds])


@pytest.mark.parametrize(
    ("function", "batched", "late"),
    [
        (with_lists, False, False),
        (batch_with_lists, True, False),
        (batch_with_lists, False, True),
        (arrow_with_lists, "arrow", True),
    ],
)
def test_lists_that_a_function_makes(boxes_url: Path, function: Any, batched: Any, late: bool) -> None:
    rows = Pipeline(boxes_url, executor="threads").select("id").shuffle(3, seed=1)
    made = (rows.batch(2) if late else rows).transform(function, [GRID, WORDS, PAIRS], batched=batched)
    chain = made.rename({"id": "n"}).nested("grid", "words", "pairs").nulls("mask", "grid").cast("int64", "grid")
    chain = chain if late else chain.batch(2)
    levels = {output.name: output.levels for output in chain.element.outputs}
    assert levels == {"n": 0, "grid": 2, "words": 2, "pairs": 1, "grid__valid": 0}
    for batch in chain:
        numbers = batch["n"].tolist()
        assert plain(batch["grid"]) == [grid_of(number) for number in numbers]
        assert batch["grid__valid"].tolist() == [number > 0 for number in numbers]
        assert plain(batch["words"]) == [[["a"] * number, [], ["é"]] for number in numbers]
        assert plain(batch["pairs"]) == [[[1.5, 2.5]] * number for number in numbers]
    begun = iter(chain)
    next(begun)
    rest = [plain(batch["words"]) for batch in iter(chain).load_state_dict(begun.state_dict())]
    assert rest == [plain(batch["words"]) for batch in begun]


def pairs_of(row: dict[str, Any]) -> dict[str, Any]:
    if "id" not in row:  # steps of a window
        return {offset: pairs_of(step) for offset, step in row.items()}
    return {**row, "pairs": [[1.5, 2.5]] * int(row["id"])}


def test_lists_that_a_function_makes_in_windows_and_mixes(boxes_url: Path) -> None:
    rows = Pipeline(boxes_url, executor="threads").select("id")
    made = rows.transform(pairs_of, [PAIRS])
    for windows in (made.nested("pairs").ngram(length=2), made.ngram(length=2).nested("pairs")):
        assert all(plain(row["pairs"]) == [[[1.5, 2.5]] * number for number in row["id"]] for row in windows)
    for mixed in (
        mix([made.nested("pairs")] * 2, weights=[1, 1]),
        mix([rows, rows], weights=[1, 1]).transform(pairs_of, [PAIRS]).nested("pairs"),
    ):
        assert [output.levels for output in mixed.element.outputs] == [0, 1]
        assert all(plain(row["pairs"]) == [[1.5, 2.5]] * int(row["id"]) for row in mixed)


def test_where_a_function_cannot_give_lists(boxes_url: Path) -> None:
    rows = Pipeline(boxes_url, executor="threads")
    made = rows.select("id").transform(pairs_of, [PAIRS])
    late = [
        made.transform(dict).nested("pairs"),
        made.cast("float64", "pairs").nested("pairs"),
        mix([made, made], weights=[1, 1]).nested("pairs"),
    ]
    for pipeline in late:
        with pytest.raises(PipelineError, match=r"output=\[\.\.\.\] of a function, .* Call nested\(\) earlier"):
            _ = pipeline.element
    with pytest.raises(PipelineError, match=r"got int64 \(\), declared in the function's output=\[\.\.\.\]"):
        _ = rows.transform(kept, [COUNT]).nested("n").element
    with pytest.raises(TransformError, match=r"write \.nested\('grid'\)"):
        list(rows.select("id").transform(lambda row: {**row, "grid": [[1], []]}, [GRID]))


def test_functions_of_windows_and_of_nulls_get_it_too(tmp_path: Path) -> None:
    pipeline = Pipeline(written(tmp_path, [[[1]], None, [[], [2, 3]]], KIND), executor="threads").nested("x")
    assert [plain(row["x"]) for row in pipeline.transform(dict)] == [[[1]], None, [[], [2, 3]]]
    assert plain(next(iter(pipeline.transform(dict, batched=True).batch(3)))["x"]) == [[[1]], None, [[], [2, 3]]]
    arrow = pipeline.transform(lambda batch: batch, batched="arrow")
    assert [plain(row["x"]) for row in arrow] == [[[1]], None, [[], [2, 3]]]
    windows = pipeline.nulls("mask", "x").ngram(length=2).transform(dict)
    assert [plain(row["x"]) for row in windows] == [[[[1]], []], [[], [[], [2, 3]]]]
    drops = pipeline.transform(lambda row: None if row["x"] is None else row, drops=True).batch(2)
    assert [plain(batch["x"]) for batch in drops] == [[[[1]], [[], [2, 3]]]]


def test_nulls_inside_follow_their_policy(tmp_path: Path) -> None:
    rows = [[[1, None], [3]], [None, [4]], [[5]], None, [[6, 7], []]]
    for executor in ("threads", "sidecar"):
        pipeline = Pipeline(written(tmp_path, rows, KIND, cut=2), executor=executor, workers=1).nested("x")
        batch = next(iter(pipeline.nulls("mask", "x", elements=True).batch(5)))
        assert plain(batch["x"]) == [[[1, 0], [3]], [[], [4]], [[5]], [], [[6, 7], []]]
        assert plain(batch["x__valid"]) == [[[True, False], [True]], [[], [True]], [[True]], [], [[True, True], []]]
        assert isinstance(batch["x__valid"], NestedArray)
        assert [plain(row["x"]) for row in pipeline.nulls("drop", "x")] == [[[5]], [[6, 7], []]]
    pipeline = pipeline.with_options(executor="threads")
    filled = pipeline.where(pc.is_valid(pc.field("x"))).nulls("fill", "x", value=-1)
    rows_of = iter(filled.select("x"))
    assert plain(next(rows_of)["x"]) == [[1, -1], [3]]
    with pytest.raises(
        DecodeError, match=r"row 1: expected a list without .* fills null values, but not null inner lists"
    ):
        next(rows_of)
    assert [plain(row["x"]) for row in rows_of] == [[[5]], [[6, 7], []]]
    found = iter(pipeline)
    with pytest.raises(DecodeError, match=r"field 'x', file .*0\.parquet, row group 0, row 0: expected a list"):
        next(found)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (
            pa.list_(pa.string(), 2),
            [[["a", "b"], None], [["c", "d"]], [["e", "f"], ["g", "h"]], [], None, [["i", "j"]]],
        ),
        (pa.list_(pa.int32(), 3), [[[1, 2, 3], None], [[4, 5, 6]], [[7, 8, 9], [1, 1, 1]], [], None, [[2, 2, 2]]]),
        (
            pa.list_(pa.list_(pa.int8(), 1), 2),
            [[[[1], [2]], None], [[[3], [4]]], [[[5], None]], [], [None], [[[6], [7]]]],
        ),
        (pa.list_(pa.int16()), [[[1, 2], None], [[3]], [[4], [5, 6]], [], None, [[7]]]),
    ],
)
def test_a_null_list_inside_concerns_its_own_row_alone(tmp_path: Path, kind: pa.DataType, rows: list[Any]) -> None:
    for cut in (0, 1):
        pipeline = Pipeline(written(tmp_path / str(cut), rows, pa.list_(kind), cut)).nested("x")
        for number, row in enumerate(rows):
            if "None" in str(row) and row is not None:
                with pytest.raises(DecodeError, match=f"row {(number - cut) % 3 if number >= cut else number}: "):
                    pipeline[number]
            else:
                assert plain(pipeline[number]["x"]) == row
        kept = [row for row in rows if "None" not in str(row)]
        assert [plain(row["x"]) for row in pipeline.nulls("drop", "x")] == kept
        for number, row in enumerate(pipeline.nulls("mask", "x", elements=True)):
            if "None" not in str(rows[number]):
                assert plain(row["x"]) == rows[number]


def test_slices_and_lists_of_one_length_are_levels_too(tmp_path: Path) -> None:
    kind = pa.list_(pa.list_(pa.list_(pa.float32(), 2)), 2)
    rows = [[[[1, 2]], []], [[], [[3, 4], [5, 6]]], [[[7, 8]], [[9, 0]]]]
    pipeline = Pipeline(written(tmp_path, rows, kind), executor="threads").nested("x")
    assert [plain(row["x"]) for row in pipeline.where(pc.field("id") >= 1)] == rows[1:]
    batch = next(iter(pipeline.batch(3)))["x"]
    assert batch.values.shape == (5, 2)
    assert len(batch.offsets) == 2
    assert plain(batch) == rows


def test_values_that_are_not_lists_of_lists_are_refused(boxes_url: Path, tmp_path: Path) -> None:
    plain_boxes = Pipeline(boxes_url, executor="threads")
    with pytest.raises(DecodeError, match=r"rows of different lengths in one value\. Write \.nested\('x'\)"):
        list(plain_boxes)
    with pytest.raises(PipelineError, match="field 'id': expected lists that may differ in length"):
        _ = plain_boxes.nested("id").element
    with pytest.raises(PipelineError, match=r"got the output of an earlier stage\. Call nested"):
        _ = plain_boxes.transform(dict).nested("x").element
    with pytest.raises(PipelineError, match="nested: expected a field name"):
        plain_boxes.nested()
    schema = Unischema("coded", [UnischemaField("x", np.int32, (None, None), NdarrayCodec())])
    write_dataset(str(tmp_path / "coded"), schema, [{"x": np.zeros((1, 2), np.int32)}])
    with pytest.raises(PipelineError, match=r"stored by NdarrayCodec\(\)"):
        _ = Pipeline(tmp_path / "coded").nested("x").element
    nested = plain_boxes.nested("x")
    refused: list[Callable[[], Any]] = [
        lambda: nested.pad("x").batch(2),
        lambda: nested.fixed("x", shape=(1, 2)),
        lambda: nested.permute("x", dims=("A", "B")),
        lambda: nested.resize("x", size=(2, 2)),
    ]
    for make in refused:
        with pytest.raises(PipelineError, match=r"field 'x': expected (arrays|images)"):
            _ = make().element
    levels = (
        r"mix: .* got 'x' .* as nested lists of 2 levels in pipeline 0, 'x' .*\) in pipeline 1\. Make .*nested\('x'\)"
    )
    with pytest.raises(SchemaError, match=levels):
        _ = mix([nested, plain_boxes], weights=[1, 1]).element
    assert nested.nested("x").element == nested.element


def test_it_is_served(boxes_url: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pq-", dir="/tmp") as short:
        with serve(Pipeline(boxes_url).nested("x"), f"unix:{short}/a") as server:
            pipeline = Pipeline(address=server.address)
            assert pipeline.element.outputs[-1].levels == 2
            assert [row["x"].tolist() for row in pipeline] == BOXES
            assert next(iter(pipeline.batch(6)))["x"].tolist() == BOXES
        with serve(Pipeline(boxes_url), f"unix:{short}/b") as server:
            assert [row["x"].tolist() for row in Pipeline(address=server.address).nested("x")] == BOXES


def made_of(url: Path, odd: Any, field: UnischemaField, batched: bool = False) -> list[Any]:
    """Returns lists made by a function, with the odd one in row 1."""
    good = [["x"]] if np.dtype(field.dtype).kind == "U" else [[8], [9]]

    def function(row: dict[str, Any]) -> dict[str, Any]:
        return {"c": odd if row["id"] == 1 else good}

    def of_batch(batch: dict[str, Any]) -> dict[str, Any]:
        return {"c": [odd if number == 1 else good for number in batch["id"]]}

    rows = Pipeline(url, executor="threads", workers=1).select("id")
    made = rows.transform(of_batch if batched else function, [field], remove=["id"], batched=batched)
    return [plain(row["c"]) for row in made.nested("c").take(3)]


BOTH = UnischemaField("c", np.int64, (None, None), nullable=True)
odd_lists = st.one_of(
    st.lists(st.integers(-9, 9) | st.none(), max_size=3),
    st.lists(st.integers(-9, 9) | st.none(), max_size=3).map(lambda items: np.array(items, object)),
    st.lists(st.integers(-9, 9), max_size=3).map(lambda items: np.array(items, np.int64)),
    st.lists(st.booleans(), max_size=3).map(lambda mask: np.ma.masked_array(np.arange(len(mask)), mask)),
    st.none(),
)
odd_nested = st.builds(
    lambda first, sizes, rest: NestedArray(
        np.arange(first + sum(sizes) + rest), (first + np.cumsum([0, *sizes], dtype=np.int64),)
    ),
    st.integers(0, 2),
    st.lists(st.integers(0, 2), max_size=3),
    st.integers(0, 2),
)


@settings(max_examples=12)
@given(value=st.lists(odd_lists, max_size=3) | odd_nested | st.none(), batched=st.booleans())
def test_odd_lists_are_plain_python_or_an_error(boxes_url: Path, value: Any, batched: bool) -> None:
    expected = [plain(part) for part in value] if isinstance(value, list) else plain(value)
    if expected is not None and "None" in str(expected):
        with pytest.raises(TransformError, match=r"field 'c', .* row 1: .*(null inside a list|masked in part)"):
            made_of(boxes_url, value, BOTH, batched)
    elif isinstance(value, list) and any(getattr(part, "dtype", 0) in (object, float) for part in value):
        try:
            found = made_of(boxes_url, value, BOTH, batched)
        except TransformError:  # a dtype that is not declared
            return
        assert found == [[[8], [9]], expected, [[8], [9]]]
    else:
        assert made_of(boxes_url, value, BOTH, batched) == [[[8], [9]], expected, [[8], [9]]]


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ([np.array([None], object)], BOTH, "null inside a list"),
        ([np.ma.masked_all(2, np.int64)], BOTH, "null inside a list"),
        (NestedArray(np.arange(4), (np.array([3, 5]),)), BOTH, "nested lists of 2 levels"),
        (NestedArray(np.arange(4), (np.array([0, 3, 2]),)), BOTH, "nested lists of 2 levels"),
        ([[1]], UnischemaField("c", np.int64, (2, None)), "lists of 2 at level 1"),
        ([[[1]]], BOTH, "nested lists of 2 levels"),
        (None, UnischemaField("c", np.int64, (None, None)), "field 'c', .*got None"),
        ([{1: 2}], BOTH, "nested lists of 2 levels"),
        ("abc", UnischemaField("c", np.str_, (None, None)), "nested lists of 2 levels"),
    ],
)
def test_lists_that_do_not_fit_are_errors(boxes_url: Path, value: Any, field: UnischemaField, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        made_of(boxes_url, value, field)


def test_masked_nulls_dates_slices_and_empty_arrow_lists(boxes_url: Path) -> None:
    assert made_of(boxes_url, np.ma.masked_all((1, 2), np.int64), BOTH)[1] is None
    rows = Pipeline(boxes_url, executor="threads", workers=1).select("id")
    days = UnischemaField("c", np.dtype("datetime64[D]"), (None,))
    dated = rows.transform(lambda row: {"c": [np.datetime64("1970-01-03")]}, [days], remove=["id"]).nested("c")
    assert next(iter(dated))["c"].tolist() == [2]
    empty = rows.transform(
        lambda batch: pa.RecordBatch.from_arrays([pa.array([[]] * len(batch))], names=["c"]),
        [BOTH],
        remove=["id"],
        batched="arrow",
    )
    assert [plain(row["c"]) for row in empty.nested("c").take(2)] == [[], []]

    def sliced(batch: dict[str, Any]) -> dict[str, Any]:
        count = len(batch["id"])
        return {"c": NestedArray(np.arange(9), (np.arange(count + 1), np.arange(count + 1) + 2))}

    whole = rows.transform(sliced, [BOTH], remove=["id"], batched=True).nested("c")
    assert plain(next(iter(whole.batch(2)))["c"]) == [[[2]], [[3]]]


def test_masked_nulls_of_lists_of_one_length_go_through_functions(tmp_path: Path) -> None:
    values = [[[1], [2, 3]], None, [[], [4]]]
    pipeline = Pipeline(written(tmp_path, values, pa.list_(pa.list_(pa.int32()), 2)), executor="threads", workers=1)
    for batched in (False, True):
        made = pipeline.nested("x").nulls("mask", "x").transform(dict, batched=batched)
        assert [plain(row["x"]) for row in made] == [[[1], [2, 3]], [], [[], [4]]]
