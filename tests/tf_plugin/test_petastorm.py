"""`make_petastorm_dataset` and `tf_tensors`."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DecodeError, NullValueError, PipelineError
from parquetry.common.compat.petastorm import TransformSpec, WeightedSamplingReader, make_batch_reader, make_reader
from parquetry.common.compat.petastorm.ngram import NGram
from parquetry.common.compat.petastorm.predicates import in_lambda
from parquetry.common.compat.petastorm.spark import TFDatasetContextManager, make_spark_converter
from parquetry.common.compat.petastorm.unischema import Unischema as PetastormSchema
from parquetry.common.compat.petastorm.unischema import UnischemaField as PetastormField

tf = pytest.importorskip("tensorflow")
petastorm = pytest.importorskip("parquetry.petastorm.tf_utils")

REAL = Path(__file__).parents[1] / "data" / "petastorm" / "0.12.1"
STRICT = ["drive", "id", "count_u16", "price", "png", "png16", "matrix", "points"]


def rows(fields: Any = STRICT, **options: Any) -> Any:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
    return make_reader(str(REAL), schema_fields=fields, **options)


@pytest.fixture
def plain(tmp_path: Path) -> str:
    table = pa.table(
        {
            "id": pa.array(range(20), pa.int32()),
            "text": [f"t{i}" for i in range(20)],
            "raw": [bytes([i, 0]) for i in range(20)],
            "day": pa.array([datetime.date(1970, 1, 1 + i) for i in range(20)], pa.date32()),
            "when": pa.array([datetime.datetime(1970, 1, 1, 0, 0, i) for i in range(20)], pa.timestamp("us")),
            "price": [decimal.Decimal(i) / 8 for i in range(20)],
            "vector": pa.array([[i, i] for i in range(20)], pa.list_(pa.int32())),
            "ragged": pa.array([list(range(i % 3)) for i in range(20)], pa.list_(pa.int32())),
            "maybe": pa.array([None if i == 3 else i for i in range(20)], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=8)
    return str(tmp_path)


@pytest.mark.parametrize("pool", ["dummy", "thread", "process"])
def test_rows_are_named_tuples_of_tensors_in_petastorms_types(pool: str) -> None:
    with rows(reader_pool_type=pool, workers_count=1) as reader:
        dataset = petastorm.make_petastorm_dataset(reader)
        spec = dataset.element_spec
        read = list(dataset)
    assert spec._fields == tuple(STRICT)
    assert {name: (item.dtype, item.shape.as_list()) for name, item in spec._asdict().items()} == {
        "drive": (tf.string, []),
        "id": (tf.int64, []),
        "count_u16": (tf.int32, []),
        "price": (tf.string, []),
        "png": (tf.uint8, [8, 6, 3]),
        "png16": (tf.int32, [4, 5]),
        "matrix": (tf.float32, [3, 4]),
        "points": (tf.float32, [None, 3]),
    }
    assert [int(row.id) for row in read] == list(range(60))
    for i, row in enumerate(read):
        assert row.drive.numpy() == f"d{i // 20}".encode()
        assert row.count_u16.numpy() == 60000 + i
        assert row.price.numpy().decode() == str((decimal.Decimal(i) / 8).normalize())
        assert row.points.shape == (i % 4 + 1, 3)
        np.testing.assert_array_equal(row.matrix, np.arange(12, dtype=np.float32).reshape(3, 4) * i)


def test_the_dataset_is_a_tf_data_dataset_with_all_its_verbs() -> None:
    with rows(["id", "matrix"], num_epochs=2) as reader:
        dataset = petastorm.make_petastorm_dataset(reader)
        assert isinstance(dataset, tf.data.Dataset)
        batches = list(dataset.map(lambda row: (row.matrix, row.id)).batch(50).prefetch(2))
    assert [len(label) for _, label in batches] == [50, 50, 20]
    assert batches[0][0].shape == (50, 3, 4)


def test_a_second_iteration_reads_again_and_warns() -> None:
    with rows(["id"]) as reader:
        dataset = petastorm.make_petastorm_dataset(reader)
        first = [int(row.id) for row in dataset]
        with pytest.warns(UserWarning, match="its reader starts over and reads all data again"):
            second = [int(row.id) for row in dataset]
        assert first == second == list(range(60))
        cached = dataset.cache()
        with pytest.warns(UserWarning, match="its reader starts over"):
            assert len(list(cached)) == 60
        assert len(list(cached)) == 60


def test_row_groups_have_a_leading_axis_and_times_are_nanoseconds(plain: str) -> None:
    fields = ["id", "text", "raw", "day", "when", "price", "vector"]
    with make_batch_reader(plain, schema_fields=fields, shuffle_row_groups=False) as reader:
        dataset = petastorm.make_petastorm_dataset(reader)
        assert dataset.element_spec.vector.shape.as_list() == [None, None]
        read = list(dataset)
    assert [len(batch.id) for batch in read] == [8, 8, 4]
    first = read[0]
    assert first.text.numpy().tolist() == [f"t{i}".encode() for i in range(8)]
    assert first.raw.numpy().tolist() == [bytes([i, 0]) for i in range(8)]
    assert first.day.dtype == tf.int64
    assert first.day.numpy().tolist() == [i * 86400 * 10**9 for i in range(8)]
    assert first.when.numpy().tolist() == [i * 10**9 for i in range(8)]
    assert [value.decode() for value in first.price.numpy()] == [
        str((decimal.Decimal(i) / 8).normalize()) for i in range(8)
    ]
    assert first.vector.shape == (8, 2)


@pytest.mark.parametrize(
    ("field", "text"), [("maybe", "field 'maybe': expected a value"), ("ragged", "field 'ragged'")]
)
def test_types_without_a_tensor_are_errors_with_the_fields_name(plain: str, field: str, text: str) -> None:
    with (
        make_batch_reader(plain, schema_fields=[field]) as reader,
        pytest.raises(tf.errors.OpError, match=text),
    ):
        list(petastorm.make_petastorm_dataset(reader))


@pytest.mark.parametrize("make", [petastorm.make_petastorm_dataset, petastorm.tf_tensors])
def test_a_url_in_place_of_a_reader_is_refused(plain: str, make: Any) -> None:
    with pytest.raises(
        PipelineError, match=f"{make.__name__}: expected a reader from make_reader or make_batch_reader"
    ):
        make(plain)


def test_nulls_of_rows_are_refused_with_the_fields_name() -> None:
    with rows(["label"]) as reader, pytest.raises(tf.errors.OpError, match="field 'label': expected a value, got null"):
        list(petastorm.make_petastorm_dataset(reader))
    known = in_lambda(["label"], lambda label: label is not None)
    with rows(["id", "label"], predicate=known) as reader:
        assert len(list(petastorm.make_petastorm_dataset(reader))) == 51


def test_fields_of_a_type_that_tensorflow_lacks_are_refused(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("big", np.uint64)])
    write_dataset(tmp_path / "s", schema, [{"big": 1}])
    with make_reader(str(tmp_path / "s")) as reader, pytest.raises(ValueError, match="field 'big': numpy type"):
        petastorm.make_petastorm_dataset(reader)


def test_arrays_of_text_keep_their_bytes(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("words", str, (None,), NdarrayCodec())])
    words = [np.array(["a", "bé"]), np.array([], dtype="U1")]
    write_dataset(tmp_path / "s", schema, [{"words": value} for value in words])
    with make_reader(str(tmp_path / "s"), shuffle_row_groups=False) as reader:
        first, second = petastorm.make_petastorm_dataset(reader)
    assert [value.decode() for value in first.words.numpy()] == ["a", "bé"]
    assert second.words.shape == (0,)


def test_windows_are_dicts_by_offset() -> None:
    ngram = NGram({-1: ["id", "png"], 1: ["id"]}, 100, "stamp_ms")
    with rows(ngram) as reader:
        dataset = petastorm.make_petastorm_dataset(reader)
        assert dataset.element_spec[-1].png.shape.as_list() == [8, 6, 3]
        read = list(dataset)
    assert len(read) == 54
    assert list(read[0]) == [-1, 0, 1]
    assert all(int(window[-1].id) + 2 == int(window[1].id) for window in read)
    assert read[0][0] == ()


def test_a_mix_of_readers_is_a_dataset() -> None:
    readers = [rows(["id"]), rows(["id"], filters=[("id", "<", 10)])]
    with WeightedSamplingReader(readers, [0.5, 0.5], seed=1) as mixer:
        read = [int(row.id) for row in petastorm.make_petastorm_dataset(mixer)]
    assert len(read) >= 18


# --- TensorFlow 1 -----------------------------------------------------------------------------------------------------


def test_tensors_give_the_next_row_to_every_run_of_a_session() -> None:
    with tf.Graph().as_default(), rows() as reader, tf.compat.v1.Session() as session:
        tensors = petastorm.tf_tensors(reader)
        assert tensors.png.shape.as_list() == [8, 6, 3]
        read = [session.run(tensors) for _ in range(60)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(tensors)
    assert [int(row.id) for row in read] == list(range(60))
    assert read[3].price == b"0.375"


def test_tensors_may_pass_a_shuffling_queue() -> None:
    with tf.Graph().as_default(), rows(["id"], num_epochs=None) as reader, tf.compat.v1.Session() as session:
        tensors = petastorm.tf_tensors(reader, shuffling_queue_capacity=30, min_after_dequeue=20)
        assert tensors.id.shape.as_list() == []
        (runner,) = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS)
        for _ in range(30):
            session.run(runner.enqueue_ops)
        read = [int(session.run(tensors).id) for _ in range(10)]
        size = session.graph.get_tensor_by_name(f"{petastorm.RANDOM_SHUFFLING_QUEUE_SIZE}:0")
        assert session.run(size) == 20
    assert set(read) < set(range(30))
    assert read != sorted(read)


def test_tensors_of_windows_are_dicts_by_offset() -> None:
    ngram = NGram({0: ["id"], 2: ["id", "png"]}, 100, "stamp_ms")
    with tf.Graph().as_default(), rows(ngram) as reader, tf.compat.v1.Session() as session:
        tensors = petastorm.tf_tensors(reader)
        assert tensors[2].png.shape.as_list() == [8, 6, 3]
        window = session.run({offset: step for offset, step in tensors.items() if offset != 1})
    assert window[0].id + 2 == window[2].id


def test_a_shuffling_queue_needs_single_rows_and_a_graph(plain: str) -> None:
    with make_batch_reader(plain) as reader, pytest.raises(ValueError, match="expected shuffling_queue_capacity=0"):
        petastorm.tf_tensors(reader, 100, 90)
    with rows() as reader, pytest.raises(PipelineError, match="eager mode"):
        petastorm.tf_tensors(reader, 100, 90)


# --- values -----------------------------------------------------------------------------------------------------------


def test_values_become_what_tensorflow_takes() -> None:
    fields = ["i", "u16", "u32", "price", "days", "times", "moment", "texts", "number"]
    schema = PetastormSchema("s", [PetastormField(name, np.int32, ()) for name in fields])
    days = [datetime.date(1970, 1, 1), datetime.date(2015, 9, 29)]
    expected = [0, 16707 * 86400 * 10**9]
    row = schema.make_namedtuple(
        i=np.array([-1, 1], np.int32),
        u16=np.array([65535], np.uint16),
        u32=np.array([2**32 - 1], np.uint32),
        price=decimal.Decimal("123.40"),
        days=np.array(days, dtype=object),
        times=np.array(days, dtype="datetime64[s]"),
        moment=np.datetime64("1970-01-01T00:00:01"),
        texts=np.array(["a", "b"]),
        number=np.uint16(7),
    )
    made = petastorm._sanitize_field_tf_types(row)
    assert type(made) is type(row)
    assert made.i.dtype == np.int32
    assert (made.u16.dtype, made.u16.tolist()) == (np.int32, [65535])
    assert (made.u32.dtype, made.u32.tolist()) == (np.int64, [2**32 - 1])
    assert made.price == "123.4"
    assert made.days.tolist() == expected
    assert made.times.tolist() == expected
    assert made.moment == 10**9
    assert made.texts.tolist() == ["a", "b"]
    assert type(made.number) is np.int32
    for null in (None, np.ma.MaskedArray([1], [True]), np.array([np.datetime64("NaT", "ns")]), np.array([None])):
        with pytest.raises(NullValueError, match="field 'i': expected a value, got null"):
            petastorm._sanitize_field_tf_types(row._replace(i=null))


@pytest.mark.parametrize("far", [np.datetime64("3000-01-01", "us"), datetime.date(1500, 1, 1)])
def test_times_beyond_nanoseconds_are_refused_with_the_fields_name(far: Any) -> None:
    row = PetastormSchema("s", [PetastormField("t", np.datetime64, ())]).make_namedtuple(t=far)
    with pytest.raises(
        DecodeError, match=r"field 't': expected times that nanoseconds .*1677 to 2262.*got (3000|1500)"
    ):
        petastorm._sanitize_field_tf_types(row)


def test_rows_of_fixed_shapes_come_many_at_a_time_with_the_same_values() -> None:
    fields = [name for name in STRICT if name != "points"]
    with rows(fields) as reader:
        read = list(petastorm.make_petastorm_dataset(reader))
    with rows(STRICT) as reader:
        one_by_one = list(petastorm.make_petastorm_dataset(reader))
    assert len(read) == 60
    for many, single in zip(read, one_by_one, strict=True):
        assert type(many)._fields == tuple(fields)
        for name in fields:
            np.testing.assert_array_equal(getattr(many, name), getattr(single, name), strict=True)
            assert getattr(many, name).dtype == getattr(single, name).dtype


def test_windows_of_fixed_shapes_keep_their_offsets() -> None:
    ngram = NGram({0: ["id", "drive"], 1: ["id"]}, 10**9, "stamp_ms")
    with rows(ngram) as reader:
        read = list(petastorm.make_petastorm_dataset(reader))
    assert [(int(window[0].id), int(window[1].id)) for window in read] == [
        (i, i + 1) for i in range(59) if i % 20 != 19
    ]


def test_rows_before_an_error_come() -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": None if row["id"] == 7 else row["id"]}

    with rows(["id"], transform_spec=TransformSpec(fail)) as reader:
        read = iter(petastorm.make_petastorm_dataset(reader))
        seen = [int(next(read).id) for _ in range(7)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="field 'id': expected a value, got null"):
            next(read)
    assert seen == list(range(7))


def test_rows_that_an_iteration_read_ahead_and_left_are_reported() -> None:
    with rows(["id"]) as reader:
        dataset = petastorm.make_petastorm_dataset(reader)
        assert [int(row.id) for row in dataset.take(1)] == [0]
        assert [int(row.id) for row in dataset.take(2)] == [1, 2]
        with pytest.warns(UserWarning, match="Rows that it had read ahead, 1 at most, are skipped"):
            assert [int(row.id) for row in dataset.take(1)] == [4]


def test_a_converters_dataset_needs_no_context_that_is_kept(plain: str) -> None:
    context = make_spark_converter(plain).make_tf_dataset(batch_size=8, num_epochs=1, schema_fields=["id"])
    assert isinstance(context, TFDatasetContextManager)
    with context as dataset:
        assert sorted(number for batch in dataset for number in batch.id.numpy()) == list(range(20))
    assert context.reader.stopped
