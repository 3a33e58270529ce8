"""Keeping selections on disk, so that the next epoch, process, rank and restart need not compute them again.

A selection is kept under the dataset's version (store, paths, sizes, write times, tags) and its stages. Selections by
Python functions are not kept: nothing tells whether the function still does the same. Nor are those over stores that
tell neither times nor tags.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..layout.dataset import StoredDataset
from ..layout.kept import KeptFiles, cache_root
from ..stages.base import Stage
from ..stages.where import WhereFunction
from .rows import RowSet
from .select import Report, Selection

_LOGGER = logging.getLogger(__name__)
_VERSION = 2  # before, filters saw the type of each file
_MOST_FILES = 256


def selection_key(dataset: StoredDataset, steps: Sequence[Stage]) -> str | None:
    """The name under which a selection is kept; ``None`` if it must not be, or need not be."""
    deletes = dataset.table is not None and bool(dataset.table.deletes)  # looking for them may read whole columns
    return kept_key(dataset, steps) if steps or deletes else None


def kept_key(dataset: StoredDataset, steps: Sequence[Stage], *about: str) -> str | None:
    """The name under which something about the rows of a selection is kept; ``None`` if it must not be."""
    if any(isinstance(step, WhereFunction) for step in steps) or not dataset.outlives_plan:
        return None
    text = json.dumps([_VERSION, dataset.version, [step.to_json() for step in steps], *about], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load_selection(key: str) -> Selection | None:
    """The kept selection, or ``None`` if there is none or it is damaged."""
    path = _kept().path(key)
    try:
        raw = Path(path).read_bytes()
        if hashlib.blake2b(raw[16:], digest_size=16).digest() != raw[:16]:
            raise ValueError("checksum")
        with np.load(io.BytesIO(raw[16:]), allow_pickle=False) as arrays:
            rows = RowSet(
                before=arrays["before"], whole=arrays["whole"], start=arrays["start"], values=arrays["values"]
            )
            meta = json.loads(str(arrays["meta"]))
            starts = arrays["starts"] if meta["windows"] else None
            steps = arrays["steps"]
            measured = arrays.get("measured")
        reports = tuple(Report(row_groups=report.pop("units"), **report) for report in meta["reports"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _LOGGER.warning("selection %s: kept file is damaged (%s); computing it again.", path, error)
        return None
    os.utime(path)
    return Selection(rows=rows, starts=starts, steps=steps, reports=reports, matched=meta["matched"], measured=measured)


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
    raw = stream.getvalue()
    raw = hashlib.blake2b(raw, digest_size=16).digest() + raw
    kept = _kept()
    try:
        kept.keep(key, len(raw), lambda path: Path(path).write_bytes(raw))
    except OSError as error:
        _LOGGER.warning("selection could not be kept as %s: %s", kept.path(key), error)


def _kept() -> KeptFiles:
    return KeptFiles(cache_root() / "selections", ".npz", max_files=_MOST_FILES)


def _stored_report(report: Report) -> dict[str, Any]:
    """The form of a report in kept files, which call row groups units."""
    stored = asdict(report)
    return {"units": stored.pop("row_groups"), **stored}
