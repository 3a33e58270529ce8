"""Tar files as WebDataset lays them out: the files of a sample follow each other and differ in their extensions alone.

In: a stream. Out: for each sample its parts by extension, and its key. Format: https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..errors import DatasetError
from .tfrecord import Feature

KEY = "__key__"
_INTEGERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})


def webdataset_rows(stream: BinaryIO, where: str) -> Iterator[dict[str, Feature]]:
    """The parts of each sample: the content of its files, integers and arrays as such.

    Names are extensions in lower case, with ``_`` for dots (``seg.png`` is ``seg_png``), and ``__key__``.

    Raises:
        DatasetError: no tar file, one that is cut short, or a sample with two files of one extension.
    """
    sample: dict[str, Feature] = {}
    key = None
    try:
        with tarfile.open(fileobj=stream, mode="r|*", bufsize=1 << 20) as archive:
            for member in archive:
                folder, name = posixpath.split(posixpath.normpath(member.name))
                stem, _, extension = name.partition(".")
                if not member.isfile() or not stem or not extension or stem.startswith("__"):
                    continue
                if sample and posixpath.join(folder, stem) != key:
                    yield sample
                    sample = {}
                if not sample:
                    key = posixpath.join(folder, stem)
                    sample[KEY] = [key.encode()]
                field = extension.lower().replace(".", "_")
                if field in sample:
                    raise DatasetError(f"file {where}: expected one file '.{extension}' of sample '{key}', got two.")
                content = archive.extractfile(member)
                assert content is not None  # of a file
                sample[field] = _part(content.read(), extension.lower(), f"file {where}, member {member.name}")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DatasetError(f"file {where}: expected a whole tar file, got: {error}. Write it again.") from error
    if sample:
        yield sample


def _part(content: bytes, extension: str, where: str) -> Feature:
    kind = extension.rpartition(".")[2]
    try:
        if kind in _INTEGERS:
            return np.array([int(content)], np.int64)
        if kind == "npy":
            return np.load(io.BytesIO(content), allow_pickle=False)  # type: ignore[no-any-return]
        if kind in ("json", "jsn"):
            json.loads(content)
    except ValueError as error:
        raise DatasetError(f"{where}: expected what '.{kind}' says, got: {error}.") from error
    return [content]
