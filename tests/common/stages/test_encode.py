"""``encode``: codes from a given or a learned vocabulary, and where the learned one is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drive_rows import drive_once

from parquetry.common import Pipeline, hash_split, mix
from parquetry.common.base.errors import DecodeError, FieldNotFoundError, PipelineError
from parquetry.common.engine.run import vocabularies
from parquetry.common.schema.vocabulary import Vocabulary

drive = drive_once()


def table(directory: Path, **columns: Any) -> Pipeline:
    pq.write_table(pa.table(columns), directory / "rows.parquet", row_group_size=3)
    return Pipeline(str(directory / "rows.parquet"))


def test_codes_are_places_in_the_vocabulary_and_nulls_stay(drive: Pipeline) -> None:
    batch = next(iter(drive.encode("name", ["n3", "n1", "n2"]).take(4).batch(4)))
    assert (batch["name"].dtype, batch["name"].tolist()) == (np.int64, [None, 1, 2, 0])
    filled = drive.encode("name", ["n1", "n2"], unknown=-1).nulls("fill", "name", value=9)
    assert next(iter(filled.batch(4)))["name"].tolist() == [9, 0, 1, -1]
    assert drive.encode("name", ["n3"], unknown=5).vocabulary("name") == ["n3"]


@pytest.mark.parametrize(
    "split",
    [
        lambda rows, part: rows.hash_split("id", [0.5, 0.5], part),
        lambda rows, part: rows.skip(3) if part else rows.take(3),
        lambda rows, part: rows.where(pc.field("id") >= 3 if part else pc.field("id") < 3),
        lambda rows, part: rows.nulls("drop", "late" if part else "early"),
        lambda rows, part: rows.where(lambda row: (row["id"] < 3) != bool(part), fields=["id"]),
    ],
    ids=["hash_split", "take and skip", "where", "nulls", "function"],
)
def test_codes_learned_before_a_split_are_the_same_in_all_of_its_parts(tmp_path: Path, split: Any) -> None:
    values = ["d", "c", "b", "a", "b", "a"]
    rows = table(tmp_path, id=range(6), c=values, early=[1, 1, 1, None, None, 1], late=[None, None, None, 1, 1, 1])
    for coded in (rows.encode("c"), rows.rename({"c": "d"}).encode("d").rename({"d": "c"})):
        for part in (0, 1):
            pipeline = split(coded, part)
            assert pipeline.vocabulary("c") == ["a", "b", "c", "d"]
            found = [(int(row["id"]), int(row["c"])) for row in pipeline]
            assert 0 < len(found) < 6
            assert found == [(number, "abcd".index(values[number])) for number, _ in found]
    assert split(rows, 1).encode("c").vocabulary("c") == sorted({values[int(row["id"])] for row in split(rows, 1)})


def test_parts_by_row_groups_learn_what_all_of_them_have(drive: Pipeline) -> None:
    parts = [drive.encode("name").shard(2, rank, policy="rowgroup_modulo").take(3) for rank in range(2)]
    assert parts[0].vocabulary("name") == parts[1].vocabulary("name") == drive.vocabulary("name")


def test_dictionary_binary_and_whole_number_columns_have_codes(tmp_path: Path) -> None:
    rows = table(
        tmp_path,
        word=pa.array(["b", "a", None, "b", "é"]).dictionary_encode(),
        raw=pa.array([b"\x00", b"\xff", b"", b"\xff", b""]),
        key=pa.array([2**64 - 1, 5, 5, 7, 0], pa.uint64()),
        words=pa.array([["b", "a"], [], None, ["a"], ["c"]]),
    )
    coded = rows.encode("word").encode("raw").encode("key").encode("words")
    batch = next(iter(coded.batch(5)))
    assert batch["word"].tolist() == [1, 0, None, 1, 2]
    assert batch["raw"].tolist() == [1, 2, 0, 2, 0]
    assert batch["key"].tolist() == [3, 1, 1, 2, 0]
    assert [None if value is None else value.tolist() for value in batch["words"]] == [[1, 0], [], None, [0], [2]]
    assert coded.vocabulary("key") == [0, 5, 7, 2**64 - 1]
    assert (
        Pipeline.from_json(json.loads(json.dumps(rows.encode("raw", [b"\xff"]).to_json()))).stages[0]
        == (rows.encode("raw", [b"\xff"]).stages[0])
    )


def test_windows_and_tuples_hold_codes(drive: Pipeline) -> None:
    (names,) = next(iter(drive.encode("drive").ngram(length=2).skip(18).as_tuple("drive").batch(2)))
    assert names.tolist() == [[0, 0], [1, 1]]  # no window spans two files


def test_a_value_outside_the_vocabulary_is_an_error_that_names_its_row(drive: Pipeline) -> None:
    found = r"encode: field 'name', file .*row group 0, row 2: expected one of the 1 values of the vocabulary, got 'n2'"
    with pytest.raises(DecodeError, match=found):
        list(drive.encode("name", ["n1"]).batch(7))
    with pytest.raises(
        DecodeError, match=r"field 'tags', file .*row group 0, row 2: expected one of the 1 .* got 't1'"
    ):
        list(drive.encode("tags", ["t0"]).batch(7))


def test_names_follow_a_rename_on_either_side(drive: Pipeline) -> None:
    coded = drive.rename({"name": "n"}).encode("n").rename({"n": "m", "drive": "n"}).encode("n")
    assert (coded.vocabulary("n"), coded.vocabulary("m")[:2]) == (["d0", "d1"], ["n1", "n10"])
    row = next(iter(coded.skip(1)))
    assert (row["n"], row["m"]) == (0, 0)


def test_learned_vocabularies_are_kept_by_dataset_selection_and_field(
    drive: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path))
    learned: list[str] = []
    learn = vocabularies._learn
    monkeypatch.setattr(
        vocabularies, "_learn", lambda plan, name, rows: learned.append(name) or learn(plan, name, rows)
    )
    for _ in range(2):
        assert drive.where(pc.field("id") < 3).vocabulary("name") == ["n1", "n2"]
        assert next(iter(drive.encode("drive").batch(40)))["drive"].tolist() == [0] * 20 + [1] * 20
        assert drive.where(lambda row: row["id"] < 2, fields=["id"]).vocabulary("name") == ["n1"]
    assert learned == ["name", "drive", "name", "name"]  # a function's selection is not cached
    for path in (tmp_path / "vocabularies").iterdir():
        if path.suffix == ".arrow":
            path.write_bytes(path.read_bytes()[:-3])
    assert drive.where(pc.field("id") < 3).vocabulary("name") == ["n1", "n2"]
    assert learned[4:] == ["name"]


def test_a_sidecar_learns_the_same(drive: Pipeline) -> None:
    coded = drive.where(pc.field("name").is_valid()).encode("name").batch(9)
    found = [batch["name"].tolist() for batch in coded.with_options(executor="sidecar", workers=1)]
    assert found == [batch["name"].tolist() for batch in coded]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ("abc", "expected a list of values, got 'abc'"),
        (3, "expected a list of values, got 3"),
        ({"a", "b"}, r"expected a list, whose order gives the codes, got a set\. Pass sorted\(values\)"),
        (frozenset("ab"), r"expected a list, whose order gives the codes, got a set"),
        ([], "expected strings, bytes or 64-bit integers, got"),
        (["a", 1], "expected strings, bytes or 64-bit integers"),
        (["a", None], "expected strings, bytes or 64-bit integers"),
        ([1.5], "expected strings, bytes or 64-bit integers"),
        ([2**64], "expected strings, bytes or 64-bit integers"),
        (["a", "b", "a"], "expected each value once, got 'a' twice"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(drive: Pipeline, vocabulary: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=f"encode 'name', vocabulary: {message}"):
        drive.encode("name", vocabulary)


def test_fields_that_cannot_be_encoded_are_refused_before_anything_is_read(drive: Pipeline) -> None:
    with pytest.raises(PipelineError, match="field 'speed': expected strings, bytes or integers, got float32"):
        _ = drive.encode("speed").element
    with pytest.raises(PipelineError, match="field 'id': expected a vocabulary of int values, got 'a'"):
        _ = drive.encode("id", ["a"]).element
    with pytest.raises(FieldNotFoundError, match=r"encode: field 'nam\.': expected the name of a field"):
        _ = drive.encode("nam.", ["a"]).element
    with pytest.raises(PipelineError, match="expected unknown to be a 64-bit integer or one of"):
        drive.encode("name", ["a"], unknown="other")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"encode\(\) must come before nulls\(\).*the stored values of 'name'"):
        drive.nulls("fill", "name", value="?").encode("name")
    with pytest.raises(PipelineError, match="expected stored values, got the output of cast"):
        drive.cast("float32", "id").vocabulary("id")


def test_mixes_take_a_given_vocabulary_only(drive: Pipeline) -> None:
    with pytest.raises(PipelineError, match="expected one vocabulary for all pipelines"):
        mix([drive.encode("drive"), drive])
    with pytest.raises(PipelineError, match="expected a vocabulary on a mix"):
        mix([drive, drive]).encode("drive")
    mixed = mix([drive.select("drive"), drive.select("drive")], seed=1).encode("drive", ["d1", "d0"])
    assert next(iter(mixed))["drive"] == 1
    with pytest.raises(PipelineError, match="expected a pipeline over one dataset"):
        mixed.vocabulary("drive")


def test_filters_on_hashes_select_for_the_vocabulary(drive: Pipeline) -> None:
    parts = [drive.where(hash_split("name", [0.5, 0.5], part, 3)) for part in (0, 1)]
    known = [set(part.vocabulary("name")) for part in parts]
    assert not known[0] & known[1]
    assert known[0] | known[1] == set(drive.vocabulary("name"))
    validation = parts[1].encode("name", parts[0].vocabulary("name"), unknown=len(known[0]))
    assert {int(row["name"]) for row in validation if row["name"] is not None} == {len(known[0])}


@pytest.mark.parametrize("kind", [str, bytes, int])
def test_large_vocabularies_find_the_codes_that_small_ones_find(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [kind(f"{n * 37 % 5003}".encode()) if kind is bytes else kind(n * 37 % 5003) for n in range(500)]
    sought = pa.array([*values[::-7], *([kind(6000 + n) for n in range(3)] if kind is not bytes else [b"x"])])
    few = Vocabulary.of(values, "test")
    sought = sought.cast(few.values.type)
    expected = few.codes(sought)
    assert expected.tolist() == [values.index(v) if v in values else -1 for v in sought.to_pylist()]
    monkeypatch.setattr("parquetry.common.schema.vocabulary._FEW", 10)
    many = Vocabulary.of(values, "test")
    assert many.codes(sought).tolist() == expected.tolist()
    assert many.codes(sought[:0]).tolist() == []


@pytest.mark.parametrize(
    "later", [lambda p: p, lambda p: p.batch(2), lambda p: p.ngram(length=2)], ids=["rows", "batches", "windows"]
)
def test_nulls_that_are_masked_before_a_learned_vocabulary_have_code_0(tmp_path: Path, later: Any) -> None:
    rows = table(tmp_path, a=[1, 2, 3, 4], c=["b", "a", None, "b"])
    found = list(later(rows.nulls("mask", "c")).encode("c"))
    expected = list(later(rows.encode("c").nulls("mask", "c")))
    assert [{name: np.asarray(row[name]).tolist() for name in row} for row in found] == [
        {name: np.asarray(row[name]).tolist() for name in row} for row in expected
    ]
    assert found[0]["c"].dtype == np.int64
    unknown = rows.nulls("mask", "c").encode("c", unknown=-1)
    assert [int(row["c"]) for row in unknown] == [1, 0, -1, 1]


def test_nulls_have_the_code_of_a_value_that_the_vocabulary_has_or_gets_at_its_end(tmp_path: Path) -> None:
    rows = table(
        tmp_path,
        c=["b", None, "a", None],
        raw=[b"\xff", None, b"x", b"x"],
        key=pa.array([7, None, 5, 5], pa.int32()),
        words=[["u", None], [], ["v"], ["u"]],
        full=["p", "q", "p", "q"],
    )
    coded = rows.encode("c", null="none").encode("raw", null=b"\xff").encode("key", null=6).encode("words", null="v")
    coded = coded.encode("full", null="none")
    assert Pipeline.from_json(json.loads(json.dumps(coded.to_json()))) == coded
    batch = next(iter(coded.batch(4)))
    assert {name: batch[name].tolist() for name in batch} == {
        "c": [1, 2, 0, 2],
        "raw": [1, 1, 0, 0],
        "key": [1, 2, 0, 0],
        "words": [[0, 1], [], [1], [0]],
        "full": [0, 1, 0, 1],
    }
    assert [coded.vocabulary(name) for name in ("c", "key", "full")] == [
        ["a", "b", "none"],
        [5, 7, 6],
        ["p", "q", "none"],
    ]
    rows = rows.select("c")
    given = rows.encode("c", ["none", "a"], unknown=-1, null="none")
    assert next(iter(given.batch(4)))["c"].tolist() == [-1, 0, 1, 0]
    assert rows.encode("c", ["a"], null="none").vocabulary("c") == ["a", "none"]
    masked = next(iter(rows.nulls("mask", "c").encode("c", null="none").batch(4)))
    assert (masked["c"].tolist(), masked["c__valid"].tolist()) == ([1, 0, 0, 0], [True, False, True, False])


def test_the_value_of_nulls_must_be_of_the_fields_type(tmp_path: Path) -> None:
    rows = table(tmp_path, c=["a", None], key=pa.array([1, None], pa.uint8()))
    with pytest.raises(PipelineError, match=r"encode: field 'c': expected null to be a str, got 0\. Its code is"):
        _ = rows.encode("c", null=0).element
    with pytest.raises(PipelineError, match="field 'key': expected a fill value that uint8 can hold, got -1"):
        _ = rows.encode("key", null=-1).element
    with pytest.raises(PipelineError, match="encode: expected null to be a number, text or bytes"):
        rows.encode("c", null={})  # type: ignore[arg-type]


def test_a_list_that_is_null_has_no_value_to_encode(tmp_path: Path) -> None:
    rows = table(tmp_path, words=[["u", None], None, ["v"]])
    message = r"field 'words', .*row 1: expected a value, found null, .* where\(pc.is_valid\(pc.field\('words'\)\)\)\.$"
    for filled in (rows.encode("words", null="v"), rows.nulls("fill", "words", value="v")):
        with pytest.raises(PipelineError, match=message):
            list(filled)
    valid = rows.where(pc.is_valid(pc.field("words"))).encode("words", null="v")
    assert [row["words"].tolist() for row in valid] == [[0, 1], [1]]
