"""`NGram`: its own checks, and the windows a reader yields."""

from __future__ import annotations

import decimal
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.compat.petastorm import TransformSpec, make_reader
from parquetry.common.compat.petastorm.ngram import NGram
from parquetry.common.compat.petastorm.predicates import in_lambda
from parquetry.common.compat.petastorm.selectors import RowGroupSelectorBase
from parquetry.common.compat.petastorm.unischema import Unischema as PetastormSchema
from parquetry.common.compat.petastorm.unischema import UnischemaField as PetastormField

pytestmark = pytest.mark.versions

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"
ID = PetastormField("id", np.int64, ())
NAME = PetastormField("name", np.str_, ())


def write(directory: Path, stamps: list[list[Any]], *, dtype: Any = np.int64, rows: int = 4) -> str:
    """Writes one file per list of timestamps, with row groups of ``rows``; ids count across all files."""
    schema = Unischema(
        "windows",
        [UnischemaField("id", np.int64), UnischemaField("ts", dtype), UnischemaField("file", str)],
    )
    number = itertools.count()
    data = [{"id": next(number), "ts": stamp, "file": f"f{file}"} for file, part in enumerate(stamps) for stamp in part]
    write_dataset(directory / "windows", schema, data, row_group_rows=rows, partition_by=("file",))
    return str(directory / "windows")


def windows(url: str, ngram: NGram, **options: Any) -> list[dict[int, tuple[Any, ...]]]:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}
    with make_reader(url, schema_fields=ngram, **options) as reader:
        return [{offset: tuple(step) for offset, step in window.items()} for window in reader]


def firsts(url: str, ngram: NGram, **options: Any) -> list[int]:
    return [int(window[min(window)][0]) for window in windows(url, ngram, **options)]


def expected_firsts(stamps: list[list[int]], length: int, threshold: float, *, overlap: bool = True) -> list[int]:
    """Returns the windows by definition, over each whole file."""
    found = []
    begin = 0
    for part in stamps:
        last = None
        for first in range(len(part) - length + 1):
            chosen = part[first : first + length]
            if last is not None and chosen[0] <= last:
                continue
            if all(later - earlier <= threshold for earlier, later in itertools.pairwise(chosen)):
                found.append(begin + first)
                last = None if overlap else chosen[-1]
        begin += len(part)
    return found


def test_a_window_spans_row_groups_but_not_files() -> None:
    ngram = NGram({0: ["id"], 1: ["id"]}, 100, "stamp_ms")
    assert firsts(str(REAL), ngram) == [i for i in range(59) if i % 20 != 19]


def test_each_offset_has_its_own_fields_and_one_without_fields_takes_a_row() -> None:
    ngram = NGram({-1: ["stamp_ms", "id"], 1: ["label", "id"]}, 100, "^stamp_ms$")
    assert ngram.length == 3
    with make_reader(str(REAL), schema_fields=ngram, reader_pool_type="dummy", shuffle_row_groups=False) as reader:
        assert reader.ngram is ngram
        window = next(reader)
    assert list(window) == [-1, 0, 1]
    assert window[-1]._asdict() == {"id": 0, "stamp_ms": 0}
    assert window[0]._asdict() == {}
    assert window[1]._asdict() == {"id": 2, "label": "vehicle"}
    assert [field.name for field in ngram.fields[1]] == ["id", "label"]


