"""The summary file ``_metadata`` of a dataset: all row groups of its files, and perhaps Petastorm's pickles.

Spark and Petastorm wrote it; nothing here needs it. It keeps its row groups where Arrow can write them as they are, and
goes otherwise: readers that know it take the files' own footers then.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import DatasetError
from .metadata_file import remove_file, replace_file

SUMMARY = "_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryChange:
    """What is to be done to the summary file.

    Attributes:
        content: of the new file; empty if the file is to go.
    """

    path: str
    action: Literal["rewritten", "removed"]
    content: bytes


def read_summary(filesystem: pafs.FileSystem, root: str) -> pq.FileMetaData | None:
    """The footer of ``_metadata``; ``None`` if there is no such file.

    Raises:
        DatasetError: a file that is not Parquet.
    """
    path = posixpath.join(root, SUMMARY)
    if filesystem.get_file_info(path).type != pafs.FileType.File:
        return None
    try:
        return pq.read_metadata(path, filesystem=filesystem)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"file {path}: expected Parquet metadata, got: {error}. Delete it, or write it again."
        ) from error


def summary_keys(footer: pq.FileMetaData) -> dict[bytes, bytes]:
    """Its key-value metadata, and that of the Arrow schema inside."""
    return {**(footer.schema.to_arrow_schema().metadata or {}), **(footer.metadata or {})}


def without_keys(root: str, footer: pq.FileMetaData, keys: Collection[bytes]) -> SummaryChange | None:
    """The summary without some keys; ``None`` if it has none of them."""
    path = posixpath.join(root, SUMMARY)
    if not summary_keys(footer).keys() & set(keys):
        return None
    content = _rewritten(footer, keys)
    if content is None:
        return SummaryChange(path=path, action="removed", content=b"")
    return SummaryChange(path=path, action="rewritten", content=content)


def apply_change(filesystem: pafs.FileSystem, change: SummaryChange) -> None:
    """Does it; readers see the old file or the new one.

    Raises:
        DatasetError: the file system refused; the old file is untouched then.
    """
    if change.action == "removed":
        remove_file(filesystem, change.path)
    else:
        replace_file(filesystem, change.path, change.content)


def _rewritten(footer: pq.FileMetaData, keys: Collection[bytes]) -> bytes | None:
    """The file with the same row groups; ``None`` where Arrow would describe its columns in another way."""
    schema = footer.schema.to_arrow_schema()
    kept = {key: value for key, value in summary_keys(footer).items() if key not in keys and key != b"ARROW:schema"}
    empty, content = io.BytesIO(), io.BytesIO()
    try:
        pq.write_metadata(schema.with_metadata(kept), empty)
        made = pq.read_metadata(io.BytesIO(empty.getvalue()))
        made.append_row_groups(footer)
        made.write_metadata_file(content)
    except (pa.ArrowException, RuntimeError, OSError):
        return None
    return content.getvalue()
