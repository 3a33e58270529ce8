"""`write_index` describes all row groups of a dataset in one small file, from their footers.

It writes `_row_groups.parquet` into the dataset's directory. The file appears complete or not at all, and memory is
bounded by some ten thousand row groups, however many the dataset has.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError
from ..base.progress import thread_pool
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
from ..parquet.footers import load_footer
from ..schema.field import match_names
from ..storage.files import DataFile, FileListing, list_files
from ..storage.whole_files import whole_file
from .index_format import INDEX_NAME, METADATA_KEY, IndexDescription, index_schema, schema_to_text

_PROGRESS_AFTER_S = 2.0
_FILES_AT_A_TIME = 64
_LINES_AT_A_TIME = 1 << 15
_THREADS = 16


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
    try:
        with whole_file(path, listing.filesystem) as hidden:
            while lines is not None:  # once, or again with the fields that only later files have
                with closing(tables_of(listing, lines)) as tables:
                    write_tables(listing.filesystem, hidden, lines, tables)
                lines = lines.with_more_fields(listing.files)
    except ParquetryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"row-group index '{path}': cannot be written: {error}. Check the permissions and the free space."
        ) from clean_cause(error)
    return path


def write_tables(filesystem: pafs.FileSystem, path: str, lines: IndexLines, tables: Iterable[pa.Table]) -> None:
    """Writes an index with some lines, of which ``lines`` has the description when the last table has been made."""
    with pq.ParquetWriter(
        path,
        lines.schema,
        filesystem=filesystem,
        compression="zstd",
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        waiting: list[pa.Table] = []
        for table in tables:
            waiting.append(table)
            if sum(map(len, waiting)) >= _LINES_AT_A_TIME:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
        writer.add_key_value_metadata({METADATA_KEY: lines.description().to_bytes()})


def tables_of(listing: FileListing, lines: IndexLines) -> Generator[pa.Table, None, None]:
    """Yields the lines of all files, some files at a time, from their footers."""
    from tqdm import tqdm  # imported here because readers of an index import this module

    progress = tqdm(
        desc="indexing row groups", total=len(listing.files), leave=False, delay=_PROGRESS_AFTER_S, unit="file"
    )
    with thread_pool(_THREADS, "parquetry-index") as pool, progress:
        for first in range(0, len(listing.files), _FILES_AT_A_TIME):
            files = listing.files[first : first + _FILES_AT_A_TIME]
            footers = list(pool.map(lambda file: load_footer(listing.filesystem, file), files))
            yield lines.of(files, footers)
            progress.update(len(files))


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
        for footer in (load_footer(filesystem, file) for file in self.models):
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
        self.schema = index_schema(self._leaves, list(self._bounds.items()))

    def begin_with(self, described: IndexDescription, examples: Sequence[DataFile]) -> None:
        """Starts from an index, whose lines come before those that this object makes.

        Args:
            examples: the files of ``described.schemas``.
        """
        self._note_schemas(examples, [load_footer(self._filesystem, file) for file in examples])
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
        )

    def of(self, files: Sequence[DataFile], footers: Sequence[pq.FileMetaData]) -> pa.Table:
        """The lines of the given files."""
        counts = [footer.num_row_groups for footer in footers]
        groups = [footer.row_group(number) for footer in footers for number in range(footer.num_row_groups)]
        for file, count in zip(files, counts, strict=True):
            if not count:
                self._empty.append((file.relative, file.size_bytes, file.mtime_ns, file.version.portable_tag))
        self._note_schemas(files, footers)
        places = [leaf_columns(footer) for footer in footers]
        self._extra.update(leaf for found in places for leaf in found if leaf not in self._known)
        columns: dict[str, Any] = {
            "file": [file.relative for file, count in zip(files, counts, strict=True) for _ in range(count)],
            "size_bytes": np.repeat(np.array([file.size_bytes for file in files], np.int64), counts),
            "mtime_ns": np.repeat(np.array([file.mtime_ns for file in files], np.int64), counts),
            "group": [number for count in counts for number in range(count)],
            "rows": [group.num_rows for group in groups],
            "tag": [file.version.portable_tag for file, count in zip(files, counts, strict=True) for _ in range(count)],
            "compressed_bytes": [_compressed_bytes(group) for group in groups],
        }
        for leaf in self._leaves:
            numbers = np.repeat(np.array([found.get(leaf, -1) for found in places]), counts).tolist()
            chunks = [None if n < 0 else group.column(n) for group, n in zip(groups, numbers, strict=True)]
            columns[f"stored:{leaf}"] = [0 if chunk is None else chunk.total_compressed_size for chunk in chunks]
            columns[f"decoded:{leaf}"] = [0 if chunk is None else chunk.total_uncompressed_size for chunk in chunks]
        types = [dict(bound_types(footer)) for footer in footers]
        flat = [flat_columns(footer) for footer in footers]
        for name, arrow in self._bounds.items():
            stored = [found.get(name, arrow) for found in types]
            if any(widen(kind, arrow) != arrow for kind in stored):  # rounded bounds are not valid
                self._unbounded.add(name)
            of_group = [kind for kind, count in zip(stored, counts, strict=True) for _ in range(count)]
            columns |= self._statistics(footers, [found.get(name) for found in flat], name, of_group)
        return pa.table([_array(columns[field.name], field.type) for field in self.schema], schema=self.schema)

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


def _array(values: object, arrow: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, arrow)


def _compressed_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))
