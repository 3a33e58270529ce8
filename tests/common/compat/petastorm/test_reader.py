"""`make_reader` on datasets by Petastorm 0.12.1 and by parquetry: values, order, shards, epochs, arguments."""

from __future__ import annotations

import decimal
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import exit_status_of_fork

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, PipelineError, TransformError
from parquetry.common.compat.petastorm import NoDataAvailableError, TransformSpec, make_batch_reader, make_reader
from parquetry.common.compat.petastorm import reader as reader_module
from parquetry.common.compat.petastorm.errors import NoFieldsError, ReaderStoppedError, ResetError
from parquetry.common.compat.petastorm.predicates import in_lambda, in_set
from parquetry.common.compat.petastorm.unischema import UnischemaField as PetastormField
from parquetry.common.transport.sidecar.worker_process import WorkerProcess

pytestmark = pytest.mark.versions

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"
GROUPS = [8, 8, 4] * 3
POOLS = ["dummy", "thread", "process"]


def ids(reader: Any) -> list[int]:
    return [int(row.id) for row in reader]


def read_ids(url: Any = REAL, **options: Any) -> list[int]:
    options = {"reader_pool_type": "dummy", "schema_fields": ["id"], **options}
    with make_reader(str(url) if isinstance(url, Path) else url, **options) as reader:
        return ids(reader)


def row_groups() -> list[list[int]]:
    """Returns the ids of every row group of the real dataset."""
    numbers = iter(range(60))
    return [[next(numbers) for _ in range(size)] for size in GROUPS]


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """Writes 100 rows in 10 row groups of 10, in one file."""
    schema = Unischema("numbers", [UnischemaField("id", np.int64), UnischemaField("half", np.float32)])
    write_dataset(tmp_path / "numbers", schema, [{"id": i, "half": i / 2} for i in range(100)], row_group_rows=10)
    return f"file://{tmp_path}/numbers"


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["dummy", "thread", pytest.param("process", marks=pytest.mark.slow)])
def test_every_value_of_a_petastorm_dataset_is_read_in_petastorms_own_type(pool: str) -> None:
    with make_reader(f"file://{REAL}", reader_pool_type=pool, workers_count=2, shuffle_row_groups=False) as reader:
        rows = list(reader)
    assert [int(row.id) for row in rows] == list(range(60))
    for i, row in enumerate(rows):
        assert row.drive == f"d{i // 20}"
        assert type(row.drive) is np.str_
        assert type(row.id) is np.int64
        assert row.stamp_ms == 1000000 * (i // 20) + 100 * (i % 20)
        assert row.label == (None if i % 7 == 0 else "pedestrian" if i % 3 == 0 else "vehicle")
        assert row.speed is None if i % 5 == 0 else (type(row.speed) is np.float32 and row.speed == i / 2)
        assert type(row.count_u16) is np.uint16
        assert row.count_u16 == 60000 + i
        assert type(row.price) is decimal.Decimal
        assert row.price == decimal.Decimal(i) / 8
        h, w, c = np.indices((8, 6, 3))
        np.testing.assert_array_equal(row.png, ((18 * h + 3 * w + c + i) % 256).astype(np.uint8), strict=True)
        wide = (np.arange(20).reshape(4, 5) * 3000 + i).astype(np.uint16)
        np.testing.assert_array_equal(row.png16, wide, strict=True)
        assert row.jpeg.shape == (16, 16, 3)
        np.testing.assert_allclose(row.jpeg.mean(axis=(0, 1)), [i * 4 % 200, 100, 50], atol=3)
        np.testing.assert_array_equal(row.matrix, np.arange(12, dtype=np.float32).reshape(3, 4) * i, strict=True)
        points = np.arange(3 * (i % 4 + 1), dtype=np.float32).reshape(-1, 3) + i
        np.testing.assert_array_equal(row.points, points, strict=True)
        if i % 4 == 0:
            assert row.names is None
        else:
            assert row.names.tolist() == [b"a\x00b", b"c" * (i % 3 + 1)]


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0", "0.7.6"])
def test_datasets_of_old_releases_are_read(version: str) -> None:
    with make_reader(str(REAL.parent / version), workers_count=2) as reader:
        rows = list(reader)
    assert sorted(int(row.id) for row in rows) == list(range(10))
    assert all(row.matrix.shape == (32, 16, 3) for row in rows)


def test_values_may_be_changed_by_their_owner() -> None:
    with make_reader(str(REAL), reader_pool_type="dummy") as reader:
        row = next(reader)
    row.matrix[...] = 0
    row.png[...] = 0


def test_lists_and_nulls_in_them_keep_their_form(tmp_path: Path) -> None:
    fields = [
        UnischemaField("id", np.int64),
        UnischemaField("codes", np.int32, (None,), nullable=True),
        UnischemaField("tags", str, (None,)),
        UnischemaField("when", "datetime64[us]", nullable=True),
        UnischemaField("words", str, (2,), NdarrayCodec()),
    ]
    rows = [
        {
            "id": 0,
            "codes": [1, 2],
            "tags": ["a\0", ""],
            "when": np.datetime64("2024-02-29T01:02:03"),
            "words": ["x", "yé"],
        },
        {"id": 1, "codes": None, "tags": [], "when": None, "words": ["", "b"]},
    ]
    write_dataset(tmp_path / "lists", Unischema("lists", fields), rows)
    with make_reader(str(tmp_path / "lists"), reader_pool_type="dummy") as reader:
        first, second = reader
    np.testing.assert_array_equal(first.codes, np.array([1, 2], np.int32), strict=True)
    assert second.codes is None
    assert first.tags.tolist() == ["a\0", ""]
    assert second.tags.tolist() == []
    assert first.when == np.datetime64("2024-02-29T01:02:03")
    assert second.when is None
    assert first.words.dtype.kind == "U"
    assert first.words.tolist() == ["x", "yé"]


# --- fields -----------------------------------------------------------------------------------------------------------


def test_regexes_match_names_in_full_and_come_in_schema_order() -> None:
    with pytest.warns(UserWarning, match="must match the entire field name"):
        opened = make_reader(str(REAL), schema_fields=["price|label", "i.*", "p"], reader_pool_type="dummy")
    with opened as reader:
        assert list(reader.schema.fields) == ["id", "label", "price"]
        assert next(reader)._fields == ("id", "label", "price")


def test_field_objects_come_in_their_own_order_and_the_stored_field_decides_the_codec() -> None:
    mine = PetastormField("png16", np.float32, (1, 2, 3), None, True)
    wanted = [mine, PetastormField("id", np.int64, ())]
    with make_reader(str(REAL), schema_fields=wanted, reader_pool_type="dummy", shuffle_row_groups=False) as reader:
        row = next(reader)
    assert row._fields == ("png16", "id")
    assert row.png16.dtype == np.uint16
    assert row.png16.shape == (4, 5)


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="does not belong to the schema"):
        make_reader(str(REAL), schema_fields=[PetastormField("bogus", np.int64, ())])
    with pytest.raises(RuntimeError, match="No fields matching the criteria"):
        make_reader(str(REAL), schema_fields=["bogus.*"])
    with pytest.raises(RuntimeError, match=r"Did you mean 'png16'\?$"):
        make_reader(str(REAL), schema_fields=["pgn16"])
    no_such = in_lambda(["ID"], bool)
    with make_reader(str(REAL), predicate=no_such) as reader, pytest.raises(PipelineError, match=r"mean 'id'\?$"):
        next(reader)
    assert issubclass(NoFieldsError, RuntimeError)


