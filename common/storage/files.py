"""Lists the data files of a dataset and parses Hive partition values from their paths.

It takes URLs and returns `DataFile` values sorted by full path. Names that begin with ``_`` or ``.`` are never data.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError
from ..base.other_names import did_you_mean
from ..base.process.dataclass import dataclass
from ..base.progress import thread_pool
from ..base.urls import clean_cause, without_secrets
from .added_parts import PARTS, is_note, list_whole_parts
from .file_cache import COPY
from .file_versions import FileVersion, drawn_plan, look, path_below, versions_below
from .filesystem import credentials_advice, resolve
from .links import each_name_once, each_once
from .patterns import Pattern, pattern_of
from .retries import FEW_ATTEMPTS, with_retries
from .store_answers import ADVICE, StoreError, told
from .stores import store_of
from .table_logs import LOGS, above_partitions, check_no_table, is_hidden, is_log, logs_above, names_in
from .whole_files import MOVING

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
SHARD = re.compile(r"(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]+")
"""The names that the ``datasets`` package gives to the shards of a split."""
_SUFFIXES = (".parquet", ".parq", ".pq")
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_MEMORY_FILES = (
    " memory:// files exist only in the process that wrote them. No other process (a sidecar, a loader worker, another "
    "rank) sees them. Write them to a disk or a store, or read them with executor='threads'. In TensorFlow, a sidecar "
    "reads in any case."
)
_METADATA = ("_common_metadata", "_metadata")
_NAMES_COMPARED = 10_000
_NOWHERE = "Check the URL: the bucket or host, and the path."
_LISTINGS = 16
_MOVING = re.compile(rf"(?P<above>|.+/){re.escape(COPY)}/{MOVING}$")
"""The mark of a copy that is moving its files into the directory above."""
_LOGGER = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file.

    Attributes:
        version: the version that was listed.
        relative: the path below the dataset's root, which still identifies the file if the dataset moves.
        partition: ``(key, text)`` pairs from the ``key=text`` directories; text is ``None`` for Hive's null.
    """

    version: FileVersion
    relative: str
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def path(self) -> str:
        """The full path on its filesystem."""
        return self.version.path

    @property
    def shown_path(self) -> str:
        """The path for people, without secrets; see `FileVersion.shown_path`."""
        return self.version.shown_path

    @property
    def size_bytes(self) -> int:
        """The size when the file was listed."""
        return self.version.size_bytes

    @property
    def mtime_ns(self) -> int:
        """The modification time; 0 if the store has no times."""
        return self.version.mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """The files of a dataset on one filesystem.

    ``roots`` are the directories or files that the URLs named; for a pattern, the files that match. ``patterns`` are
    the patterns among the URLs.
    """

    filesystem: pafs.FileSystem
    roots: tuple[str, ...]
    files: tuple[DataFile, ...]
    metadata_files: tuple[FileVersion, ...]
    patterns: tuple[Pattern, ...] = ()

    def directory(self, what: str) -> str:
        """The directory that the only URL named, for something that is kept beside the files.

        Raises:
            DatasetError: the URLs named files, matched files, or named several directories.
        """
        if len(self.roots) != 1 or self.roots[0] == self.files[0].path:
            shown = ", ".join(self.roots[:3])
            raise DatasetError(
                f"{what} of '{shown}': expected one directory, got a file or several URLs. Name the directory."
            )
        return self.roots[0]


