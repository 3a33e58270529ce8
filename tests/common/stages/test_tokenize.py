"""``tokenize`` and functions whose lengths are counted, compared with pipelines over stored lists."""

from __future__ import annotations

import itertools
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

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import (
    DecodeError,
    FieldNotFoundError,
    NullValueError,
    ParquetryError,
    PipelineError,
    StateError,
    TransformError,
)

LETTERS = "abcdefgh"
TOKENS = UnischemaField("tokens", np.int32, (None,))


def codes_of(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def codes_of_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.array(codes_of(row["text"]), np.int32)}


def codes_of_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [np.array(codes_of(text), np.int32) for text in batch["text"]]}


MAKERS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "tokenize": lambda texts: texts.tokenize(codes_of, "text"),
    "renamed": lambda texts: texts.tokenize(lambda text: np.array(codes_of(text)), "text", to="ids").rename(
        {"ids": "tokens"}
    ),
    "rows": lambda texts: texts.transform(codes_of_row, adds=[TOKENS], lengths=True),
    "batches": lambda texts: texts.transform(codes_of_batch, [TOKENS], batched=True, lengths=True),
    "prepared": lambda texts: texts.transform(lambda row: {"text": row["text"][::-1]}, adds=["text"]).tokenize(
        lambda text: codes_of(text[::-1]), "text"
    ),
    "cast": lambda texts: texts.tokenize(codes_of, "text", dtype="uint8").cast(np.int32, "tokens"),
}
JOINS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "concat": lambda rows: rows.concat(7, "tokens", separator=-1, positions=True, remainder="pad"),
    "pack_rows": lambda rows: rows.pack_rows(9, "tokens", overlong="drop"),
    "cut": lambda rows: rows.pack_rows(5, "tokens"),
    "bucket": lambda rows: rows.select("id", "tokens").bucket("tokens", [2, 5], batch_size=3),
    "quantiles": lambda rows: rows.select("id", "tokens").bucket("tokens", buckets=2, max_tokens=40),
}


def written(directory: Path, texts: list[str | None], group: int = 5) -> tuple[Pipeline, Pipeline]:
    """Returns pipelines over the same rows: with texts, and with their tokens."""
    directory.mkdir(exist_ok=True)
    ids, rows = list(range(len(texts))), [codes_of(text or "") for text in texts]
    lists = pa.array(rows, pa.list_(pa.int32()))
    pq.write_table(pa.table({"id": ids, "text": texts}), directory / "texts.parquet", row_group_size=group)
    pq.write_table(pa.table({"id": ids, "tokens": lists}), directory / "tokens.parquet", row_group_size=group)
    made = [Pipeline(directory / f"{name}.parquet", executor="threads", workers=2) for name in ("texts", "tokens")]
    return made[0], made[1]


def plain(elements: Any) -> list[dict[str, Any]]:
    return [{name: value.tolist() for name, value in each.items() if name != "text"} for each in elements]


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 11), min_size=1, max_size=25),
    group=st.integers(1, 9),
    maker=st.sampled_from(sorted(MAKERS)),
    join=st.sampled_from(sorted(JOINS)),
    buffer=st.none() | st.integers(1, 20),
    least=st.sampled_from([0, 0, 3]),
    ranks=st.integers(1, 3),
    at=st.integers(0, 30),
    others=st.sampled_from([1, 2]),
)
def test_made_lists_are_joined_as_stored_ones_on_all_ranks_and_from_any_state(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    group: int,
    maker: str,
    join: str,
    buffer: int | None,
    least: int,
    ranks: int,
    at: int,
    others: int,
) -> None:
    texts = ["".join(LETTERS[(n + k) % 8] for k in range(size)) for n, size in enumerate(sizes)]
    lists, joined = [], JOINS[join]
    for pipeline in written(tmp_path_factory.mktemp("made"), texts, group):
        rows = pipeline.where(pc.field("id") >= least)
        rows = rows if buffer is None else rows.shuffle(buffer, seed=3)
        lists.append(rows)
    made, stored = joined(MAKERS[maker](lists[0])), joined(lists[1])
    try:
        expected = [plain(stored.shard(ranks, rank)) for rank in range(ranks)]
    except ParquetryError as error:
        with pytest.raises(type(error)):
            list(made)
        return
    assert [plain(made.shard(ranks, rank)) for rank in range(ranks)] == expected
    assert len(made) == len(stored)
    assert plain(made.at_epoch(1)[:]) == plain(stored.at_epoch(1)[:])
    iterators = [iter(each.shard(ranks, 0)) for each in (made, stored)]
    for iterator in iterators:
        list(itertools.islice(iterator, min(at, len(expected[0]) - 1)))
    states = [iterator.state_dict() for iterator in iterators]
    pairs = zip((made, stored), states, strict=True)
    rest, like = (plain(iter(each.shard(others, others - 1)).load_state_dict(state)) for each, state in pairs)
    assert rest == like


