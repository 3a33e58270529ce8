"""`Pipeline.fit`: equal to numpy on the same rows, whatever the order, the ranks and the sizes; kept, and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table
from drive_rows import drive_once
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, TrainingStatistics, UnischemaField, mix
from parquetry.common.base.errors import EmptySelectionError, FieldNotFoundError, PipelineError
from parquetry.common.engine.run import summaries
from parquetry.common.pipeline import fitting
from parquetry.common.schema.training_statistics import CategoryStatistics, NumberStatistics

drive = drive_once()
EVERY = ("x", "n", "list", "text", "raw")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    rng = np.random.default_rng(3)
    x = rng.normal(5, 2, 300)
    x[::40], x[7] = np.nan, np.inf
    columns = {
        "id": np.arange(300),
        "x": pa.array(x, mask=rng.random(300) < 0.1),
        "n": pa.array(rng.integers(-9, 9, 300), pa.int16(), mask=rng.random(300) < 0.1),
        "list": [None if n % 7 == 0 else rng.normal(size=n % 4).tolist() for n in range(300)],
        "text": [None if n % 5 == 0 else str(n % 12) for n in range(300)],
        "raw": [bytes([n % 3]) for n in range(300)],
    }
    path = Path(tmp_path_factory.mktemp("rows")) / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=37)
    return Pipeline(path)


def by_numpy(values: list[Any]) -> NumberStatistics:
    numbers = np.concatenate([np.atleast_1d(value) for value in values if value is not None] or [np.zeros(0)])
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    return NumberStatistics(
        count=len(finite),
        nulls=0,
        nans=int(np.isnan(numbers).sum()),
        infinities=int(np.isinf(numbers).sum()),
        mean=float(finite.mean()) if len(finite) else None,
        std=float(finite.std()) if len(finite) else None,
        min=float(finite.min()) if len(finite) else None,
        max=float(finite.max()) if len(finite) else None,
        quantiles=tuple(np.quantile(finite, np.arange(11) / 10).tolist()) if len(finite) else (),
        quantile_error=0.0,
    )


FILTERS = st.lists(
    st.sampled_from(
        [
            lambda p: p.where(pc.field("id") > 30),
            lambda p: p.where(pc.field("id") < 0),
            lambda p: p.hash_split("id", [0.6, 0.4], 0),
            lambda p: p.nulls("drop", "text"),
            lambda p: p.take(150),
            lambda p: p.skip(20),
        ]
    ),
    max_size=2,
)
ORDERS = st.sampled_from(
    [
        lambda p: p.shuffle(50, seed=1),
        lambda p: p.shard(3, 1),
        lambda p: p.shuffle(9, seed=2).shard(2, 0),
        lambda p: p.shard(2, 0, policy="rowgroup_modulo"),
        lambda p: p.with_options(workers=1),
        lambda p: p.as_tuple("x", "n", "list", "text", "raw"),
    ]
)


@examples(12)
@given(filters=FILTERS, order=ORDERS)
def test_it_equals_numpy_on_the_rows_of_the_pipeline_in_any_order(rows: Pipeline, filters: Any, order: Any) -> None:
    pipeline = rows
    for change in filters:
        pipeline = change(pipeline)
    try:
        listed = list(pipeline)
    except EmptySelectionError:
        with pytest.raises(EmptySelectionError, match="expected at least one item, got none"):
            pipeline.fit("x")
        return
    stats = pipeline.fit(*EVERY, quantiles=10)
    assert stats.rows == len(listed)
    for name in ("x", "n", "list"):
        values = [row[name] for row in listed]
        expected = by_numpy([value for value in values if value is not None])
        found = stats[name]
        assert isinstance(found, NumberStatistics)
        assert found.nulls == sum(value is None for value in values)
        for part in ("count", "nans", "infinities", "min", "max"):
            assert getattr(found, part) == getattr(expected, part), part
        for part in ("mean", "std", "quantiles"):
            if expected.count:
                np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-12, atol=1e-12)
    for name in ("text", "raw"):
        counted = Counter(row[name] for row in listed if row[name] is not None)
        found = stats[name]
        assert isinstance(found, CategoryStatistics)
        assert dict(zip(found.values, found.counts, strict=True)) == counted
        assert list(found.values) == sorted(counted)
    assert order(pipeline).fit(*EVERY, quantiles=10) == stats
    assert TrainingStatistics.from_json(json.loads(json.dumps(stats.to_json(), allow_nan=False))) == stats


def test_batches_and_their_sizes_do_not_change_exact_results(rows: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows.transform(lambda row: row).fit(*EVERY)  # functions are not kept
    monkeypatch.setattr(fitting, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(summaries, "_PENDING", 3)
    small = rows.transform(lambda row: row).fit(*EVERY)
    for name in EVERY:
        a, b = whole[name], small[name]
        if isinstance(a, CategoryStatistics):
            assert a == b
        else:
            assert isinstance(b, NumberStatistics)
            np.testing.assert_allclose([a.mean, a.std, *a.quantiles], [b.mean, b.std, *b.quantiles], rtol=1e-12)  # type: ignore[arg-type]


def test_it_sees_what_the_verbs_make(drive: Pipeline) -> None:
    double = UnischemaField("double", np.float64)
    changed = (
        drive.rename({"id": "n"})
        .cast("float32", "n")
        .transform(lambda row: {**row, "double": float(row["n"]) * 2}, double)
    )
    stats = changed.fit("double", "n")
    assert (stats.number("t", "double").mean, stats.number("t", "n").max) == (39, 39)


def test_rare_values_are_left_out_and_whole_numbers_are_categories_if_one_says_so(rows: Pipeline) -> None:
    stats = rows.fit("text", categories=["n"], max_size=3)
    counts = Counter(row["text"] for row in rows if row["text"] is not None)
    assert stats.vocabulary("t", "text") == tuple(sorted(sorted(counts, key=lambda v: (-counts[v], v))[:3]))
    assert isinstance(stats["n"], CategoryStatistics)
    rare = rows.fit("text", min_count=min(counts.values()) + 1)["text"]
    assert isinstance(rare, CategoryStatistics)
    assert set(rare.values) == {value for value in counts if counts[value] > min(counts.values())}
    assert rare.distinct == len(counts)
    coded = rows.encode("text", stats=stats, unknown=-1).vocabulary("text")
    assert tuple(coded) == stats.vocabulary("t", "text")


def test_it_prints_as_a_table(tmp_path: Path) -> None:
    columns = {"x": [1.0, 2.0, None, float("nan")], "city": ["Oslo", "Lima", "Oslo", None], "none": [None] * 4}
    table = pa.table(columns, pa.schema([("x", pa.float64()), ("city", pa.string()), ("none", pa.int64())]))
    stats = Pipeline(write_table(tmp_path, table)).fit("x", "city", "none")
    assert repr(stats).splitlines() == [
        "field  statistics",
        "x      mean 1.5, std 0.5, 1 ... 2, median 1.5, 1 null, 1 NaN",
        "city   2 distinct, 'Oslo' (2), 'Lima' (1), 1 null",
        "none   no finite numbers, 4 null",
        "of 4 rows",
    ]
    assert "<td>no finite numbers, 4 null</td>" in stats._repr_html_()


def test_it_is_kept_until_the_pipeline_or_an_argument_changes(
    rows: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path))
    passes: list[int] = []
    add = fitting._add_rows
    monkeypatch.setattr(fitting, "_add_rows", lambda *args: passes.append(0) or add(*args))
    for _ in range(2):
        first = rows.fit("x")
        assert rows.shuffle(5, seed=1).fit("x") == first
    assert len(passes) == 1
    for changed in (rows.where(pc.field("id") > 3), rows.cast("float32", "x")):
        changed.fit("x")
    rows.fit("x", quantiles=7)
    assert len(passes) == 4


def test_too_many_values_of_a_category_are_refused(rows: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MOST_VALUES", 5)
    with pytest.raises(
        PipelineError, match=r"field 'text': expected at most 5 different values.*hash_encode\(\) needs no"
    ):
        rows.transform(lambda row: row).fit("text")


def test_pipelines_whose_rows_are_not_fixed_are_refused(drive: Pipeline) -> None:
    for changed, why in (
        (drive.batch(3), r"expected rows, got batch\(\), which makes batches"),
        (drive.repeat(2), r"got repeat\(\), which would count rows several times"),
        (drive.ngram(length=2), r"got ngram\(\), which would count rows"),
        (drive.balance("id"), "which draws other rows in each epoch"),
        (drive.shuffle(9, seed=1, reshuffle_each_iteration=False).take(3), r"got take\(\) after shuffle\(\)"),
        (mix([drive, drive], seed=1), "expected a pipeline over one dataset, got a mix"),
    ):
        with pytest.raises(PipelineError, match=why):
            changed.fit("id")
    with pytest.raises(PipelineError, match="expected the names of fields, got none"):
        drive.fit()
    with pytest.raises(FieldNotFoundError, match="Did you mean 'speed'"):
        drive.fit("sped")
    with pytest.raises(PipelineError, match="fit: expected quantiles to be an integer >= 1"):
        drive.fit("id", quantiles=0)
    with pytest.raises(PipelineError, match="field 'speed': expected strings, bytes or integers as a category"):
        drive.fit(categories="speed")
    with pytest.raises(PipelineError, match="statistics: expected what to_json"):
        TrainingStatistics.from_json({"version": 1})
    with pytest.raises(PipelineError, match="Update parquetry if a later release wrote it"):
        TrainingStatistics.from_json({"version": 2})


def test_numbers_whose_squares_overflow_have_finite_statistics(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.7e308, -1.7e308] * 20}), tmp_path / "x.parquet", row_group_size=7)
    stats = Pipeline(tmp_path / "x.parquet").fit("x")["x"]
    assert stats.mean == pytest.approx(0, abs=1e293)
    assert stats.std == pytest.approx(1.7e308)


def test_numbers_whose_difference_from_the_mean_overflows_are_standardized(tmp_path: Path) -> None:
    x = np.array([1.7e308, -1.7e308, 1.0, 1.6e308])
    pq.write_table(pa.table({"x": x}), tmp_path / "x.parquet")
    rows = Pipeline(tmp_path / "x.parquet")
    stats = rows.fit("x")
    made = next(iter(rows.standardize("x", stats=stats, dtype="float64").batch(4)))["x"]
    np.testing.assert_allclose(made, (x / 4 - stats["x"].mean / 4) / stats["x"].std * 4, rtol=1e-12)