@pytest.mark.parametrize("pool", ["dummy", "thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("length", "threshold"), [(1, 0), (2, 4), (2, 1.5), (3, 4), (5, 100)])
def test_windows_equal_the_definition(tmp_path: Path, length: int, threshold: float, overlap: bool, pool: str) -> None:
    if pool == "process" and (length, threshold) != (3, 4):
        pytest.skip("one case is enough for processes")
    stamps = [[0, 3, 8, 10, 11, 20, 23, 23, 24], [5, 6, 7], [100, 104, 108, 112, 113, 114, 118, 119, 120, 121, 122]]
    ngram = NGram({offset: ["id"] for offset in range(length)}, threshold, "ts", timestamp_overlap=overlap)
    found = firsts(write(tmp_path, stamps), ngram, reader_pool_type=pool, workers_count=2)
    assert found == expected_firsts(stamps, length, threshold, overlap=overlap)


def test_windows_keep_to_a_file_where_time_stamps_go_back_from_one_row_group_to_the_next(tmp_path: Path) -> None:
    url = write(tmp_path, [[0, 1, 2, 3, 0, 1, 2, 3]])
    assert firsts(url, NGram({0: ["id"], 1: ["id"]}, 10, "ts")) == [0, 1, 2, 4, 5, 6]


def test_time_stamps_that_go_back_inside_a_row_group_are_an_error(tmp_path: Path) -> None:
    url = write(tmp_path, [[0, 2, 1, 3]])
    with pytest.raises(DatasetError, match="row 2: expected timestamps in 'ts' that do not decrease, got 1 after 2"):
        firsts(url, NGram({0: ["id"], 1: ["id"]}, 10, "ts"))


@pytest.mark.parametrize("threshold", [decimal.Decimal("0.5"), 0.5])
def test_decimals_and_times_measure_gaps_exactly(tmp_path: Path, threshold: Any) -> None:
    stamps = [[decimal.Decimal(value) / 10 for value in (0, 5, 11, 16)]]
    assert firsts(write(tmp_path, stamps, dtype=decimal.Decimal), NGram({0: ["id"], 1: ["id"]}, threshold, "ts")) == [
        0,
        2,
    ]
    moments = [[np.datetime64(value, "ms") for value in (0, 5, 11, 16)]]
    url = write(tmp_path / "times", moments, dtype="datetime64[ms]")
    assert firsts(url, NGram({0: ["id"], 1: ["id"]}, 5, "ts")) == [0, 2]


def test_windows_form_after_predicate_filter_and_transform(tmp_path: Path) -> None:
    url = write(tmp_path, [list(range(12))])
    even = in_lambda(["id"], lambda id: id % 2 == 0)
    pair = NGram({0: ["id"], 1: ["id", "ts"]}, 2, "ts")
    assert windows(url, pair, predicate=even) == [{0: (i,), 1: (i + 2, i + 2)} for i in range(0, 10, 2)]
    assert firsts(url, NGram({0: ["id"], 1: ["id"]}, 1, "ts"), predicate=even) == []
    assert firsts(url, NGram({0: ["id"], 1: ["id"]}, 5, "ts"), filters=[("id", "in", [1, 4, 11])]) == [1]
    ten_times = TransformSpec(lambda row: {**row, "id": row["id"] * 10})
    assert windows(url, NGram({0: ["id"], 1: ["id"]}, 1, "ts"), transform_spec=ten_times)[3] == {0: (30,), 1: (40,)}


def test_windows_are_dealt_to_the_shard_of_their_first_row_and_none_is_lost(tmp_path: Path) -> None:
    url = write(tmp_path, [list(range(22))])
    ngram = NGram({0: ["id"], 2: ["id"]}, 1, "ts")
    parts = [firsts(url, ngram, cur_shard=i, shard_count=3) for i in range(3)]
    assert parts == [[i for i in range(20) if i // 4 % 3 == part] for part in range(3)]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_shuffling_changes_the_order_of_windows_only(tmp_path: Path, parts: int) -> None:
    url = write(tmp_path, [list(range(22)), list(range(9))])
    ngram = NGram({0: ["id"], 1: ["id"]}, 1, "ts")
    options: dict[str, Any] = {"shuffle_row_groups": True, "shuffle_rows": True, "seed": 4, "num_epochs": 2}
    found = windows(url, ngram, shuffle_row_drop_partitions=parts, **options)
    assert all(window[1][0] == window[0][0] + 1 for window in found)
    first, second = ([int(window[0][0]) for window in part] for part in (found[:29], found[29:]))
    assert sorted(first) == sorted(second) == [*range(21), *range(22, 30)]
    assert first != second


def test_a_row_group_that_the_selector_leaves_out_parts_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Every(RowGroupSelectorBase):
        def get_index_names(self) -> list[str]:
            return []

        def select_row_groups(self, index_dict: Any) -> set[int]:
            return {0, 2, 3}

    monkeypatch.setattr("parquetry.common.compat.petastorm.planning.get_row_group_indexes", lambda dataset: {})
    url = write(tmp_path, [list(range(16))])
    found = firsts(url, NGram({0: ["id"], 1: ["id"]}, 100, "ts"), rowgroup_selector=Every())
    assert found == [0, 1, 2, 8, 9, 10, 11, 12, 13, 14]


def test_without_a_window_nothing_comes(tmp_path: Path) -> None:
    assert windows(write(tmp_path, [[0, 10, 20]]), NGram({0: ["id"], 1: ["id"]}, 1, "ts")) == []


# --- the value itself -------------------------------------------------------------------------------------------------


def test_ngrams_with_equal_fields_are_equal() -> None:
    first = NGram({-1: [NAME], 0: [ID]}, 1, ID)
    assert first == NGram({-1: [NAME], 0: [ID]}, 1, ID)
    assert hash(first) == hash(NGram({-1: [NAME], 0: [ID]}, 1, ID))
    assert first != NGram({0: [NAME], 2: [ID]}, 1, ID)
    assert first != NGram({-1: [ID], 0: [ID]}, 1, ID)


def test_regexes_are_resolved_by_a_schema() -> None:
    schema = PetastormSchema("s", [ID, NAME, PetastormField("id2", np.int32, ())])
    ngram = NGram({-1: ["id.*", NAME], 0: ["id"]}, 1, "^id$")
    ngram.resolve_regex_field_names(schema)
    assert [field.name for field in ngram.fields[-1]] == ["name", "id", "id2"]
    assert ngram.get_field_names_at_timestep(0) == ["id"]
    assert ngram.get_field_names_at_timestep(7) == []
    assert list(ngram.get_schema_at_timestep(schema, -1).fields) == ["id", "name", "id2"]
    with pytest.raises(PipelineError, match="expected timestamp_field to name one field"):
        NGram({0: [ID]}, 1, "id.*").resolve_regex_field_names(schema)


def test_rows_in_memory_form_the_same_windows() -> None:
    schema = PetastormSchema("s", [ID, NAME])
    ngram = NGram({0: [ID], 1: [NAME]}, 2, ID, timestamp_overlap=False)
    rows = [{"id": i, "name": f"n{i}"} for i in (0, 1, 2, 3, 9, 10)]
    formed = ngram.form_ngram(rows, schema)
    assert formed == [
        {0: {"id": 0}, 1: {"name": "n1"}},
        {0: {"id": 2}, 1: {"name": "n3"}},
        {0: {"id": 9}, 1: {"name": "n10"}},
    ]
    assert ngram.make_namedtuple(schema, formed[0])[1].name == "n1"
    with pytest.raises(PipelineError, match="expected rows sorted by 'id'"):
        ngram.form_ngram(rows[::-1], schema)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"fields": []}, "expected fields="),
        ({"fields": {}}, "expected fields="),
        ({"fields": {0: "id"}}, "expected a list of UnischemaField"),
        ({"fields": {0: [5]}}, "expected a list of UnischemaField"),
        ({"delta_threshold": "abc"}, "expected delta_threshold to be a number"),
        ({"timestamp_field": 5}, "expected timestamp_field to be a field"),
        ({"timestamp_overlap": 2}, "expected timestamp_overlap to be True or False"),
    ],
)
def test_arguments_are_checked(change: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"fields": {0: [ID]}, "delta_threshold": 5, "timestamp_field": ID, **change}
    with pytest.raises(ValueError, match=text):
        NGram(**given)
