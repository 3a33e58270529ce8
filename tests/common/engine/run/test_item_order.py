"""Columns stored by item against columns stored by row, and batches cut at once against batches cut separately."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, mix
from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import NullValueError
from parquetry.common.base.memory.arena import RegionPool
from parquetry.common.base.native.library import is_compiled
from parquetry.common.engine.columns.batch import to_numpy
from parquetry.common.engine.read import block_layout
from parquetry.common.engine.read.column_reader import ReadContext
from parquetry.common.engine.read.fetch import fetchers_of
from parquetry.common.engine.run import block as block_module
from parquetry.common.engine.run.block_loader import loaders_of
from parquetry.common.engine.steps.source import as_slice
from parquetry.common.parquet.native_decode import OrderedNumbers
from parquetry.common.pipeline.pipeline_iterator import batches_to_numpy
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.plan.block_reads import BlockKey
from parquetry.common.plan.program import ElementProgram
from parquetry.common.schema.dtypes import delivered_dtype

ROWS = 3000
WIDE = ("int32", "uint32", "float32")


def table() -> pa.Table:
    """Numbers of all sizes, some with nulls, a small vector, and text."""
    random = np.random.default_rng(5)
    columns: dict[str, pa.Array] = {"id": pa.array(np.arange(ROWS))}
    for number in range(10):
        columns[f"four_{number}"] = pa.array(random.integers(0, 1 << 31, ROWS).astype(WIDE[number % 3]))
    for number in range(6):
        columns[f"eight_{number}"] = pa.array(random.standard_normal(ROWS))
    columns["when"] = pa.array(random.integers(0, 1 << 40, ROWS), pa.timestamp("us"))
    for number in range(7):
        columns[f"one_{number}"] = pa.array(random.integers(0, 2, ROWS).astype(bool))
    columns["holes"] = pa.array(random.standard_normal(ROWS), mask=random.integers(0, 9, ROWS) == 0)
    columns["few"] = pa.array(np.arange(ROWS, dtype=np.int32), mask=np.arange(ROWS) == 17)  # only in one row group
    columns["half"] = pa.array(random.standard_normal(ROWS).astype(np.float16))
    columns["text"] = pa.array([str(number) for number in range(ROWS)])
    columns["pair"] = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS, dtype=np.float32)), 2)
    return pa.table(columns)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dealt") / "data"
    directory.mkdir()
    pq.write_table(table(), directory / "part-0.parquet", row_group_size=700)
    return directory


def by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the plain path, in which no window reorders its columns."""
    monkeypatch.setattr(ElementProgram, "fields_by_item", ())


@pytest.mark.slow
@examples(6)
@given(
    batch=st.sampled_from([None, 1, 7, 64, 1000]),
    buffer=st.sampled_from([1, 900, 5000]),
    shard=st.sampled_from([None, (3, 1)]),
    drop=st.booleans(),
    filled=st.booleans(),
    shape=st.sampled_from(["plain", "where", "mix", "transform"]),
    executor=st.sampled_from(["threads", "threads", "threads", "sidecar"]),
)
def test_columns_by_item_give_the_rows_that_columns_by_row_give(
    url: Path,
    batch: int | None,
    buffer: int,
    shard: tuple[int, int] | None,
    drop: bool,
    filled: bool,
    shape: str,
    executor: str,
) -> None:
    def chain(executor: str) -> Pipeline:
        pipeline = Pipeline(url, executor=executor, workers=2)
        pipeline = pipeline if shard is None else pipeline.shard(*shard)
        pipeline = pipeline.where(pc.field("eight_0") > -0.5) if shape == "where" else pipeline
        pipeline = pipeline.shuffle(buffer, seed=3)
        pipeline = pipeline.nulls("fill", "holes", "few", value=1) if filled else pipeline
        if shape == "mix":
            pipeline = mix([pipeline, Pipeline(url, executor=executor, workers=2).take(400)], [3, 1], seed=2)
        if shape == "transform":
            pipeline = pipeline.transform(lambda row: {**row, "id": row["id"] + 1})
        if batch in (None, 1):  # many small steps
            return (pipeline if batch is None else pipeline.batch(batch)).take(1500)
        return pipeline.batch(batch, drop).repeat(2)

    found = list(chain(executor))
    with pytest.MonkeyPatch.context() as patch:
        by_row(patch)
        wanted = list(chain("threads"))
    assert_same(found, wanted)
    for each in found[:3] if batch is not None else []:
        arrays = [value for name, value in each.items() if name.startswith(("four", "eight", "one"))]
        assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays)


