"""Reads the transaction log of a Delta table: the files of a version, with partition values and deletion vectors.

It takes the ``_delta_log`` directory and returns the ``add`` actions that are live at a version. A log with a gap is an
error. Rules: https://github.com/delta-io/delta/blob/master/PROTOCOL.md (action reconciliation, checkpoints).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...errors import DatasetError
from ..footers import remedy
from ..store_faults import asking_again

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-fA-F-]{36}))?\.(parquet|json)")
_ACTIONS = ("add", "remove", "sidecar")
_ACTIONS_AT_ONCE = 10_000

Action = Mapping[str, Any]


def live_files(filesystem: pafs.FileSystem, root: str, version: int) -> list[Action]:
    """Returns the live ``add`` actions of a version.

    Raises:
        DatasetError: the log cannot be read, or has a gap.
    """
    directory = posixpath.join(root, "_delta_log") if root else "_delta_log"
    selector = pafs.FileSelector(directory)
    try:
        place = f"Delta log {directory}"
        infos = asking_again(filesystem, lambda: filesystem.get_file_info(selector), place, is_listing=True)
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(f"Delta log {directory}: cannot be listed: {error}") from error
    names = {posixpath.basename(info.path) for info in infos}
    found = _newest_checkpoint(names, version)
    alive: dict[tuple[str, str], Action] = {}
    first = 0
    if found is not None:
        first = found[0] + 1
        for name in found[1]:
            _replay(alive, _read_checkpoint(filesystem, directory, name))
    for number in range(first, version + 1):
        name = f"{number:020d}.json"
        if name not in names:
            raise DatasetError(
                f"Delta log {directory}: expected {name}, which version {version} requires, found none. "
                "The log was cleaned up. Use a later version."
            )
        _replay(alive, _read_commit(filesystem, posixpath.join(directory, name)))
    return list(alive.values())


def _newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]] | None:
    """The latest complete checkpoint up to a version, and its files."""
    found: dict[int, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(names):
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and int(match[1]) <= version:
            parts = int(match[3]) if match[3] else 1
            found[int(match[1])][parts if match[3] else name].append(name)
    for number in sorted(found, reverse=True):
        for key, files in sorted(found[number].items(), key=str):
            if len(files) == (key if isinstance(key, int) else 1):
                return number, files
    return None


def _replay(alive: dict[tuple[str, str], Action], actions: Iterable[tuple[str, Action]]) -> None:
    """Applies the actions of one commit, in any order: it never both adds and removes the same file and vector."""
    for kind, action in actions:
        key = (action["path"], vector_id(action.get("deletionVector")))
        if kind == "add":
            alive[key] = action
        else:
            alive.pop(key, None)


def vector_id(vector: Action | None) -> str:
    """The unique ID of a deletion vector."""
    if not vector:
        return ""
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset') or 0}"


def _read_commit(filesystem: pafs.FileSystem, path: str) -> Iterator[tuple[str, Action]]:
    def read() -> bytes:
        with filesystem.open_input_stream(path, compression=None) as stream:
            return bytes(stream.read())

    try:
        for line in asking_again(filesystem, read, f"Delta log {path}").splitlines():
            if line.strip():
                action = json.loads(line)
                for kind in _ACTIONS:
                    if action.get(kind):
                        yield kind, action[kind]
    except DatasetError:
        raise
    except (OSError, ValueError) as error:
        raise DatasetError(f"Delta log {path}: expected lines of JSON, got: {error}. Repair the table.") from error


def _read_checkpoint(filesystem: pafs.FileSystem, directory: str, name: str) -> Iterator[tuple[str, Action]]:
    path = posixpath.join(directory, name)
    actions = _read_commit(filesystem, path) if name.endswith(".json") else _read_parquet(filesystem, path)
    for kind, action in actions:
        if kind != "sidecar":
            yield kind, action
            continue
        sidecar = action["path"]
        if "/" not in sidecar:
            sidecar = posixpath.join(directory, "_sidecars", sidecar)
        yield from _read_parquet(filesystem, sidecar)


def _read_parquet(filesystem: pafs.FileSystem, path: str) -> Iterator[tuple[str, Action]]:
    def read() -> pa.Table:
        with pq.ParquetFile(path, filesystem=filesystem, page_checksum_verification=True) as file:
            held = [kind for kind in _ACTIONS if kind in file.schema_arrow.names]
            return file.read(columns=[column for kind in held for column in _wanted(kind, file.schema_arrow)])

    place = f"Delta checkpoint {path}"
    try:
        table = asking_again(filesystem, read, place, is_listing=True)
        for batch in table.to_batches(max_chunksize=_ACTIONS_AT_ONCE):
            for kind in _ACTIONS:
                if kind in batch.schema.names:
                    for action in batch.column(kind).drop_null().to_pylist():
                        yield kind, action
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(
            f"{place}: expected a readable one, got: {error}. {remedy(error, 'Repair the table.')}"
        ) from error


def _wanted(kind: str, schema: pa.Schema) -> list[str]:
    """The members of an action to read. Statistics are left out: they are large, and the footers have them."""
    needed = ("path", "partitionValues", "size", "modificationTime", "deletionVector")
    return [f"{kind}.{member.name}" for member in schema.field(kind).type if member.name in needed]
