"""Lists, removes and prepares the files that parquetry keeps between runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from ...base.errors import PipelineError
from ...base.process.dataclass import dataclass
from ...base.progress import progress
from ...engine.run.vocabularies import ready_program
from ...pipeline.pipeline import Pipeline
from ...plan.plan import Plan
from ...storage.file_cache import FileCache
from ...storage.filesystem import absolute
from ...storage.whole_files import cache_root
from .inspecting import pipeline_of

_KINDS = {
    "selections": (".npz", "rows and windows selected by where() and ngram()"),
    "bad_rows": (".json", "rows skipped by on_error='skip'"),
    "vocabularies": (".arrow", "vocabularies learned by encode()"),
    "statistics": (".json", "statistics learned by fit()"),
    "footers": (".arrow", "columns and row groups of datasets of many files"),
    "frames": (".parquet", "data frames"),
    "folders": (".parquet", "file lists of image folders"),
    "petastorm": (".table", "row groups cached by the Petastorm-compatible readers"),
    "ops": (".so", "compiled TensorFlow ops"),
}
_IN_USE = frozenset({"frames", "folders"})
"""Kinds from which existing pipelines read their rows. They cannot be recreated."""
_TABLES = ".table"
"""The suffix of the files of ``cache(directory)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """The kept files of one kind. ``bytes`` and ``files`` count only finished files."""

    kind: str
    what: str
    directory: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """The result of `warm`: the length of the pipeline, the directory that rows were cached in, and the time."""

    elements: int | None
    cached: str | None
    seconds: float


def caches(directory: str | os.PathLike[str] | None = None) -> tuple[CacheReport, ...]:
    """Reports the kept files by kind, or the files of a ``cache(directory)`` if you pass its directory.

    Raises:
        PipelineError: the directory does not exist.
    """
    if directory is not None:
        return (_report("tables", "row groups of cache(directory)", _checked(directory), _TABLES),)
    return tuple(_report(kind, what, _place(kind), suffix) for kind, (suffix, what) in _KINDS.items())


def clear(kinds: Sequence[str] = (), directory: str | os.PathLike[str] | None = None) -> tuple[CacheReport, ...]:
    """Removes the kept files of some kinds, or the files of a ``cache(directory)``. Returns what was removed.

    Without ``kinds``, removes everything that parquetry recreates by itself. ``"frames"`` and ``"folders"`` must be
    named: existing pipelines from ``from_pandas``, ``from_polars`` and ``from_image_folder``, in any process, read
    their rows from these files and fail without them until you create them again. Other files are left alone.

    Raises:
        PipelineError: a kind or the directory does not exist, or both kinds and a directory are given.
    """
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise PipelineError(f"cache clear: expected kinds among {', '.join(_KINDS)}, got '{unknown[0]}'.")
    if directory is not None and kinds:
        raise PipelineError(
            f"cache clear: expected kinds or a directory, got {', '.join(kinds)} and {os.fspath(directory)}. The "
            "directory of a cache(directory) holds only row groups, so do not name kinds."
        )
    if directory is not None:
        (tables,) = caches(directory)
        FileCache(tables.directory, _TABLES).clear()
        return (tables,)
    chosen_kinds = kinds or _KINDS.keys() - _IN_USE
    removed = tuple(report for report in caches() if report.kind in chosen_kinds)
    for report in removed:
        _clear_kind(report)
    return removed


def _clear_kind(report: CacheReport) -> None:
    if report.kind != "ops":
        FileCache(report.directory, _KINDS[report.kind][0]).clear()
        return
    for path in Path(report.directory).glob("_parquetry_ops-*.so"):
        path.unlink(missing_ok=True)


def warm(pipeline: Pipeline) -> Warmed:
    """Prepares what a job would compute first: the selection, vocabularies, and the rows of a ``cache(directory)``.

    Raises:
        PipelineError: the pipeline is mixed or served.
        ParquetryError: planning or reading failed.
    """
    begin = time.monotonic()
    plan = pipeline_of(pipeline).plan()
    assert isinstance(plan, Plan)  # `pipeline_of` refuses mixes
    length = plan.length
    ready_program(plan, plan.program)
    cached = plan.order.cache.directory if plan.order.cache is not None else None
    if cached is not None:
        once = pipeline if length is not None else pipeline.take(plan.selection.num_items)
        for _ in progress(once, "caching", len(once) if not plan.program.drops else 0, unit="element"):
            pass
    return Warmed(elements=None if plan.program.drops else length, cached=cached, seconds=time.monotonic() - begin)


def _place(kind: str) -> str:
    root = Path(platformdirs.user_cache_dir("parquetry")) if kind == "ops" else cache_root()
    return str(root / kind)


def _checked(directory: str | os.PathLike[str]) -> str:
    path = absolute(os.fspath(directory))
    if not os.path.isdir(path):
        raise PipelineError(f"cache: expected a directory, found none at {path}.")
    return path


def _report(kind: str, what: str, directory: str, suffix: str) -> CacheReport:
    files = size = 0
    with suppress(OSError), os.scandir(directory) as entries:  # not there, removed meanwhile, or another user's
        for entry in entries:
            with suppress(FileNotFoundError):  # another process renamed or removed it
                if entry.name.endswith(suffix) and entry.is_file():
                    files, size = files + 1, size + entry.stat().st_size
    return CacheReport(kind=kind, what=what, directory=directory, files=files, bytes=size)
