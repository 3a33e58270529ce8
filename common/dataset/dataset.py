"""`StoredDataset`: the files, the schema, and the table of row groups of one dataset.

It takes URLs and returns numpy columns with one entry per row group, ordered by full file path and then by row group.
Footers are read at most once, and only if a row-group index does not have the answer.
"""

from __future__ import annotations

import copy
import decimal
import hashlib
import json
import logging
import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError, SchemaError
from ..base.memory.arrow_views import as_numpy
from ..base.memory.lru_cache import LRUCache
from ..base.process.forks import cached_property
from ..base.urls import clean_cause, url_without_secrets
from ..parquet.checksums import VERIFY, Verify
from ..parquet.evolution import DistinctSchemas, strained, unify_schemas
from ..parquet.footer_head import FooterHead
from ..parquet.footers import (
    REMOVED,
    checked_footer,
    footer_digest,
    kept_footer,
    load_footer,
    naming_file,
    read_footer,
    remedy,
    why,
)
from ..parquet.group_footers import FileFooter, GroupFooter, read_group_footers, read_stored_footer, stored_footers
from ..parquet.int96 import footer_schema
from ..parquet.nested import usual_type, variable, wide
from ..schema.dtypes import is_bytes, is_text
from ..schema.field import Unischema, UnischemaField, match_names, schema_from_metadata
from ..schema.infer import flatten_fields, infer_field, infer_fields
from ..schema.petastorm_metadata import schema_from_petastorm
from ..schema.ragged import ends_of
from ..schema.training_statistics import TrainingStatistics
from ..schema.video import FrameCodec
from ..storage.file_cache import user_cache
from ..storage.file_versions import FileVersion, changed, current_version
from ..storage.files import DataFile, FileListing, check_no_episodes, list_files, warn_of_splits
from ..storage.filesystem import resolve
from ..storage.opening import check_used, opened
from ..storage.patterns import Pattern
from ..storage.retries import is_local, with_retries
from ..storage.store_answers import StoreError
from ..storage.stores import ForkSafeFileSystem
from ..storage.table_logs import check_no_deletes
from .deletes import deleted_rows
from .file_schemas import (
    MOST_EXAMPLES,
    FileFacts,
    FileSchema,
    SomeFiles,
    differing_columns,
    facts_key,
    joined,
    missing_columns,
    undeclared,
    with_new_columns,
    with_nullable,
)
from .index import RowGroupIndex, load_index
from .partitions import partition_columns
from .row_groups import MAX_VALUE_BYTES, RowGroups, describe_row_group
from .stored_keys import agree, stored_keys, warn_of_differences
from .table import Table, TableColumn
from .table_dataset import describe_table, table_filesystem, table_listing
from .table_read import locate

LABELS_KEY = b"parquetry.class_names.v1"
_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()
_MOST_SIZES = 1 << 16  # of columns in row groups that a dataset keeps
_MANY_FILES = 1000  # of which `file_facts` are kept on disk


