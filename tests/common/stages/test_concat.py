"""``concat``: concatenated token lists, compared with plain lists of numbers."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joins import WAYS, copying, part_of

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, mix, write_dataset
from parquetry.common.base.errors import (
    DecodeError,
    EmptySelectionError,
    FieldNotFoundError,
    NullValueError,
    PipelineError,
    TransformError,
)

SEPARATOR = -1
INT32 = pa.list_(pa.int32())


def documents(lengths: Sequence[int]) -> list[list[int]]:
    """Returns documents of these lengths; tokens are distinct and consecutive within a document."""
    ends = np.cumsum([0, *lengths]).tolist()
    return [list(range(lo + number, hi + number)) for number, (lo, hi) in enumerate(itertools.pairwise(ends))]


def written(directory: Path, rows: Sequence[Any], group: int = 3, arrow: pa.DataType = INT32) -> Pipeline:
    """Returns a pipeline over a file with the field ``tokens``."""
    pq.write_table(pa.table({"tokens": pa.array(rows, arrow)}), directory / "tokens.parquet", row_group_size=group)
    return Pipeline(directory / "tokens.parquet", workers=2)


def joined(rows: Sequence[Sequence[int]], separator: int | None) -> list[int]:
    """Concatenates the documents."""
    between = [] if separator is None else [separator]
    return [token for number, row in enumerate(rows) for token in [*(between if number else []), *row]]


def items(pipeline: Pipeline, iteration: int = 0) -> list[list[int]]:
    """Returns the tokens of each item of an epoch."""
    for _ in range(iteration):
        iter(pipeline)
    with_iterator = iter(pipeline)
    try:
        return [row["tokens"].tolist() for row in with_iterator]
    except EmptySelectionError:
        return []
    finally:
        with_iterator.close()


def check_stream(found: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], *, separated: bool, cuts: int) -> None:
    """Checks that one stream's items are documents end to end, with at most ``cuts`` that start or end inside."""
    place = {token: (number, at) for number, row in enumerate(rows) for at, token in enumerate(row)}
    flat = [token for item in found for token in item]
    odd = 0
    for left, right in itertools.pairwise(flat):
        if min(left, right) < 0:  # a separator, or padding
            continue
        (document, at), (other, begin) = place[left], place[right]
        if document == other and begin == at + 1:
            continue
        whole = at == len(rows[document]) - 1 and begin == 0
        odd += not whole or separated
    assert odd <= cuts


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=24)


@pytest.mark.parametrize("verb", ["concat", "pack_rows"])
@pytest.mark.parametrize("column", [[1, 2], [[[1]], None]])
def test_explain_says_that_a_field_is_not_a_list_of_numbers(tmp_path: Path, verb: str, column: list[Any]) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "rows.parquet")
    joined = getattr(Pipeline(str(tmp_path / "rows.parquet")), verb)(8, "x")
    with pytest.raises(PipelineError, match=rf"{verb}: expected a field of lists of numbers"):
        joined.explain()


