"""`VideoReader`: reads the fields of a dataset whose values are frames of videos.

It takes the columns that say where the frames of some rows are, and returns the samples of the videos from which these
frames are decoded.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_arrow
from ...base.process.forks import pc
from ...dataset.row_groups import describe_row_group
from ...dataset.video.frames import EncodedFrames, VideoFiles
from ...schema.field import UnischemaField
from ...schema.video import FrameCodec, VideoCodec
from ...storage.filesystem import resolve
from .file_cells import Part

if TYPE_CHECKING:
    from ...dataset.dataset import StoredDataset


class VideoReader:
    """Reads frames of videos. Thread-safe.

    Args:
        fields: what is read; it takes those whose values are frames.

    Attributes:
        fields: these, with their codecs.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField]) -> None:
        self.fields = {field: codec for field in fields if isinstance(codec := field.storage, FrameCodec)}
        self._dataset = dataset
        self._files: dict[str, VideoFiles] = {}

    def read(self, row_group: int, columns: Mapping[str, Part]) -> dict[str, EncodedFrames]:
        """Returns the frames of rows, by field name.

        Args:
            columns: the values of the columns that say where they are, by name.

        Raises:
            DatasetError: a video cannot be read, though it is there. The error names it.
            DecodeError: the columns name no place of a frame.
            SchemaError: a name leads out of the directory of the videos.
        """
        values: dict[str, EncodedFrames] = {}
        for field, codec in self.fields.items():
            try:
                places = codec.places([self._values(name, columns[name]) for name in codec.columns(field)])
            except DecodeError as error:
                place = describe_row_group(self._dataset, row_group)
                raise DecodeError(f"field '{field.name}', {place}: {error}") from error
            values[field.name] = self._files_of(row_group, codec).read(places, codec.tolerance_s)
        return values

    def check_unchanged(self) -> None:
        """Checks the videos that were read from stores; see `VideoFiles.check_unchanged`."""
        for files in self._files.values():
            files.check_unchanged()

    def forget_versions(self) -> None:
        """Looks at each file again when it is next read, which may have been replaced since the last pass."""
        self._files.clear()

    def _values(self, name: str, part: Part) -> pa.Array:
        """Returns the values of a column. Durations have come as counts of their unit."""
        array = as_arrow(part) if isinstance(part, np.ndarray) else part
        assert isinstance(array, pa.Array)  # text and numbers are
        kind = self._dataset.types[name]
        return array.cast(pa.int64()).cast(kind) if pa.types.is_duration(kind) else array

    def marked(self, table: pa.Table) -> pa.Table:
        """Adds a column for each field of frames, whose values are null where a row has none."""
        for field, codec in self.fields.items():
            columns = [table.column(name) for name in codec.columns(field)]
            valid = reduce(pc.and_, [column.is_valid() for column in columns])
            table = table.append_column(field.name, pc.if_else(valid, True, pa.scalar(None, pa.bool_())))
        return table

    def _files_of(self, row_group: int, codec: FrameCodec) -> VideoFiles:
        root = codec.root or self._directory(row_group, codec)
        if root not in self._files:
            filesystem, path = (self._dataset.filesystem, root) if codec.root is None else resolve(root)
            self._files[root] = VideoFiles(filesystem, path)
        return self._files[root]

    def _directory(self, row_group: int, codec: FrameCodec) -> str:
        """Returns the directory that names of files are relative to."""
        path = self._dataset.files[int(self._dataset.row_groups.file[row_group])].path
        if isinstance(codec, VideoCodec):
            return posixpath.dirname(path)
        roots = [root for root in self._dataset.roots if path.startswith(f"{root.rstrip('/')}/")]
        return max(roots, key=len, default=posixpath.dirname(path))
