"""`stats` against numpy over all values, for every kind of field, exact and sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import ALL_FIELDS, build, make_row, write_table

from parquetry.common import Pipeline
from parquetry.common.apps.reports import preview, stats, to_json
from parquetry.common.apps.reports.statistics import keep, kept
from parquetry.common.base.errors import DatasetError, DecodeError, EmptySelectionError, PipelineError
from parquetry.common.pipeline.display.text import short_text

COUNT = 60
ROWS = [make_row(number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("built"), [[20, 20], [20]]).url


def values(name: str) -> list[object]:
    """Returns the non-null values of a field."""
    return [row[name] for row in ROWS if row[name] is not None]


def test_every_field_is_counted(url: str) -> None:
    found = stats(url)
    assert (found.rows, found.total, found.exact) == (COUNT, COUNT, True)
    for name in ALL_FIELDS:
        assert (found.field(name).count, found.field(name).nulls) == (len(values(name)), COUNT - len(values(name))), (
            name
        )


@pytest.mark.parametrize(
    "name",
    ["id", "speed", "flag", "small", "half", "level", "vector", "matrix", "points", "packed", "codes", "grid", "image"],
)
def test_numbers_equal_numpys(url: str, name: str) -> None:
    found = stats(Pipeline(url).select(name)).field(name)
    flat = np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in values(name)])
    assert found.mean == pytest.approx(flat.mean())
    assert found.deviation == pytest.approx(flat.std())
    assert (found.least, found.most) == (flat.min(), flat.max())


def test_images_have_channels_texts_lengths_and_few_values_counts(url: str) -> None:
    found = stats(url)
    pixels = np.stack([np.asarray(value) for value in values("image")]).astype(np.float64)
    assert np.allclose(found.field("image").channels, [(pixels[..., c].mean(), pixels[..., c].std()) for c in range(3)])
    assert found.field("drive").common[0] == ("d0", 10)
    assert found.field("drive").distinct == 6
    assert dict(found.field("flag").common) == {True: 26, False: 25}
    assert found.field("tags").lengths == (0, 1.0, 2)
    assert found.field("raw").lengths == (3, 3.0, 3)
    assert found.field("points").shapes == ((0, 3), (3, 3))
    assert found.field("odd").nans == 15
    assert found.field("id").quantiles == tuple(np.percentile(np.arange(60), [0, 1, 5, 25, 50, 75, 95, 99, 100]))


def test_nested_lists_have_lengths_and_numbers(tmp_path: Path) -> None:
    boxes = pa.array([[[1, 2], [6]], [], None, [[], [3]]], pa.list_(pa.list_(pa.int32())))
    write_table(tmp_path, pa.table({"boxes": boxes, "words": [[["a"]], [], [["b"], []], []]}), "a.parquet")
    nested = Pipeline(tmp_path).nested("boxes", "words")
    found = stats(nested).field("boxes")
    assert (found.count, found.nulls, found.lengths, found.mean, found.most) == (3, 1, (0, 4 / 3, 2), 3.0, 6)
    assert stats(nested).field("words").lengths == (0, 0.75, 2)
    assert to_json(nested[0])["boxes"] == [[1, 2], [6]]


def test_a_sample_says_that_it_is_one(url: str) -> None:
    found = stats(Pipeline(url, "id"), rows=20, seed=3)
    assert (found.rows, found.total, found.exact) == (20, COUNT, False)
    assert found.field("id").distinct == 20
    assert found == stats(Pipeline(url, "id"), rows=20, seed=3)
    assert stats(Pipeline(url, "id"), rows=500).exact


def test_chains_windows_and_tuples_are_counted_as_they_come(url: str) -> None:
    few = stats(Pipeline(url).where([("id", "<", 10)]).as_tuple("id", "tags"))
    assert (few.rows, few.field("id").most) == (10, 9)
    windows = stats(Pipeline(url).ngram({0: ["id"], 1: ["speed"]}))
    assert windows.field("0.id").count == windows.rows
    stacked = stats(Pipeline(url).ngram(["id"], length=4))
    assert stacked.field("id").shape == (4,)


def test_many_numbers_in_parts_have_exact_moments(tmp_path: Path) -> None:
    numbers = np.random.default_rng(7).normal(1e6, 1, 200_000)
    found = stats(write_table(tmp_path, pa.table({"x": numbers}), row_group_size=50_000)).field("x")
    assert found.deviation == pytest.approx(numbers.std(), rel=1e-9)
    assert found.distinct is None
    assert found.quantiles[4] == pytest.approx(np.median(numbers), abs=0.05)


def test_kept_statistics_are_used_as_long_as_the_files_are_the_same(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"x": [1.0, 2.0]}))
    pipeline = Pipeline(url)
    assert kept(pipeline) is None
    found = stats(pipeline)
    keep(pipeline, found)
    told = kept(Pipeline(url))
    assert told is not None
    assert told["fields"] == to_json(found)["fields"]
    assert kept(pipeline.take(1)) is None
    write_table(tmp_path, pa.table({"x": [1.0, 2.0, 3.0]}))
    assert kept(Pipeline(url)) is None
    with pytest.raises(DatasetError, match="one directory"):
        keep(str(tmp_path / "part.parquet"), found)


def test_impossible_samples_are_refused(url: str) -> None:
    with pytest.raises(EmptySelectionError, match="Loosen the filter"):
        stats(Pipeline(url).where([("id", ">", 999)]))
    with pytest.raises(PipelineError, match="got batches"):
        stats(Pipeline(url).batch(4))
    with pytest.raises(PipelineError, match="repeats forever"):
        stats(Pipeline(url).repeat())
    with pytest.raises(PipelineError, match="at least 1 row"):
        stats(url, rows=0)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**60] * 5),
        pa.array([1_700_000_000_000_000_000 + 1000 * number for number in range(5)], pa.timestamp("ns")),
        pa.array([2**64 - 1 - number for number in range(5)], pa.uint64()),
        pa.array([-1.7e308, 1.7e308, 0.0, 1.0, 2.0]),
        pa.array([float("inf"), 1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_numbers_that_floats_can_hardly_tell_apart_have_a_histogram(tmp_path: Path, values: pa.Array) -> None:
    found = stats(write_table(tmp_path, pa.table({"x": values}))).field("x")
    floats = values.cast(pa.int64() if pa.types.is_timestamp(values.type) else values.type).to_numpy().astype(float)
    finite = floats[np.isfinite(floats)]
    assert sum(found.histogram) == len(finite)
    assert (found.quantiles[0], found.quantiles[-1]) == (finite.min(), finite.max())


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (["x", None, "y", "z"], None),
        ([[1], None, [2, 3], [4]], 2.5),
        ([["a"], None, [], ["b"]], None),
        ([1.0, None, 2.0, 3.0], 2.0),
    ],
)
def test_null_steps_of_windows_are_counted(tmp_path: Path, values: list[object], mean: float | None) -> None:
    url = write_table(tmp_path, pa.table({"x": values}))
    found = stats(Pipeline(url).ngram(["x"], length=2)).field("x")
    assert (found.count, found.nulls, found.mean) == (3, 2, mean)


def test_null_steps_of_windows_of_nested_lists_are_counted(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"x": [[[1], [2, 3]], None, [[4]]]}))
    found = stats(Pipeline(url).nested("x").ngram(["x"], length=2)).field("x")
    assert (found.count, found.nulls, found.mean) == (2, 2, 2.5)


def test_nan_is_not_a_separate_value(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"x": [1.0, float("nan")] * 5000}))
    found = stats(url).field("x")
    assert (found.distinct, found.nans, found.common) == (1, 5000, ((1.0, 5000),))


def test_kept_statistics_of_a_sample_are_not_those_of_all_rows(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"x": range(100)}))
    keep(url, stats(url, rows=10))
    assert kept(url) is None
    keep(url, stats(url))
    assert kept(url) is not None
    keep(url, stats(url, rows=10))
    assert kept(url)["rows"] == 100  # type: ignore[index]


def test_lists_of_any_lengths_are_counted_and_shown_as_they_are_stored(tmp_path: Path) -> None:
    lists = [[[1, 2], [3]], [[4]], []]
    url = write_table(tmp_path, pa.table({"id": [0, 1, 2], "lists": lists}))
    found = stats(url).field("lists")
    assert (found.count, found.mean, found.lengths) == (3, 2.5, (0, 1.0, 2))
    rows = preview(Pipeline(url).shuffle(3, seed=1).select("lists")).elements
    assert sorted(row["lists"].tolist() for row in rows) == sorted(lists)
    assert {short_text(row["lists"]) for row in rows} == {str(each) for each in lists}
    with pytest.raises(DecodeError, match="found rows of different lengths"):
        preview(Pipeline(url).cast("int32", "lists"))


def test_nulls_inside_lists_are_counted_and_the_other_values_measured(tmp_path: Path) -> None:
    flat = pa.array([[1, None, 3], [], None, [4]], pa.list_(pa.int32()))
    nested = pa.array([[[1], None, [2, None]], [], None, [[3, 4]]], pa.list_(pa.list_(pa.int64())))
    url = write_table(tmp_path, pa.table({"flat": flat, "nested": nested, "words": [["a", None], [], None, ["b"]]}))
    found = stats(url)
    assert [(field.count, field.nulls, field.nulls_inside) for field in found.fields] == [
        (3, 1, 1),
        (3, 1, 2),
        (3, 1, 1),
    ]
    assert (found.field("flat").mean, found.field("flat").most, found.field("flat").lengths) == (
        8 / 3,
        4,
        (0, 4 / 3, 3),
    )
    assert (found.field("nested").mean, found.field("nested").lengths) == (2.5, (0, 4 / 3, 3))
    windows = stats(Pipeline(url).ngram(["flat", "words"], length=2))
    assert [(field.nulls, field.nulls_inside) for field in windows.fields] == [(2, 1), (2, 1)]
