"""``pack_rows``: whole token lists in items of one length, compared with plain lists of numbers."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joins import WAYS, copying, part_of

from parquetry.common import Pipeline, cu_seqlens
from parquetry.common.base.errors import DecodeError, EmptySelectionError, PipelineError

PADDING = -1


def documents(lengths: list[int]) -> list[list[int]]:
    """Returns documents of these lengths, with distinct tokens."""
    ends = np.cumsum([0, *lengths]).tolist()
    return [list(range(lo, hi)) for lo, hi in itertools.pairwise(ends)]


def written(directory: Path, rows: list[list[int]], group: int = 4) -> Pipeline:
    """Returns a pipeline over a file with the field ``tokens``."""
    table = pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))})
    pq.write_table(table, directory / "tokens.parquet", row_group_size=group)
    return Pipeline(directory / "tokens.parquet", workers=2)


def items(pipeline: Pipeline, iteration: int = 0) -> list[list[list[int]]]:
    """Returns the documents in each item of an epoch, after checking their ids and the padding."""
    for _ in range(iteration):
        iter(pipeline)
    found = []
    iterator = iter(pipeline)
    try:
        for row in iterator:
            names = [row[name].tolist() for name in ("tokens", "segment_ids", "position_ids")]
            parts = [list(part) for _, part in itertools.groupby(zip(*names, strict=True), key=lambda each: each[1])]
            if parts[-1][0][1] == 0:
                assert {token for token, _, _ in parts.pop()} == {PADDING}
            assert [part[0][1] for part in parts] == list(range(1, len(parts) + 1))
            assert all(place == each[2] for part in parts for place, each in enumerate(part))
            found.append([[token for token, _, _ in part] for part in parts])
    except EmptySelectionError:
        return []
    finally:
        iterator.close()
    return found


@settings(max_examples=10, deadline=None)
@given(
    data=st.data(),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=24),
    group=st.integers(1, 8),
    length=st.integers(1, 12),
    streams=st.sampled_from([1, 2, 3, 4, 6, 12]),
    overlong=st.sampled_from(["cut", "drop"]),
)
def test_every_row_comes_whole_once_in_an_epoch_on_any_number_of_ranks(
    data: st.DataObject, sizes: list[int], group: int, length: int, streams: int, overlong: Any
) -> None:
    buffer = data.draw(st.none() | st.integers(1, 30), "buffer_size")
    first = data.draw(st.booleans(), "shard first")
    ranks = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]), "ranks")
    strategy = data.draw(st.sampled_from(["best_fit", "first_fit"]), "strategy")
    rows = [
        row[at : at + length]
        for row in documents(sizes)
        for at in range(0, len(row), length)
        if overlong == "cut" or len(row) <= length
    ]

    def part(of: int, rank: int) -> Pipeline:
        dealt = part_of(base, of, rank, streams, buffer, shard_first=first)
        return dealt.pack_rows(length, "tokens", strategy=strategy, overlong=overlong, pad_value=PADDING)

    with tempfile.TemporaryDirectory() as directory, copying(data.draw(st.sampled_from(WAYS), "pieces are copied")):
        base = written(Path(directory), documents(sizes), group)
        for epoch in range(1 if buffer is None else 2):
            found = items(part(1, 0), epoch)
            assert len(found) == len(part(1, 0))
            assert sorted(row for item in found for row in item) == rows
            dealt = [items(part(ranks, rank), epoch) for rank in range(ranks)]
            assert [item for step in itertools.zip_longest(*dealt) for item in step if item is not None] == found


def test_epochs_put_rows_of_one_length_into_other_items(tmp_path: Path) -> None:
    pipeline = written(tmp_path, documents([2] * 6 + [6] * 6)).shuffle(12, seed=3).pack_rows(8, "tokens")
    epochs = [sorted(map(tuple, (itertools.chain(*item) for item in items(pipeline)))) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [6, 6, 6]
    assert epochs[0] != epochs[1] != epochs[2]


def test_items_are_nearly_full(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1, 4000).astype(int)
    pipeline = written(tmp_path, documents(lengths.tolist()), 200).shuffle(1000, seed=1).pack_rows(256, "tokens")
    assert lengths.sum() / len(pipeline) / 256 > 0.97
    assert f"{lengths.sum():,} tokens packed into {len(pipeline):,} items of 256" in pipeline.explain()
    assert "% full, " in pipeline.explain()


def test_rows_that_are_too_long_are_named(tmp_path: Path) -> None:
    base = written(tmp_path, documents([3, 2, 5, 1]), 2)
    with pytest.raises(DecodeError, match=r"'tokens', .*row group 1, row 0: expected at most 4 tokens, got 5"):
        items(base.pack_rows(4, "tokens", overlong="error"))
    assert len(base.pack_rows(5, "tokens", overlong="error")) == 3
    with pytest.raises(EmptySelectionError, match=r"0 tokens packed into 0 items of 1, 0\.0% full, 1 longer rows left"):
        next(iter(base.take(1).pack_rows(1, "tokens", overlong="drop")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "next_fit"}, r"strategy to be one of \('best_fit', 'first_fit'\), got 'next_fit'"),
        ({"overlong": "keep"}, r"overlong to be one of \('cut', 'drop', 'error'\), got 'keep'"),
        ({"pad_value": None}, "expected pad_value to be a number, got None"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        written(tmp_path, [[1]]).pack_rows(4, "tokens", **options)


def test_segments_come_in_the_form_that_attention_takes(tmp_path: Path) -> None:
    pipeline = written(tmp_path, documents([5, 3, 6])).pack_rows(8, "tokens")
    offsets, longest = cu_seqlens(next(iter(pipeline.batch(2)))["segment_ids"])
    assert (offsets.tolist(), offsets.dtype, longest) == ([0, 6, 8, 13, 16], np.int32, 6)
    assert cu_seqlens(np.array([1, 1, 0], np.int32))[0].tolist() == [0, 2, 3]
    assert cu_seqlens(np.ones((2, 3), np.int32))[0].tolist() == [0, 3, 6]
    assert cu_seqlens(np.zeros((0, 4), np.int32))[1] == 0
    with pytest.raises(ValueError, match=r"expected integers .* got float64 \(2,\)"):
        cu_seqlens(np.zeros(2))
