"""`read_numbers`: reads columns of numbers with the compiled core, in a third of Arrow's time.

It takes an open file and returns the columns that it could read; Arrow reads the others. A column qualifies if it is
not nested, has no nulls, and is stored uncompressed or with Snappy, as plain values or as codes of a dictionary. A
column whose bytes are not as expected is left to Arrow, too, which then says what is wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..memory.arena import BLOCK_REGIONS, SCRATCH, array_bytes
from ..memory.arrow_views import is_number, number_dtype
from ..native.library import is_compiled
from ..native.pages import CHUNK, SLACK, decode_chunks
from ..process.forks import ForkLock

_STORED_BYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_ENCODINGS = {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_COMPRESSED = {"UNCOMPRESSED": 0, "SNAPPY": 1}
_READ_BYTES = 1 << 20  # chunks that follow each other are read together, as long as they stay in the processor's cache
_MOST_CHUNK_BYTES = 16 << 20
_MOST_PAGE_BYTES = 4 << 20
_MOST_RATIO = 64  # of decoded to stored bytes; nothing is allocated because a footer claims more
_LEAST_BYTES = 1 << 20  # which are always allocated
_MOST_KEPT = 512  # row groups


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The column chunks of a row group that may be read.

    Attributes:
        names: the columns, in the order of their chunks.
        begins: the offset of each chunk in the file.
        described: the chunks without addresses, of dtype `CHUNK`.
        page_bytes: the size of the largest page at most.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    begins: tuple[int, ...]
    described: np.ndarray
    page_bytes: int


_known: OrderedDict[tuple[str, tuple[str, ...]], _Chunks] = OrderedDict()
_lock = ForkLock()


def read_numbers(
    source: pa.NativeFile,
    footer: pq.FileMetaData,
    group: int,
    columns: Sequence[str],
    arrow: pa.Schema,
    *,
    key: str,
    checked: bool,
) -> dict[str, pa.Array]:
    """Returns those of some columns of a row group that can be read without Arrow, by name.

    The values are in memory that is reused when the last of these arrays is gone.

    Args:
        arrow: the Arrow schema of the file.
        key: names the version of the file and the row group.
        checked: whether pages must match their checksums, if they have some.
    """
    if not is_compiled():
        return {}
    chunks = _chunks(footer, group, tuple(columns), arrow, key)
    if not chunks.names:
        return {}
    rows = footer.row_group(group).num_rows
    described = chunks.described.copy()
    dtypes = [number_dtype(kind) for kind in chunks.types]
    region = BLOCK_REGIONS.acquire(sum(array_bytes(dtype, (rows,)) for dtype in dtypes))
    try:
        targets = [region.allocate(dtype, (rows,)) for dtype in dtypes]
    finally:
        region.end()
    described["target"] = [target.ctypes.data for target in targets]
    page = SCRATCH.array("page", (chunks.page_bytes + SLACK,), np.dtype(np.uint8))
    dictionary = SCRATCH.array("dictionary", (chunks.page_bytes + SLACK,), np.dtype(np.uint8))
    for first, last in _read_together(chunks):
        part = described[first:last]
        if _read(source, chunks.begins[first], part):
            decode_chunks(part, rows, checked=checked, page=page, dictionary=dictionary)
    found = zip(chunks.names, chunks.types, targets, described["done"].tolist(), strict=True)
    return {
        name: pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)
        for name, kind, values, done in found
        if done
    }


def _read(source: pa.NativeFile, begin: int, chunks: np.ndarray) -> bool:
    """Reads chunks that follow each other. Returns whether all of them are there."""
    size = int(chunks["size"].sum())
    data = SCRATCH.array("chunks", (size + SLACK,), np.dtype(np.uint8))
    source.seek(begin)
    if source.readinto(memoryview(data)[:size]) != size:  # type: ignore[arg-type]  # an array is a buffer
        return False
    ends = np.cumsum(chunks["size"])
    chunks["data"] = data.ctypes.data + ends - chunks["size"]
    return True


def _read_together(chunks: _Chunks) -> list[tuple[int, int]]:
    """Returns which chunks to read together: the numbers of the first, and of the one after the last."""
    runs: list[tuple[int, int]] = []
    first, size = 0, 0
    sizes = chunks.described["size"].tolist()
    for number, each in enumerate(sizes):
        follows = number > first and chunks.begins[number] == chunks.begins[number - 1] + sizes[number - 1]
        if number > first and (not follows or size + each > _READ_BYTES):
            runs.append((first, number))
            first, size = number, 0
        size += each
    return [*runs, (first, len(sizes))]


def _chunks(footer: pq.FileMetaData, group: int, columns: tuple[str, ...], arrow: pa.Schema, key: str) -> _Chunks:
    """Returns the chunks of the columns that qualify, in the order of the file."""
    name = key, columns
    with _lock:
        if name in _known:
            _known.move_to_end(name)
            return _known[name]
    made = _found(footer, group, set(columns), arrow)
    with _lock:
        _known[name] = made
        while len(_known) > _MOST_KEPT:
            _known.popitem(last=False)
    return made


def _found(footer: pq.FileMetaData, group: int, columns: set[str], arrow: pa.Schema) -> _Chunks:
    schema, row_group = footer.schema, footer.row_group(group)
    rows = row_group.num_rows
    found = []
    page_bytes = 0
    for number in range(footer.num_columns):
        leaf = schema.column(number)
        if leaf.path not in columns or leaf.max_repetition_level or leaf.max_definition_level > 1:
            continue
        place = arrow.get_field_index(leaf.path)
        kind = arrow.field(place).type if place >= 0 else None  # neither nested, nor one of several with this name
        if kind is None or not is_number(kind):
            continue
        chunk = row_group.column(number)
        stored = _STORED_BYTES.get(chunk.physical_type, 0)
        width = kind.bit_width // 8
        same = width == stored or (chunk.physical_type == "INT32" and width < stored)
        if not same or pa.types.is_floating(kind) != (chunk.physical_type in ("FLOAT", "DOUBLE")):
            continue
        if not set(chunk.encodings) <= _ENCODINGS or chunk.compression not in _COMPRESSED:
            continue
        if leaf.max_definition_level and not _is_without_nulls(chunk):
            continue
        begin, size = chunk.data_page_offset, chunk.total_compressed_size
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            begin = min(begin, chunk.dictionary_page_offset)
        claimed = max(rows * stored, chunk.total_uncompressed_size)
        if begin < 0 or not 0 < size <= _MOST_CHUNK_BYTES or claimed > max(_MOST_RATIO * size, _LEAST_BYTES):
            continue
        page_bytes = max(page_bytes, min(chunk.total_uncompressed_size, _MOST_PAGE_BYTES))
        compressed = _COMPRESSED[chunk.compression]
        described = (0, size, stored, width, compressed, leaf.max_definition_level, 0, 0)
        found.append((begin, leaf.path, kind, described))
    found.sort(key=lambda each: each[0])
    return _Chunks(
        names=tuple(name for _, name, _, _ in found),
        types=tuple(kind for _, _, kind, _ in found),
        begins=tuple(begin for begin, _, _, _ in found),
        described=np.array([described for *_, described in found], CHUNK),
        page_bytes=page_bytes,
    )


def _is_without_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics if chunk.is_stats_set else None
    return statistics is not None and statistics.has_null_count and statistics.null_count == 0
