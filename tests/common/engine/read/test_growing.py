"""Arrays that grow in temporary files equal those that Arrow concatenates in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import open_files

from parquetry.common.engine.read.growing import GrowingArray
from parquetry.common.storage import temporary
from parquetry.common.storage.temporary import NoRoomError, TemporaryBuffer, temporary_directories, temporary_directory

_NUMBERS = st.integers(0, 9)
_LEAVES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), _NUMBERS),
    "uint8": (pa.uint8(), _NUMBERS),
    "float32": (pa.float32(), _NUMBERS),
    "bool": (pa.bool_(), st.booleans()),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "text": (pa.large_string(), st.text(max_size=4)),
    "bytes": (pa.large_binary(), st.binary(max_size=4)),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[pa.Array], pa.DataType]:
    """Draws the slices of a column, each at an offset in its buffers."""
    kind, values = _LEAVES[draw(st.sampled_from(sorted(_LEAVES)))]
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            kind, values = pa.large_list(kind), st.lists(st.none() | values, max_size=3)
        else:
            kind, values = pa.list_(kind, 2), st.lists(st.none() | values, min_size=2, max_size=2)
    rows = draw(st.lists(st.none() | values if draw(st.booleans()) else values, max_size=30))
    whole = pa.array(rows, kind)
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    return [whole[first:last] for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True)], kind


@pytest.mark.slow
@given(columns())
def test_slices_become_one_array(drawn: tuple[list[pa.Array], pa.DataType]) -> None:
    slices, kind = drawn
    growing = GrowingArray(kind)
    for part in slices:
        growing.append(part)
    array, _ = growing.finished()
    array.validate(full=True)
    assert array.equals(pa.concat_arrays(slices))
    assert array.null_count == sum(part.null_count for part in slices)


def test_numbers_beneath_nulls_are_zero() -> None:
    growing = GrowingArray(pa.int64())
    for valid in ([True, False, True], [False, False]):
        numbers = pa.py_buffer(np.arange(7, 7 + len(valid)))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        growing.append(pa.Array.from_buffers(pa.int64(), len(valid), [bitmap, numbers]))
    array, _ = growing.finished()
    assert array.to_pylist() == [7, None, 9, None, None]
    assert np.frombuffer(array.buffers()[1], np.int64).tolist() == [7, 0, 9, 0, 0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where temporary files of this test alone are: other threads may open and close files meanwhile."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return str(tmp_path)


def test_a_type_that_cannot_grow_says_so_and_holds_no_file(folder: str) -> None:
    with pytest.raises(NotImplementedError, match="struct"):
        GrowingArray(pa.large_list(pa.struct([pa.field("a", pa.int64())])))
    assert open_files(folder) == []


def test_files_are_closed_once_they_are_mapped_or_dropped(folder: str) -> None:
    kept, dropped = GrowingArray(pa.large_list(pa.large_string())), GrowingArray(pa.large_string())
    assert open_files(folder)
    kept.append(pa.array([["a", None], None], pa.large_list(pa.large_string())))
    array, _ = kept.finished()
    dropped.close()
    dropped.close()
    assert open_files(folder) == []
    assert array.to_pylist() == [["a", None], None]


def test_a_full_disk_is_reported_with_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = TemporaryBuffer()
    monkeypatch.setattr(temporary.os, "write", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(
        NoRoomError, match=f"temporary files in {' or '.join(temporary_directories())}, got: .*No space left"
    ):
        buffer.append(b"x")
    buffer.close()


def test_a_file_that_outgrows_its_directory_moves_to_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    monkeypatch.setattr(temporary, "temporary_directories", lambda: [str(small), str(large)])
    buffer, write = TemporaryBuffer(), os.write
    first = os.fstat(buffer._descriptor or 0).st_ino

    def limited(descriptor: int, content: memoryview) -> int:
        status = os.fstat(descriptor)
        if status.st_ino != first:
            return write(descriptor, content)
        if status.st_size >= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[: 10 - status.st_size])

    monkeypatch.setattr(temporary.os, "write", limited)
    for part in (b"0123456", b"789abcdef", b"ghi"):
        buffer.append(part)
    assert (len(open_files(str(small))), len(open_files(str(large)))) == (0, 1)
    mapped = buffer.mapped()
    assert mapped is not None
    assert mapped.to_pybytes() == b"0123456789abcdefghi"


def test_the_first_directory_with_room_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"/small": 10, "/large": 1000}
    monkeypatch.setattr(temporary, "temporary_directories", lambda: list(free))
    monkeypatch.setattr(temporary, "_free_bytes", free.__getitem__)
    assert [temporary_directory(size) for size in (0, 10, 11, 1000, 1001)] == [
        *("/small", "/small", "/large", "/large", None),
    ]


def test_tmpdir_is_used_if_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert temporary_directory() == str(tmp_path)
    descriptor = temporary.temporary_file()
    assert not list(tmp_path.iterdir())
    os.close(descriptor)
    monkeypatch.delattr(temporary.os, "O_TMPFILE")
    os.close(temporary.temporary_file())
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert temporary_directory() != str(tmp_path / "missing")
