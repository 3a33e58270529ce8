"""`write_index` describes all row groups of a dataset in one small file, from their footers.

It writes `_row_groups.parquet` into the dataset's directory. The file appears complete or not at all, and memory is
bounded by some ten thousand row groups, however many the dataset has.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError
from ..base.native.parquet import CHUNK_FACTS
from ..base.urls import clean_cause
from ..parquet.chunk_statistics import (
    belongs,
    bound_types,
    bounds_in,
    flat_columns,
    is_exact,
    leaf_columns,
    raw_statistics,
)
from ..parquet.evolution import DistinctSchemas, widen
from ..parquet.footers import naming_file
from ..parquet.group_footers import GroupFooter, StoredFooter, read_stored_footer, stored_footers
from ..schema.field import match_names
from ..storage.files import DataFile, FileListing, list_files
from ..storage.whole_files import whole_file
from .index_format import (
    INDEX_NAME,
    METADATA_KEY,
    IndexDescription,
    head_from_text,
    head_to_text,
    index_schema,
    schema_to_text,
)

_FILES_AT_A_TIME, _CHUNKS_AT_A_TIME = 64, 1 << 15
_MOST_LINES, _LEAST_LINES, _VALUES_AT_A_TIME = 1 << 15, 1 << 8, 1 << 20  # of a row group of the index
_MOST_HEADS = 64


def write_index(
    url: str | os.PathLike[str],
    *,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
    columns: str | Sequence[str] | None = None,
) -> str:
    """Writes the row-group index of the dataset in a directory, replacing an older one.

    Write it again whenever files are added, removed or changed. An index that does not match the files is not used.

    Args:
        url: a directory.
        filesystem: a ``pyarrow.fs`` or fsspec file system to use instead of the URL's own.
        storage_options: arguments for fsspec.
        columns: names or regexes of the fields to describe; ``None`` for all. Other fields are planned from footers.

    Returns:
        The path of the index on its file system.

    Raises:
        DatasetError: the directory does not exist, has no Parquet files, or cannot be written.
        FieldNotFoundError: a pattern matches no field of the first and the last file.
    """
    listing = list_files(
        [os.fspath(url)], filesystem=filesystem, storage_options=dict(storage_options) if storage_options else None
    )
    columns = [columns] if isinstance(columns, str) else columns
    path = posixpath.join(listing.directory("row-group index"), INDEX_NAME)
    lines: IndexLines | None = IndexLines(
        listing.filesystem, dict.fromkeys((listing.files[0], listing.files[-1])), columns
    )
    with new_index_file(listing.filesystem, path) as hidden:
        while lines is not None:  # once, or again with the fields that only later files have
            with closing(tables_of(listing, lines)) as tables:
                write_tables(listing.filesystem, hidden, lines, tables)
            lines = lines.with_more_fields(listing.files)
    return path


@contextmanager
def new_index_file(filesystem: pafs.FileSystem, path: str) -> Iterator[str]:
    """Yields the path to write an index to, which takes the place of the old one when the block ends.

    Raises:
        DatasetError: it cannot be written.
    """
    try:
        with whole_file(path, filesystem) as hidden:
            yield hidden
    except ParquetryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"row-group index '{path}': cannot be written: {error}. Check the permissions and the free space."
        ) from clean_cause(error)


def write_tables(filesystem: pafs.FileSystem, path: str, lines: IndexLines, tables: Iterable[pa.Table]) -> None:
    """Writes an index with some lines, of which ``lines`` has the description when the last table has been made."""
    with pq.ParquetWriter(
        path,
        lines.schema,
        filesystem=filesystem,
        compression="zstd",
        use_dictionary=[name for name in lines.schema.names if not name.startswith("chunk:")],  # no two are equal
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        waiting: list[pa.Table] = []
        for table in tables:
            waiting.append(table)
            if sum(map(len, waiting)) >= lines.at_a_time:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
        writer.add_key_value_metadata({METADATA_KEY: lines.description().to_bytes()})


def tables_of(listing: FileListing, lines: IndexLines) -> Generator[pa.Table, None, None]:
    """Yields the lines of all files, some files at a time, from their footers."""
    some, chunks = list[tuple[DataFile, StoredFooter]](), 0
    footers = stored_footers(listing.filesystem, listing.files, "indexing row groups")
    for file, footer in zip(listing.files, footers, strict=True):
        some.append((file, footer))
        chunks += len(footer.rows) * footer.head.empty.num_columns
        if len(some) == _FILES_AT_A_TIME or chunks >= _CHUNKS_AT_A_TIME:
            yield lines.of(some)
            some, chunks = [], 0
    if some:
        yield lines.of(some)


class IndexLines:
    """Makes the lines of an index, some files at a time, and collects the contents of its description.

    Args:
        models: the files whose fields are described; the first one with values determines the type of a field's bounds.
        patterns: the fields to describe; ``None`` for all.
    """

    def __init__(self, filesystem: pafs.FileSystem, models: Iterable[DataFile], patterns: Sequence[str] | None) -> None:
        self._filesystem, self.models, self._patterns = filesystem, tuple(models), patterns
        types: dict[str, pa.DataType] = {}
        leaves, flat = dict[str, int](), set[str]()
        for footer in (read_stored_footer(filesystem, file).head.empty for file in self.models):
            new = {name: kind for name, kind in bound_types(footer) if types.get(name, pa.null()) == pa.null()}
            flat |= new.keys() & flat_columns(footer).keys()
            types, leaves = {**types, **new}, {**leaves, **leaf_columns(footer)}
        chosen = set(types) if patterns is None else {name for p in patterns for name in match_names(p, types)}
        self._fields = [name for name in types if name in chosen]
        self._leaves = [leaf for leaf in leaves if patterns is None or belongs(leaf, chosen)]
        self._bounds = {name: types[name] for name in self._fields if name in flat}
        self._all_fields = patterns is None
        self._known = frozenset(leaves)
        self._extra: set[str] = set()
        self._unbounded: set[str] = set()
        self._exact: dict[str, bool] = {}
        self._empty: list[tuple[str, int, int, str]] = []
        self._seen = DistinctSchemas()
        self._schemas: list[tuple[str, str]] = []  # with the first file that has each, in the order of paths
        self._heads: dict[bytes, int] = {}
        self.at_a_time = min(_MOST_LINES, max(_LEAST_LINES, _VALUES_AT_A_TIME // max(1, len(self._leaves))))
        self.schema = index_schema(self._leaves, list(self._bounds.items()))

    def begin_with(self, described: IndexDescription, examples: Sequence[DataFile]) -> None:
        """Starts from an index, whose lines come before those that this object makes.

        Args:
            examples: the files of ``described.schemas``.
        """
        self._note_schemas(examples, [read_stored_footer(self._filesystem, file).head.empty for file in examples])
        self._heads = {head_from_text(text): number for number, text in enumerate(described.heads)}
        self._unbounded.update(described.unbounded)
        self._exact.update({name: True for name, exact in described.exact.items() if exact})
        self._empty += described.empty

    def with_more_fields(self, files: Sequence[DataFile]) -> IndexLines | None:
        """An object for the same lines with the fields of all files; ``None`` if this one has them."""
        if not self._extra:
            return None
        places = {path for path, _ in self._schemas}
        models = [file for file in files if file.relative in places]
        wider = IndexLines(self._filesystem, models, self._patterns)
        return wider if wider._fields != self._fields else None

    def description(self) -> IndexDescription:
        """The description of the lines so far."""
        return IndexDescription(
            fields=tuple(name for name in self._fields if not any(belongs(leaf, (name,)) for leaf in self._extra)),
            leaves=tuple(self._leaves),
            exact={name: self._exact.get(name, False) for name in self._bounds},
            unbounded=tuple(sorted(self._unbounded)),
            complete=self._all_fields and not self._extra,
            empty=tuple(self._empty),
            schemas=tuple(sorted(self._schemas)),
            heads=tuple(map(head_to_text, self._heads)),
        )

    def of(self, files: Sequence[tuple[DataFile, StoredFooter]]) -> pa.Table:
        """The lines of the given files."""
        described = [_FileLines(file, footer) for file, footer in files]
        for each in described:
            file = each.file
            if not each.groups:
                self._empty.append((file.relative, file.size_bytes, file.mtime_ns, file.version.portable_tag))
            self._extra.update(each.places.keys() - self._known)
        self._note_schemas([each.file for each in described], [each.head for each in described])
        columns: dict[str, Any] = {
            "file": [each.file.relative for each in described for _ in each.groups],
            "size_bytes": [each.file.size_bytes for each in described for _ in each.groups],
            "mtime_ns": [each.file.mtime_ns for each in described for _ in each.groups],
            "group": [number for each in described for number in range(len(each.groups))],
            "rows": [group.rows for each in described for group in each.groups],
            "compressed_bytes": np.concatenate([each.facts["stored_bytes"].sum(axis=1) for each in described]),
            "tag": [each.file.version.portable_tag for each in described for _ in each.groups],
            "head": [number for each in described for number in [self._head_of(each)] * len(each.groups)],
        }
        for leaf in self._leaves:
            columns[f"stored:{leaf}"] = np.concatenate([each.numbers(leaf, "stored_bytes") for each in described])
            columns[f"decoded:{leaf}"] = np.concatenate([each.numbers(leaf, "unpacked_bytes") for each in described])
            columns[f"chunk:{leaf}"] = [chunk for each in described for chunk in each.chunks(leaf)]
        names = list(self._bounds)
        at_once = max(1, _CHUNKS_AT_A_TIME // max(1, len(columns["rows"])))
        for first in range(0, len(names), at_once):
            columns |= self._bounds_of(files, names[first : first + at_once])
        return pa.table([_array(columns[field.name], field.type) for field in self.schema], schema=self.schema)

    def _head_of(self, described: _FileLines) -> int:
        """The number of a file's head in the description; -1 if its footer has to be read."""
        if described.facts["elsewhere"].any():
            return -1
        bare = described.footer.head.bare
        if bare not in self._heads and len(self._heads) == _MOST_HEADS:
            return -1
        return self._heads.setdefault(bare, len(self._heads))

    def _bounds_of(self, files: Sequence[tuple[DataFile, StoredFooter]], names: Sequence[str]) -> dict[str, Any]:
        """The columns of the statistics of some fields."""
        columns: dict[str, Any] = {}
        footers, chosen = [], frozenset(names)
        for file, stored in files:
            with naming_file(file):
                footers.append(stored.columns_footer(chosen))
        counts = [len(stored.rows) for _, stored in files]
        types = [dict(bound_types(footer)) for footer in footers]
        flat = [flat_columns(footer) for footer in footers]
        for name in names:
            arrow = self._bounds[name]
            kinds = [each.get(name, arrow) for each in types]
            if any(widen(kind, arrow) != arrow for kind in kinds):  # rounded bounds are not valid
                self._unbounded.add(name)
            of_group = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
            columns |= self._statistics(footers, [each.get(name) for each in flat], name, of_group)
        return columns

    def _note_schemas(self, files: Sequence[DataFile], footers: Sequence[pq.FileMetaData]) -> None:
        for file, footer in zip(files, footers, strict=True):
            number = self._seen.add(footer)
            if number == len(self._schemas):
                self._schemas.append((file.relative, schema_to_text(self._seen.schemas[-1])))
            elif file.relative < self._schemas[number][0]:
                self._schemas[number] = file.relative, self._schemas[number][1]

    def _statistics(
        self,
        footers: Sequence[pq.FileMetaData],
        columns: Sequence[int | None],
        name: str,
        types: Sequence[pa.DataType],
    ) -> dict[str, pa.Array | list[int]]:
        minimum, maximum, nulls = raw_statistics(footers, columns, types)
        exact = is_exact(minimum)
        if exact is not None:
            self._exact.setdefault(name, exact)
        result: dict[str, pa.Array | list[int]] = {f"nulls:{name}": nulls}
        for kind, values in (("min", minimum), ("max", maximum)):
            bounds = None if name in self._unbounded else bounds_in(values, types, self._bounds[name])
            if bounds is None and any(value is not None for value in values):
                self._unbounded.add(name)
            result[f"{kind}:{name}"] = pa.nulls(len(values), self._bounds[name]) if bounds is None else bounds
        return result