class StoredDataset:
    """A dataset as stored. Everything is read lazily and only once.

    Args:
        listing: the files that another process listed, to read the same versions; ``None`` lists them now.
        verify, max_value_bytes: see `Options`.

    Raises:
        DatasetError: a URL does not exist, or has no Parquet files.
    """

    _filesystem: ForkSafeFileSystem | None = None
    _cast: Container[str] = frozenset()
    _has_footers = False
    _is_declared = False  # whether the user's declarations change the type of a column
    _frames: tuple[UnischemaField, ...] = ()  # fields of frames that the user declares

    def __init__(
        self,
        urls: Sequence[str],
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        table: Table | None = None,
        listing: FileListing | None = None,
        verify: Verify = "written",
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.verify = verify
        self.max_value_bytes = max_value_bytes
        options = dict(storage_options) if storage_options else None
        self.table = table
        self._planned: dict[int, pq.FileMetaData] = {}  # see `_planned_footer`
        self._heads: dict[int, pq.FileMetaData] = {}  # of the first file with each schema, if the footers were read
        self._located: dict[tuple[int, str], str | None] = {}
        self._lists = listing is None  # so that only the first process warns
        self._folder: tuple[ForkSafeFileSystem, str] | None = None
        if table is not None and table.is_manifest:
            folder, place = resolve(urls[0], filesystem=filesystem, storage_options=options)
            self._folder = ForkSafeFileSystem(folder), place
            manifest = table.files[0].path
            if not os.path.exists(manifest):
                raise DatasetError(
                    f"image folder '{urls[0]}': expected its manifest in the cache directory, but {manifest} is gone. "
                    "Call from_image_folder() again to list the folder as it is now."
                )
        if listing is not None:
            store = table_filesystem(urls[0], table, filesystem=filesystem, storage_options=options)
            self._listing = replace(listing, filesystem=store)
        elif table is None:
            self._listing = list_files(list(urls), filesystem=filesystem, storage_options=options)
            if len(urls) == 1:
                check_no_episodes(urls[0], self._listing)
                warn_of_splits(urls[0], self._listing)
        else:
            self._listing = table_listing(urls[0], table, filesystem=filesystem, storage_options=options)
        self._filesystem = ForkSafeFileSystem(self._listing.filesystem)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The data files, sorted by full path."""
        return self._listing.files

    @property
    def listing(self) -> FileListing:
        """The listing without its file system, for another process that must read the same file versions."""
        return replace(self._listing, filesystem=None)  # the receiving process sets it up again

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system that holds the files."""
        if self._filesystem is None:
            self._filesystem = ForkSafeFileSystem(self._listing.filesystem)
        return self._filesystem.here

    @property
    def folder(self) -> tuple[pafs.FileSystem, str]:
        """The file system and the directory of the files that a manifest lists."""
        assert self._folder is not None  # set if the table is a manifest
        return self._folder[0].here, self._folder[1]

    @cached_property
    def listed_bytes(self) -> np.ndarray:
        """The total bytes of the files that each row group of a manifest lists."""
        try:
            with self.open(0) as source:
                sizes = as_numpy(
                    pq.read_table(source, columns=["size_bytes"], page_checksum_verification=True).column(0)
                )
        except FileNotFoundError as error:
            raise DatasetError(f"file {self.files[0].shown_path}: {REMOVED}.") from clean_cause(error)
        ends = np.cumsum(self.row_groups.rows)
        return np.diff(ends_of(sizes)[ends], prepend=0)

    @property
    def roots(self) -> tuple[str, ...]:
        """The directories or files that the URLs named; for a pattern, the files that match."""
        return self._listing.roots

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns among the URLs."""
        return self._listing.patterns

    def directory(self, what: str) -> str:
        """The directory that the only URL named; see `FileListing.directory`."""
        return self._listing.directory(what)

    @cached_property
    def _described(self) -> tuple[Unischema, dict[str, str], dict[str, pa.Array]]:
        return _describe(self) if self.table is None else describe_table(self, self.table)

    @property
    def schema(self) -> Unischema:
        """Every readable field, including partition columns."""
        return self._described[0]

    @property
    def refused(self) -> dict[str, str]:
        """Columns that cannot become tensors, each with the reason."""
        return self._described[1]

    @property
    def partitions(self) -> dict[str, pa.Array]:
        """The value of each partition column in each file."""
        return self._described[2]

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The Arrow type of every field as seen by filters, windows and decoders, whatever type each file stores.

        It is the type that all files share. Where they differ, it is the declared type, or else the narrowest type for
        the values of all files, each of which is checked as it is read.
        """
        if self.table is not None:
            types = {name: wide(column.arrow) for name, column in self.columns.items()}
        else:
            types = {path: usual_type(column.type) for path, column in self._unified[0]}
        declared = {f.name: f.storage.arrow_type(f) for f in self.schema if f.name not in types}
        images = {name: types[stored] for name, stored in self.image_bytes.items()}
        return {**types, **declared, **images, **{name: values.type for name, values in self.partitions.items()}}

    @cached_property
    def image_bytes(self) -> dict[str, str]:
        """Maps each struct of ``bytes`` and ``path``, as Hugging Face stores images, to the dotted name of its bytes.

        The name of such a struct selects a field that is declared with a codec. It is not a field of the schema.
        """
        fields = self.schema.fields
        names = [name.removesuffix(".bytes") for name, field in fields.items() if is_bytes(field.dtype)]
        return {name: f"{name}.bytes" for name in names if f"{name}.path" in fields and name not in fields}

    @cached_property
    def _unified(self) -> tuple[list[tuple[str, pa.Field]], dict[str, str]]:
        return unify_schemas(self._first_files, self._declared_types, self._cast)

    @cached_property
    def strained(self) -> frozenset[str]:
        """The columns that have values in some file which their type in the dataset may not represent."""
        return strained(self._first_files, self._unified[0]) if self.table is None else frozenset()

    @property
    def _first_files(self) -> list[tuple[str, pa.Schema]]:
        """The distinct schemas, each with the first file that has it."""
        return [(schema.examples[0], schema.arrow) for schema in self._schemas]

    @cached_property
    def _schemas(self) -> list[FileSchema]:
        return _distinct_schemas(self)

    @cached_property
    def _declared(self) -> Unischema | None:
        """The schema in the dataset's own metadata, and in that of its files."""
        return _declared_schema(replace(self._listing, filesystem=self.filesystem), self)

    @cached_property
    def _declared_types(self) -> dict[str, pa.DataType]:
        """The types to read columns in whose files differ, where a schema or the user declares one."""
        return _types_of(self._declared or ())

    def declaring(self, fields: Collection[UnischemaField], cast: Collection[str] = ()) -> StoredDataset:
        """Returns this dataset with other types where files differ, and with the declared fields of frames.

        Args:
            fields: the fields that the user declares.
            cast: see `unify_schemas`.
        """
        frames = [field for field in fields if not field.storage.in_column]
        if frames:
            return self.declaring([field for field in fields if field not in frames], cast)._with_frames(frames)
        types = _types_of(fields)
        if self.table is not None or not (types or cast):
            return self
        _ = self._schemas  # reads the footers or the index once for both
        dataset = copy.copy(self)
        for name in ("_unified", "_described", "types", "image_bytes", "strained", "fingerprint", "version"):
            dataset.__dict__.pop(name, None)
        dataset._declared_types, dataset._cast = {**self._declared_types, **types}, cast or self._cast
        dataset._is_declared = True
        return self if dataset._unified == self._unified else dataset

    def _with_frames(self, fields: Sequence[UnischemaField]) -> StoredDataset:
        schema, refused, partitions = self._described
        others = {name: field for name, field in schema.fields.items() if name not in {each.name for each in fields}}
        dataset = copy.copy(self)
        for name in ("types", "image_bytes", "frame_columns", "fingerprint", "version"):
            dataset.__dict__.pop(name, None)
        dataset._frames = tuple(fields)
        dataset.__dict__["_described"] = Unischema(schema.name, [*others.values(), *fields]), refused, partitions
        stored = self.stored_names if self.table is None else frozenset[str]()
        for field in fields:
            if field.name in others or field.name in stored:
                raise SchemaError(
                    f"field '{field.name}': expected a name that no column has, because its values are frames of "
                    "videos. Give it another name."
                )
            dataset.read_fields([field])
        return dataset

    @cached_property
    def frame_columns(self) -> dict[str, tuple[str, ...]]:
        """The fields whose values are frames of videos, each with the columns that say where they are."""
        return {
            field.name: codec.columns(field) for field in self.schema if isinstance(codec := field.storage, FrameCodec)
        }

    def read_names(self, names: Sequence[str]) -> list[str]:
        """Returns the columns to read for fields, by name: their own, and those that say where their frames are."""
        if not self.frame_columns:
            return list(names)
        return list(dict.fromkeys(column for name in names for column in self.frame_columns.get(name, (name,))))

    def read_fields(self, fields: Sequence[UnischemaField]) -> list[UnischemaField]:
        """Returns the fields to read as columns for the given ones, as `read_names` does.

        Raises:
            SchemaError: a column that says where frames are is missing, or has no type that can say it, or a field of
                frames is declared with another codec.
        """
        own = {field.name: field for field in fields if field.storage.in_column}
        for field in fields:
            places = self.frame_columns.get(field.name, ())
            if places and field.storage.in_column:
                raise SchemaError(
                    f"field '{field.name}': expected a codec of frames, as its values are frames of videos, got "
                    f"{field.storage}. Declare it with VideoReference, or leave its codec as it is stored."
                )
            for place, name in enumerate(places):
                own.setdefault(name, self._frame_column(field, name, is_file=place == 0 and field.storage.names_files))
        return list(own.values())

    def _frame_column(self, field: UnischemaField, name: str, *, is_file: bool) -> UnischemaField:
        kind = self.types.get(name)
        made = None if kind is None else infer_field(name, pa.field(name, kind))
        says_time = name == getattr(field.storage, "time", None)
        numbers = made is not None and isinstance(made.dtype, np.dtype) and made.dtype.kind in "iuf"
        is_number = numbers or (says_time and kind is not None and pa.types.is_duration(kind))
        if made is None or made.shape or not (is_text(made.dtype) if is_file else is_number):
            expected = "text" if is_file else f"numbers{' or durations' if says_time else ''}"
            raise SchemaError(
                f"field '{field.name}': expected a column '{name}' of {expected}, "
                f"which says where its frames are, got {'no such column' if made is None else kind}. Correct the "
                f"name in {field.codec}."
            )
        return made

    @property
    def missing(self) -> dict[str, SomeFiles]:
        """The fields of the schema that some files lack, with these files. The fields are null there."""
        if self.table is not None:
            return {}
        columns = self.schema.fields.keys() - self.partitions.keys() - self.frame_columns.keys()
        return missing_columns((name for name in self.schema.fields if name in columns), self._schemas)

    @property
    def unlike_files(self) -> list[int]:
        """The numbers of the first files that have each of the distinct schemas."""
        return [schema.first for schema in self._schemas]

    @property
    def differing(self) -> dict[str, dict[str, SomeFiles]]:
        """The fields of the schema that files store in different types, with the files that have each type."""
        if self.table is not None:
            return {}
        columns = differing_columns(self._schemas)
        return {name: types for name, types in columns.items() if name in self.schema and name not in self.partitions}

    @property
    def stored_names(self) -> frozenset[str]:
        """The columns of all files: of the top level, and by dotted path."""
        return frozenset[str]().union(*(schema.names for schema in self._schemas))

    @property
    def shadowed(self) -> list[str]:
        """The partition columns that some files store, too. The values of the directories count."""
        if self.table is not None:
            return []
        stored = self.stored_names if self.partitions else ()
        return [name for name in self.partitions if name in stored]

    @property
    def undeclared(self) -> list[str]:
        """The columns of every file that the metadata leaves out, so that they are no fields."""
        if self.table is not None or self._declared is None:
            return []
        known = {*self.schema.fields, *self.refused, *(name for each in self.frame_columns.values() for name in each)}
        return undeclared(known, (path for path, _ in self._unified[0]))

    @property
    def not_added(self) -> dict[str, str]:
        """The columns that only some files have, that the metadata does not declare, and that cannot become fields,
        with the reason. They are left out.
        """
        if self.table is not None or self._declared is None:
            return {}
        return _not_added(self._described[1], self._schemas)

    @cached_property
    def file_facts(self) -> FileFacts:
        """What planning needs from the footers of all files. They are read once, and not kept.

        For many files, it is kept on disk, too, so that the next process reads no footers to plan.
        """
        is_kept = self.table is None and len(self.files) >= _MANY_FILES and self.is_cacheable
        key = facts_key(self.version) if is_kept else None
        facts = None if key is None else user_cache("footers").load(key, FileFacts.from_bytes)
        if facts is None:
            facts = _facts_in_footers(self)
            self._has_footers = True
            if key is not None:
                user_cache("footers").save(key, facts.to_bytes())
        return facts

    @property
    def has_footers(self) -> bool:
        """Whether this process has read the footers of all files, so that those of a few may be at hand."""
        return self._has_footers

    def footer(self, file: int) -> pq.FileMetaData:
        """The whole footer of one file, by its number."""
        return read_footer(self.filesystem, self.files[file])

    def head(self, file: int) -> pq.FileMetaData:
        """The footer of one file without its row groups: its schema and metadata."""
        head = self._heads.get(file)
        if head is None and self.index is not None:
            head = self.index.head(file)
        return read_stored_footer(self.filesystem, self.files[file]).head.empty if head is None else head

    def footers_of(self, paths: Sequence[str | None], files: Sequence[int] | None = None) -> Iterator[pq.FileMetaData]:
        """Yields the footers of some files in order, with the statistics of at least one column.

        Args:
            paths: the column's dotted name in each of them; ``None`` where a file lacks it.
            files: their numbers; ``None`` for all files.
        """
        chosen = self.files if files is None else [self.files[file] for file in files]
        for file, path, footer in zip(chosen, paths, stored_footers(self.filesystem, chosen), strict=True):
            with naming_file(file):
                described = footer.columns_footer(frozenset() if path is None else frozenset([path]))
            yield described

    def _planned_footer(self, file: int) -> pq.FileMetaData:
        """The footer as it was when the files were planned, of a store that tells no versions.

        Waits for no other thread, because the caller may have the request slot that it waits for.
        """
        if file in self._planned:
            return self._planned[file]
        return kept_footer(self.files[file]) or load_footer(self.filesystem, self.files[file])

    def group_footer(self, row_group: int, names: frozenset[str] | None = None) -> GroupFooter:
        """What the row-group index, or else the footer of its file, says about a row group.

        Args:
            names: the dotted names of the columns that are read; ``None`` for all. Columns of the table, if it is one,
                may have other names in files, so pass none.
        """
        return self.group_footers([row_group], names)[0]

    def group_footers(self, row_groups: Sequence[int], names: frozenset[str] | None = None) -> list[GroupFooter]:
        """Returns the `group_footer` of each of some row groups of one file (ascending, at least one)."""
        file = self.files[int(self.row_groups.file[row_groups[0]])]
        described = None if self.index is None else self.index.group_footers(row_groups, file, names)
        if described is not None:
            return described
        groups = self.row_groups.group[row_groups].tolist()
        return read_group_footers(FileFooter(filesystem=self.filesystem, file=file), groups, file, names)

    @cached_property
    def chunk_bytes(self) -> LRUCache[tuple[int, int, tuple[str, ...]], dict[int, tuple[int, int]]]:
        """The stored and the decompressed bytes of columns, by row group, which `statistics` looked up last."""
        return LRUCache(_MOST_SIZES, len)

    @contextmanager
    def open(self, file: int, *, ranges: bool = False) -> Iterator[pa.NativeFile]:
        """Opens a data file by number and checks that the block reads the planned version of it.

        Args:
            ranges: the block only reads ranges; see `opened`.

        Raises:
            DatasetError: the file changed since it was listed. Raised at the end of the block, or in place of an error
                inside it.
        """
        version = self.files[file].version
        with opened(self.filesystem, version, ranges=ranges) as source:
            yield source
            if not version.has_version_metadata and not checked_footer(source).equals(self._planned_footer(file)):
                raise changed(version, version)

    def check_unchanged(self) -> None:
        """Checks the remote files that were read since their last check. Call it at the end of an epoch.

        Raises:
            DatasetError: one of them has changed, or the store fails.
        """
        if is_local(self.filesystem):
            return
        try:
            versions = [file.version for file in self.files]
            named = self.table is not None or not {version.path for version in versions}.isdisjoint(self.roots)
            check_used(self.filesystem, versions, directories=() if named else self.roots)
        except StoreError as error:
            raise DatasetError(
                f"files of the epoch: cannot be checked for changes, {error}. {error.advice}"
            ) from clean_cause(error)

    @cached_property
    def index(self) -> RowGroupIndex | None:
        """The dataset's row-group index; ``None`` if there is none or it does not match the files."""
        return load_index(replace(self._listing, filesystem=self.filesystem)) if self.table is None else None

    @cached_property
    def row_groups(self) -> RowGroups:
        """The table of row groups, from the index if there is one, otherwise from the footers."""
        if self.index is not None:
            return RowGroups(file=self.index.file, group=self.index.group, rows=self.index.rows)
        per_file, rows = self.file_facts.counts, self.file_facts.rows
        file = np.repeat(np.arange(len(per_file)), per_file)
        starts = np.cumsum(per_file) - per_file
        group = np.arange(len(file)) - starts[file] if len(file) else np.zeros(0, np.int64)
        return RowGroups(file=file.astype(np.int64), group=group.astype(np.int64), rows=np.asarray(rows, np.int64))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of relative paths, file sizes, row counts of all row groups, and schema, wherever the files are.

        Then the number of files and of rows, for messages: ``<32 hex digits>-<files>-<rows>``.
        """
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files if self._folder is None else ():
            digest.update(f"{file.relative}\0{file.size_bytes}\0".encode())
        digest.update(self.row_groups.file.tobytes() + self.row_groups.rows.tobytes())
        digest.update(json.dumps(self.schema.to_json(), sort_keys=True).encode())
        if self.table is not None:
            digest.update(self.table.digest.encode())
        return f"{digest.hexdigest()}-{len(self.files)}-{int(self.row_groups.rows.sum())}"

    @cached_property
    def version(self) -> str:
        """A digest of the store, the files and their versions, used as the key for everything cached about the dataset.

        Every process that sees the same store and files computes the same digest. It needs only the listing, plus the
        footers of files for which the store reports neither a time nor a tag.
        """
        digest = hashlib.blake2b(digest_size=16)
        for version in (*(file.version for file in self.files), *self._listing.metadata_files):
            digest.update(version.shared_key.encode("utf-8", "surrogateescape") + b"\0")
        for number, file in enumerate(self.files):
            if not file.version.has_version_metadata:
                digest.update(footer_digest(self.footer(number)))
        if self.table is not None:
            digest.update(self.table.digest.encode())
        if self.verify != VERIFY[0]:  # cached data was checked at this level
            digest.update(self.verify.encode())
        for field in self._frames:  # rows are null where their columns are
            digest.update(json.dumps(field.to_json(), sort_keys=True).encode())
        if self._is_declared:  # windows have gaps in the unit of their field
            digest.update(str(self._unified[0]).encode())
        return digest.hexdigest()

    @cached_property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """For each field of class numbers, the names of the classes."""
        if self.table is not None:
            return dict(self.table.labels)
        for version in self._listing.metadata_files:
            text = read_key_values(self.filesystem, version).get(LABELS_KEY)
            if text is not None:
                return {name: tuple(names) for name, names in json.loads(text).items()}
        return {}

    @property
    def stats(self) -> TrainingStatistics:
        """The statistics that came with the data, for `standardize` and `clip`. `Pipeline.fit` makes them for any data.

        Raises:
            DatasetError: none came with it.
        """
        if self.table is None or self.table.statistics is None:
            raise DatasetError(
                f"dataset {', '.join(map(url_without_secrets, self.roots))}: expected statistics that came with the "
                "data, as those of LeRobot datasets, found none. Call fit(...) of a pipeline over it."
            )
        return self.table.statistics

    @property
    def is_cacheable(self) -> bool:
        """Whether `version` identifies the data uniquely, so that other plans may use what is cached under it."""
        return all(file.version.is_cacheable for file in self.files)

    # --- tables ---

    @cached_property
    def columns(self) -> dict[str, TableColumn]:
        """The columns of the table by name; empty if the dataset is not a table."""
        if self.table is None:
            return {}
        columns = {column.name: column for column in self.table.columns}
        return columns | {name: replace(columns[stored], name=name) for name, stored in self.image_bytes.items()}

    def values_of(self, file: int) -> dict[str, str | None]:
        """The column values in one file that the table metadata states, as text."""
        return {} if self.table is None else dict(self.table.files[file].values)

    def stored_name(self, file: int, name: str) -> str | None:
        """A field's dotted name in a file; ``None`` if the file lacks the field."""
        if self.table is None:
            return name
        if (file, name) not in self._located:
            self._located[file, name] = self._locate(file, name)
        return self._located[file, name]

    def _locate(self, file: int, name: str) -> str | None:
        if self.columns[name].in_files:
            return None
        path = locate(footer_schema(self.head(file)), self.columns[name], where=self.files[file].shown_path)
        return None if path is None else ".".join(path)

    @cached_property
    def deleted(self) -> dict[int, np.ndarray]:
        """The deleted rows of each row group that has any."""
        return deleted_rows(self)

    @property
    def remote(self) -> bool:
        """Whether the files are on a remote store, so that many reads must be in flight at once."""
        filesystem = self.filesystem if self._folder is None else self.folder[0]
        return bool(filesystem.type_name != "local")

    def field(self, name: str) -> UnischemaField:
        """A readable field: one of the schema, or an image of `image_bytes` under the name of its struct."""
        stored = self.image_bytes.get(name)
        return self.schema[name] if stored is None else self.schema[stored].replace(name=name)

    def match(self, patterns: Sequence[str] | None) -> list[str]:
        """The fields that the patterns select, in schema order; ``None`` selects all fields.

        A regex matches only fields of the schema. Names in `image_bytes` must be given in full.

        Raises:
            FieldNotFoundError: a pattern matches nothing.
            SchemaError: a selected column cannot become a tensor.
        """
        if patterns is None:
            hides = self.refused and self.table is None and self._declared is not None  # the metadata leaves them out
            for reason in () if hides else self.refused.values():
                cannot = ", ".join(map(repr, list(self.refused)[:20])) + (", ..." if len(self.refused) > 20 else "")
                raise SchemaError(f"{reason} Fields that cannot be read: {cannot}; select('.*') keeps all others.")
            if not self.schema.fields:
                places = ", ".join(map(url_without_secrets, self.roots))
                raise SchemaError(f"{places}: expected files with columns, got none. Write them again with columns.")
            return list(self.schema.fields)
        names = dict.fromkeys([*self.schema.fields, *self.refused])
        selection: set[str] = set()
        for pattern in patterns:
            if isinstance(pattern, str) and pattern in self.refused:
                raise SchemaError(self.refused[pattern])
            if isinstance(pattern, str) and pattern in self.image_bytes:
                selection.add(pattern)
                continue
            matches = match_names(pattern, names)
            usable = [name for name in matches if name not in self.refused]
            if not usable:
                raise SchemaError(self.refused[matches[0]])
            selection.update(usable)
        structs = {stored: name for name, stored in self.image_bytes.items() if name in selection}
        ordered = [part for name in self.schema.fields for part in (structs.get(name, name), name)]
        return [name for name in dict.fromkeys(ordered) if name in selection]

    def describe_row(self, row_group: int, row: int) -> str:
        """Describes the position of a row, for messages."""
        return f"{describe_row_group(self, row_group)}, row {row}"


def _types_of(fields: Iterable[UnischemaField]) -> dict[str, pa.DataType]:
    """Returns the Arrow types that fields declare for their columns, by name. Decimals leave their digits open."""
    types = {}
    for field in fields:
        if not field.storage.coded and field.dtype is not decimal.Decimal:
            with suppress(SchemaError):  # a unit that Parquet does not store
                types[field.name] = variable(wide(field.storage.arrow_type(field)))
    return types


def _describe(dataset: StoredDataset) -> tuple[Unischema, dict[str, str], dict[str, pa.Array]]:
    schemas = dataset._schemas
    for each in schemas:
        check_no_deletes(each.examples[0], each.arrow)
    columns, refused = dataset._unified
    if dataset._declared is None:
        schema, unusable = infer_fields(columns)
        refused = {**refused, **unusable}
    else:
        schema, unusable = with_new_columns(dataset._declared, columns, schemas)
        refused = {**{name: why for name, why in refused.items() if name not in schema}, **unusable}
    declared = dataset._declared.fields if dataset._declared is not None else {}
    stored = stored_keys(dataset.files, dataset._declared, schemas)
    partitions, fields = partition_columns(dataset.files, schema, declared, stored, partial(agree, dataset))
    for key in partitions.keys() & stored.keys() if dataset._lists else ():
        warn_of_differences(dataset, url_without_secrets(dataset.roots[0]), key, partitions[key], schemas)
    schema = with_nullable(schema, missing_columns((name for name in schema.fields if name not in partitions), schemas))
    if fields:
        others = {name: field for name, field in fields.items() if name not in schema}
        schema = Unischema(schema.name, [*(fields.get(field.name, field) for field in schema), *others.values()])
    refused = {name: reason for name, reason in refused.items() if name not in fields}
    if dataset._declared is not None and dataset._lists:
        _warn_of_columns(url_without_secrets(dataset.roots[0]), _not_added(refused, schemas))
    return schema, refused, partitions


def _not_added(refused: Mapping[str, str], schemas: Sequence[FileSchema]) -> dict[str, str]:
    newer = missing_columns(refused, schemas)
    return {name: reason for name, reason in refused.items() if name in newer}


def _warn_of_columns(root: str, not_added: Mapping[str, str]) -> None:
    for name, reason in not_added.items():
        if (root, name) not in _warned:
            _warned.add((root, name))
            _LOGGER.warning(
                "dataset '%s': column '%s', which the schema in the metadata does not declare, is left out: %s",
                root,
                name,
                reason,
            )


def first_schema(dataset: StoredDataset) -> tuple[str, pa.Schema]:
    """Returns the path and the Arrow schema of the first file."""
    return dataset.files[0].shown_path, _schema_of(dataset, 0)


def _schema_of(dataset: StoredDataset, file: int) -> pa.Schema:
    footer = dataset.head(file)
    with _naming(dataset.files[file].shown_path):
        return footer_schema(footer)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except ParquetryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"file {path}: expected columns that Arrow has types for, got: {why(error)}. Write it again without the "
            "column, or leave the file out."
        ) from clean_cause(error)


