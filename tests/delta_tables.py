"""Writes Delta tables by hand, with features that deltalake cannot write: deletion vectors, column mapping."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
MAGIC = struct.pack("<I", 1681511377)


def z85(data: bytes) -> str:
    """Encodes four bytes as five letters, highest first."""
    text = ""
    for (number,) in struct.iter_unpack(">I", data + b"\0" * (-len(data) % 4)):
        text += "".join(_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


def roaring32(numbers: Sequence[int], runs: bool) -> bytes:
    """Encodes a 32-bit roaring bitmap; with ``runs``, every container is a list of runs."""
    by_key: dict[int, list[int]] = {}
    for number in sorted(numbers):
        by_key.setdefault(number >> 16, []).append(number & 0xFFFF)
    count = len(by_key)
    head = struct.pack("<II", 12346, count)
    if runs:
        flags = np.packbits(np.ones(count, dtype=bool), bitorder="little").tobytes()
        head = struct.pack("<I", 12347 | (count - 1) << 16) + flags
    head += b"".join(struct.pack("<HH", key, len(lows) - 1) for key, lows in by_key.items())
    bodies = [_container(lows, runs) for lows in by_key.values()]
    if not runs or count >= 4:
        place = len(head) + 4 * count
        for body in bodies:
            head += struct.pack("<I", place)
            place += len(body)
    return head + b"".join(bodies)


def _container(lows: list[int], runs: bool) -> bytes:
    if runs:
        breaks = [n for n in range(len(lows)) if n == 0 or lows[n] != lows[n - 1] + 1]
        found = [(lows[lo], hi - lo - 1) for lo, hi in zip(breaks, [*breaks[1:], len(lows)], strict=True)]
        return struct.pack("<H", len(found)) + b"".join(struct.pack("<HH", *run) for run in found)
    if len(lows) <= 4096:
        return np.array(lows, "<u2").tobytes()
    bits = np.zeros(1 << 16, dtype=bool)
    bits[lows] = True
    return np.packbits(bits, bitorder="little").tobytes()


def bitmap(numbers: Iterable[int], runs: bool = False) -> bytes:
    """Encodes a deletion vector: the magic number and a 64-bit roaring bitmap."""
    by_high: dict[int, list[int]] = {}
    for number in numbers:
        by_high.setdefault(number >> 32, []).append(number & 0xFFFFFFFF)
    parts = [struct.pack("<I", high) + roaring32(lows, runs) for high, lows in sorted(by_high.items())]
    return MAGIC + struct.pack("<Q", len(parts)) + b"".join(parts)


def framed(data: bytes) -> bytes:
    """Encodes a deletion vector for a file."""
    return struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def inline_vector(numbers: Iterable[int]) -> dict[str, Any]:
    """Returns the descriptor of a vector stored in the log itself."""
    numbers = list(numbers)
    data = bitmap(numbers)
    return {"storageType": "i", "pathOrInlineDv": z85(data), "sizeInBytes": len(data), "cardinality": len(numbers)}


def file_vector(table: Path, numbers: Iterable[int], name: bytes, runs: bool = False) -> dict[str, Any]:
    """Writes a vector to a file, after another one, and returns its descriptor; ``name`` is a UUID's 16 bytes."""
    import uuid

    numbers = list(numbers)
    data = bitmap(numbers, runs)
    other = b"\1" + framed(bitmap([0]))
    (table / f"deletion_vector_{uuid.UUID(bytes=name)}.bin").write_bytes(other + framed(data))
    return {
        "storageType": "u",
        "pathOrInlineDv": z85(name),
        "offset": len(other),
        "sizeInBytes": len(data),
        "cardinality": len(numbers),
    }


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    """Returns a field of a Delta schema."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def mapped(name: str, kind: Any, number: int, physical: str) -> dict[str, Any]:
    """Returns a field with column mapping."""
    return field(name, kind, **{"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical})


def protocol(features: Sequence[str]) -> dict[str, Any]:
    """Returns the action that lists required reader features."""
    known = list(features)
    return {
        "protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": known, "writerFeatures": known}
    }


def metadata(
    fields: Sequence[dict[str, Any]], partition_by: Sequence[str] = (), **configuration: str
) -> dict[str, Any]:
    """Returns the action with the schema."""
    return {
        "metaData": {
            "id": "7a1e0c2a-0000-4000-8000-000000000001",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
            "partitionColumns": list(partition_by),
            "configuration": {key.replace("__", "."): value for key, value in configuration.items()},
            "createdTime": 0,
        }
    }


def add(table: Path, name: str, data: pa.Table | None, values: dict[str, str | None] | None = None, **more: Any) -> Any:
    """Writes a data file (skipped without data) and returns the action that adds it."""
    if data is not None:
        pq.write_table(data, table / name, row_group_size=4)
    rows = pq.read_metadata(table / name).num_rows
    action = {
        "path": name,
        "partitionValues": values or {},
        "size": (table / name).stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
        **more,
    }
    return {"add": action}


def remove(action: dict[str, Any]) -> dict[str, Any]:
    """Returns the action that removes an added file."""
    added = action["add"]
    gone = {"path": added["path"], "deletionTimestamp": 2, "dataChange": True}
    vector = added.get("deletionVector")
    return {"remove": gone if vector is None else {**gone, "deletionVector": vector}}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Writes one version of the log."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))