class _FileLines:
    """What the footer of a file says for its lines.

    Attributes:
        head: the footer without its row groups.
        places: the number of each leaf column by path.
        groups: the row groups.
        facts: the `CHUNK_FACTS` of each row group (first axis) and leaf column.
    """

    def __init__(self, file: DataFile, footer: StoredFooter) -> None:
        self.file = file
        self.footer = footer
        self.head = footer.head.empty
        self.places = leaf_columns(self.head)
        with naming_file(file):
            self.groups: list[GroupFooter] = footer.bare_groups(file)
            self.facts = np.zeros((len(self.groups), self.head.num_columns), CHUNK_FACTS)
            for number, group in enumerate(self.groups):
                self.facts[number] = group.facts
            self._chunks = [group.chunk_descriptions() for group in self.groups]

    def numbers(self, leaf: str, fact: str) -> np.ndarray:
        """A fact about a leaf column in each row group; 0 if the file lacks it."""
        place = self.places.get(leaf)
        return np.zeros(len(self.groups), np.int64) if place is None else self.facts[fact][:, place]

    def chunks(self, leaf: str) -> list[bytes]:
        """The descriptions of the chunks of a leaf column; empty if the file lacks it."""
        place = self.places.get(leaf)
        return [b"" if place is None else chunks[place] for chunks in self._chunks]


def _array(values: object, arrow: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, arrow)
