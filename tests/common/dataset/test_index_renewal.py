"""The index keeps up with a dataset that grows, and says what one that is written anew would say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from spies import spied

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.dataset.index import load_index, write_index
from parquetry.common.dataset.index_format import INDEX_NAME, METADATA_KEY
from parquetry.common.dataset.index_renewal import renew_index
from parquetry.common.parquet import group_footers
from parquetry.common.storage.files import list_files

LOCAL = pafs.LocalFileSystem()


def content(root: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The lines in the order of files, and the description without the order of fields, with each line's head itself."""
    table = pq.read_table(root / INDEX_NAME).sort_by([("file", "ascending"), ("group", "ascending")])
    described = json.loads(pq.read_metadata(root / INDEX_NAME).metadata[METADATA_KEY][8:])
    heads = described.pop("heads")
    lines = table.to_pydict()
    lines["head"] = [heads[number] for number in lines["head"]]
    return lines, {**described, "fields": set(described["fields"]), "leaves": set(described["leaves"])}


def test_a_renewed_index_equals_a_new_one_and_reads_only_new_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footers = spied(monkeypatch, group_footers, "load_stored_footer", lambda filesystem, file: file.relative)
    for name, columns in {
        "p=1/b": {"x": [1, 2]},
        "p=1/c": {"x": [3], "text": ["a"]},
        "p=0/a": {"text": ["b", None], "list": [[1], []], "x": [5, 6]},
        "p=2/d": {"x": pa.array([], pa.int64())},
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=1)
        if name == "p=1/b":
            write_index(tmp_path)
        footers.clear()
        group_footers._stored.clear()
        renew_index(LOCAL, str(tmp_path))
        renewed = content(tmp_path)
        if name == "p=2/d":
            assert "p=1/c.parquet" in footers  # has a schema of its own
        assert len({*footers}) == len(footers)
        assert load_index(list_files([str(tmp_path)])) is not None
        write_index(tmp_path)
        assert content(tmp_path) == renewed


@pytest.mark.parametrize("change", ["removed", "changed", "damaged"])
def test_an_index_that_does_not_fit_is_written_anew(tmp_path: Path, change: str) -> None:
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"x": [1, 2], "y": [3, 4]}), tmp_path / f"{name}.parquet")
    write_index(tmp_path, columns="x")
    if change == "removed":
        (tmp_path / "b.parquet").unlink()
    elif change == "changed":
        pq.write_table(pa.table({"x": [1, 2, 3], "y": [3, 4, 5]}), tmp_path / "b.parquet")
    else:
        (tmp_path / INDEX_NAME).write_bytes(b"PAR1")
    renew_index(LOCAL, str(tmp_path))
    index = load_index(list_files([str(tmp_path)]))
    assert index is not None
    assert index.rows.sum() == {"removed": 4, "changed": 7, "damaged": 6}[change]
    assert (index.statistics("y") is None) == (change != "damaged")  # the fields that it described before


def test_without_an_index_none_is_written(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    renew_index(LOCAL, str(tmp_path))
    assert not (tmp_path / INDEX_NAME).exists()


def test_an_index_of_some_fields_keeps_to_them(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("x", "int64"), UnischemaField("y", "int64")])
    write_dataset(tmp_path, schema, {"x": [1], "y": [2]})
    write_index(tmp_path, columns="x")
    write_dataset(tmp_path, schema, {"x": [3], "y": [4]}, mode="append")
    index = load_index(list_files([str(tmp_path)]))
    assert index is not None
    assert index.statistics("y") is None
    found = index.statistics("x")
    assert found is not None
    assert found.minimum.to_pylist() == [1, 3]
    assert [row["x"] for row in Pipeline(tmp_path).where([("x", ">", 1)])] == [3]
