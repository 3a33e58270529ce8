"""What the schema of a file says about its columns: `FileColumns`, and `ColumnKind` of those that the core may read.

Files with the same schema share them (`FooterPart.columns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.memory.arrow_views import is_number, number_dtype
from ..base.process.dataclass import dataclass
from .int96 import with_int96
from .nested import extension_paths, has_extensions, stored_schema, wide, with_whole_extensions

_STORED_BYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_OFFSET_BYTES = {pa.string().id: 4, pa.binary().id: 4, pa.large_string().id: 8, pa.large_binary().id: 8}
_WIDE_BYTES = 8  # of an offset
Leaves = Mapping[str, tuple[int, pa.Field]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """What the schema of a file says about a column that the core may read.

    Attributes:
        leaf: its number in the footer.
        dtype: of its numbers; ``None`` for text, bytes and lists.
        definition: the largest definition level.
        empty: the definition level of an empty list; -1 if it is no list.
        stored: the size of a stored number; 0 for text and bytes.
        width: the size of a number in memory; 1 for text and bytes.
        offset_bytes: the size of an offset of a text or list; 0 for numbers.
    """

    name: str
    leaf: int
    type: pa.DataType
    dtype: np.dtype[Any] | None
    definition: int
    empty: int
    stored: int
    width: int
    offset_bytes: int


class FileColumns:
    """The columns that a footer describes: all of its file, or some.

    Attributes:
        arrow, stored: the Arrow schema of the file, and its `footer_schema`.
        has_int96: whether the file has INT96 timestamps.
        leaves: the columns that consist of a single leaf: its number, and the field, by name. Names that contain a dot
            or occur twice are left out, and extension types, because they depend on what this process has registered.
    """

    def __init__(self, footer: pq.FileMetaData) -> None:
        self.arrow = footer.schema.to_arrow_schema()
        plain = stored_schema(self.arrow)
        self.stored = with_int96(plain, footer)
        self.has_int96 = self.stored is not plain
        self.leaves = _leaves_of(footer, self.arrow)
        self._extensions = extension_paths(self.arrow)
        self._may_change = any(map(has_extensions, self.arrow))
        self._count: int = footer.num_columns
        self._schema = footer.schema
        self._kinds: dict[tuple[tuple[str, ...], str], list[ColumnKind]] = {}
        self._numbers: dict[str, list[int]] = {}
        self._map_parts: dict[str, list[int]] = {}
        for number in range(len(footer.schema)):
            path = footer.schema.column(number).path
            for place in (*(place for place, letter in enumerate(path) if letter == "."), len(path)):
                self._numbers.setdefault(path[:place], []).append(number)
            top, _, part = path.rpartition(".key_value.")
            if part in ("key", "value"):
                self._map_parts.setdefault(f"{top}.{part}", []).append(number)

    def __len__(self) -> int:
        return self._count

    def is_current(self, footer: pq.FileMetaData) -> bool:
        """Whether the types are still those of the file's footer, even if the process has registered others since."""
        return not self._may_change or footer.schema.to_arrow_schema().equals(self.arrow, check_metadata=True)

    def kinds(self, names: tuple[str, ...], types: Sequence[pa.DataType] | None, types_key: str) -> list[ColumnKind]:
        """Returns those of the columns that the core may read.

        Args:
            types: the type that each column must have after its offsets are widened to 64 bits. ``None`` allows columns
                of any type, and keeps their offsets.
            types_key: names these types.
        """
        kinds = self._kinds.get((names, types_key))
        if kinds is None:
            wanted = [None] * len(names) if types is None else types
            pairs = [(self.leaves[name], kind) for name, kind in zip(names, wanted, strict=True) if name in self.leaves]
            possible = [_kind_of(self._schema, *leaf, wanted=kind) for leaf, kind in pairs]
            kinds = self._kinds[names, types_key] = [kind for kind in possible if kind is not None]
        return kinds

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Returns the numbers of the leaf columns that make up the columns with the given dotted names."""
        return sorted({number for name in names for number in self._numbers.get(name, ())})

    def field_numbers(self, names: Iterable[str]) -> list[int]:
        """Returns the numbers of the leaf columns that belong to fields; see `chunk_statistics.belongs`."""
        names = list(names)
        parts = (number for name in names for number in self._map_parts.get(name, ()))
        return sorted({*self.numbers(names), *parts})

    def with_whole_extensions(self, names: Sequence[str]) -> list[str]:
        """Returns the columns to read, given the wanted columns of the `stored` schema."""
        return with_whole_extensions(names, self._extensions)


def _leaves_of(footer: pq.FileMetaData, arrow: pa.Schema) -> Leaves:
    counts = [_leaf_count(kind) for kind in arrow.types]
    if sum(counts) != footer.num_columns:
        return {}
    times = Counter(arrow.names)
    columns = zip(arrow, counts, accumulate(counts), strict=True)
    plain = ((field, end - 1) for field, count, end in columns if count == 1 and times[field.name] == 1)
    return {field.name: (leaf, field) for field, leaf in plain if "." not in field.name and not has_extensions(field)}


def _leaf_count(kind: pa.DataType) -> int:
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if not kind.num_fields:
        return 1
    return sum(_leaf_count(kind.field(number).type) for number in range(kind.num_fields))


def _kind_of(
    schema: pq.ParquetSchema, leaf: int, field: pa.Field, *, wanted: pa.DataType | None = None
) -> ColumnKind | None:
    """Returns the kind of a column, or ``None`` if only Arrow can read it. `FileColumns.kinds` explains ``wanted``."""
    if wanted is not None and wide(field.type) != wanted:
        return None
    levels, kind = schema.column(leaf), field.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    definition = int(field.nullable) + (1 + int(kind.value_field.nullable) if lists else 0)
    if levels.max_repetition_level != int(lists) or levels.max_definition_level != definition:
        return None
    empty, offset_bytes, physical = -1, 0, levels.physical_type
    if lists:
        empty, offset_bytes = int(field.nullable), 4 if pa.types.is_list(kind) else 8
        kind = kind.value_type
    if is_number(kind):
        stored, width = _STORED_BYTES.get(physical, 0), kind.bit_width // 8
        narrowed = physical == "INT32" and width < stored
        if pa.types.is_floating(kind) != (physical in ("FLOAT", "DOUBLE")) or not (width == stored or narrowed):
            return None
    elif kind.id in _OFFSET_BYTES and not lists and physical == "BYTE_ARRAY":
        stored, width, offset_bytes = 0, 1, _OFFSET_BYTES[kind.id]
    else:
        return None
    if wanted is not None and offset_bytes:
        offset_bytes = _WIDE_BYTES
    return ColumnKind(
        name=field.name,
        leaf=leaf,
        type=field.type if wanted is None else wanted,
        dtype=None if offset_bytes else number_dtype(kind),
        definition=definition,
        empty=empty,
        stored=stored,
        width=width,
        offset_bytes=offset_bytes,
    )
