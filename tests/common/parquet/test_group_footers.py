"""A row group is read with a footer that describes only it, and it is the row group of the whole footer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.base.native.library import is_compiled
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.parquet import footers, group_footers

pytestmark = pytest.mark.versions

ROWS = 120


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    if not is_compiled():
        pytest.skip("no compiled core")
    footers._kept.clear()
    group_footers._stored.clear()
    group_footers._parsed.clear()


def written(folder: Path, files: int = 3) -> Path:
    for number in range(files):
        first = number * ROWS
        ids = list(range(first, first + ROWS))
        table = pa.table({"id": ids, "text": [f"text {n}" for n in ids], "list": [[n] * (n % 4) for n in ids]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2)
    write_index(str(folder))
    return folder


def test_the_row_group_equals_that_of_the_whole_footer(tmp_path: Path) -> None:
    dataset = StoredDataset([str(written(tmp_path))])
    for number in (0, 1, 59, 60, 100, 179):
        footer, group = dataset.group_footer(number)
        assert (footer.num_row_groups, group) == (1, 0)
        whole = pq.read_metadata(dataset.files[number // 60].path)
        assert footer.row_group(0).to_dict() == whole.row_group(number % 60).to_dict()
        assert footer.schema.equals(whole.schema)
        assert footer.metadata == whole.metadata
    assert not footers._kept


@pytest.mark.parametrize("name", ["in order", "shuffled"])
def test_the_rows_are_those_without_an_index(name: str, tmp_path: Path) -> None:
    rows = Pipeline(written(tmp_path), executor="threads")
    rows = rows.shuffle(30, seed=2) if name == "shuffled" else rows
    found = [repr(row) for row in rows]
    assert group_footers._parsed
    (tmp_path / "_row_groups.parquet").unlink()
    again = Pipeline(tmp_path, executor="threads")
    assert [repr(row) for row in (again.shuffle(30, seed=2) if name == "shuffled" else again)] == found


def test_few_footers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_footers._stored, "limit", 1)
    monkeypatch.setattr(group_footers._parsed, "limit", 5)
    dataset = StoredDataset([str(written(tmp_path))])
    for number in range(0, 180, 7):
        assert dataset.group_footer(number)[0].num_row_groups == 1
    assert len(group_footers._stored) == 1
    assert len(group_footers._parsed) == 5


def test_a_damaged_row_group_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    dataset = StoredDataset([str(written(tmp_path))])
    path = tmp_path / "1.parquet"
    assert dataset.row_groups.file[60] == 1
    content = bytearray(path.read_bytes())
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[content.rindex(b"\x18\x02id\x15", begin) + 5] ^= 1 << 5  # the compression of the last row group
    path.write_bytes(content)
    dataset = StoredDataset([str(tmp_path)], listing=None)
    with pytest.raises(DatasetError, match=r"1\.parquet"):
        footers.load_footer(dataset.filesystem, dataset.files[1])
    assert group_footers.read_group_footer(dataset.filesystem, dataset.files[1], 3, 60)[0].num_row_groups == 1
    with pytest.raises(DatasetError, match=r"1\.parquet"):
        group_footers.read_group_footer(dataset.filesystem, dataset.files[1], 59, 60)