@pytest.mark.parametrize("workers", [2, 3])  # three gather their own rows
@examples(4)
@given(
    batch=st.sampled_from([7, 64, 300]),
    buffer=st.sampled_from([1, 900, 5000]),
    shape=st.sampled_from(["plain", "filled", "mix", "weigh"]),
    executor=st.sampled_from(["threads", "threads", "sidecar"]),
)
def test_loader_workers_give_the_rows_that_one_process_gives(
    url: Path, batch: int, buffer: int, workers: int, shape: str, executor: str
) -> None:
    pipeline = Pipeline(url, executor=executor, workers=2)
    if shape == "weigh":
        pipeline = pipeline.weigh(np.arange(ROWS) % 3)
    pipeline = pipeline.shuffle(buffer, seed=3)
    if shape == "filled":
        pipeline = pipeline.nulls("fill", "holes", "few", value=1)
    if shape == "mix":
        pipeline = mix([pipeline, Pipeline(url, executor=executor, workers=2).take(400)], [3, 1], seed=2)
    pipeline = pipeline.batch(batch).take(3 * workers + 1)

    def batches(worker: int, workers: int) -> list[Any]:
        steps = StepIterator(pipeline, 0, strict_nulls=False, worker=worker, workers=workers)
        return [next(iter(batches_to_numpy(pipeline.element, columns, 1))) for _, columns in steps]

    with pytest.MonkeyPatch.context() as patch:
        by_row(patch)
        wanted = batches(0, 1)
    found = [batches(worker, workers) for worker in range(workers)]
    assert_same([found[number % workers][number // workers] for number in range(len(wanted))], wanted)
    assert sum(map(len, found)) == len(wanted)


def test_every_value_belongs_to_its_row(url: Path) -> None:
    stored = table()
    for each in Pipeline(url, executor="threads").shuffle(1400, seed=1).batch(256):
        rows = each["id"]
        for name in stored.column_names:
            wanted = stored.column(name).take(pa.array(rows)).to_pylist()
            if name == "when":
                wanted = [value.value if hasattr(value, "value") else value for value in wanted]
                wanted = np.asarray(wanted, "datetime64[us]").astype(np.int64).tolist()
            assert each[name].tolist() == wanted, name


def test_shuffled_numbers_are_kept_by_item_and_still_available_by_row(url: Path) -> None:
    shuffled = Pipeline(url, executor="threads").shuffle(1400, seed=1)
    plan = shuffled.plan()
    names = [field.name for field in plan.program.fields]
    key = plan.reads(0, np.zeros(1, np.int64), np.zeros(1, np.int64))[0].key
    (loader,) = loaders_of(plan, fetchers_of(plan))
    window = loader.load(plan.block_rows(key))
    assert {names[number] for number in window.by_item} == {*names} - {"text"}
    (loader,) = loaders_of(plan, fetchers_of(plan, ReadContext(share=1 / 3)))
    partly = loader.load(plan.block_rows(key))
    assert not partly.by_item
    assert {names[number] for number in partly.by_row} == {*names} - {"text"}
    natural = Pipeline(url).plan()
    (plain,) = loaders_of(natural, fetchers_of(natural))  # no gain in natural order
    stored = plain.load(plan.block_rows(key))
    assert not stored.by_item
    assert not stored.by_row
    rows = np.array([5, 3, 3, 600])
    for number, field in enumerate(plan.program.fields):
        if field.name != "text":
            out, wanted = (np.empty((4, *field.shape), delivered_dtype(field.dtype)) for _ in range(2))
            expected = to_numpy(stored.column(number).gather(rows, wanted), text=False)
            for block in (window, partly):
                assert_same(to_numpy(block.column(number).gather(rows, out), text=False), expected)


@pytest.mark.skipif(not is_compiled(), reason="the compiled core puts them in order")
def test_numbers_of_a_row_group_arrive_in_item_order(url: Path) -> None:
    plan = Pipeline(url, executor="threads").shuffle(1, seed=1).plan()
    (fetcher,), rows = fetchers_of(plan), plan.block_rows(BlockKey(0, 0, 0))
    (loader,), order = loaders_of(plan, [fetcher]), rows.item_rows[:, 0]
    fetched = fetcher.fetch(rows.row_groups[0], rows.rows[0], order=loader.order_of(rows))
    found = {field.name: part for field, part in zip(fetcher.fields, fetched.columns, strict=True)}
    ordered = {name for name, part in found.items() if isinstance(part, OrderedNumbers)}
    assert ordered == {"id", "holes", "few", *(name for name in found if name.startswith(("four", "eight")))}
    first = int(plan.dataset.row_groups.rows[: rows.row_groups[0]].sum())
    for name in ordered:
        wanted = table()[name].combine_chunks()[first : first + len(order)].take(pa.array(order))
        part = found[name]
        assert part.values.tolist() == wanted.fill_null(0).to_pylist(), name
        valid = wanted.is_valid().to_pylist()
        assert (valid if part.valid is None else part.valid.tolist()) == valid, name
    assert {number for group in fetched.stacked for number in group.numbers} == {
        number for number, field in enumerate(fetcher.fields) if field.name in ordered
    }


def test_a_null_in_a_dealt_column_is_named_where_none_can_be_held(url: Path) -> None:
    pipeline = Pipeline(url, [*(f"four_{number}" for number in range(10)), "few"], executor="threads")
    steps = StepIterator(pipeline.shuffle(900, seed=2).batch(64), 0, strict_nulls=True)
    with pytest.raises(NullValueError, match=r"field 'few', .*row group 0, row 17: expected a value, found null"):
        list(steps)


@pytest.mark.parametrize(
    ("places", "wanted"),
    [([3, 4, 5], slice(3, 6)), ([7], slice(7, 8)), ([3, 5], None), ([4, 6, 5, 7], None), ([], None)],
)
def test_places_that_follow_each_other_are_a_slice(places: list[int], wanted: slice | None) -> None:
    array = np.array(places, dtype=np.int64)
    assert as_slice(array) == wanted if wanted is not None else as_slice(array) is array


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_batches_cut_in_one_go_are_the_batches_cut_apart(url: Path, parts: int) -> None:
    pipeline = Pipeline(url, executor="threads").batch(20 * parts)
    _, columns = next(StepIterator(pipeline, 0, strict_nulls=False))
    names = [output.name for output in pipeline.element.outputs]
    whole = {name: to_numpy(column, text=name == "text") for name, column in zip(names, columns, strict=True)}
    found = list(batches_to_numpy(pipeline.element, columns, parts))
    assert len(found) == parts
    for number, batch in enumerate(found):
        wanted = {name: value[20 * number : 20 * number + 20] for name, value in whole.items()}
        assert_same(
            batch, {name: value if np.ma.is_masked(value) else np.asarray(value) for name, value in wanted.items()}
        )


def test_strings_that_are_kept_do_not_keep_those_of_other_batches(url: Path) -> None:
    for batch in Pipeline(url, ["text"], executor="threads").batch(20):
        text = batch["text"]
        assert text.base is None or text.base.size == text.size


@pytest.mark.parametrize("name", ["dealt", "packed"])
def test_the_memory_of_a_window_is_reused_once_nothing_refers_to_it(
    url: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = RegionPool()
    for module in (block_module, block_layout):
        monkeypatch.setattr(module, "BLOCK_REGIONS", pool)
    names = [f"eight_{number}" for number in range(6)]
    pipeline = Pipeline(url, names, executor="threads").shuffle(1, seed=1)
    plan = (pipeline.pack("all", names) if name == "packed" else pipeline).batch(64).plan()
    (loader,) = loaders_of(plan, fetchers_of(plan))

    planned = [plan.block_rows(BlockKey(0, 0, number)) for number in range(5)]
    full = [rows for rows in planned if len(rows.item_rows) == 700]

    def numbers(number: int) -> np.ndarray:
        window = loader.load(full[number])
        (found,) = [window.packed(step) for step, _ in plan.program.packs] or [window.by_item[0].parts[0]]
        assert found is not None
        return found

    first = numbers(0)
    kept, address = first.copy(), first.ctypes.data
    second = numbers(1)
    assert second.ctypes.data != address
    assert np.array_equal(first, kept)
    del first
    assert numbers(2).ctypes.data == address


def test_a_region_of_a_known_size_holds_all_of_it_and_the_smallest_that_fits_is_taken() -> None:
    pool = RegionPool()
    large, small = pool.acquire(1 << 20), pool.acquire(1 << 16)
    wanted = small.allocate(np.dtype(np.uint8), (1 << 16,)).ctypes.data
    address = large.allocate(np.dtype(np.uint8), (1 << 20,)).ctypes.data
    small.end()
    large.end()
    del small, large
    again = pool.acquire(1 << 15)
    assert again.allocate(np.dtype(np.uint8), (1 << 15,)).ctypes.data == wanted
    assert pool.acquire(1 << 17).allocate(np.dtype(np.uint8), (1 << 17,)).ctypes.data == address
