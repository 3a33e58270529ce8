"""Reads the transaction log of a Delta table: the files of a version, with partition values and deletion vectors.

It takes the ``_delta_log`` directory and returns the ``add`` actions that are live at a version. A log with a gap is an
error, and so is an action that is not as the protocol says. `Log.check` refuses files that would end the process if
deltalake read them: its JSON parser recurses without a limit.

Rules: https://github.com/delta-io/delta/blob/master/PROTOCOL.md (action reconciliation, checkpoints).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError
from ..base.urls import clean_cause
from ..parquet.footers import open_checked, remedy
from ..storage.file_versions import FileVersion, versions_below
from ..storage.retries import with_retries

_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})\.parquet|\.[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"\.(?:parquet|json)|\.parquet)"
)
_JSON = re.compile(r"\d{20}\..*(?:json|crc)|_last_checkpoint")
_NUMBER = re.compile(r"\d{20}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_DEPTH = 128  # also the limit of the parser that deltalake uses for schemas
_MOST_LINE_BYTES = 1 << 26
_HARMLESS_BYTES = 4096  # a shorter file cannot hold anything too deep
_ACTIONS = ("add", "remove", "sidecar")
_TIME = "inCommitTimestamp"
_ACTIONS_AT_ONCE = 10_000
_OPENING, _CLOSING = np.frombuffer(b"[{", np.uint8), np.frombuffer(b"]}", np.uint8)

Action = Mapping[str, Any]


def live_files(filesystem: pafs.FileSystem, root: str, version: int) -> list[Action]:
    """Returns the live ``add`` actions of a version; see `Log.live_files`."""
    return Log(filesystem, root).live_files(version)


class Log:
    """The transaction log of a table, listed once. Each JSON file is read once.

    Raises:
        DatasetError: the log cannot be listed.
    """

    def __init__(self, filesystem: pafs.FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._directory = posixpath.join(root, "_delta_log") if root else "_delta_log"
        try:
            place = f"Delta log {self._directory}"
            entries = with_retries(filesystem, self._list, place, is_listing=True)
        except ParquetryError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"Delta log {self._directory}: cannot be listed: {error}") from clean_cause(error)
        self._files = {posixpath.basename(file.path): file for file in entries}
        self._commits = {int(name[:20]) for name in self._files if re.fullmatch(r"\d{20}\.json", name)}
        self._checkpoints = _complete_checkpoints(self._files)
        self._read: dict[str, list[tuple[str, Action]]] = {}

    def _list(self) -> list[FileVersion]:
        below = versions_below(self._filesystem, self._directory, lambda path, is_directory: not is_directory)
        return [file for file in below if posixpath.basename(posixpath.dirname(file.path)) == "_delta_log"]

    def check(self, version: int) -> None:
        """Refuses what deltalake should not read when it opens a version.

        Raises:
            DatasetError: a file is not JSON, one of its lines is too long or nested too deeply, or it cannot be read.
        """
        first = self._newest_checkpoint(version)
        for name, file in self._files.items():
            is_read = _JSON.fullmatch(name) and max(map(int, _NUMBER.findall(name)), default=first) >= first
            if is_read and file.size_bytes > _HARMLESS_BYTES:
                self._commit(name)

    @property
    def newest(self) -> int:
        """The number of the newest commit; -1 if there is none."""
        return max(self._commits, default=-1)

    @property
    def readable_versions(self) -> range:
        """The versions that can be read and whose commits are there; empty if there are none."""
        first = end = self.newest + 1
        while first - 1 in self._commits:
            first -= 1
        if first > 0:
            first = min((number for number in self._checkpoints if number >= first - 1), default=end)
            first += first not in self._commits
        return range(first, end)

    def modified(self, version: int) -> int:
        """The modification time of a commit's file, in milliseconds since 1970.

        Raises:
            DatasetError: the store reports none.
        """
        time_ns = self._files[f"{version:020d}.json"].mtime_ns
        if not time_ns:
            raise DatasetError(
                f"Delta log {self._directory}: expected the time of {version:020d}.json, but the store reports none. "
                "Give a version number instead."
            )
        return time_ns // 1_000_000

    def in_commit_time(self, version: int) -> int:
        """The time that a commit itself states, in milliseconds since 1970.

        Raises:
            DatasetError: it states none, or cannot be read.
        """
        name = f"{version:020d}.json"
        time = next((action[_TIME] for kind, action in self._commit(name) if kind == "commitInfo"), None)
        if type(time) is not int:
            raise DatasetError(
                f"Delta log {self._directory}: expected an {_TIME} in {name}, because the table has in-commit "
                f"timestamps, got {str(time)[:80]}. Give a version number instead."
            )
        return time

    def live_files(self, version: int) -> list[Action]:
        """Returns the live ``add`` actions of a version.

        Raises:
            DatasetError: the log cannot be read, or has a gap.
        """
        checkpoint = self._newest_checkpoint(version)
        alive: dict[tuple[str, str], Action] = {}
        for name in self._checkpoints.get(checkpoint, ()):
            _replay(alive, self._checkpoint_actions(name))
        for number in range(checkpoint + 1, version + 1):
            name = f"{number:020d}.json"
            if name not in self._files:
                raise DatasetError(
                    f"Delta log {self._directory}: expected {name}, which version {version} requires, found none. "
                    "The log was cleaned up. Use a later version."
                )
            _replay(alive, self._commit(name))
        return list(alive.values())

    def _newest_checkpoint(self, version: int) -> int:
        """The number of the latest complete checkpoint up to a version; -1 if there is none."""
        return max((number for number in self._checkpoints if number <= version), default=-1)

    def _commit(self, name: str) -> list[tuple[str, Action]]:
        if name not in self._read:
            path = posixpath.join(self._directory, name)
            self._read[name] = list(_read_commit(self._filesystem, path))
        return self._read[name]

    def _checkpoint_actions(self, name: str) -> Iterator[tuple[str, Action]]:
        path = posixpath.join(self._directory, name)
        actions = self._commit(name) if name.endswith(".json") else _read_parquet(self._filesystem, path)
        for kind, action in actions:
            if kind != "sidecar":
                yield kind, action
                continue
            sidecar = action["path"]
            if "/" not in sidecar:
                sidecar = posixpath.join(self._directory, "_sidecars", sidecar)
            yield from _read_parquet(self._filesystem, sidecar)


def parse_lines(content: bytes) -> Iterator[tuple[str, Action]]:
    """Yields the actions of a file with one JSON object on each line. An object may also be printed over several lines.

    Raises:
        ValueError: a line is not such an object, too long, or nested too deeply, or an action is not as it should be.
    """
    for number, text in _objects(content):
        entry = json.loads(text)
        if not isinstance(entry, dict):
            raise ValueError(f"line {number}, which is not an object: {text[:80]}")
        for kind in _ACTIONS:
            if entry.get(kind):
                yield kind, _checked(kind, entry[kind])
        if isinstance(entry.get("commitInfo"), dict):  # free-form, except for the time
            yield "commitInfo", {_TIME: entry["commitInfo"].get(_TIME)}


def _objects(content: bytes) -> Iterator[tuple[int, str]]:
    """Yields the text of each object, and the number of its first line. It ends where all its brackets are closed."""
    open_lines: list[str] = []
    first = depth = size_bytes = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        first = first if open_lines else number
        size_bytes += len(line)
        if size_bytes > _MOST_LINE_BYTES:
            raise ValueError(f"line {first}, which has {size_bytes} bytes of at most {_MOST_LINE_BYTES}")
        text = line.decode()
        opening = text.count("[") + text.count("{")
        if open_lines or opening > _MOST_DEPTH or opening != text.count("]") + text.count("}"):
            deepest, change = _depths(text)
            if depth + deepest > _MOST_DEPTH:
                raise ValueError(f"line {first}, which is nested more than {_MOST_DEPTH} levels deep")
            depth = max(depth + change, 0)
        open_lines.append(text)
        if not depth:
            text = "\n".join(open_lines)
            if text.strip():
                yield first, text
            open_lines, size_bytes = [], 0
    if open_lines:
        raise ValueError(f"line {first}, which ends before its brackets are closed")


def _depths(text: str) -> tuple[int, int]:
    """Returns how many more arrays and objects are open in a line of JSON than before it: at most, and at its end."""
    marks = np.frombuffer(_STRING.sub("", text).encode("ascii", "replace"), np.uint8)
    steps = np.cumsum(np.isin(marks, _OPENING).astype(np.int64) - np.isin(marks, _CLOSING))
    return int(steps.max(initial=0)), int(steps[-1]) if len(steps) else 0


def _checked(kind: str, action: object) -> Action:
    """Returns an action if the members that are used here have the types of the protocol.

    Raises:
        ValueError: one of them has another type, or a number is negative.
    """
    if not isinstance(action, Mapping):
        raise ValueError(f"'{kind}', which is not an object: {str(action)[:80]}")
    vector = action.get("deletionVector") or {}
    if not isinstance(vector, Mapping):
        raise ValueError(f"a deletion vector, which is not an object: {str(vector)[:80]}")
    texts = {"path": action.get("path")}
    numbers: dict[str, Any] = {}
    if kind == "add":
        numbers |= {"size": action.get("size"), "modificationTime": action.get("modificationTime") or 0}
        values = action.get("partitionValues") or {}
        pairs = list(values.items() if isinstance(values, Mapping) else values if isinstance(values, list) else [None])
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):  # checkpoints hold pairs
            raise ValueError(f"'add' with partition values {str(values)[:80]}")
        texts |= {f"partition value of {name}": value for name, value in pairs if value is not None}
        numbers |= {} if not vector else {name: vector.get(name) for name in ("sizeInBytes", "cardinality")}
    if vector:
        texts |= {name: vector.get(name) for name in ("storageType", "pathOrInlineDv")}
        numbers["offset"] = vector.get("offset") or 0
    for name, text in texts.items():
        if not isinstance(text, str) or (name == "path" and "\0" in text):
            raise ValueError(f"'{kind}' with {name} {str(text)[:80]!r}")
        text.encode()  # raises for lone surrogates
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise ValueError(f"'{kind}' with {name} {str(number)[:80]!r}")
    return action


def _complete_checkpoints(files: Mapping[str, FileVersion]) -> dict[int, list[str]]:
    """The complete checkpoints by version, each with its files. An empty file is not a checkpoint, as in deltalake."""
    checkpoints: dict[int, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(files):
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and files[name].size_bytes != 0:
            parts = int(match[3]) if match[3] else 1
            checkpoints[int(match[1])][parts if match[3] else name].append(name)
    complete: dict[int, list[str]] = {}
    for number, kinds in checkpoints.items():
        for key, held in sorted(kinds.items(), key=str, reverse=True):
            if len(held) == (key if isinstance(key, int) else 1):
                complete[number] = held
    return complete


def _replay(alive: dict[tuple[str, str], Action], actions: Iterable[tuple[str, Action]]) -> None:
    """Applies the actions of one commit, in any order: it never both adds and removes the same file and vector."""
    for kind, action in actions:
        if kind == "commitInfo":
            continue
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
        yield from parse_lines(with_retries(filesystem, read, f"Delta log {path}"))
    except ParquetryError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DatasetError(
            f"Delta log {path}: expected lines of JSON, got: {error}. {remedy(error, 'Repair the table.')}"
        ) from clean_cause(error)


def _read_parquet(filesystem: pafs.FileSystem, path: str) -> Iterator[tuple[str, Action]]:
    def read() -> pa.Table:
        with filesystem.open_input_file(path) as source:
            file = open_checked(source)
            held = [kind for kind in _ACTIONS if kind in file.schema_arrow.names]
            return file.read(columns=[column for kind in held for column in _member_names(kind, file.schema_arrow)])

    place = f"Delta checkpoint {path}"
    try:
        table = with_retries(filesystem, read, place, is_listing=True)
        for batch in table.to_batches(max_chunksize=_ACTIONS_AT_ONCE):
            for kind in _ACTIONS:
                if kind in batch.schema.names:
                    for action in batch.column(kind).drop_null().to_pylist():
                        yield kind, _checked(kind, action)
    except ParquetryError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        raise DatasetError(
            f"{place}: expected a readable one, got: {error}. {remedy(error, 'Repair the table.')}"
        ) from clean_cause(error)


def _member_names(kind: str, schema: pa.Schema) -> list[str]:
    """The members of an action to read. Statistics are left out: they are large, and the footers have them."""
    needed = ("path", "partitionValues", "size", "modificationTime", "deletionVector")
    return [f"{kind}.{member.name}" for member in schema.field(kind).type if member.name in needed]