@settings(max_examples=15, deadline=None)
@given(
    data=st.data(),
    sizes=lengths,
    group=st.integers(1, 6),
    length=st.integers(1, 12),
    streams=st.sampled_from([1, 2, 3, 4, 6, 12]),
    separated=st.booleans(),
    padded=st.booleans(),
)
def test_every_token_comes_once_in_an_epoch_on_any_number_of_ranks(
    data: st.DataObject, sizes: list[int], group: int, length: int, streams: int, separated: bool, padded: bool
) -> None:
    rows = documents(sizes)
    buffer = data.draw(st.none() | st.integers(1, 30), "buffer_size")
    first = data.draw(st.booleans(), "shard first")
    ranks = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]), "ranks")
    everything = joined(rows, SEPARATOR if separated else None)
    count = -(-len(everything) // length) if padded else len(everything) // length
    options: dict[str, Any] = {"separator": SEPARATOR if separated else None, "pad_value": -2}
    options["remainder"] = "pad" if padded else "drop"

    def part(of: int, rank: int) -> Pipeline:
        return part_of(base, of, rank, streams, buffer, shard_first=first).concat(length, "tokens", **options)

    with tempfile.TemporaryDirectory() as directory, copying(data.draw(st.sampled_from(WAYS), "pieces are copied")):
        base = written(Path(directory), rows, group)
        for epoch in range(1 if buffer is None else 2):
            found = items(part(1, 0), epoch)
            assert len(found) == count
            dealt = [items(part(ranks, rank), epoch) for rank in range(ranks)]
            assert [item for step in itertools.zip_longest(*dealt) for item in step if item is not None] == found
            flat = [token for item in found for token in item]
            tokens = [token for token in flat if token >= 0]
            assert len(set(tokens)) == len(tokens)
            if padded:
                assert sorted(token for token in flat if token != -2) == sorted(everything)
            else:
                assert flat.count(SEPARATOR) <= everything.count(SEPARATOR)
                assert set(flat) <= set(everything)
            for stream in range(streams):
                check_stream(found[stream::streams], rows, separated=separated, cuts=2 if streams > 1 else 0)
            if buffer is None and streams == 1:
                whole = everything[: count * length]
                assert flat == whole + [-2] * (count * length - len(whole))


def test_positions_name_the_documents_of_an_item(tmp_path: Path) -> None:
    pipeline = written(tmp_path, documents([3, 0, 1, 6])).concat(
        4, "tokens", separator=-1, positions=True, remainder="pad", pad_value=-9
    )
    batch = next(iter(pipeline.batch(4)))
    assert batch["tokens"].tolist() == [[0, 1, 2, -1], [-1, 5, -1, 7], [8, 9, 10, 11], [12, -9, -9, -9]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1], [1, 2, 2, 3], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 1, 0], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert {batch[name].dtype for name in ("segment_ids", "position_ids")} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    "arrow",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.uint16()),
        pa.list_(pa.float32(), 3),
        pa.list_(pa.bool_()),
        pa.list_(pa.float16()),
        pa.large_list(pa.int8()),
    ],
    ids=str,
)
def test_lists_of_any_number_are_joined(tmp_path: Path, arrow: pa.DataType) -> None:
    values = pa.array(np.arange(30) % 2).cast(pa.int8()).cast(arrow.value_type)
    rows = values.to_pylist()
    pipeline = written(tmp_path, [rows[at : at + 3] for at in range(0, 30, 3)], 4, arrow).concat(7, "tokens")
    assert items(pipeline) == [rows[at : at + 7] for at in range(0, 28, 7)]
    shuffled = pipeline.with_stages([]).shuffle(4, seed=1).concat(10, "tokens")
    assert sorted(itertools.chain(*items(shuffled))) == sorted(rows)
    assert next(iter(shuffled))["tokens"].dtype == arrow.value_type.to_pandas_dtype()