def test_a_function_in_place_of_a_transform_spec_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"expected a TransformSpec, got <class 'dict'>. Write TransformSpec\("):
        make_reader(str(REAL), transform_spec=dict)  # type: ignore[arg-type]


# --- order ------------------------------------------------------------------------------------------------------------


def test_without_shuffling_rows_come_as_stored_from_every_pool() -> None:
    for pool in POOLS[:2]:
        assert read_ids(reader_pool_type=pool, shuffle_row_groups=False) == list(range(60))


def test_row_groups_are_shuffled_as_wholes_and_differently_in_each_epoch() -> None:
    read = read_ids(seed=7, num_epochs=3)
    epochs = [read[:60], read[60:120], read[120:]]
    wanted = row_groups()
    orders = []
    for epoch in epochs:
        found = []
        while epoch:
            group = next(group for group in wanted if group[0] == epoch[0])
            assert epoch[: len(group)] == group
            found.append(wanted.index(group))
            epoch = epoch[len(group) :]
        assert sorted(found) == list(range(9))
        orders.append(tuple(found))
    assert len(set(orders)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 123])
def test_a_seed_fixes_the_order_whatever_the_pool_and_zero_is_a_seed(seed: int) -> None:
    options: dict[str, Any] = {"seed": seed, "shuffle_rows": True, "num_epochs": 2}
    first = read_ids(**options)
    assert read_ids(**options) == first
    assert read_ids(**options, reader_pool_type="thread", workers_count=3) == first
    assert read_ids(**options, reader_pool_type="process", workers_count=2) == first
    assert read_ids(seed=seed + 1, shuffle_rows=True, num_epochs=2) != first


