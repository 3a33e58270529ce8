"""User functions that reuse their own memory, keep or change their arguments, or return nulls in any form."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import Built, build, built_once

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import DecodeError, PipelineError, TransformError

ROWS = 40
VECTOR = UnischemaField("double", np.int64, (3,))
EXECUTORS = ["threads", "sidecar"]
SLOW_IN_A_SIDECAR = ["threads", pytest.param("sidecar", marks=pytest.mark.slow)]
built = built_once([[10, 10], [20]], names=["id", "drive", "ts", "codes", "points"])


def _own_row() -> Callable[[dict[str, Any]], dict[str, Any]]:
    buffer = np.zeros(3, np.int64)

    def double(row: dict[str, Any]) -> dict[str, Any]:
        buffer[:] = row["id"] * 2
        return {"id": row["id"], "double": buffer}

    return double


def _own_ragged_row() -> Callable[[dict[str, Any]], dict[str, Any]]:
    buffer, texts = np.zeros(3, np.int64), ["", ""]

    def double(row: dict[str, Any]) -> dict[str, Any]:
        buffer[:] = row["id"] * 2
        texts[:] = [str(row["id"])] * 2
        return {"id": row["id"], "double": buffer, "texts": texts}

    return double


def _own_batch() -> Callable[[dict[str, Any]], dict[str, Any]]:
    buffer = np.zeros((ROWS, 3), np.int64)

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        part = buffer[: len(batch["id"])]
        part[:] = batch["id"][:, None] * 2
        return {"id": batch["id"], "double": part}

    return double


def _own_whole_batch() -> Callable[[dict[str, Any]], dict[str, Any]]:
    buffers: dict[int, np.ndarray] = {}

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        buffer = buffers.setdefault(len(batch["id"]), np.zeros((len(batch["id"]), 3), np.int64))
        np.multiply(batch["id"][:, None], 2, out=buffer)
        return {"id": batch["id"], "double": buffer}

    return double


def _own_arrow() -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    buffer = np.zeros((ROWS, 3), np.int64)

    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        part = buffer[: batch.num_rows]
        part[:] = batch.column("id").to_numpy()[:, None] * 2
        return batch.append_column("double", pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), 3))

    return double


def _first_input() -> Callable[[dict[str, Any]], dict[str, Any]]:
    kept: dict[int, np.ndarray] = {}

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"].copy()
        own = kept.setdefault(len(ids), batch["id"])
        own[:] = ids
        return {"id": own, "double": np.repeat(ids[:, None] * 2, 3, axis=1)}

    return double


CASES: list[tuple[str, Callable[[], Any], Any]] = [
    ("row", _own_row, False),
    ("view of its own", _own_batch, True),
    ("array of its own", _own_whole_batch, True),
    ("arrow", _own_arrow, "arrow"),
    ("first input kept", _first_input, True),
]


@pytest.mark.parametrize("executor", SLOW_IN_A_SIDECAR)
@pytest.mark.parametrize(("make", "batched"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_function_may_return_its_own_memory_again(
    built: Built, make: Callable[[], Any], batched: Any, executor: str
) -> None:
    pipeline = built.pipeline("id", executor=executor, workers=3).shuffle(8, 1)
    expected = [int(row["id"]) for row in iter(pipeline)]
    for chain in (pipeline, pipeline.batch(4)):
        if chain is not pipeline and batched is False:
            continue
        elements = list(chain.transform(make(), [VECTOR], batched=batched))
        assert np.concatenate([np.atleast_1d(e["id"]) for e in elements]).tolist() == expected

        doubles = np.concatenate([np.asarray(e["double"]).reshape(-1, 3) for e in elements])
        assert doubles.tolist() == [[2 * number] * 3 for number in expected]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_lists_and_ragged_values_may_be_the_function_s_own(built: Built, executor: str) -> None:
    output = [UnischemaField("double", np.int64, (None,)), UnischemaField("texts", str, (None,))]
    pipeline = built.pipeline("id", executor=executor, workers=2).transform(_own_ragged_row(), output)
    for number, row in enumerate(pipeline):
        assert (row["double"].tolist(), row["texts"].tolist()) == ([2 * number] * 3, [str(number)] * 2)


@pytest.mark.parametrize("executor", SLOW_IN_A_SIDECAR)
def test_a_function_that_leaves_rows_out_may_return_its_own_memory(built: Built, executor: str) -> None:
    own = _own_row()

    def even(row: dict[str, Any]) -> dict[str, Any] | None:
        return own(row) if row["id"] % 2 == 0 else None

    chain = built.pipeline("id", executor=executor).transform(even, [VECTOR], drops=True).batch(3)
    assert [row for batch in chain for row in batch["double"][:, 0].tolist()] == [4 * k for k in range(ROWS // 2)]


@pytest.mark.parametrize("executor", SLOW_IN_A_SIDECAR)
def test_the_sources_of_a_mix_may_share_a_function_with_memory_of_its_own(built: Built, executor: str) -> None:
    for make, batched in ((_own_row, False), (_own_batch, True)):
        function = make()
        sources = [built.pipeline("id", workers=3).shuffle(8, seed) for seed in (1, 2)]
        sources = [source.transform(function, [VECTOR], batched=batched) for source in sources]
        mixed = mix(sources, seed=3, stop="all").with_options(executor=executor, workers=3)
        rows = [(int(row["id"]), row["double"].tolist()) for row in mixed]
        assert sorted(rows) == sorted((number, [2 * number] * 3) for number in [*range(ROWS)] * 2)


def test_a_filter_may_return_its_own_mask(built: Built) -> None:
    buffer = np.zeros(ROWS, dtype=bool)

    def odd(batch: dict[str, Any]) -> np.ndarray:
        np.equal(batch["id"] % 2, 1, out=buffer[: len(batch["id"])])
        return buffer[: len(batch["id"])]

    chain = built.pipeline("id").where(odd, fields=["id"], batched=True)
    assert [int(row["id"]) for row in chain] == list(range(1, ROWS, 2))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_function_may_change_and_keep_what_it_is_given(built: Built, executor: str) -> None:
    seen: list[Any] = []

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        before = [(ids.copy(), ids) for ids in seen]
        batch["id"] *= 2
        batch["points"].values[...] = 0
        assert all((copy == ids).all() for copy, ids in before)
        seen.append(batch["id"][::-1])
        return batch

    chain = built.pipeline("id", "points", executor=executor, workers=2).shuffle(100, 1).batch(4).repeat(2)
    plain = np.concatenate([batch["id"] for batch in chain])
    made = np.concatenate([batch["id"] for batch in chain.transform(change, batched=True)])
    assert made.tolist() == (2 * plain).tolist()


# --- nulls ---

NULLABLE = UnischemaField("double", np.int64, nullable=True)
NULLS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "masked": lambda: np.ma.masked,
    "NA": lambda: import_module("pandas").NA,
    "array": lambda: np.ma.array(7, mask=True),
}


@pytest.mark.parametrize("name", NULLS)
def test_a_row_says_null_in_any_form(built: Built, name: str) -> None:
    null = NULLS[name]()

    def function(row: dict[str, Any]) -> dict[str, Any]:
        return {"double": null if row["id"] % 2 else np.int64(row["id"])}

    chain = built.pipeline("id", executor="threads").transform(function, [NULLABLE], remove=["id"])
    assert [row["double"] for row in chain][:4] == [0, None, 2, None]
    batch = next(iter(chain.batch(4)))["double"]
    assert batch.tolist() == [0, None, 2, None]
    assert batch.data.tolist() == [0, 0, 2, 0]
    with pytest.raises(
        TransformError, match=r"'double', .*row 1: expected a value, got None. Declare the field nullable"
    ):
        list(built.pipeline("id", executor="threads").transform(function, [NULLABLE.replace(nullable=False)], ["id"]))


@pytest.mark.parametrize("batched", [False, True])
def test_not_a_number_is_null_in_text(built: Built, batched: bool) -> None:
    def function(values: dict[str, Any]) -> dict[str, Any]:
        texts = [str(id) if id % 2 else float("nan") for id in np.atleast_1d(values["id"])]
        return {"text": np.array(texts, object) if batched else texts[0]}

    output = UnischemaField("text", str, nullable=True)
    chain = built.pipeline("id", executor="threads").transform(function, output, ["id"], batched=batched)
    assert [row["text"] for row in chain][:4] == [None, "1", None, "3"]


def _masked(ids: np.ndarray) -> Any:
    return np.ma.MaskedArray(ids + 100, ids % 2 == 1)


@pytest.mark.parametrize(
    "form",
    [
        _masked,
        lambda ids: import_module("pandas").array(_masked(ids).tolist(), dtype="Int64"),
        lambda ids: import_module("pandas").Series(_masked(ids).tolist(), dtype=object),
        lambda ids: np.array(_masked(ids).tolist(), dtype=object),
        lambda ids: [np.ma.masked if i % 2 else np.int64(i + 100) for i in ids],
    ],
    ids=["masked array", "Int64", "Series", "objects", "list"],
)
def test_a_batch_says_null_in_any_form_and_what_is_masked_does_not_come_out(built: Built, form: Any) -> None:
    def function(batch: dict[str, Any]) -> dict[str, Any]:
        return {"double": form(batch["id"])}

    chain = built.pipeline("id", executor="threads").batch(4).transform(function, [NULLABLE], remove=["id"])
    batch = next(iter(chain))["double"]
    assert batch.tolist() == [100, None, 102, None]
    assert batch.data.tolist() == [100, 0, 102, 0]
    filled = next(iter(chain.nulls("mask", "double")))
    assert filled["double"].tolist() == [100, 0, 102, 0]
    assert filled["double__valid"].tolist() == [True, False, True, False]


def test_arrow_nulls_hide_the_values_beneath(built: Built) -> None:
    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("id").to_numpy()
        return pa.record_batch({"double": pa.array(ids + 100, mask=ids % 2 == 1)})

    chain = built.pipeline("id", executor="threads").batch(4).transform(function, [NULLABLE], ["id"], batched="arrow")
    assert next(iter(chain.nulls("mask", "double")))["double"].tolist() == [100, 0, 102, 0]


@pytest.mark.parametrize("batched", [False, True])
def test_a_value_that_is_masked_in_part_is_refused(built: Built, batched: bool) -> None:
    def function(item: dict[str, Any]) -> dict[str, Any]:
        values = np.repeat(np.atleast_1d(item["id"])[:, None], 3, axis=1)
        masked = np.ma.MaskedArray(values, np.broadcast_to([True, False, False], values.shape))
        return {"double": masked if batched else masked[0]}

    field = UnischemaField("double", np.int64, (3,), nullable=True)
    chain = built.pipeline("id", executor="threads").batch(4) if batched else built.pipeline("id", executor="threads")
    with pytest.raises(TransformError, match=r"field 'double', .*got one masked in part. Fill it with .filled"):
        list(chain.transform(function, [field], ["id"], batched=batched))


def test_a_masked_window_keeps_the_nulls_of_its_steps(tmp_path: Path) -> None:
    built = build(tmp_path, [[6]], names=["id", "drive", "ts", "speed"])
    chain = built.pipeline("id", "speed", executor="threads").ngram(length=2)
    for batched in (False, True):
        before = list(chain.batch(2) if batched else chain)
        after = list((chain.batch(2) if batched else chain).transform(dict, batched=batched))
        assert repr(after) == repr(before)
    assert isinstance(Pipeline(built.url).schema["speed"].nullable, bool)


# --- fields padded to the longest value of a batch ---

FORMS: list[Any] = [False, True, "arrow"]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory = tmp_path_factory.mktemp("lists")
    table = {"a": [[1], [1, 2, 3], [], []], "texts": [["x"], [], ["y", "zz"], []], "null": [[1, 2], None, None, [3]]}
    pq.write_table(pa.table(table), directory / "lists.parquet")
    return Pipeline(directory, executor="threads")


@pytest.mark.parametrize("batched", FORMS)
def test_padded_fields_stay_arrays_behind_a_function(lists: Pipeline, batched: Any) -> None:
    for padded in (
        lists.batch(2).pad("a", "texts", "null"),
        lists.pad("a", "texts", "null").batch(2),
        lists.select("a", "texts").bucket("a", [2, 3], batch_size=2, fields=["a", "texts"]),
    ):
        changed = padded.transform(lambda batch: batch, [], batched=batched)
        for found, expected in zip(changed, padded, strict=True):
            assert_same(found, expected)
    rows = lists.select("a", "texts").pad("a", "texts")
    same = rows.transform(lambda row: row, [], batched=batched).batch(2)
    for found, expected in zip(same, rows.batch(2), strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("batched", FORMS)
def test_padded_fields_have_one_shape_behind_a_function(lists: Pipeline, batched: Any) -> None:
    def longer(batch: Any) -> Any:
        values = [[1], [1, 2]]
        return batch.set_column(0, "a", pa.array(values)) if batched == "arrow" else {**batch, "a": values}

    with pytest.raises(
        TransformError, match=r"field 'a', .*row 0: expected values of one shape, as .* \(1,\) and \(2,"
    ):
        next(iter(lists.select("a").batch(2).pad("a").transform(longer, [], batched=batched)))


@pytest.mark.parametrize("executor", SLOW_IN_A_SIDECAR)
@pytest.mark.parametrize("verb", ["map", "where"])
def test_an_error_of_ours_that_a_function_raises_names_the_function(built: Built, executor: Any, verb: str) -> None:
    def refuse(*_: object) -> object:
        raise DecodeError("my own words")

    pipeline = Pipeline(built.url, executor=executor).select("id")
    pipeline = pipeline.map(refuse) if verb == "map" else pipeline.where(refuse, fields=["id"])
    with pytest.raises(DecodeError, match="my own words") as caught:
        list(pipeline)
    assert "in refuse" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("executor", SLOW_IN_A_SIDECAR)
@pytest.mark.parametrize("verb", ["map", "where"])
def test_a_function_that_would_end_the_process_is_an_error_of_its_row(
    built: Built, executor: Any, verb: str, error: type[BaseException]
) -> None:
    def leave(row: Any) -> Any:
        if row["id"] == 3:
            raise error(3)
        return row if verb == "map" else True

    pipeline = Pipeline(built.url, executor=executor, workers=1).select("id")
    pipeline = pipeline.map(leave) if verb == "map" else pipeline.where(leave, fields=["id"])
    with pytest.raises(TransformError, match=rf"row 3: {error.__name__}\(3\)"):
        list(pipeline)


def test_a_signal_handler_of_yours_may_end_the_process_inside_a_function(built: Built) -> None:
    def told(row: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return row

    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
    try:
        with pytest.raises(SystemExit, match="7"):
            Pipeline(built.url, executor="threads").select("id").map(told)[3]  # in this thread
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_closed_iterator_calls_a_function_no_more(built: Built) -> None:
    called, go_on = threading.Semaphore(0), threading.Semaphore(0)
    rows: list[int] = []

    def slow(row: Any) -> Any:
        rows.append(int(row["id"]))
        called.release()
        go_on.acquire()
        return row

    iterator = iter(Pipeline(built.url, executor="threads", workers=1).select("id").map(slow).batch(8))

    def consume() -> None:
        with contextlib.suppress(PipelineError):  # or it ends, if it had not begun to wait
            next(iterator, None)

    consumer = threading.Thread(target=consume)
    consumer.start()
    called.acquire()
    iterator.close()
    for _ in range(len(rows) + 8):
        go_on.release()
    consumer.join()
    assert len(rows) == 1


class Tensor:
    """Converts to an array, or raises the error that torch raises."""

    def __init__(self, value: Any, error: Exception | None = None) -> None:
        self._value = np.asarray(value)
        self._error = error
        self.ndim = self._value.ndim

    def __len__(self) -> int:
        return len(self._value)

    def __getitem__(self, place: int) -> Tensor:
        return Tensor(self._value[place], self._error)

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        if self._error is not None:
            raise self._error
        return self._value


ODD = 2**24 + 1
"""The least positive integer that float32 cannot hold."""


@pytest.mark.parametrize("wrap", [list, tuple, Tensor, lambda values: [np.int64(each) for each in values]])
@pytest.mark.parametrize("shape", [(2,), (None,)])
@pytest.mark.parametrize("batched", [False, True])
def test_integers_that_a_float_field_would_change_are_refused(
    built: Built, wrap: Any, shape: Any, batched: bool
) -> None:
    def returning(*values: int) -> Pipeline:
        def function(item: dict[str, Any]) -> dict[str, Any]:
            return {"x": [wrap(values)] * len(item["id"]) if batched else wrap(values)}

        fields = [UnischemaField("x", np.float32, shape)]
        return Pipeline(built.url, ["id"]).transform(function, output=fields, remove=("id",), batched=batched)

    assert next(iter(returning(ODD - 1, ODD + 1)))["x"].tolist() == [ODD - 1, ODD + 1]
    wanted = r"transform .*, field 'x', file .*, row 0: expected values that float32 can hold, got 16777217\."
    with pytest.raises(TransformError, match=wanted):
        next(iter(returning(0, ODD)))


@pytest.mark.parametrize(
    ("value", "dtype"), [(ODD, np.float32), (-ODD, np.float32), (2**11 + 1, np.float16), (2**53 + 1, np.float64),
                         (-(2**63) + 1, np.float64), (2**64 - 1, np.float64)],
)  # fmt: skip
def test_an_integer_is_refused_just_where_the_float_differs(built: Built, value: int, dtype: Any) -> None:
    def returning(number: int) -> Pipeline:
        field = UnischemaField("x", dtype)
        return Pipeline(built.url, ["id"]).transform(lambda row: {"x": number}, output=[field], remove=("id",))

    even = value // 2**12 * 2**12
    assert next(iter(returning(even)))["x"] == even
    with pytest.raises(TransformError, match=f"got {value}"):
        next(iter(returning(value)))


@pytest.mark.parametrize(("dtype", "odd"), [(np.float32, ODD), (np.float64, 2**53 + 1), (np.float64, -(2**53) - 1)])
def test_an_integer_beside_floats_is_refused_too(built: Built, dtype: Any, odd: int) -> None:
    def returning(*values: float) -> Pipeline:
        field = UnischemaField("x", dtype, (2, None))
        function = lambda row: {"x": [[0.5, values[0]], [1.5, values[1]]]}  # noqa: E731
        return Pipeline(built.url, ["id"]).transform(function, output=[field], remove=("id",))

    assert next(iter(returning(odd - 1, float(odd))))["x"].tolist() == [[0.5, odd - 1], [1.5, float(dtype(odd))]]
    with pytest.raises(TransformError, match=f"got {odd}"):
        next(iter(returning(odd - 1, odd)))


@pytest.mark.parametrize("error", [RuntimeError("Can't call numpy()"), TypeError("unsupported ScalarType BFloat16")])
@pytest.mark.parametrize(
    "field",
    [
        UnischemaField("x", np.float32, (2,)),
        UnischemaField("x", np.float32, (None,)),
        UnischemaField("x", np.str_, (2,)),
        "nested",
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_a_tensor_that_numpy_cannot_convert_is_an_error_with_its_place(
    built: Built, error: Exception, field: Any, batched: bool
) -> None:
    def function(item: dict[str, Any]) -> dict[str, Any]:
        tensor = Tensor([[1.0, 2.0]] if field == "nested" else [1.0, 2.0], error)
        return {"x": [tensor] * len(item["id"]) if batched else tensor}

    declared = UnischemaField("x", np.float32, (None, None)) if field == "nested" else field
    pipeline = Pipeline(built.url, ["id"]).transform(function, output=[declared], remove=("id",), batched=batched)
    if field == "nested":
        pipeline = pipeline.nested("x")
    wanted = (
        rf"transform .*function, field 'x', file .*, row 0: .* convert, got Tensor: {re.escape(str(error))}\. Return"
    )
    with pytest.raises(TransformError, match=wanted):
        next(iter(pipeline))


def test_a_mask_that_numpy_cannot_convert_is_an_error_of_the_function(built: Built) -> None:
    error = TypeError("can't convert cuda:0 device type tensor to numpy")
    pipeline = Pipeline(built.url).where(lambda batch: Tensor([True], error), fields=["id"], batched=True)
    with pytest.raises(
        TransformError, match=r"where\(.*\), the batch that begins at file .*: .*got Tensor: can't conv"
    ):
        len(pipeline)