def test_fields_go_in_step(tmp_path: Path) -> None:
    rows = documents([4, 2, 0, 7, 3])
    table = pa.table(
        {"tokens": pa.array(rows, INT32), "mask": pa.array([[t % 3 == 0 for t in row] for row in rows]), "x": range(5)}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    pipeline = Pipeline(tmp_path / "t.parquet").rename({"mask": "loss"}).shuffle(3, seed=1)
    pipeline = pipeline.concat(5, "tokens", "loss", separator={"tokens": -1, "loss": 1}, remainder="pad")
    seen = []
    for row in pipeline:
        assert list(row) == ["tokens", "loss"]
        seen += [(int(t), bool(m)) for t, m in zip(row["tokens"], row["loss"], strict=True)]
    assert sorted(seen)[:4] == [(-1, True)] * 4
    assert all(m == (t % 3 == 0) for t, m in seen if t > 0)


def test_later_stages_count_items(tmp_path: Path) -> None:
    rows = documents([5] * 12)
    base = written(tmp_path, rows, 4)
    everything = joined(rows, None)
    blocks = base.concat(10, "tokens")
    assert len(blocks) == 6
    assert items(blocks.skip(1).take(2)) == [everything[10:20], everything[20:30]]
    assert items(base.skip(2).take(4).concat(10, "tokens")) == [everything[10:20], everything[20:30]]
    assert items(base.where(pc.list_value_length(pc.field("tokens")) > 9).concat(10, "tokens")) == []
    assert next(iter(blocks.batch(4)))["tokens"].shape == (4, 10)
    assert blocks[-1]["tokens"].tolist() == everything[50:]
    assert [row["tokens"].tolist() for row in blocks[[4, 0]]] == [everything[40:50], everything[:10]]
    total = blocks.transform(
        lambda row: {"total": row["tokens"].sum()}, [UnischemaField("total", np.int64)], ["tokens"]
    )
    assert [int(row["total"]) for row in total] == [sum(everything[at : at + 10]) for at in range(0, 60, 10)]
    assert [row["tokens"].dtype for row in blocks.cast(np.int64, "tokens").take(1)] == [np.int64]
    assert "60 tokens end to end, cut into 6 items of 10" in blocks.explain()


def test_a_mix_takes_items_of_several_datasets(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sources = [
        written(tmp_path / "a", documents([5] * 8)).concat(4, "tokens"),
        written(tmp_path / "b", [[100] * 7] * 8).shuffle(2, seed=1).concat(4, "tokens"),
    ]
    mixed = mix(sources, weights=[1, 1], seed=3, stop="all")
    found = [row["tokens"].tolist() for batch in mixed.batch(5) for row in [{"tokens": row} for row in batch["tokens"]]]
    assert sorted(found) == sorted(items(sources[0]) + [[100] * 4] * 14)


def test_a_batch_whose_function_fails_is_made_again_in_halves(tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if 13 in row["tokens"]:
            raise ValueError("thirteen")
        return row

    pipeline = written(tmp_path, documents([5] * 12), 4).concat(5, "tokens").transform(fail)
    iterator = iter(pipeline.with_options(executor="threads"))
    plain = items(pipeline.with_stages(pipeline.stages[:-1]))
    failing = next(number for number, item in enumerate(plain) if 13 in item)
    assert [next(iterator)["tokens"].tolist() for _ in range(failing)] == plain[:failing]
    with pytest.raises(TransformError, match=r"row 2\b.*thirteen"):
        next(iterator)
    assert [row["tokens"].tolist() for row in iterator] == plain[failing + 1 :]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, "tokens"), {}, "expected length to be an integer >= 1, got 0"),
        ((2.5, "tokens"), {}, "expected length to be an integer"),
        ((4,), {}, "concat: expected a field name"),
        ((4, "tokens", "tokens"), {}, "expected each field once"),
        ((4, "tokens"), {"remainder": "keep"}, r"remainder to be one of \('drop', 'pad'\), got 'keep'"),
        ((4, "tokens"), {"separator": "x"}, "expected separator to be a number, got 'x'"),
        ((4, "tokens"), {"separator": {"ids": 1}}, r"one for each of \['tokens'\], got {'ids': 1}"),
        ((4, "tokens"), {"positions": "yes"}, "expected positions to be"),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        written(tmp_path, [[1]]).concat(*arguments, **options)


def test_fields_that_are_not_token_lists_are_refused(tmp_path: Path) -> None:
    table = pa.table({"tokens": [[1, 2]], "text": ["a"], "number": [1], "segment_ids": [[1, 2]]})
    pq.write_table(table, tmp_path / "t.parquet")
    pipeline = Pipeline(tmp_path / "t.parquet")
    for name in ("text", "number"):
        with pytest.raises(PipelineError, match=f"expected a field of lists of numbers .* got '{name}'"):
            _ = pipeline.concat(2, name).element
    with pytest.raises(FieldNotFoundError, match="nothing"):
        _ = pipeline.concat(2, "nothing").element
    with pytest.raises(PipelineError, match=r"fill value that int64 can hold, got 0\.5"):
        _ = pipeline.concat(2, "tokens", separator=0.5).element
    with pytest.raises(PipelineError, match="expected no field 'segment_ids'"):
        _ = pipeline.concat(2, "tokens", "segment_ids", positions=True).element
    with pytest.raises(PipelineError, match="it reads the stored values of 'tokens'"):
        pipeline.cast(np.int32, "tokens").concat(2, "tokens")
    with pytest.raises(PipelineError, match="Call concat"):
        _ = pipeline.nulls("error", "tokens").concat(2, "tokens").element
    with pytest.raises(PipelineError, match=r"shuffle\(\) must come before concat\(\)"):
        pipeline.concat(2, "tokens").shuffle(3)


@pytest.mark.parametrize("verb", ["concat", "pack_rows", "where"])
def test_tokens_that_only_a_function_makes_are_stored_first(tmp_path: Path, verb: str) -> None:
    pq.write_table(pa.table({"text": ["a b", "c"]}), tmp_path / "t.parquet")
    schema = Unischema("tokens", [UnischemaField("tokens", np.int64, (None,))])

    def tokenized(row: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": np.frombuffer(row["text"].encode(), np.uint8).astype(np.int64)}

    pipeline = Pipeline(tmp_path / "t.parquet", executor="threads").transform(tokenized, list(schema), remove=["text"])
    with pytest.raises(
        PipelineError, match=r"If only that call makes 'tokens',.* write_dataset\(url, schema, pipeline\)"
    ):
        pipeline.where(pc.field("tokens") > 3) if verb == "where" else getattr(pipeline, verb)(2, "tokens")
    write_dataset(tmp_path / "stored", schema, pipeline)
    assert [row["tokens"].tolist() for row in Pipeline(tmp_path / "stored").concat(2, "tokens")] == [[97, 32], [98, 99]]


def test_stored_arrays_are_refused(tmp_path: Path) -> None:
    schema = Unischema("coded", [UnischemaField("tokens", np.int32, (None,), NdarrayCodec())])
    write_dataset(str(tmp_path / "coded"), schema, [{"tokens": np.arange(3, dtype=np.int32)}])
    with pytest.raises(PipelineError, match="stored by NdarrayCodec"):
        _ = Pipeline(tmp_path / "coded").concat(2, "tokens").element


def test_rows_that_cannot_be_joined_are_named(tmp_path: Path) -> None:
    with pytest.raises(NullValueError, match=r"field 'tokens', .*row 1: .*nulls\('drop', 'tokens'\)"):
        items(written(tmp_path, [[1], None, [2]]).concat(1, "tokens"))
    assert items(written(tmp_path, [[1], None, [2]]).nulls("drop", "tokens").concat(2, "tokens")) == [[1, 2]]
    with pytest.raises(DecodeError, match=r"field 'tokens', .*row group 1, row 0: .*without nulls inside"):
        items(written(tmp_path, [[1], [], [2], [3, None]]).concat(1, "tokens"))
    pq.write_table(pa.table({"tokens": [[1], [2]], "mask": [[1], [1, 1]]}), tmp_path / "t.parquet")
    with pytest.raises(DecodeError, match=r"field 'mask', .*row 1: expected as many values as in 'tokens', 1, got 2"):
        items(Pipeline(tmp_path / "t.parquet").concat(1, "tokens", "mask"))
    with pytest.raises(EmptySelectionError, match="2 tokens end to end, cut into 0 items of 3, 2 left out"):
        next(iter(Pipeline(tmp_path / "t.parquet").concat(3, "tokens")))


def test_a_resumed_run_continues_with_other_ranks(tmp_path: Path) -> None:
    base = written(tmp_path, documents([5, 0, 9, 3, 3, 8, 1, 20, 2, 7] * 3)).shuffle(8, seed=2)

    def part(ranks: int, rank: int) -> Pipeline:
        return base.shard(ranks, rank, canonical_shards=6, even="drop").concat(4, "tokens")

    found = items(part(1, 0))
    iterator = iter(part(2, 0))
    for _ in range(3):
        next(iterator)
    dealt = [list(iter(part(3, rank)).load_state_dict(iterator.state_dict())) for rank in range(3)]
    iterator.close()
    rest = [row["tokens"].tolist() for step in zip(*dealt, strict=True) for row in step]
    assert rest == found[6 : 6 + len(rest)]
    assert len(found) - 6 - len(rest) < 3
