"""Which columns a dataset has: those of all its files, and those that its metadata declares.

The input is one `FileSchema` for each distinct Arrow schema among the files. The functions here are pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from ..base.errors import SchemaError
from ..base.memory.arrow_views import as_numpy
from ..base.process.dataclass import dataclass
from ..schema.field import Unischema, UnischemaField
from ..schema.infer import flatten_fields, infer_field
from .index_format import schema_from_text, schema_to_text

MOST_EXAMPLES = 3
_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSchema:
    """One Arrow schema, and the files that have it.

    Attributes:
        first: the number of the first of these files.
        files: how many there are; ``None`` if only the row-group index was read.
        examples: the paths of the first ones, for people.
    """

    arrow: pa.Schema
    names: frozenset[str]
    first: int
    files: int | None
    examples: tuple[str, ...]

    @classmethod
    def of(cls, arrow: pa.Schema, numbers: Sequence[int], paths: Sequence[str], *, counted: bool = True) -> FileSchema:
        """Creates the value from the numbers of its files and the paths of the first ones."""
        files = len(numbers) if counted else None
        return cls._with_names(arrow, numbers[0], files, paths[:MOST_EXAMPLES])

    @classmethod
    def _with_names(cls, arrow: pa.Schema, first: int, files: int | None, examples: Sequence[str]) -> FileSchema:
        names = frozenset((*arrow.names, *(path for path, _ in flatten_fields(arrow))))
        return cls(arrow=arrow, names=names, first=first, files=files, examples=tuple(examples))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileFacts:
    """What planning needs from the footers of all files.

    Attributes:
        schemas: the distinct schemas, in order of first occurrence.
        counts: the number of row groups of each file, int64.
        rows: the number of rows of each row group, in file order, int64.
    """

    schemas: tuple[FileSchema, ...]
    counts: np.ndarray
    rows: np.ndarray

    def to_bytes(self) -> bytes:
        """The facts as an Arrow stream."""
        schemas = [[schema_to_text(each.arrow), each.first, each.files, each.examples] for each in self.schemas]
        sink = pa.BufferOutputStream()
        columns = {
            "schemas": pa.array([json.dumps(schemas)], pa.large_string()),
            "counts": pa.array([self.counts], pa.large_list(pa.int64())),
            "rows": pa.array([self.rows], pa.large_list(pa.int64())),
        }
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def from_bytes(cls, stored: bytes) -> FileFacts:
        """The inverse of `to_bytes`. Damaged bytes raise one of `file_cache.UNREADABLE`."""
        batch = pa.ipc.open_stream(pa.py_buffer(stored)).read_next_batch()
        schemas = json.loads(batch.column("schemas")[0].as_py())
        counts, rows = (as_numpy(batch.column(name)[0].values) for name in ("counts", "rows"))
        if int(counts.sum()) != len(rows):
            raise ValueError("expected the rows of every row group")
        return cls(
            schemas=tuple([FileSchema._with_names(schema_from_text(text), *others) for text, *others in schemas]),
            counts=counts,
            rows=rows,
        )


def facts_key(version: str) -> str:
    """The name under which `FileFacts` of a dataset's version are kept. Arrow's types depend on its release."""
    return hashlib.blake2b(f"{_VERSION} {pa.__version__} {version}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeFiles:
    """Some of the files.

    Attributes:
        files: how many they are; ``None`` if only the row-group index was read.
        examples: the paths of some.
    """

    files: int | None
    examples: tuple[str, ...]

    @classmethod
    def of(cls, schemas: Sequence[FileSchema]) -> SomeFiles:
        """Creates the value for the files that have one of the schemas."""
        counts = [schema.files for schema in schemas]
        known = [count for count in counts if count is not None]
        examples = [path for schema in schemas for path in schema.examples][:MOST_EXAMPLES]
        return cls(files=sum(known) if len(known) == len(counts) else None, examples=tuple(examples))

    def __str__(self) -> str:
        count = "some files" if self.files is None else f"{self.files:,} file{'s' if self.files > 1 else ''}"
        whole = self.files is not None and self.files <= len(self.examples)
        return f"{count} ({'' if whole else 'such as '}{', '.join(self.examples)})"


def missing_columns(names: Iterable[str], schemas: Sequence[FileSchema]) -> dict[str, SomeFiles]:
    """The columns among ``names`` that only some of the files have, with the files that lack each."""
    missing = {}
    for name in names if len(schemas) > 1 else ():
        without = [schema for schema in schemas if name not in schema.names]
        if 0 < len(without) < len(schemas):
            missing[name] = SomeFiles.of(without)
    return missing


def differing_columns(schemas: Sequence[FileSchema]) -> dict[str, dict[str, SomeFiles]]:
    """The columns that files store in different types, by dotted path, with the files that have each type."""
    types: dict[str, dict[str, list[FileSchema]]] = {}
    for schema in schemas if len(schemas) > 1 else ():
        for path, column in flatten_fields(schema.arrow):
            types.setdefault(path, {}).setdefault(str(column.type), []).append(schema)
    differing = {path: kinds for path, kinds in types.items() if len(kinds) > 1}
    return {path: {kind: SomeFiles.of(own) for kind, own in kinds.items()} for path, kinds in differing.items()}


def types_text(types: Mapping[str, SomeFiles]) -> str:
    """Says which files store a column in which type.

    >>> types_text({"int64": SomeFiles(files=1, examples=("a",)), "double": SomeFiles(files=9, examples=("b", "c"))})
    'stored as int64 in 1 file (a) and as double in 9 files (such as b, c)'
    """
    return f"stored as {' and as '.join(f'{kind} in {files}' for kind, files in types.items())}"


def undeclared(declared: Collection[str], names: Iterable[str]) -> list[str]:
    """The columns, by dotted path, that no field declares: neither by their own name nor by that of a struct around."""
    return [
        name
        for name in names
        if name not in declared
        and not any(letter == "." and name[:place] in declared for place, letter in enumerate(name))
    ]


def joined(declarations: Sequence[Unischema]) -> Unischema | None:
    """The schema that several declare together, where the first one counts; ``None`` if there is none."""
    if len(declarations) < 2:
        return declarations[0] if declarations else None
    fields: dict[str, UnischemaField] = {}
    for declaration in declarations:
        new = undeclared(fields, declaration.fields)
        fields |= {name: declaration[name] for name in new}
    return Unischema(declarations[0].name, fields.values())


def with_new_columns(
    declared: Unischema, columns: Sequence[tuple[str, pa.Field]], schemas: Sequence[FileSchema]
) -> tuple[Unischema, dict[str, str]]:
    """Adds the columns that no field declares and that only some of the files have.

    What every file has and no field declares was left out on purpose.

    Returns:
        The schema, and the reason for each such column that cannot become a field.
    """
    fields = list(declared)
    refused: dict[str, str] = {}
    new = set(undeclared(declared.fields, (path for path, _ in columns)))
    for path, column in columns:
        if path in new and any(path not in schema.names for schema in schemas):
            try:
                fields.append(infer_field(path, column))
            except SchemaError as error:
                refused[path] = str(error)
    return (declared if len(fields) == len(declared) else Unischema(declared.name, fields)), refused


def with_nullable(schema: Unischema, missing: Mapping[str, object]) -> Unischema:
    """Makes the fields nullable that some of the files lack."""
    if all(field.nullable for field in schema if field.name in missing):
        return schema
    fields = [field.replace(nullable=True) if field.name in missing else field for field in schema]
    return Unischema(schema.name, fields)
