"""What parquetry keeps between runs: how much it is, removing it, and making it before a job needs it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..engine.run.vocabularies import ready_program
from ..errors import PipelineError
from ..layout.kept import KeptFiles, cache_root
from ..pipeline.pipeline import Pipeline
from ..plan.plan import Plan
from ..progress import progress
from .inspecting import pipeline_of

_KINDS = {
    "selections": (".npz", "rows and windows that where() and ngram() chose"),
    "bad_rows": (".json", "rows that on_error='skip' left out"),
    "vocabularies": (".arrow", "values that encode() learned"),
    "frames": (".parquet", "data frames"),
    "folders": (".parquet", "lists of image folders"),
    "petastorm": (".table", "what readers with Petastorm's names cached"),
    "ops": (".so", "compiled TensorFlow ops"),
}
_IN_USE = frozenset({"frames", "folders"})
"""What live pipelines read their rows from, and cannot make again."""
_TABLES = ".table"
"""The files of ``cache(directory)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """What is kept of one kind; ``bytes`` and ``files`` count finished files only."""

    kind: str
    what: str
    directory: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What `warm` did: the length of the pipeline, whether rows were read into ``cache(directory)``, and the time."""

    elements: int | None
    cached: str | None
    seconds: float


def caches(directory: str | os.PathLike[str] | None = None) -> tuple[CacheReport, ...]:
    """What is kept, by kind; or what ``cache(directory)`` keeps in a directory of yours.

    Raises:
        PipelineError: there is no such directory.
    """
    if directory is not None:
        return (_report("tables", "row groups of cache(directory)", _checked(directory), _TABLES),)
    return tuple(_report(kind, what, _place(kind), suffix) for kind, (suffix, what) in _KINDS.items())


def clear(kinds: Sequence[str] = (), directory: str | os.PathLike[str] | None = None) -> tuple[CacheReport, ...]:
    """Removes what is kept of some kinds, or what ``cache(directory)`` keeps in a directory.

    If no kind is named, all are removed that parquetry makes again by itself. ``"frames"`` and ``"folders"`` must be
    named: pipelines of ``from_pandas``, ``from_polars`` and ``from_image_folder`` that exist now, here or in another
    process, read their rows from these files and fail without them, until they are made anew. Other files are left
    alone. Returns what was removed.

    Raises:
        PipelineError: no such kind, or no such directory; kinds and a directory.
    """
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise PipelineError(f"cache clear: expected kinds of {', '.join(_KINDS)}, got '{unknown[0]}'.")
    if directory is not None and kinds:
        raise PipelineError(
            f"cache clear: expected kinds or a directory, got {', '.join(kinds)} and {os.fspath(directory)}. The "
            "directory of a cache(directory) holds row groups alone: name no kinds."
        )
    if directory is not None:
        (tables,) = caches(directory)
        KeptFiles(tables.directory, _TABLES).clear()
        return (tables,)
    wanted = kinds or _KINDS.keys() - _IN_USE
    removed = tuple(report for report in caches() if report.kind in wanted)
    for report in removed:
        _clear_kind(report)
    return removed


def _clear_kind(report: CacheReport) -> None:
    if report.kind != "ops":
        KeptFiles(report.directory, _KINDS[report.kind][0]).clear()
        return
    for path in Path(report.directory).glob("_parquetry_ops-*.so"):
        path.unlink(missing_ok=True)


def warm(pipeline: Pipeline) -> Warmed:
    """Makes what a job would make first: the selection, vocabularies, and the rows of ``cache(directory)``.

    Raises:
        PipelineError: a mix, or a pipeline that a server makes.
        ParquetryError: what planning or reading raises.
    """
    begin = time.monotonic()
    plan = pipeline_of(pipeline).plan()
    assert isinstance(plan, Plan)  # of one dataset
    length = plan.length
    ready_program(plan)
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
    path = os.path.abspath(os.path.expanduser(os.fspath(directory)))
    if not os.path.isdir(path):
        raise PipelineError(f"cache: expected a directory, found none at {path}.")
    return path


def _report(kind: str, what: str, directory: str, suffix: str) -> CacheReport:
    files = size = 0
    if os.path.isdir(directory):
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(suffix) and entry.is_file():
                    files, size = files + 1, size + entry.stat().st_size
    return CacheReport(kind=kind, what=what, directory=directory, files=files, bytes=size)