def list_files(
    urls: Sequence[str],
    *,
    filesystem: object = None,
    storage_options: dict[str, Any] | None = None,
    by_name: bool = False,
) -> FileListing:
    """Lists every data file under the URLs (directories, files or patterns, of one filesystem), sorted by full path.

    A URL is a pattern, as `Pattern` describes it, if it has wildcards and nothing has exactly this name. A file is
    listed once, whatever URLs, links and names lead to it; see `each_once`. With ``by_name``, each name is listed once:
    the caller chooses some of them, and then leaves out the links among these.

    Raises:
        DatasetError: a URL does not exist, matches nothing or has no Parquet files, or the URLs are on different
            filesystems.
    """
    if not urls:
        raise DatasetError("dataset: expected at least one URL or path, got none.")
    listed: list[DataFile] = []
    metadata: dict[str, FileVersion] = {}
    roots: list[str] = []
    patterns: list[Pattern] = []
    paths: list[str] = []
    systems: list[pafs.FileSystem] = []
    for url in urls:
        fs, path = resolve(url, filesystem=filesystem, storage_options=storage_options)
        if systems and not _same_store(systems[0], fs):
            raise DatasetError(f"dataset {url!r}: expected every URL on one filesystem, got {systems[0]!r} and {fs!r}.")
        systems.append(fs)
        paths.append(path.rstrip("/") or path)
    list_names = cache(partial(names_in, systems[0]))  # many URLs may lie in one directory
    for listing in _list_each(urls, systems, paths, list_names):
        roots += listing.roots
        patterns += listing.patterns
        listed += listing.files
        metadata.update((version.path, version) for version in listing.metadata_files)
    plan = "" if store_of(systems[0]) else drawn_plan()
    files = each_name_once(listed)
    files = files if by_name else each_once(systems[0], files)
    ordered = tuple(_for_plan(file, plan) for file in files)
    described = tuple(metadata[path] for path in sorted(metadata))
    return FileListing(
        filesystem=systems[0],
        roots=tuple(roots),
        files=ordered,
        metadata_files=described,
        patterns=tuple(patterns),
    )


def _same_store(first: pafs.FileSystem, second: pafs.FileSystem) -> bool:
    if first.type_name != second.type_name:
        return False
    return store_of(first) == store_of(second) if store_of(first) else first.equals(second)


def _for_plan(file: DataFile, plan: str) -> DataFile:
    """Ties a file to one plan if nothing else would tell it from another version or store."""
    if file.version.has_version_metadata and not plan:
        return file
    return replace(file, version=replace(file.version, plan=plan or drawn_plan()))


def _list_each(
    urls: Sequence[str],
    systems: Sequence[pafs.FileSystem],
    paths: Sequence[str],
    list_names: Callable[[str], list[str]],
) -> Iterable[FileListing]:
    """Lists the files under each URL, in parallel if the store is remote."""
    list_one = partial(_list_one, list_names)
    if len(urls) == 1 or systems[0].type_name == "local":
        return map(list_one, urls, systems, paths)
    with thread_pool(_LISTINGS, "parquetry-list") as pool:
        return list(pool.map(list_one, urls, systems, paths))


def _near_name(fs: pafs.FileSystem, path: str) -> str:
    """What a local directory has that is called nearly like a path that is not there, as the end of an error."""
    if fs.type_name != "local":
        return ""
    with suppress(OSError), os.scandir(posixpath.dirname(path)) as entries:
        return did_you_mean(posixpath.basename(path), [entry.name for entry in islice(entries, _NAMES_COMPARED)])
    return ""


