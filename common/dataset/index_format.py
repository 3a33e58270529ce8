"""The format of `_row_groups.parquet`: one line per row group, in file order, and a description in the footer.

The columns are those of `BASE`; ``stored:<leaf>`` and ``decoded:<leaf>``, the compressed and decompressed bytes of each
described leaf column, and ``chunk:<leaf>``, its ColumnChunk as in the footer, without statistics; and ``min:<field>``,
``max:<field>`` and ``nulls:<field>`` of each flat field. Unknown bounds are null, and unknown null counts are -1. Files
without row groups are listed in the description.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..base.process.dataclass import dataclass
from ..parquet.chunk_statistics import belongs
from ..parquet.writers import GENERATION

_MOST_HEAD_BYTES = 1 << 28
INDEX_NAME = "_row_groups.parquet"
METADATA_KEY = b"parquetry.row_groups.v1"
BASE = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),  # path relative to the index's directory
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),  # 0 if the file system has no times
        pa.field("group", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("compressed_bytes", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),  # ETag or generation; empty if there is none, and for local files
        pa.field("head", pa.int32(), nullable=False),  # number of the file's head in the description; -1 if it has none
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDescription:
    """What an index describes.

    Attributes:
        fields: the described fields, by dotted path.
        leaves: the Parquet leaf columns of these fields.
        exact: for each field with statistics, whether its bounds are values that occur in it.
        unbounded: fields with statistics but unknown bounds, because a file has a type that does not widen to the
            first file's type.
        complete: whether no file has fields other than ``fields``.
        empty: ``(relative path, size, mtime_ns, tag)`` of each file without row groups.
        schemas: ``(relative path, serialized Arrow schema)`` of the first file with each distinct schema.
        heads: the distinct `FooterHead` of the files, see `head_to_text`; none if an earlier release wrote the index.
        by_writer: the `GENERATION` of the writers whose bounds were left out.
    """

    fields: tuple[str, ...]
    leaves: tuple[str, ...]
    exact: dict[str, bool]
    unbounded: tuple[str, ...]
    complete: bool
    empty: tuple[tuple[str, int, int, str], ...]
    schemas: tuple[tuple[str, str], ...]
    heads: tuple[str, ...] = ()
    by_writer: int = GENERATION

    def covers(self, names: Sequence[str]) -> bool:
        """Whether the index has everything that the footers say about these fields."""
        return self.complete or all(name in self.fields for name in names)

    def leaves_of(self, names: Sequence[str]) -> list[str]:
        """The leaf columns of the given fields."""
        roots = frozenset(names)
        return [leaf for leaf in self.leaves if belongs(leaf, roots)]

    def to_bytes(self) -> bytes:
        """The form stored in the footer: CRC-32 in 8 hex digits, then JSON. (Pages have checksums of their own.)"""
        text = json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()
        return b"%08x" % zlib.crc32(text) + text

    @classmethod
    def from_bytes(cls, stored: bytes) -> IndexDescription:
        """The inverse of `to_bytes`.

        Raises:
            ValueError, KeyError, TypeError, RecursionError: the bytes are not a valid description.
        """
        if stored[:8] != b"%08x" % zlib.crc32(stored[8:]):
            raise ValueError("the description does not match its checksum")
        value: dict[str, Any] = json.loads(stored[8:])
        return cls(
            fields=tuple(value["fields"]),
            leaves=tuple(value["leaves"]),
            exact=dict(value["exact"]),
            unbounded=tuple(value["unbounded"]),
            complete=bool(value["complete"]),
            empty=tuple((str(path), int(size), int(mtime), str(tag)) for path, size, mtime, tag in value["empty"]),
            schemas=tuple((str(path), str(schema)) for path, schema in value["schemas"]),
            heads=tuple(map(str, value.get("heads", ()))),
            by_writer=int(value["by_writer"]),
        )


def schema_to_text(schema: pa.Schema) -> str:
    """Serializes an Arrow schema to text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """The inverse of `schema_to_text`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def head_to_text(bare: bytes) -> str:
    """Returns a `FooterHead.bare` as text."""
    return base64.b64encode(zlib.compress(bare)).decode("ascii")


def head_from_text(text: str) -> bytes:
    """The inverse of `head_to_text`.

    Raises:
        ValueError, zlib.error: it is damaged, or larger than any schema.
    """
    stream = zlib.decompressobj()
    bare = stream.decompress(base64.b64decode(text), _MOST_HEAD_BYTES)
    if not stream.eof:
        raise ValueError(f"expected the head of a footer in {_MOST_HEAD_BYTES} bytes, got more or less")
    return bare


def index_schema(leaves: Sequence[str], bounds: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """The schema of an index with these leaf columns and these fields with statistics."""
    fields = list(BASE)
    for leaf in leaves:
        fields += [pa.field(f"{kind}:{leaf}", pa.int64(), nullable=False) for kind in ("stored", "decoded")]
        fields.append(pa.field(f"chunk:{leaf}", pa.binary(), nullable=False))
    for name, arrow in bounds:
        fields += [pa.field(f"min:{name}", arrow), pa.field(f"max:{name}", arrow)]
        fields.append(pa.field(f"nulls:{name}", pa.int64(), nullable=False))
    return pa.schema(fields)