def test_rows_are_shuffled_inside_their_row_groups() -> None:
    read = read_ids(seed=3, shuffle_rows=True, shuffle_row_groups=False)
    at = 0
    moved = 0
    for group in row_groups():
        part = read[at : at + len(group)]
        assert sorted(part) == group
        moved += part != group
        at += len(group)
    assert moved >= 7


def test_dropped_partitions_mix_rows_of_several_row_groups(numbers: str) -> None:
    jumps = [
        int(np.sum(np.diff(read_ids(numbers, seed=1, shuffle_row_drop_partitions=parts)) != 1))
        for parts in (1, 2, 5, 10)
    ]
    assert jumps == sorted(jumps)
    assert jumps[0] < jumps[1] < jumps[2]


# --- filters and shards -----------------------------------------------------------------------------------------------


def test_filters_on_ordinary_and_partition_columns_are_exact() -> None:
    assert read_ids(shuffle_row_groups=False, filters=[("stamp_ms", ">=", 1000300), ("drive", "=", "d1")]) == list(
        range(23, 40)
    )
    either = [[("id", "<", 2)], [("id", "in", {58, 59})]]
    assert read_ids(shuffle_row_groups=False, filters=either) == [0, 1, 58, 59]


def test_shards_are_integers_in_range_and_no_more_than_row_groups() -> None:
    for cur_shard, shard_count in [(None, 2), (0, None), ("0", 2), (0, "2"), (0, 0), (2, 2), (-1, 2)]:
        with pytest.raises(ValueError, match="sharding: expected"):
            make_reader(str(REAL), cur_shard=cur_shard, shard_count=shard_count)  # type: ignore[arg-type]
    with pytest.raises(NoDataAvailableError, match="Number of row-groups"):
        make_reader(str(REAL), cur_shard=0, shard_count=10)


def test_a_partition_predicate_that_leaves_nothing_warns_and_reads_nothing() -> None:
    with pytest.warns(UserWarning, match="No matching data"):
        assert read_ids(predicate=in_set({"nowhere"}, "drive")) == []


def test_an_endless_read_of_nothing_is_an_error() -> None:
    with (
        make_reader(str(REAL), num_epochs=None, predicate=in_lambda(["id"], lambda id: False)) as reader,
        pytest.raises(NoDataAvailableError, match="got an epoch without rows"),
    ):
        next(reader)


# --- epochs and lifecycle ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS[:2])
def test_epochs_are_counted_and_reset_begins_again(pool: str) -> None:
    with make_reader(str(REAL), schema_fields=["id"], num_epochs=2, reader_pool_type=pool, seed=1) as reader:
        first = ids(reader)
        assert reader.last_row_consumed
        with pytest.raises(StopIteration):
            next(reader)
        reader.reset()
        assert not reader.last_row_consumed
        second = ids(reader)
    assert Counter(first) == Counter(second) == Counter(list(range(60)) * 2)
    assert first != second


@pytest.mark.parametrize("pool", POOLS[:2])
def test_a_fork_gets_no_row_of_its_parents_reader(pool: str) -> None:
    with make_reader(str(REAL), schema_fields=["id"], num_epochs=1, reader_pool_type=pool) as reader:
        next(reader)

        def is_refused() -> bool:
            with pytest.raises(PipelineError, match="Make the reader in this process"):
                next(reader)
            return True

        assert exit_status_of_fork(is_refused) == 0
        next(reader)


def test_a_fork_closes_its_parents_reader_without_waiting_for_threads_that_it_lacks() -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 8:  # of the second row group
            began.set()
            assert go_on.wait(60)
        return row

    options: dict[str, Any] = {"shuffle_row_groups": False, "workers_count": 1}
    with make_reader(str(REAL), ["id"], transform_spec=TransformSpec(wait), **options) as reader:
        next(reader)
        assert began.wait(60)
        assert exit_status_of_fork(lambda: (reader.stop(), reader.join())) == 0
        go_on.set()


@pytest.mark.parametrize("joins", [False, True])
def test_a_fork_that_closes_its_parents_reader_ends_none_of_its_workers(
    joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"reader_pool_type": "process", "workers_count": 2, "shuffle_row_groups": False}
    with make_reader(str(REAL), ["id"], **options) as reader:
        read = [int(next(reader).id)]

        def closes() -> bool:
            monkeypatch.setattr(WorkerProcess, "end", lambda self: os._exit(2))
            reader.stop()
            if joins:
                reader.join()
            return True

        assert exit_status_of_fork(closes) == 0
        assert read + ids(reader) == list(range(60))


