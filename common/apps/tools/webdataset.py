"""Reads WebDataset tar files. The files of a sample are adjacent and differ only in their extensions.

The input is a stream. The output is the key of each sample, and its parts by extension. Only files that WebDataset also
skips are skipped; a function is called for those that look like data. Format: https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

import numpy as np

from ...base.errors import DatasetError
from ...schema.npy import npy_array
from .record_stream import DamageError, RecordStream
from .tfrecord import Feature

KEY = "__key__"
_INTEGERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # surrogates stand for bytes that are not UTF-8
_ZEROS_AT_A_TIME = 1 << 20


def webdataset_rows(
    stream: BinaryIO, where: str, skipped: Callable[[str], None] = lambda name: None
) -> Iterator[dict[str, Feature]]:
    """Yields the parts of each sample: the content of its files, with integers and arrays decoded.

    Names are the extensions in lower case, with ``_`` for dots (``seg.png`` is ``seg_png``), and ``__key__``.

    Args:
        skipped: is called with the name of each file that has no extension or begins with a dot.

    Raises:
        DatasetError: the file is not a tar file, or is truncated or damaged; a part is a link; or a sample has two
            files with the same extension, or files that are not adjacent.
    """
    seen: dict[int, frozenset[str]] = {}
    kinds: dict[frozenset[str], frozenset[str]] = {}  # shared, because most samples have the same parts
    for number, (key, sample) in enumerate(_samples(stream, where, skipped)):
        parts = kinds.setdefault(frozenset(sample), frozenset(sample))
        if seen.setdefault(hash(key), parts).isdisjoint(parts):
            raise DatasetError(
                f"file {where}, sample {number}: expected the files of '{key}' to be adjacent, got others between "
                "them. Write the archive again, sorted by name (tar --sort=name)."
            )
        yield {KEY: [key.encode("utf-8", "surrogateescape")], **sample}


def _samples(stream: BinaryIO, where: str, skipped: Callable[[str], None]) -> Iterator[tuple[str, dict[str, Feature]]]:
    sample: dict[str, Feature] = {}
    key, count = "", 0
    try:
        for member, content in _files(RecordStream(stream), where, skipped):
            folder, name = posixpath.split(posixpath.normpath(member.name))
            stem, _, extension = name.partition(".")
            if sample and posixpath.join(folder, stem) != key:
                yield key, sample
                sample, count = {}, count + 1
            key = posixpath.join(folder, stem)
            field = extension.lower().replace(".", "_")
            if _NO_UTF8.search(field):
                raise DatasetError(f"file {where}, member {member.name!a}: expected an extension in UTF-8.")
            if field == KEY:
                raise DatasetError(
                    f"file {where}, member {member.name}: expected no extension '{extension}', because the field "
                    f"'{KEY}' is the name of the sample. Write the archive with another extension."
                )
            if field in sample:
                raise DatasetError(f"file {where}: expected one file '.{extension}' of sample '{key}', got two.")
            sample[field] = _part(content, extension.lower(), f"file {where}, member {member.name}")
    except (tarfile.TarError, DamageError) as error:
        why = error if isinstance(error, DamageError) else f"it is damaged: {error}. Write it again."
        raise DatasetError(f"file {where}: expected a whole tar file, but after {count} samples {why}") from error
    if sample:
        yield key, sample


class _Member(tarfile.TarInfo):
    """A tar member that raises for an invalid header, which `tarfile` would treat as the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):
                raise DamageError(f"it is not a tar file, or it is damaged: {error}. Write it again.") from error
            raise  # zeros mark the end of the archive


def _files(stream: RecordStream, where: str, skipped: Callable[[str], None]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yields the members that are parts of samples, with their content."""
    file = cast(BinaryIO, stream)
    with tarfile.TarFile(fileobj=file, tarinfo=_Member, encoding="utf-8", errors="surrogateescape") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them only to resolve links
            stem, _, extension = posixpath.basename(posixpath.normpath(member.name)).partition(".")
            if member.isdir() or stem.startswith("__"):
                continue
            if not stem or not extension:
                skipped(member.name)
                continue
            if not member.isfile() or member.issparse():
                kind = "a sparse file" if member.issparse() else "a link" if member.linkname else "something else"
                raise DatasetError(
                    f"file {where}, member {member.name}: expected a regular file, got {kind}. Write the archive "
                    "again, with files instead of links (tar --dereference --hard-dereference)."
                )
            yield member, stream.read(member.size)
    while zeros := stream.read_up_to(_ZEROS_AT_A_TIME):
        if zeros.strip(b"\0"):
            raise DamageError("data follows its end. If archives were joined with cat, convert them one by one.")


def _part(content: bytes, extension: str, where: str) -> Feature:
    kind = extension.rpartition(".")[2]
    try:
        if kind in _INTEGERS:
            return np.array([int(content)], np.int64)
        if kind == "npy":
            return npy_array(memoryview(content))
        if kind in ("json", "jsn"):
            json.loads(content)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DatasetError(f"{where}: expected valid '.{kind}' content, got: {error}.") from error
    return [content]