def _distinct_schemas(dataset: StoredDataset) -> list[FileSchema]:
    """The distinct Arrow schemas of the files, in order of first occurrence."""
    if dataset.index is not None:
        place = {file.path: number for number, file in enumerate(dataset.files)}
        described = [(place[path], arrow) for path, arrow in dataset.index.schemas]
        return [FileSchema.of(arrow, [n], [dataset.files[n].shown_path], counted=False) for n, arrow in described]
    return list(dataset.file_facts.schemas)


def _facts_in_footers(dataset: StoredDataset) -> FileFacts:
    seen, numbers = DistinctSchemas(), list[list[int]]()
    rows = list[np.ndarray]()
    last: FooterHead | None = None
    schema = 0
    for number, (listed, footer) in enumerate(
        zip(dataset.files, stored_footers(dataset.filesystem, dataset.files), strict=True)
    ):
        rows.append(footer.rows)
        if not listed.version.has_version_metadata:
            dataset._planned[number] = dataset.footer(number)
        if footer.head is not last:
            last = footer.head
            with _naming(listed.shown_path):
                schema = seen.add(last.empty)
        if schema == len(numbers):
            numbers.append([])
            dataset._heads[number] = footer.head.empty
        numbers[schema].append(number)
    schemas = [
        FileSchema.of(arrow, own, [dataset.files[number].shown_path for number in own[:MOST_EXAMPLES]])
        for arrow, own in zip(seen.schemas, numbers, strict=True)
    ]
    counts = np.array([len(each) for each in rows], np.int64)
    return FileFacts(schemas=tuple(schemas), counts=counts, rows=np.concatenate([np.zeros(0, np.int64), *rows]))


