"""WebDataset tars: files from common tools are read, and nothing is lost silently."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common.apps.tools.webdataset import webdataset_rows
from parquetry.common.base.errors import DatasetError

pytestmark = pytest.mark.versions

FILES = {f"d/{sample}.{kind}": f"{sample}".encode() for sample in range(3) for kind in ("cls", "txt")}


def member(name: str | bytes, content: bytes = b"", **header: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))
    info.size = len(content)
    for key, value in header.items():
        setattr(info, key, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w", format: int = tarfile.GNU_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode, format=format, encoding="utf-8") as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def archive(files: dict[str, bytes] = FILES, **options: Any) -> bytes:
    return tar(*(member(name, content) for name, content in files.items()), **options)


def rows(data: bytes) -> list[dict[str, Any]]:
    return list(webdataset_rows(pa.BufferReader(data), "x.tar"))  # type: ignore[arg-type]


def keys(data: bytes) -> list[str]:
    return [row["__key__"][0].decode() for row in rows(data)]


@pytest.mark.parametrize("mode", ["w", "w|", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_every_kind_are_read(mode: str, format: int) -> None:
    long = {f"{'long/' * 25}{'n' * 90}.txt": b"x" * 513}
    found = rows(archive(FILES | long, mode=mode, format=format))
    assert [row["txt"] for row in found] == [[b"0"], [b"1"], [b"2"], [b"x" * 513]]
    assert found[2]["cls"].tolist() == [2]
    assert found[3]["__key__"][0].decode() == next(iter(long)).removesuffix(".txt")


def test_two_blocks_of_zeros_are_an_end_and_so_is_one() -> None:
    data = archive()
    end = data.index(bytes(1024), 3000) // 512 * 512
    end += 512 * bool(data[end : end + 512].strip(b"\0"))
    for tail in (1024, 512, 20480):
        assert keys(data[:end] + bytes(tail)) == ["d/0", "d/1", "d/2"]


def test_an_archive_that_is_cut_anywhere_before_its_end_is_an_error_that_counts_samples() -> None:
    data = archive()
    end = 2 * len(FILES) * 512
    for cut in range(1, end + 1, 157):
        with pytest.raises(
            DatasetError, match=r"file x.tar: expected a whole tar file, but after \d samples it is cut"
        ):
            rows(data[:cut])
    with pytest.raises(DatasetError, match=r"after 1 samples it is cut short"):
        rows(data[: 2048 + 1200])
    with pytest.raises(DatasetError, match=r"after 2 samples it is cut short"):
        rows(data[:end])
    compressed = gzip.compress(data)
    with pytest.raises(DatasetError, match=r"expected a whole tar file, but after \d samples it is cut short"):
        rows(compressed[:-3])


def test_a_damaged_header_in_the_middle_is_an_error() -> None:
    data = bytearray(archive())
    data[2048 + 3] ^= 0xFF
    with pytest.raises(DatasetError, match=r"after 0 samples it is not a tar file, or it is damaged: bad checksum"):
        rows(bytes(data))
    compressed = bytearray(gzip.compress(archive()))
    compressed[-6] ^= 0xFF
    with pytest.raises(DatasetError, match=r"it is damaged: CRC check failed"):
        rows(bytes(compressed))


def test_archives_behind_the_end_of_another_are_an_error() -> None:
    with pytest.raises(DatasetError, match=r"after 2 samples data follows its end. If archives were joined"):
        rows(archive() + archive({"9.cls": b"9"}))


@pytest.mark.parametrize("size", [20 << 30, 1 << 60, -1024])
@pytest.mark.parametrize("name", ["0.txt", ".hidden", "long"])
def test_a_size_that_a_header_claims_sets_no_memory_aside(size: int, name: str) -> None:
    kind = tarfile.GNUTYPE_LONGNAME if name == "long" else tarfile.REGTYPE
    header = bytearray(member(name, type=kind)[0].tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (b"\x80\0\0\0" if size > 0 else b"\xff\xff\xff\xff") + struct.pack(">q", size)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match=r"cut short|damaged"):
            rows(archive()[: 12 * 512] + bytes(header) + bytes(4096))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_sparse_file_sets_no_memory_aside() -> None:
    sparse, _ = member("0.npy", type=tarfile.GNUTYPE_SPARSE)
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"\x80\0\0\0" + struct.pack(">q", 1 << 50)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(DatasetError, match=r"member 0.npy: expected a regular file, got a sparse file"):
        rows(bytes(header) + bytes(1024))


def test_links_are_refused_and_folders_and_hidden_files_left_out() -> None:
    others = [
        member("d", type=tarfile.DIRTYPE),
        member("d/.hidden.txt", b"x"),
        member("d/__meta__.json", b"{}"),
        member("d/readme", b"x"),
        member("d/.link", type=tarfile.SYMTYPE, linkname="x"),
    ]
    assert keys(tar(*others, member("d/0.txt", b"x"))) == ["d/0"]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with pytest.raises(DatasetError, match=r"member 1.txt: expected a regular file, got a link\. .*--deref"):
            rows(tar(member("0.txt", b"x"), member("1.txt", type=kind, linkname="0.txt")))
    with pytest.raises(DatasetError, match=r"member 1.txt: .* got something else"):
        rows(tar(member("1.txt", type=tarfile.FIFOTYPE)))


def test_any_name_can_be_a_key() -> None:
    names = ["/abs/0.txt", "../up/0.txt", "a/../b/0.txt", "./c.d/0.txt", "é/ñ.txt", b"\xff/\xfe.txt"]
    found = [row["__key__"][0] for row in rows(tar(*(member(name, b"x") for name in names)))]
    assert found == [b"/abs/0", b"../up/0", b"b/0", b"c.d/0", "é/ñ".encode(), b"\xff/\xfe"]
    with pytest.raises(DatasetError, match=r"member .*: expected an extension in UTF-8"):
        rows(tar(member(b"0.\xff", b"x")))


def test_a_sample_whose_files_do_not_follow_each_other_is_an_error() -> None:
    with pytest.raises(
        DatasetError, match=r"file x.tar, sample 2: expected the files of '0' to be adjacent.* --sort=name"
    ):
        rows(archive({"0.txt": b"", "1.txt": b"", "0.cls": b"0", "1.cls": b"1"}))
    twice = tar(*(member(name, b"0") for name in ("0.txt", "0.cls", "1.txt", "0.txt", "0.cls")))
    assert keys(twice) == ["0", "1", "0"]
    with pytest.raises(DatasetError, match=r"expected one file '.TXT' of sample '0', got two"):
        rows(tar(member("0.txt"), member("./0.TXT")))


def test_a_part_never_replaces_the_name_of_its_sample() -> None:
    with pytest.raises(DatasetError, match=r"member 0\.__KEY__: expected no extension '__KEY__', because the field"):
        rows(tar(member("0.txt"), member("0.__KEY__")))


def claimed_npy(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header


def saved(save: Callable[..., None], array: Any) -> bytes:
    sink = io.BytesIO()
    save(sink, array)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("0.cls", b""),
        ("0.cls", b"99999999999999999999"),
        ("0.id", b"\xff"),
        ("0.npy", b""),
        ("0.npy", claimed_npy("(1152921504606846976,)")),
        ("0.npy", claimed_npy("(1000000000, 1000000000000, 3)")),
        ("0.npy", saved(np.save, np.arange(9))[:-1]),
        ("0.npy", saved(np.save, np.array([{}, 1], dtype=object))),
        ("0.npy", saved(np.savez, np.arange(9))),
        ("0.json", b"{"),
        ("0.json", b"[" * 100_000),
    ],
)
def test_content_that_is_not_what_its_name_says_is_an_error(name: str, content: bytes) -> None:
    with pytest.raises(DatasetError, match=rf"file x.tar, member {name}: expected valid '\.\w+' content, got: "):
        rows(archive({name: content}))


def test_an_archive_of_nothing_has_no_samples() -> None:
    assert rows(tar()) == []
    with pytest.raises(DatasetError, match=r"after 0 samples it is cut short"):
        rows(b"")
