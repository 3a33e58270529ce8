"""`FileColumns`: the columns of a footer by name. Files with the same schema share them (`FooterPart.columns`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from .int96 import with_int96
from .native_decode import ColumnKind, column_kind, leaves_of
from .nested import extension_paths, has_extensions, stored_schema, with_whole_extensions


class FileColumns:
    """The columns that a footer describes: all of its file, or some.

    Attributes:
        arrow, stored: the Arrow schema of the file, and its `footer_schema`.
        has_int96: whether the file has INT96 timestamps.
        leaves: the `leaves_of` the file.
    """

    def __init__(self, footer: pq.FileMetaData) -> None:
        self.arrow = footer.schema.to_arrow_schema()
        plain = stored_schema(self.arrow)
        self.stored = with_int96(plain, footer)
        self.has_int96 = self.stored is not plain
        self.leaves = leaves_of(footer, self.arrow)
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
            types: see `core_columns`.
            types_key: names these types.
        """
        kinds = self._kinds.get((names, types_key))
        if kinds is None:
            wanted = [None] * len(names) if types is None else types
            pairs = [(self.leaves[name], kind) for name, kind in zip(names, wanted, strict=True) if name in self.leaves]
            possible = [column_kind(self._schema, *leaf, wanted=kind) for leaf, kind in pairs]
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