def _declared_schema(listing: FileListing, dataset: StoredDataset) -> Unischema | None:
    """What ``_common_metadata`` declares, and the files: the first one, and those with columns not declared so far."""
    declarations: list[Unischema] = []
    for version in listing.metadata_files:
        schema = _schema_in(read_key_values(listing.filesystem, version), version.shown_path)
        if schema is not None:
            declarations.append(schema)
            break
    for each in dataset._schemas:
        declared = {name for declaration in declarations for name in declaration.fields}
        if declarations and not undeclared(declared, (path for path, _ in flatten_fields(each.arrow))):
            continue
        path, footer = each.examples[0], dataset.head(each.first)
        schema = _schema_in(footer.metadata, path) or _schema_in(footer.schema.to_arrow_schema().metadata, path)
        declarations += [] if schema is None else [schema]
    return joined(declarations)


def read_key_values(filesystem: pafs.FileSystem, version: FileVersion) -> dict[bytes, bytes]:
    """Reads the key-value metadata of ``_common_metadata``: of a newer file if a writer that adds rows has replaced it.

    Raises:
        DatasetError: the file cannot be read, or was removed since it was listed.
    """

    def read() -> dict[bytes, bytes]:
        with opened(filesystem, version) as source:
            return pq.read_schema(source).metadata or {}

    try:
        return with_retries(filesystem, read, f"file {version.shown_path}")
    except ParquetryError:
        newer = None
        with suppress(OSError, pa.ArrowException):
            newer = current_version(filesystem, version.path)
        if newer is None or not version.became(newer):
            raise
        return read_key_values(filesystem, newer)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DatasetError(
            f"file {version.shown_path}: expected Parquet metadata, got: {error}. "
            f"{remedy(error, 'Delete it, or write it again.')}"
        ) from clean_cause(error)


def _schema_in(metadata: Mapping[bytes, bytes] | None, where: str) -> Unischema | None:
    return schema_from_metadata(metadata, where=where) or schema_from_petastorm(metadata or {}, where=where)