def test_lengths_are_counted_once_for_all_processes_and_chains(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def counted(text: str) -> list[int]:
        with calls.open("a") as file:
            file.write(".")
        return codes_of(text)

    texts, _ = written(tmp_path / "data", ["abc", "", "de", "fgh"])
    rows = texts.where(lambda row: row["id"] >= 0, fields=["id"]).tokenize(counted, "text")
    assert len(rows.concat(2, "tokens")) == 4
    assert len(calls.read_text()) == 4
    assert len(Pipeline(texts.urls).tokenize(counted, "text").pack_rows(8, "tokens", overlong="error")) == 1
    assert len(rows.cast(np.float32, "id").bucket("tokens", [2, 3], max_tokens=6)) == 2
    assert len(calls.read_text()) == 4
    assert len(texts.tokenize(counted, "text", to="other", version="b").concat(2, "other")) == 4
    assert len(calls.read_text()) == 8
    with pytest.raises(DecodeError, match=r"field 'tokens', .*row 0: expected at most 2 tokens, got 3"):
        len(rows.pack_rows(2, "tokens", overlong="error"))


def test_a_worker_process_counts_lengths_and_makes_the_same_items(tmp_path: Path) -> None:
    texts, stored = written(tmp_path, ["abc", "", "de", "fgh"] * 5)
    made = texts.with_options(executor="sidecar").shuffle(6, seed=1).tokenize(codes_of, "text").pack_rows(8, "tokens")
    assert plain(made) == plain(stored.shuffle(6, seed=1).pack_rows(8, "tokens"))
    shown = made.explain()
    assert "tokenize(codes_of, 'text', to='tokens'), whose lengths were counted: 20 -> 20 of 4 row groups, 4 " in shown
    assert "40 tokens packed into" in shown


def test_a_length_that_changes_between_passes_is_an_error_with_both(tmp_path: Path) -> None:
    texts, _ = written(tmp_path, ["abc", "de"])
    for number, join in enumerate(JOINS.values()):
        calls = itertools.count()

        def grows(text: str, calls: Any = calls) -> list[int]:
            return codes_of(text if next(calls) < 2 else f"{text}x")

        message = r"'tokens', .*row \d: expected the length that was counted before, [23], got [34]"
        with pytest.raises(PipelineError, match=message):
            list(join(texts.tokenize(grows, "text", version=number)))


def test_a_row_that_fails_only_later_ends_the_iteration(tmp_path: Path) -> None:
    calls = itertools.count()

    def fails_later(text: str) -> list[int]:
        return codes_of(text) if next(calls) < 2 else [1 // 0]

    texts, _ = written(tmp_path, ["abc", "de"])
    made = texts.with_options(on_error="skip").tokenize(fails_later, "text").concat(2, "tokens")
    with pytest.raises(PipelineError, match=r"row \d: ZeroDivisionError(.|\n)*did not fail when lengths were counted"):
        list(made)


def test_a_state_belongs_to_the_version_of_the_function(tmp_path: Path) -> None:
    texts, _ = written(tmp_path, ["abc", "de", "fghabcde"])
    chains = [texts.tokenize(codes_of, "text", version=version).concat(2, "tokens") for version in (1, 1, 2)]
    state = iter(chains[0])
    next(state)
    assert len(list(iter(chains[1]).load_state_dict(state.state_dict()))) == 5
    with pytest.raises(StateError, match="different pipeline"):
        iter(chains[2]).load_state_dict(state.state_dict())


def test_rows_that_fail_are_left_out_before_the_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def without_a(text: str) -> list[int]:
        if "a" in text:
            raise ValueError("an a")
        return codes_of(text)

    texts, _ = written(tmp_path, ["bc", "ab", None, "defgh", "c", "a"])
    rows = texts.tokenize(without_a, "text")
    with pytest.raises(TransformError, match=r"row 1: ValueError\('an a'\)"):
        list(rows.concat(2, "tokens"))
    skipping = rows.with_options(on_error="skip")
    items = plain(skipping.concat(2, "tokens"))
    assert len(items) == len(skipping.concat(2, "tokens")) == 4
    assert len(skipping.pack_rows(4, "tokens", overlong="error")) == 1
    assert [token for item in items for token in item["tokens"]] == codes_of("bcdefghc")
    assert "Skipped 3 bad rows" in caplog.text


def test_null_texts_are_errors_or_empty(tmp_path: Path) -> None:
    texts, stored = written(tmp_path, ["abc", None, "de"])
    with pytest.raises(NullValueError, match=r"field 'text', .*row 1: expected a text to tokenize, found null"):
        list(texts.tokenize(codes_of, "text"))
    empty = texts.tokenize(codes_of, "text", nulls="empty")
    assert plain(empty.concat(5, "tokens")) == plain(stored.concat(5, "tokens"))
    dropped = texts.nulls("drop", "text").tokenize(codes_of, "text")
    assert [row["tokens"].tolist() for row in dropped] == [codes_of("abc"), codes_of("de")]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda text: text, r"row 0: expected a list or an array of ids, got str. Return the ids alone"),
        (lambda text: None, r"row 0: expected a list or an array of ids, got NoneType"),
        (lambda text: [1.5], r"field 'tokens', .*row 0: expected a list or an array of integers, got float64"),
        (lambda text: [True], r"expected a list or an array of integers, got bool"),
        (lambda text: [[1], [2, 3]], r"expected a list or an array of integers, got object of shape \(2,\)"),
        (lambda text: np.array([0, 1 << 40]), r"expected ids that int32 can hold, got 1099511627776. Give a larger"),
        (lambda text: [1] if text == "abc" else ["a"], r"row 1: expected a list or an array of integers, got <U1"),
        (lambda text: 1 // 0, r"tokenize .* failed for .*row 0: ZeroDivisionError"),
    ],
)
def test_anything_but_integers_is_refused_with_its_row(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        list(written(tmp_path, ["abc", "de"])[0].tokenize(function, "text"))


@pytest.mark.parametrize(
    ("chain", "error", "message"),
    [
        (lambda p: p.tokenize(codes_of, "txt"), FieldNotFoundError, "tokenize: field 'txt'"),
        (lambda p: p.tokenize(codes_of, "id"), PipelineError, "expected field 'id' to hold one text for each row"),
        (lambda p: p.tokenize(codes_of, "text", to="id"), PipelineError, "expected no field 'id'"),
        (lambda p: p.tokenize(codes_of, "text", dtype="float32"), PipelineError, "expected an integer dtype"),
        (lambda p: p.tokenize(codes_of, "text", nulls="no"), PipelineError, "expected nulls='error' or 'empty'"),
        (lambda p: p.tokenize(codes_of, ""), PipelineError, "expected field to be the name of a field"),
        (lambda p: p.tokenize(7, "text"), PipelineError, "expected a function of a text, or a tokenizer of"),
        (lambda p: p.tokenize(codes_of, "text").concat(2, "text"), PipelineError, "got 'text', text"),
        (lambda p: p.tokenize(codes_of, "text").concat(2, "tokens", "no"), FieldNotFoundError, "field 'no'"),
        (lambda p: p.tokenize(codes_of, "text").where([("tokens", "=", 1)]), PipelineError, "where.. must come before"),
        (
            lambda p: p.transform(codes_of_row, adds=[TOKENS]).concat(2, "tokens"),
            PipelineError,
            r"If only that call makes 'tokens', declare it in adds=\[...\] with lengths=True, or store its rows",
        ),
        (
            lambda p: p.transform(lambda row, rng: {"text": "a"}, adds=["text"], rng=True)
            .tokenize(codes_of, "text")
            .concat(2, "tokens"),
            PipelineError,
            r"expected lengths of \('tokens',\) that are the same in every pass, got ones that may depend on random",
        ),
    ],
)  # fmt: skip
def test_chains_that_cannot_be_are_refused(tmp_path: Path, chain: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        len(chain(written(tmp_path, ["abc", "de"])[0]))


def test_unneeded_fields_are_not_read_and_the_chain_survives_json(tmp_path: Path) -> None:
    texts, stored = written(tmp_path, ["abc", "de", ""])
    made = texts.tokenize(codes_of, "text").pack_rows(4, "tokens")
    assert [field.name for field in made.plan().parts[0].program.fields] == ["text"]
    again = Pipeline.from_json(made.to_json())
    assert again == made
    assert plain(again) == plain(stored.pack_rows(4, "tokens"))
    assert "tokenize(codes_of, 'text', to='tokens')" in str(again)


def test_a_loss_mask_is_made_with_its_tokens(tmp_path: Path) -> None:
    def with_mask(row: dict[str, Any]) -> dict[str, Any]:
        tokens = codes_of(row["text"])
        return {"tokens": tokens, "mask": [token % 2 for token in tokens]}

    texts, _ = written(tmp_path, ["abc", "de", "", "fgha"])
    fields = [TOKENS, UnischemaField("mask", np.uint8, (None,))]
    made = texts.shuffle(4, seed=1).transform(with_mask, adds=fields, lengths=True).pack_rows(4, "tokens", "mask")
    for item in made:
        assert (item["mask"] == np.where(item["segment_ids"] > 0, item["tokens"] % 2, 0)).all()
    short = texts.transform(lambda row: {**with_mask(row), "mask": [1]}, adds=fields, lengths=True)
    with pytest.raises(DecodeError, match=r"field 'mask', .*row 0: expected as many values as in 'tokens', 3, got 1"):
        list(short.concat(2, "tokens", "mask"))
