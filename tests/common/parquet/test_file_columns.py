"""Reading a few columns costs the same, however many others a file has."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.parquet.chunk_statistics import belongs
from parquetry.common.parquet.file_columns import FileColumns
from parquetry.common.plan.selection.statistics import column_bytes

pytestmark = pytest.mark.versions

GROUPS = 4


def written(folder: Path, others: int) -> Path:
    folder.mkdir()
    rows = range(2 * GROUPS)
    columns: dict[str, Any] = {f"other{n:04d}": pa.array(rows, pa.float32()) for n in range(others)}
    columns |= {"x": list(rows), "text": [f"text {n}" for n in rows], "list": [[n] for n in rows]}
    columns["struct"] = [{"a": n, "b": {"c": n}} for n in rows]
    pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=2)
    return folder


def instructions(dataset: StoredDataset, row_group: int) -> int:
    """Returns how many instructions of Python it takes to read a row group, and to find out how large it is.

    Those of pyarrow are left out: its reader makes a list of all columns.
    """
    names = ["x", "text", "list", "struct.b.c"]
    fetch = Fetcher(dataset, [dataset.schema[name] for name in names])
    for other in range(row_group):  # what is kept for the file is known then
        fetch.fetch(other, None)
        column_bytes(dataset, other, names)
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "pyarrow" in Path(frame.f_code.co_filename).parts:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fetch.fetch(row_group, None)
        column_bytes(dataset, row_group, names)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("store", ["local", "remote"])
def test_the_work_for_a_row_group_does_not_depend_on_columns_that_are_not_read(store: str, tmp_path: Path) -> None:
    handler = pafs.FSSpecHandler(fsspec.filesystem("file"))
    filesystem = None if store == "local" else pafs.PyFileSystem(handler)
    few, many = (
        instructions(StoredDataset([str(written(tmp_path / str(others), others))], filesystem=filesystem), 3)
        for others in (4, 2004)
    )
    assert few > 1000
    assert many < few + 2000  # a loop over all columns takes several instructions for each


def test_the_leaves_of_fields_are_those_that_belong_to_them(tmp_path: Path) -> None:
    maps = pa.map_(pa.string(), pa.struct([("key", pa.int8()), ("v", pa.int8())]))
    schema = pa.schema(
        [
            ("a", pa.struct([("b", pa.int8()), ("key_value", pa.struct([("key", pa.int8())]))])),
            ("a.b", pa.int8()),
            ("a.bc", pa.int8()),
            ("m", maps),
            ("l", pa.list_(pa.struct([("m", maps)]))),
        ]
    )
    pq.write_table(schema.empty_table(), tmp_path / "0.parquet")
    footer = pq.read_metadata(tmp_path / "0.parquet")
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    columns = FileColumns(footer)
    for names in (["a"], ["a.b"], ["m"], ["m.key"], ["m.value"], ["a.key"], ["l"], ["a", "a.b", "m.value"], ["none"]):
        assert columns.field_numbers(names) == [n for n, path in enumerate(paths) if belongs(path, names)], names