def _list_one(list_names: Callable[[str], list[str]], url: str, fs: pafs.FileSystem, path: str) -> FileListing:
    # The path of an HTTP file system is its URL.
    pattern = None if "://" in path else pattern_of(f"{path}/" if url.endswith("/") else path)

    def looked() -> tuple[pafs.FileType, str, list[FileVersion]]:
        root = path
        kind, file = look(fs, root)
        if kind == pafs.FileType.NotFound and pattern is not None:
            root = pattern.root
            kind, file = look(fs, root)
        return kind, root, [] if file is None else [file]

    def listed() -> list[FileVersion]:
        if root == path or pattern is None:
            return versions_below(fs, root)
        return versions_below(fs, root, _listing_filter(pattern))

    try:
        kind, root, files = with_retries(fs, looked, f"dataset {url!r}", most=FEW_ATTEMPTS, is_question=True)
        if kind not in (pafs.FileType.File, pafs.FileType.NotFound):
            list_once = partial(with_retries, fs, listed, f"dataset {url!r}", most=FEW_ATTEMPTS, is_listing=True)
            files = list_whole_parts(fs, root, list_once)
        is_directory = kind == pafs.FileType.Directory
        marks, logs = (_marks_above(fs, root), logs_above(root, list_names)) if is_directory else ([], [])
    except ParquetryError:
        raise
    except StoreError as error:
        advice = _NOWHERE if error.is_gone else error.advice
        raise DatasetError(f"dataset {url!r}: cannot be reached: {error}. {advice}") from clean_cause(error)
    except Exception as error:
        advice = credentials_advice(url, error)
        if not advice and not isinstance(error, OSError):
            raise
        advice = advice or (". Check the path and its permissions." if fs.type_name == "local" else f". {ADVICE}")
        raise DatasetError(f"dataset {url!r}: cannot be reached: {told(error)}{advice}") from clean_cause(error)
    used = None if root == path else pattern
    if kind == pafs.FileType.NotFound or (kind == pafs.FileType.File and used is not None):
        at = "there" if used is None else f"at '{root}', where the pattern begins"
        advice = _MEMORY_FILES if "memory" in fs.type_name else ""
        raise DatasetError(
            f"dataset {url!r}: expected a directory or a Parquet file, found nothing {at}. Check the URL."
            f"{advice or _near_name(fs, root)}"
        )
    if kind == pafs.FileType.File:
        _check_no_images(url, files)
        return _listing(fs, [path], files, posixpath.dirname(path), [])
    below = [path_below(file.path, root) for file in files]
    _check_not_moving(url, [*marks, *below])
    if used is None:
        check_no_table(url, [*logs, *below])
        chosen = _chosen(url, files, root, f"among {len(files)} files")
        roots = [root]
    else:
        matching = [file for file in files if used.matches(path_below(file.path, root))]
        chosen = _chosen(url, matching, root, f"below '{root}' that matches")
        roots = sorted(file.path for file in chosen)
        check_no_table(url, [*logs, *below], [path_below(file, root) for file in roots])
    _check_no_images(url, chosen)
    listing = _listing(fs, roots, chosen, root, [file for file in files if path_below(file.path, root) in _METADATA])
    return listing if used is None else replace(listing, patterns=(used,))


def _listing(
    fs: pafs.FileSystem, roots: list[str], files: Sequence[FileVersion], base: str, metadata: list[FileVersion]
) -> FileListing:
    described = tuple(_data_file(file, base) for file in files)
    return FileListing(filesystem=fs, roots=tuple(roots), files=described, metadata_files=tuple(metadata))


def _listing_filter(pattern: Pattern) -> Callable[[str, bool], bool]:
    """Returns a function that says what to list: what may match, and the metadata, logs and marks beside it."""

    def wants(path: str, is_directory: bool) -> bool:
        relative = path_below(path, pattern.root)
        if is_directory:
            name = posixpath.basename(path)
            return name in (*LOGS, COPY, PARTS) or pattern.may_match_below(relative)
        is_mark = _MOVING.search(relative) or is_note(relative)
        return bool(is_log(relative) or is_mark or relative in _METADATA or pattern.matches(relative))

    return wants


def _chosen(url: str, files: Sequence[FileVersion], root: str, where: str) -> list[FileVersion]:
    """The files that are data. Raises `DatasetError` if there are none."""
    visible = [file for file in files if not is_hidden(path_below(file.path, root))]
    named = [file for file in visible if file.path.lower().endswith(_SUFFIXES)]
    chosen = named or [file for file in visible if file.size_bytes]
    if not chosen:
        raise DatasetError(
            f"dataset {url!r}: expected Parquet files, found none {where}. "
            "Names that begin with '_' or '.' are not data."
        )
    return chosen


