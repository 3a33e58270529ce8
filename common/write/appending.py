"""`Appending` adds the files of a writer to a dataset, checks that they fit, and keeps metadata and index up to date.

The part is in the dataset as soon as its files are (`Staging.add`). Every file describes itself, and an index that
lacks files is not used, so a writer that is killed later leaves a dataset that is right, too.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow.fs as pafs

from ..base.errors import DatasetError
from ..dataset.dataset import StoredDataset, read_key_values
from ..dataset.index_renewal import renew_index
from ..schema.field import SCHEMA_KEY, Unischema
from ..schema.petastorm_metadata import INDEXES_KEY, ROW_GROUP_COUNTS_KEY, ROW_GROUP_INDEXES_KEY
from ..schema.petastorm_metadata import SCHEMA_KEY as PETASTORM_SCHEMA_KEY
from ..storage.added_parts import list_whole_parts
from ..storage.file_versions import path_below, versions_below
from ..storage.files import partition_of
from ..storage.table_logs import is_hidden
from .evolution import evolved
from .file_format import arrow_schema
from .metadata_file import remove_file, write_metadata
from .part_files import MAX_PARTS
from .petastorm import petastorm_metadata, petastorm_schema
from .staging import Staging, data_entries, storage_errors

_NUMBERED = re.compile(r"part-(\d{5})(?!\d)")
_SUMMARY = "_metadata"
_LOGGER = logging.getLogger(__name__)


class Appending:
    """A dataset that rows are added to, or a new one.

    Args:
        schema, partition_by: those of the new rows.
        petastorm_compatible: whether Petastorm shall be able to read them.

    Raises:
        SchemaError: the rows do not fit; see `evolved`.
        DatasetError: the dataset cannot be read, or not by Petastorm.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        root: str,
        schema: Unischema,
        partition_by: Sequence[str],
        *,
        petastorm_compatible: bool,
    ) -> None:
        self._filesystem = filesystem
        self._root = root
        self._partition_by = tuple(partition_by)
        self._for_petastorm = petastorm_compatible
        self._final: dict[str, str] = {}
        self.schema = schema
        """The schema to write the rows with."""
        with storage_errors("writing", root, filesystem):
            self._look(opens=True)

    def publish(self, staging: Staging, *, rows: int) -> None:
        """Adds the files of a writer, which must be closed. Call it in a block of `Staging.alone`, then `describe`.

        Without rows, it only makes a dataset where there is none.

        Raises:
            SchemaError: the rows no longer fit, because others have added rows meanwhile.
            DatasetError: the file system refused. None of the files is in the dataset.
        """
        self._look()
        if not rows and self._stored is not None:
            staging.discard()
            return
        self._final = {relative: self._final_name(relative, staging.part) for relative in staging.files}
        staging.add(self._final)

    def describe(self, row_groups: Mapping[str, int]) -> None:
        """Brings the metadata and the index up to date.

        Args:
            row_groups: the number of row groups of each file, by the relative path under which it was opened.

        Raises:
            DatasetError: the file system refused.
        """
        if not self._final:
            return
        try:
            self._write_metadata({self._final[relative]: count for relative, count in row_groups.items()})
            renew_index(self._filesystem, self._root)
        except DatasetError as error:
            raise DatasetError(
                f"dataset '{self._root}': the rows were added, but its metadata or its index could not be written: "
                f"{error} Do not write the rows again. The next writer that adds rows writes both."
            ) from error

    def _look(self, *, opens: bool = False) -> None:
        """Reads what the dataset has now, and checks that the new rows fit.

        Args:
            opens: whether no row is written yet, so that the rows may be stored as the dataset needs them.
        """
        self._stored = dataset = self._stored_dataset()
        self._key_values = dict[bytes, bytes]()
        self._number, self._keys = 0, self._partition_by
        self._evolved = self.schema
        if dataset is None:
            return
        for version in dataset.listing.metadata_files:  # the one that readers take the schema from
            values = read_key_values(self._filesystem, version)
            if not {SCHEMA_KEY, PETASTORM_SCHEMA_KEY}.isdisjoint(values):
                self._key_values = values
                break
        if PETASTORM_SCHEMA_KEY in self._key_values:
            self._for_petastorm = True
            self.schema = petastorm_schema(self.schema) if opens else self.schema
        elif self._for_petastorm:
            raise DatasetError(
                f"dataset '{self._root}': expected one that Petastorm can read, as petastorm_compatible says, got "
                "one without its metadata. Leave the argument out, or write a new dataset."
            )
        names = [posixpath.split(file.relative) for file in dataset.files]
        self._number = 1 + max((int(match[1]) for _, name in names if (match := _NUMBERED.match(name))), default=-1)
        self._keys = tuple(key for key, _ in partition_of(names[0][0]))
        self._evolved = evolved(
            dataset.schema, self.schema, keys=self._keys, partition_by=self._partition_by, where=self._root
        )
        if self._number >= MAX_PARTS:
            raise DatasetError(
                f"dataset '{self._root}': expected parts numbered below {MAX_PARTS}, got {self._number - 1}. Copy it "
                "with the command 'parquetry copy', which numbers them anew."
            )

    def _stored_dataset(self) -> StoredDataset | None:
        """The dataset that is there; ``None`` if there is none, or only parts that others are adding."""
        if not data_entries(self._filesystem, self._root):
            return None
        try:
            return StoredDataset([self._root], filesystem=self._filesystem)
        except DatasetError:
            files = list_whole_parts(
                self._filesystem, self._root, partial(versions_below, self._filesystem, self._root)
            )
            if all(is_hidden(path_below(file.path, self._root)) for file in files):
                return None
            raise

    def _final_name(self, relative: str, part: str) -> str:
        """The path of a file: it sorts after those that are there, and no other writer uses it."""
        directory, name = posixpath.split(relative)
        return posixpath.join(directory, name.replace("part-", f"part-{self._number:05d}-{part[:8]}-", 1))

    def _write_metadata(self, row_groups: Mapping[str, int]) -> None:
        """Writes ``_common_metadata`` if it changed, and removes what would hide the new files from other readers."""
        summary = posixpath.join(self._root, _SUMMARY)
        if self._filesystem.get_file_info(summary).type == pafs.FileType.File:
            remove_file(self._filesystem, summary)
            _LOGGER.warning("dataset '%s': %s was removed: it lacks the files that were added.", self._root, _SUMMARY)
        if self._stored is not None and not self._key_values:
            return  # the files alone describe the dataset
        stored = arrow_schema(self._evolved, without=self._keys)
        values = {**self._key_values, **stored.metadata}
        if self._for_petastorm:
            counts = {**json.loads(values.get(ROW_GROUP_COUNTS_KEY, b"{}")), **row_groups}
            new = petastorm_metadata(self._evolved, counts)
            values |= (
                new
                if self._stored is None or ROW_GROUP_COUNTS_KEY in values
                else {PETASTORM_SCHEMA_KEY: new[PETASTORM_SCHEMA_KEY]}
            )
        indexes = [key for key in (INDEXES_KEY, ROW_GROUP_INDEXES_KEY) if values.pop(key, None) is not None]
        if indexes:
            _LOGGER.warning(
                "dataset '%s': Petastorm's row-group indexes were removed: they lack the rows that were added. Build "
                "them again with build_rowgroup_index().",
                self._root,
            )
        if values != self._key_values:
            write_metadata(self._filesystem, self._root, stored, values)
