"""Keeping selections on disk, so that the next epoch, process, rank and restart need not compute them again.

A selection is kept under the dataset's version (store, paths, sizes, write times, tags) and its stages. Selections by
Python functions are not kept: nothing tells whether the function still does the same. Nor are those over stores that
tell neither times nor tags.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..layout.dataset import StoredDataset
from ..layout.kept import KeptFiles, cache_root
from ..schema.npy import npy_array
from ..stages.base import Stage
from ..stages.nulls import Nulls
from ..stages.where import WhereFunction
from .rows import RowSet
from .select import Report, Selection

_VERSION = 2  # before, filters saw the type of each file
_LISTS = ("nulls inside lists",)  # kept before this was there: selections that look at null lists alone
_MOST_FILES = 256
_MOST_BYTES, _MOST_BYTES_PER_ROW = 1 << 24, 64


def selection_key(dataset: StoredDataset, steps: Sequence[Stage]) -> str | None:
    """The name under which a selection is kept; ``None`` if it must not be, or need not be."""
    deletes = dataset.table is not None and bool(dataset.table.deletes)  # looking for them may read whole columns
    return kept_key(dataset, steps) if steps or deletes else None


def kept_key(dataset: StoredDataset, steps: Sequence[Stage], *about: str) -> str | None:
    """The name under which something about the rows of a selection is kept; ``None`` if it must not be."""
    if any(isinstance(step, WhereFunction) for step in steps) or not dataset.outlives_plan:
        return None
    lists = _LISTS if any(_drops_from_lists(dataset, step) for step in steps) else ()
    text = json.dumps([_VERSION, dataset.version, [step.to_json() for step in steps], *about, *lists], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _drops_from_lists(dataset: StoredDataset, step: Stage) -> bool:
    names = dataset.match(step.patterns) if isinstance(step, Nulls) else []
    return any(dataset.field(name).is_list for name in names)


def load_selection(key: str, rows: np.ndarray) -> Selection | None:
    """The kept selection, or ``None`` if there is none or it is damaged.

    Args:
        rows: of each row group of the dataset.
    """
    return _kept().load(key, lambda content: read_selection(content, rows))


def read_selection(content: bytes, rows: np.ndarray) -> Selection:
    """The selection in a kept file; other bytes, and rows that there are not, raise one of `kept.UNREADABLE`."""
    arrays = _arrays(content, _MOST_BYTES + _MOST_BYTES_PER_ROW * (len(rows) + int(rows.sum())))
    meta = json.loads(str(arrays["meta"]))
    selection = Selection(
        rows=RowSet(before=arrays["before"], whole=arrays["whole"], start=arrays["start"], values=arrays["values"]),
        starts=arrays["starts"] if meta["windows"] else None,
        steps=arrays["steps"],
        reports=tuple(_report(**report) for report in meta["reports"]),
        matched=meta["matched"],
        measured=arrays.get("measured"),
    )
    if type(selection.matched) is not int or selection.matched < 0 or not _fits(selection, rows):
        raise ValueError("expected rows of this dataset, got others")
    return selection


def _arrays(content: bytes, most_bytes: int) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, of at most so many bytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        size_bytes = sum(member.file_size for member in members)
        if size_bytes > most_bytes or any(member.compress_type != zipfile.ZIP_DEFLATED for member in members):
            raise ValueError(f"expected deflated arrays of at most {most_bytes} bytes, got {size_bytes}")
        return {member.filename.removesuffix(".npy"): npy_array(memoryview(archive.read(member))) for member in members}


def _fits(selection: Selection, rows: np.ndarray) -> bool:
    """Whether all that a selection names is there, so that nothing reads beyond it."""
    wanted, count = selection.rows, len(rows)
    types = {"before": "i8", "whole": "?", "start": "i8", "values": "i4"}
    if any(getattr(wanted, name).dtype != kind or getattr(wanted, name).ndim != 1 for name, kind in types.items()):
        return False
    if (len(wanted.before), len(wanted.whole), len(wanted.start)) != (count + 1, count, count) or wanted.before[0]:
        return False
    counts = wanted.counts
    if (wanted.before < 0).any() or (counts < 0).any() or (counts > rows).any():
        return False
    listed = ~wanted.whole & (counts > 0)
    first, end = wanted.start[listed], wanted.start[listed] + counts[listed]
    if (first < 0).any() or (end > len(wanted.values)).any() or wanted.values.min(initial=0) < 0:
        return False
    if len(first):
        bounds = np.stack([first, end], axis=1).ravel()  # the end of the last one may be the end of all
        largest = np.maximum.reduceat(np.append(wanted.values, np.int32(0)), bounds)[::2]
        if (largest >= rows[listed]).any():
            return False
    return _windows_fit(selection)


def _windows_fit(selection: Selection) -> bool:
    starts, steps, measured = selection.starts, selection.steps, selection.measured
    total = selection.rows.total
    if steps.dtype != "i8" or steps.ndim != 1 or not len(steps) or steps.min() < 0:
        return False
    if measured is not None and (measured.dtype.kind not in "biuf" or measured.shape != (total,)):
        return False
    if starts is None:
        return bool((steps == 0).all())
    if starts.dtype != "i8" or starts.ndim != 1 or (np.diff(starts) < 0).any() or steps.max() > total:
        return False
    return not len(starts) or bool(starts[0] >= 0 and starts[-1] < total - steps.max())


def _report(units: int, **others: Any) -> Report:
    """A report as `_stored_report` has left it."""
    report = Report(row_groups=units, **others)
    if not all(type(value) in (int, str) for value in asdict(report).values()):
        raise TypeError("expected numbers and texts in a report")
    return report


def save_selection(key: str, selection: Selection) -> None:
    """Keeps a selection; the file appears whole or not at all. A full or read-only disk only costs the next reader
    time.
    """
    meta = {
        "windows": selection.starts is not None,
        "matched": selection.matched,
        "reports": [_stored_report(report) for report in selection.reports],
    }
    measured: dict[str, Any] = {} if selection.measured is None else {"measured": selection.measured}
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        **measured,
        before=selection.rows.before,
        whole=selection.rows.whole,
        start=selection.rows.start,
        values=selection.rows.values,
        starts=selection.starts if selection.starts is not None else np.zeros(0, np.int64),
        steps=selection.steps,
        meta=np.array(json.dumps(meta)),
    )
    _kept().save(key, stream.getvalue())


def _kept() -> KeptFiles:
    return KeptFiles(cache_root() / "selections", ".npz", max_files=_MOST_FILES)


def _stored_report(report: Report) -> dict[str, Any]:
    """The form of a report in kept files, which call row groups units."""
    stored = asdict(report)
    return {"units": stored.pop("row_groups"), **stored}