def test_reset_before_anything_was_read_does_nothing() -> None:
    with make_reader(str(REAL), schema_fields=["id"], seed=3, reader_pool_type="dummy") as reader:
        reader.reset()
        first = ids(reader)
        reader.reset()
        reader.reset()
        second = ids(reader)
    assert first == read_ids(seed=3)
    assert sorted(second) == sorted(first)
    assert second != first


def test_reset_in_the_middle_is_refused() -> None:
    with make_reader(str(REAL), schema_fields=["id"]) as reader:
        next(reader)
        with pytest.raises(NotImplementedError, match="only after all rows were read"):
            reader.reset()
    assert issubclass(ResetError, NotImplementedError)


def test_no_number_of_epochs_is_endless() -> None:
    with make_reader(str(REAL), schema_fields=["id"], num_epochs=None, seed=1) as reader:
        read = [int(next(reader).id) for _ in range(60 * 4 + 7)]
    assert Counter(read[:240]) == Counter(list(range(60)) * 4)


def test_a_reader_that_was_stopped_gives_nothing_more() -> None:
    with make_reader(str(REAL), schema_fields=["id"]) as reader:
        next(reader)
    with pytest.raises(RuntimeError, match="Trying to read a sample"):
        next(reader)
    reader.stop()
    reader.join()
    assert reader.stopped
    assert issubclass(ReaderStoppedError, RuntimeError)


def test_many_threads_read_each_row_once() -> None:
    with make_reader(str(REAL), schema_fields=["id"], workers_count=3) as reader, ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: ids(reader), range(4)))
    assert sorted(id for part in parts for id in part) == list(range(60))


@pytest.mark.parametrize("pool", POOLS[:2])
@pytest.mark.parametrize("error", [ZeroDivisionError, TransformError, KeyboardInterrupt])
def test_a_reader_continues_after_an_error_and_loses_nothing_when_it_is_interrupted(
    pool: str, error: type[BaseException]
) -> None:
    raised = []

    def fail_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 30 and not raised:
            raised.append(error)
            raise error("no")
        return row

    options: dict[str, Any] = {"schema_fields": ["id"], "shuffle_row_groups": False}
    read: list[int] = []
    with make_reader(str(REAL), transform_spec=TransformSpec(fail_once), reader_pool_type=pool, **options) as reader:
        with pytest.raises(error):
            read.extend(int(row.id) for row in reader)
        read.extend(ids(reader))
        assert reader.last_row_consumed
    failed = [] if error is KeyboardInterrupt else next(each for each in row_groups() if 30 in each)
    assert read == [number for number in range(60) if number not in failed]


def test_stopping_wakes_a_thread_that_waits_for_a_row() -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        began.set()
        go_on.wait(60)
        return row

    reader = make_reader(str(REAL), schema_fields=["id"], transform_spec=TransformSpec(wait))
    errors: list[BaseException] = []

    def take() -> None:
        try:
            next(reader)
        except ReaderStoppedError as error:
            errors.append(error)

    consumer = threading.Thread(target=take)
    consumer.start()
    assert began.wait(60)
    reader.stop()
    consumer.join(60)
    go_on.set()
    reader.join()
    assert len(errors) == 1


def test_the_look_ahead_is_bounded() -> None:
    with make_reader(str(REAL), schema_fields=["id"], workers_count=1, results_queue_size=2) as reader:
        assert reader.diagnostics["items_produced"] == 0
        next(reader)
        diagnostics = reader.diagnostics
    assert diagnostics["items_consumed"] == 1
    assert 2 <= diagnostics["items_produced"] <= 3
    assert diagnostics["items_inprocess"] + diagnostics["output_queue_size"] == diagnostics["items_produced"] - 1


def test_a_reader_says_what_it_gives() -> None:
    with make_reader(str(REAL), schema_fields=["id", "png"]) as reader:
        assert reader.batched_output is False
        assert reader.ngram is None
        assert reader.schema.png.numpy_dtype is np.uint8
        assert reader.schema.png.shape == (8, 6, 3)
        assert reader.next().id in range(60)


# --- cache ------------------------------------------------------------------------------------------------------------


