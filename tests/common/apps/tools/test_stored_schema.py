"""`migrate`: pickled metadata becomes JSON."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.tools import migrate, summary_file
from parquetry.common.base.errors import DatasetError, SchemaError
from parquetry.common.compat.petastorm import make_reader
from parquetry.common.compat.petastorm.selectors import SingleIndexSelector
from parquetry.common.schema.field import schema_from_metadata
from parquetry.common.write import metadata_file

REAL = Path(__file__).parents[3] / "data" / "petastorm"


def copy_of(version: str, directory: Path) -> Path:
    shutil.copytree(REAL / version, directory / version)
    return directory / version


def keys_of(place: Path) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = pq.read_schema(place / "_common_metadata").metadata
    return metadata


def tree(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", ["0.4.0", "0.7.0", "0.7.6", "0.12.1"])
def test_the_schema_becomes_json_and_the_rows_stay(tmp_path: Path, version: str) -> None:
    place = copy_of(version, tmp_path)
    before, files = list(Pipeline(place, executor="threads")), tree(place)
    report = migrate(place)
    assert report.changed
    assert report.schema == Pipeline(REAL / version).schema
    keys = keys_of(place)
    assert schema_from_metadata(keys, where="here") == report.schema
    assert not any(key.startswith(b"dataset-toolkit") for key in keys)
    assert "dataset-toolkit.unischema.v1" in report.removed
    np.testing.assert_equal(list(Pipeline(place, executor="threads")), before)
    changed = {name for name, data in tree(place).items() if data != files.get(name)}
    assert changed == {"_common_metadata"}


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    place = copy_of("0.12.1", tmp_path)
    files = tree(place)
    report = migrate(place, dry_run=True)
    assert report.changed
    assert "schema 'Drive' of 13 fields as JSON" in str(report)
    assert tree(place) == files


def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    place = copy_of("0.12.1", tmp_path)
    migrate(place)
    files = tree(place)
    report = migrate(place)
    assert not report.changed
    assert "nothing to do" in str(report)
    assert tree(place) == files


def test_row_group_indexes_become_json_and_are_still_asked(tmp_path: Path) -> None:
    place = copy_of("0.4.0", tmp_path)
    assert sorted(migrate(place).indexes) == ["id", "sensor_name", "string_array_nullable"]
    with make_reader(str(place), rowgroup_selector=SingleIndexSelector("id", [3]), schema_fields=["^id$"]) as reader:
        assert sorted(int(row.id) for row in reader) == list(range(10))


def test_petastorms_keys_may_stay(tmp_path: Path) -> None:
    place = copy_of("0.12.1", tmp_path)
    before = keys_of(place)
    assert migrate(place, keep_petastorm=True).removed == ()
    after = keys_of(place)
    assert before.items() <= after.items()
    assert not migrate(place, keep_petastorm=True).changed
    assert migrate(place).changed
    assert not any(key.startswith(b"dataset-toolkit") for key in keys_of(place))


def summarize(place: Path) -> None:
    """Writes the summary file ``_metadata`` with all row groups and the keys of ``_common_metadata``."""
    files = sorted(place.glob("*/*.parquet"))
    footers = [pq.read_metadata(file) for file in files]
    for file, footer in zip(files, footers, strict=True):
        footer.set_file_path(str(file.relative_to(place)))
    schema = footers[0].schema.to_arrow_schema().with_metadata(keys_of(place))
    pq.write_metadata(schema, place / "_metadata", footers)


def summary_of(place: Path) -> pq.FileMetaData:
    return pq.read_metadata(place / "_metadata")


def pickles_in(place: Path) -> bool:
    return any(b"dataset-toolkit" in data for name, data in tree(place).items() if name.endswith("_metadata"))


@pytest.mark.parametrize("lost", [False, True])
def test_the_summary_file_keeps_its_row_groups_and_loses_its_pickles(tmp_path: Path, lost: bool) -> None:
    place = tmp_path / "data"
    schema = Unischema("Small", [UnischemaField("id", np.int64), UnischemaField("part", str)])
    rows = [{"id": number, "part": f"p{number % 2}"} for number in range(8)]
    write_dataset(str(place), schema, rows, partition_by=["part"], row_group_rows=2, petastorm_compatible=True)
    for file in place.glob("*/*.parquet"):  # as written by Petastorm, without the schema
        pq.write_table(pq.read_table(file, partitioning=None).replace_schema_metadata(None), file, row_group_size=2)
    own = pq.read_schema(place / "_common_metadata")
    old = {key: value for key, value in own.metadata.items() if key.startswith(b"dataset-toolkit")}
    pq.write_metadata(own.with_metadata(old), place / "_common_metadata")
    summarize(place)
    (place / "._metadata.crc").write_bytes(b"old")
    if lost:  # only the summary has the schema
        (place / "_common_metadata").unlink()
    before, files = summary_of(place), tree(place)
    report = migrate(place, dry_run=True)
    assert report.summary == "rewritten"
    assert "summary file _metadata, which also holds pickles: rewritten" in str(report)
    assert tree(place) == files
    assert migrate(place).changed
    after = summary_of(place)
    assert not pickles_in(place)
    assert (after.num_row_groups, after.num_rows) == (before.num_row_groups, before.num_rows) == (4, 8)
    assert after.row_group(0).column(0).file_path == before.row_group(0).column(0).file_path
    assert not (place / "._metadata.crc").exists()
    assert sorted(row["id"] for row in Pipeline(place)) == list(range(8))
    assert not migrate(place).changed


def test_a_summary_file_that_arrow_cannot_write_again_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = copy_of("0.12.1", tmp_path)
    summarize(place)
    monkeypatch.setattr(summary_file, "_rewritten", lambda *_: None)
    report = migrate(place, dry_run=True)
    assert report.summary == "removed"
    assert (place / "_metadata").exists()
    assert migrate(place).changed
    assert not (place / "_metadata").exists()
    assert not pickles_in(place)
    assert len(list(Pipeline(place, executor="threads"))) > 0


def test_pickles_in_a_summary_are_found_when_the_rest_is_json_already(tmp_path: Path) -> None:
    place = copy_of("0.12.1", tmp_path)
    summarize(place)
    summary = (place / "_metadata").read_bytes()
    migrate(place)
    (place / "_metadata").write_bytes(summary)
    assert pickles_in(place)
    assert not migrate(place, keep_petastorm=True).changed
    assert migrate(place).summary in ("rewritten", "removed")
    assert not pickles_in(place)


def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "ran"), "w"))

    place = copy_of("0.12.1", tmp_path)
    schema = pq.read_schema(place / "_common_metadata")
    metadata = {**schema.metadata, b"dataset-toolkit.unischema.v1": pickle.dumps(Evil())}
    pq.write_metadata(schema.with_metadata(metadata), place / "_common_metadata")
    files = tree(place)
    with pytest.raises(SchemaError, match="expected names of Petastorm's own metadata"):
        migrate(place)
    assert tree(place) == files
    assert not (tmp_path / "ran").exists()


def test_a_dataset_without_metadata_gets_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "part.parquet")
    with pytest.raises(SchemaError, match="use generate-metadata"):
        migrate(tmp_path)


def test_lost_metadata_is_taken_from_a_data_file(tmp_path: Path) -> None:
    place = copy_of("0.12.1", tmp_path)
    key = b"dataset-toolkit.unischema.v1"
    stored = keys_of(place)[key]
    (place / "_common_metadata").unlink()
    for path in place.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.replace_schema_metadata({key: stored}), path)
    assert [field.name for field in migrate(place).schema] == list(Pipeline(REAL / "0.12.1").schema.fields)
    assert schema_from_metadata(keys_of(place), where="here") is not None


def test_a_failed_write_leaves_the_old_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = copy_of("0.12.1", tmp_path)
    files = tree(place)

    monkeypatch.setattr(metadata_file, "_write", Mock(side_effect=OSError("disk full")))
    with pytest.raises(DatasetError, match="disk full"):
        migrate(place)
    assert tree(place) == files


def test_hadoops_checksum_of_the_old_file_goes(tmp_path: Path) -> None:
    write_dataset(
        tmp_path / "s", Unischema("s", [UnischemaField("id", np.int64)]), [{"id": 1}], petastorm_compatible=True
    )
    checksum = tmp_path / "s" / "._common_metadata.crc"
    checksum.write_bytes(b"old")
    migrate(tmp_path / "s")
    assert not checksum.exists()
