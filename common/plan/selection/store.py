"""Stores selections on disk, so the next epoch, process, rank and restart need not compute them again.

A selection is stored under the dataset's version (store, paths, sizes, modification times, tags) and its stages.
Selections by Python functions are not stored, because nothing shows whether the function still does the same. Neither
are selections over stores that report neither times nor tags.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...dataset.dataset import StoredDataset
from ...schema.npy import npy_array
from ...stages.base import Stage
from ...storage.file_cache import user_cache
from .growing_rows import MOST_BYTES, forget_rows, joined
from .refused import NOTHING_REFUSED, RefusedRows
from .rows import RowSet
from .selection import Report, Selection

# Version 1: filters saw each file's own types. Version 2: null structs passed filters on a dictionary inside, parts of
# durations depended on pandas, and files that lacked a stored partition column had nulls there. Version 3: INT96
# wrapped around, stored columns won over partition directories, and bounds were believed that cannot be true.
# Version 4: `balance` and weights of values kept the weight of each row, not its class.
# Version 5: those with `nulls("drop")` on lists had a name of their own.
_VERSION = 6
_PART, _PART_ROWS = "values-", 1 << 20
_MOST_BYTES, _MOST_BYTES_PER_ROW = 1 << 24, 64


def selection_key(dataset: StoredDataset, steps: Sequence[Stage]) -> str | None:
    """Returns the name under which a selection is stored, or ``None`` if it must not be stored or need not be."""
    deletes = dataset.table is not None and bool(dataset.table.deletes)  # finding deleted rows may read whole columns
    return kept_key(dataset, steps) if steps or deletes else None


def kept_key(dataset: StoredDataset, steps: Sequence[Stage], *about: str) -> str | None:
    """Returns the name under which facts about a selection's rows are stored, or ``None`` if they must not be."""
    if not all(step.repeatable for step in steps) or not dataset.is_cacheable:
        return None
    text = json.dumps([_VERSION, dataset.version, [step.to_json() for step in steps], *about], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load_selection(key: str, rows: np.ndarray) -> Selection | None:
    """Loads the stored selection, or returns ``None`` if there is none or it is damaged.

    Args:
        rows: the number of rows in each row group of the dataset.
    """
    return user_cache("selections").load(key, lambda content: read_selection(content, rows))


def read_selection(content: bytes, rows: np.ndarray) -> Selection:
    """Parses a stored selection. Damaged bytes, and rows that do not exist, raise one of `file_cache.UNREADABLE`."""
    arrays = _arrays(content, _MOST_BYTES + _MOST_BYTES_PER_ROW * (len(rows) + int(rows.sum())))
    meta = json.loads(str(arrays["meta"]))
    selection = Selection(
        rows=RowSet(before=arrays["before"], whole=arrays["whole"], start=arrays["start"], values=arrays["values"]),
        starts=arrays["starts"] if meta["windows"] else None,
        steps=arrays["steps"],
        reports=tuple(_report(**report) for report in meta["reports"]),
        matched=meta["matched"],
        edges=arrays.get("edges"),
        measured=arrays.get("measured"),
        refused=RefusedRows.stored(arrays["refused"], meta["refused"], rows)
        if "refused" in arrays
        else NOTHING_REFUSED,
    )
    if type(selection.matched) is not int or selection.matched < 0 or not _fits(selection, rows):
        raise ValueError("expected rows of this dataset, got rows of another one")
    forget_rows(selection.rows.values)
    return selection


def _arrays(content: bytes, most_bytes: int) -> dict[str, np.ndarray]:
    """Returns the arrays of an ``.npz`` file, which may hold at most ``most_bytes`` bytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        size_bytes = sum(member.file_size for member in members)
        if size_bytes > most_bytes or any(member.compress_type != zipfile.ZIP_DEFLATED for member in members):
            raise ValueError(f"expected deflated arrays of at most {most_bytes} bytes, got {size_bytes}")
        parts = [member for member in members if member.filename.startswith(_PART)]
        arrays = {
            member.filename.removesuffix(".npy"): npy_array(memoryview(archive.read(member)))
            for member in members
            if member not in parts
        }
        if parts:
            arrays["values"] = joined(
                np.cumsum(npy_array(memoryview(archive.read(member))), dtype=np.int32) for member in parts
            )
        return arrays


def _fits(selection: Selection, rows: np.ndarray) -> bool:
    """Whether all rows of a selection exist, so nothing is read out of bounds."""
    numbers, count = selection.rows, len(rows)
    types = {"before": "i8", "whole": "?", "start": "i8", "values": "i4"}
    if any(getattr(numbers, name).dtype != kind or getattr(numbers, name).ndim != 1 for name, kind in types.items()):
        return False
    if (len(numbers.before), len(numbers.whole), len(numbers.start)) != (
        count + 1,
        count,
        count,
    ) or numbers.before[0]:
        return False
    counts = numbers.counts
    if (numbers.before < 0).any() or (counts < 0).any() or (counts > rows).any():
        return False
    listed = ~numbers.whole & (counts > 0)
    first, end = numbers.start[listed], numbers.start[listed] + counts[listed]
    if (first < 0).any() or (end > len(numbers.values)).any() or _smallest(numbers.values) < 0:
        return False
    if len(first) and (_largest(numbers.values, first, end) >= rows[listed]).any():
        return False
    return _windows_fit(selection)


def _smallest(values: np.ndarray) -> int:
    return min((int(piece.min()) for piece in _pieces(values, 0, len(values))), default=0)


def _largest(values: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Returns the largest row number of each row group, whose numbers are ``values[first:end]``."""
    if values.nbytes <= MOST_BYTES:
        bounds = np.stack([first, end], axis=1).ravel()  # the last end may be the end of the array
        largest: np.ndarray = np.maximum.reduceat(np.append(values, np.int32(0)), bounds)[::2]
        return largest
    places = zip(first.tolist(), end.tolist(), strict=True)
    return np.array([max(int(piece.max()) for piece in _pieces(values, *place)) for place in places])


def _pieces(values: np.ndarray, first: int, end: int) -> Iterator[np.ndarray]:
    """Yields row numbers in pieces, of which only one is in memory at a time if they are in a file."""
    for begin in range(first, end, _PART_ROWS):
        yield values[begin : min(begin + _PART_ROWS, end)]
        if end - first > _PART_ROWS:
            forget_rows(values)


def _windows_fit(selection: Selection) -> bool:
    starts, steps, measured, edges = selection.starts, selection.steps, selection.measured, selection.edges
    total = selection.rows.total
    if steps.dtype != "i8" or steps.ndim != 1 or not len(steps) or steps[0] != 0:
        return False
    if measured is not None and (measured.dtype.kind not in "biuf" or measured.shape != (total,)):
        return False
    if starts is None:
        return bool((steps == 0).all())
    if starts.dtype != "i8" or starts.ndim != 1 or (np.diff(starts) < 0).any():
        return False
    if edges is not None:
        if edges.dtype != "i8" or edges.ndim != 1 or not len(edges) or (np.diff(edges) <= 0).any():
            return False
        if (edges[0], edges[-1]) != (0, total) or steps.max() > total or steps.min() < -total:
            return False
        steps = steps[:1]  # the others are moved to the edges
    if steps.min() < 0:
        return False
    return not len(starts) or bool(steps.max() <= total and starts[0] >= 0 and starts[-1] < total - steps.max())


def _report(units: int, **others: Any) -> Report:
    """Returns the report that `_stored_report` stored."""
    report = Report(row_groups=units, **others)
    if not all(type(value) in (int, str) for value in asdict(report).values()):
        raise TypeError("expected numbers and strings in a report")
    return report


def save_selection(key: str, selection: Selection) -> None:
    """Stores a selection. The file appears atomically. If the disk is full or read-only, nothing is stored and the
    next reader computes the selection again.
    """
    meta = {
        "windows": selection.starts is not None,
        "matched": selection.matched,
        "reports": [_stored_report(report) for report in selection.reports],
    }
    measured: dict[str, Any] = {} if selection.measured is None else {"measured": selection.measured}
    if selection.edges is not None:
        measured["edges"] = selection.edges
    if len(selection.refused):
        meta["refused"] = selection.refused.to_json()
        measured["refused"] = selection.refused.places
    arrays = {
        **measured,
        "before": selection.rows.before,
        "whole": selection.rows.whole,
        "start": selection.rows.start,
        **_parts_of(selection.rows.values),
        "starts": selection.starts if selection.starts is not None else np.zeros(0, np.int64),
        "steps": selection.steps,
        "meta": np.array(json.dumps(meta)),
    }
    user_cache("selections").save(key, _packed(arrays))


def _parts_of(values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns row numbers under their names in a file: many are stored in parts, as the steps between them."""
    if values.nbytes <= MOST_BYTES:
        return {"values": values}
    pieces = enumerate(range(0, len(values), _PART_ROWS))
    return {f"{_PART}{number}": values[first : first + _PART_ROWS] for number, first in pieces}


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns an ``.npz`` file.

    `numpy.savez_compressed` compresses at level 6, which takes eight times as long and makes row numbers no smaller.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            stored = np.diff(array, prepend=np.int32(0)) if name.startswith(_PART) else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)
            forget_rows(array)
    return stream.getvalue()


def _stored_report(report: Report) -> dict[str, Any]:
    """Converts a report to its form in stored files, where row groups are called units."""
    stored = asdict(report)
    return {"units": stored.pop("row_groups"), **stored}