def test_the_local_cache_is_kept_and_serves_other_columns_and_transforms(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_type": "local-disk", "cache_location": str(tmp_path / "cache")}
    options.update(cache_size_limit=10**7, shuffle_row_groups=False, reader_pool_type="dummy")
    assert read_ids(num_epochs=2, **options) == list(range(60)) * 2
    kept = sorted((tmp_path / "cache").iterdir())
    assert kept
    with make_reader(str(REAL), schema_fields=["id", "price"], **options) as reader:
        assert [row.price * 8 for row in reader] == list(range(60))
    doubled = TransformSpec(lambda row: {"id": row["id"] * 2})
    assert read_ids(transform_spec=doubled, **options) == list(range(0, 120, 2))
    assert read_ids(predicate=in_lambda(["id"], lambda id: id < 3), **options) == [0, 1, 2]
    assert set(kept) <= set((tmp_path / "cache").iterdir())


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_past_warnings", set())


def test_arguments_without_a_meaning_warn_once(told: None) -> None:
    given: dict[str, Any] = {
        "pyarrow_serialize": True,
        "shard_seed": 3,
        "cache_row_size_estimate": 100,
        "cache_extra_settings": {"a": 1},
        "hdfs_driver": "libhdfs",
        "zmq_copy_buffers": False,
    }
    with pytest.warns(UserWarning) as caught:  # noqa: PT030  # every message is looked at below
        read_ids(**given)
    texts = [str(item.message) for item in caught]
    assert all(any(text.startswith(name) for text in texts) for name in given)
    assert len(texts) == len(given)
    assert sorted(read_ids(**given)) == list(range(60))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reader_pool_type": "bogus"}, "Unknown reader_pool_type"),
        ({"cache_type": "bogus"}, "Unknown cache_type"),
        ({"num_epochs": -10}, "num_epochs: expected"),
        ({"num_epochs": "abc"}, "num_epochs: expected"),
        ({"workers_count": 0}, "workers_count: expected"),
        ({"results_queue_size": 0}, "results_queue_size: expected"),
        ({"shuffle_row_drop_partitions": 0}, "shuffle_row_drop_partitions: expected"),
        ({"seed": "x"}, "seed: expected"),
        ({"schema_fields": 5}, "schema_fields: expected"),
        ({"predicate": len}, "predicate: expected"),
        ({"rowgroup_selector": len}, "rowgroup_selector: expected"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        make_reader(str(REAL), **options)


@pytest.mark.parametrize("url", [None, 123, [], "", [None]])
def test_a_url_is_text(url: Any) -> None:
    with pytest.raises(ValueError, match="dataset_url: expected"):
        make_reader(url)


def test_a_url_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found nothing there"):
        make_reader(f"file://{tmp_path}/nowhere")


def test_slashes_at_the_end_single_files_and_lists_of_them_are_read(numbers: str, tmp_path: Path) -> None:
    assert read_ids(numbers + "///", shuffle_row_groups=False) == list(range(100))
    file = f"{numbers}/part-00000.parquet"
    assert read_ids(file, shuffle_row_groups=False) == list(range(100))
    assert sorted(read_ids([file, file])) == sorted(list(range(100)) * 2)


def test_many_columns_make_rows(tmp_path: Path) -> None:
    schema = Unischema("wide", [UnischemaField(f"f{i}", np.int64) for i in range(400)])
    write_dataset(tmp_path / "wide", schema, [{f"f{i}": i for i in range(400)}])
    with make_reader(str(tmp_path / "wide"), reader_pool_type="dummy") as reader:
        assert next(reader).f399 == 399


def test_text_in_filters_is_compared_with_integer_partitions(tmp_path: Path) -> None:
    for year in (2019, 2020):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"id": [year]}), tmp_path / f"year={year}" / "part.parquet")

    def read(filters: Any) -> list[int]:
        with make_batch_reader(str(tmp_path), filters=filters, reader_pool_type="dummy") as reader:
            return sorted(int(batch.id[0]) for batch in reader)

    assert read([("year", "=", "2020")]) == [2020]
    assert read([[("year", "in", {"2019", "2018"})], [("year", ">", "2019"), ("id", ">", 0)]]) == [2019, 2020]
    with pytest.raises(PipelineError, match="filters: expected an integer for the partition 'year', got 'x'"):
        read([("year", "=", "x")])


def test_arguments_without_meaning_here_are_accepted_by_both_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (make_reader, make_batch_reader):
        monkeypatch.setattr(reader_module, "_past_warnings", {"batch_reader"})
        with (
            pytest.warns(UserWarning, match="convert_early_to_numpy has no meaning"),
            make(str(REAL), schema_fields=["id"], convert_early_to_numpy=True) as reader,
        ):
            assert reader.batched_output == (make is make_batch_reader)
