"""The summary file ``_metadata`` of a dataset, which holds all row groups of its files, and maybe Petastorm's pickles.

Spark and Petastorm wrote it, and parquetry does not need it. It is rewritten with its row groups if Arrow can write
them unchanged, and deleted otherwise. Without it, readers fall back to the footers of the files.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Collection
from typing import Literal

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...base.process.dataclass import dataclass
from ...write.metadata_file import read_if_there, remove_file, replace_file

SUMMARY = "_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryChange:
    """A planned change of the summary file.

    Attributes:
        content: the content of the new file; empty if the file is to be removed.
    """

    path: str
    action: Literal["rewritten", "removed"]
    content: bytes


def read_summary(filesystem: pafs.FileSystem, root: str) -> pq.FileMetaData | None:
    """Reads the footer of ``_metadata``; ``None`` if there is no such file.

    Raises:
        DatasetError: the file is not Parquet.
    """
    return read_if_there(pq.read_metadata, filesystem, posixpath.join(root, SUMMARY))


def summary_keys(footer: pq.FileMetaData) -> dict[bytes, bytes]:
    """Returns the key-value metadata of the footer and of its Arrow schema."""
    return {**(footer.schema.to_arrow_schema().metadata or {}), **(footer.metadata or {})}


def without_keys(root: str, footer: pq.FileMetaData, keys: Collection[bytes]) -> SummaryChange | None:
    """Plans the removal of some keys. Returns ``None`` if the summary has none of them."""
    path = posixpath.join(root, SUMMARY)
    if not summary_keys(footer).keys() & set(keys):
        return None
    content = _rewritten(footer, keys)
    if content is None:
        return SummaryChange(path=path, action="removed", content=b"")
    return SummaryChange(path=path, action="rewritten", content=content)


def apply_change(filesystem: pafs.FileSystem, change: SummaryChange) -> None:
    """Applies the change atomically: readers see the old file or the new one.

    Raises:
        DatasetError: the file system refused. The old file is unchanged.
    """
    if change.action == "removed":
        remove_file(filesystem, change.path)
    else:
        replace_file(filesystem, change.path, change.content)


def _rewritten(footer: pq.FileMetaData, keys: Collection[bytes]) -> bytes | None:
    """Returns the new file with the same row groups, or ``None`` if Arrow would describe its columns differently."""
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