def _check_no_images(url: str, files: Sequence[FileVersion]) -> None:
    if all(file.path.lower().endswith(_IMAGES) for file in files):
        raise DatasetError(
            f"dataset {url!r}: expected Parquet files, found images, such as '{posixpath.basename(files[0].path)}'. "
            "Read a folder with one folder of images per class with from_image_folder(url), or convert it to Parquet "
            "with the command 'parquetry convert'."
        )


def check_no_episodes(url: str, listing: FileListing) -> None:
    """Refuses a LeRobot dataset: its list of episodes would be read as frames. Raises `DatasetError`."""
    names = [file.relative for file in listing.files]
    if any(name.startswith("meta/episodes/") for name in names) and any(name.startswith("data/") for name in names):
        raise DatasetError(
            f"dataset '{without_secrets(url)}': expected plain Parquet files, found a LeRobot dataset, which keeps its "
            "list of episodes in Parquet, too. Open it with from_lerobot(url)."
        )


def warn_of_splits(url: str, listing: FileListing) -> None:
    """Warns once about a directory that holds several splits of a Hugging Face dataset, which are read together."""
    if listing.patterns or url in _warned:
        return
    shards = (SHARD.fullmatch(posixpath.basename(file.path)) for file in listing.files)
    splits = {shard["split"] for shard in shards if shard}
    if "train" not in splits or len(splits) == 1:
        return
    _warned.add(url)
    _LOGGER.warning(
        "dataset '%s': its files are of several splits (%s), and all are read together. To read one of them: "
        "from_huggingface_parquet(url, split='train').",
        without_secrets(url),
        ", ".join(sorted(splits)),
    )


def _marks_above(fs: pafs.FileSystem, path: str) -> list[str]:
    """The mark of a copy that is moving files into the dataset that contains a partition directory."""
    root = above_partitions(path)
    mark = posixpath.join(COPY, MOVING)
    if root is None or look(fs, posixpath.join(root, mark))[0] != pafs.FileType.File:
        return []
    return [mark]


def _check_not_moving(url: str, names: Iterable[str]) -> None:
    """Refuses directories into which a copy is moving its files, because some would be missing."""
    for name in names:
        match = _MOVING.search(name)
        if match is not None and not is_hidden(match["above"]):
            raise DatasetError(
                f"dataset {url!r}: expected a complete dataset, but its files are being moved into place ('{name}'). "
                "Open it again when the copy has ended. If it was killed, run it again."
            )


def _data_file(version: FileVersion, root: str) -> DataFile:
    path, directory = version.identity, posixpath.dirname(version.path)
    if path != version.path:  # an unescaped slash in a signature, or in what is left of the query, ends no directory
        root = directory = posixpath.dirname(path.partition("?")[0])
    return DataFile(version=version, relative=path_below(path, root), partition=partition_of(directory))


def is_data_name(path: str) -> bool:
    """Whether a file has a name that writers give to data."""
    return path.lower().endswith(_SUFFIXES) or posixpath.basename(path).startswith("part-")


def partition_of(directory: str) -> tuple[tuple[str, str | None], ...]:
    """Parses each ``key=text`` in a directory's path to ``(key, text)``, percent-decoded; ``None`` is Hive's null.

    Raises:
        DatasetError: what is percent-encoded is not UTF-8.
    """
    pairs = []
    for part in directory.split("/"):
        key, equals, text = part.partition("=")
        if equals and key:
            try:
                decoded = unquote(key, errors="strict"), unquote(text, errors="strict")
            except UnicodeDecodeError as error:
                raise DatasetError(
                    f"directory '{without_secrets(part)}': expected percent-encoded UTF-8 in the name of a partition, "
                    f"got other bytes ({error.reason}). Rename it, for example to the UTF-8 of the same characters."
                ) from error
            pairs.append((decoded[0], None if text == HIVE_NULL else decoded[1]))
    return tuple(pairs)
