"""Kernels that copy rows by number, from fixed-width columns or runs of bytes: compiled, and by numpy or Arrow.

Row numbers are int64, in any order, and may repeat. The rows are written to the caller's arrays or to new ones. Both
implementations write the same bytes. A row number that is out of range raises an `IndexError` before anything is
written. No array may overlap an array that is written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ..memory.arrow_views import as_arrow
from .library import CORE, address_of

_Array: TypeAlias = np.ndarray[Any, Any]
_FEW_ROWS = 1 << 31
_LONG_PIECE = 64  # mean length from which numpy copies pieces one by one
_WORTH_CONVERTING = 4  # from this many columns on, converting row numbers to int32 pays off


def gather(
    sources: Sequence[_Array],
    rows: _Array,
    targets: Sequence[_Array],
    places: _Array | None = None,
) -> None:
    """Copies row ``rows[i]`` of each source to row ``i`` of its target, or to row ``places[i]``.

    Args:
        sources: arrays ``[S, ...]``, all of one length, of any dtype and strides; may be read-only.
        rows: int64 ``[N]``.
        targets: arrays ``[N, ...]`` (with ``places``: ``[T, ...]``), one per source, of the same dtypes and row shapes.
        places: int64 ``[N]``; if a place occurs several times, the last row wins.

    Raises:
        IndexError: a row or place is out of range, or the columns differ in length.
    """
    if not sources:
        return
    if not all(map(_is_plain, sources, targets)):
        gather_by_numpy(sources, rows, targets, places)
        return
    source_rows, target_rows = _length("columns", sources), _length("targets", targets)
    numbers = np.ascontiguousarray(rows, np.int32 if rows.dtype == np.int32 else np.int64)
    if len(sources) >= _WORTH_CONVERTING and source_rows < _FEW_ROWS and numbers.dtype == np.int64:
        wide, numbers = numbers, np.empty(len(numbers), np.int32)
        wrong = CORE.parquetry_narrow(address_of(wide), len(wide), source_rows, address_of(numbers))
        if wrong >= 0:
            raise _outside(int(wide[wrong]), source_rows)
    to = None if places is None else np.ascontiguousarray(places, np.int64)
    if to is None and target_rows < len(numbers):
        raise IndexError(f"gather: expected targets of {len(numbers)} rows, got {target_rows}.")
    described = np.array([_described(*pair) for pair in zip(sources, targets, strict=True)], np.int64)
    wrong = CORE.parquetry_gather(
        address_of(described),
        len(described),
        source_rows,
        address_of(numbers),
        numbers.itemsize,
        None if to is None else address_of(to),
        target_rows,
        len(numbers),
    )
    if wrong >= 0:
        raise _outside(int(numbers[wrong]), source_rows)
    if wrong < -1 and to is not None:
        raise _outside(int(to[-2 - wrong]), target_rows)


def gather_runs(
    offsets: _Array,
    data: _Array,
    rows: _Array,
    allocate: Callable[[int], _Array] | None = None,
) -> tuple[_Array, _Array]:
    """Copies runs of ``data`` end to end. Returns their ends (int64 ``[N + 1]``, beginning with 0) and bytes.

    Args:
        offsets: int64 ``[S + 1]``; run ``r`` is ``data[offsets[r] : offsets[r + 1]]``.
        data: uint8, contiguous.
        allocate: may be called for memory of the given number of bytes (uint8); ``None`` to use a new array.

    Raises:
        IndexError: a row is out of range, or a run does not lie in ``data``.
    """
    numbers = np.ascontiguousarray(rows, np.int64)
    offsets = np.ascontiguousarray(offsets, np.int64)
    data = np.ascontiguousarray(data)
    ends = np.empty(len(numbers) + 1, np.int64)
    begins, values, chosen, bounds = (address_of(each) for each in (offsets, data, numbers, ends))
    wrong = CORE.parquetry_run_ends(begins, len(offsets) - 1, len(data), chosen, len(numbers), bounds)
    if wrong >= 0:
        row = int(numbers[wrong])
        if not 0 <= row < len(offsets) - 1:
            raise _outside(row, len(offsets) - 1)
        raise IndexError(f"gather: expected run {row} in {len(data)} bytes, got {offsets[row]} to {offsets[row + 1]}.")
    size = int(ends[-1])
    taken = np.empty(size, np.uint8) if allocate is None else allocate(size)
    CORE.parquetry_runs(begins, values, len(data), chosen, len(numbers), bounds, address_of(taken))
    return ends, taken


def gather_runs_by_arrow(
    offsets: _Array,
    data: _Array,
    rows: _Array,
    allocate: Callable[[int], _Array] | None = None,
) -> tuple[_Array, _Array]:
    """Does what `gather_runs` does, in Arrow's memory. Runs that do not lie in ``data`` are not noticed."""
    buffers = [None, *(pa.py_buffer(np.ascontiguousarray(each)) for each in (offsets, data))]
    taken = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers).take(as_arrow(rows))
    if len(taken) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    ends = np.frombuffer(taken.buffers()[1], np.int64, len(taken) + 1, taken.offset * 8)
    stored = taken.buffers()[2]
    values = np.frombuffer(b"" if stored is None else stored, np.uint8)[ends[0] : ends[-1]]
    return (ends if ends[0] == 0 else ends - ends[0]), values


def copy_pieces(values: _Array, begins: _Array, counts: _Array, out: _Array, places: _Array) -> None:
    """Copies pieces of an array to places in another.

    Args:
        values, out: one axis, of one dtype.
        begins, counts, places: int64; piece ``i`` is the ``counts[i]`` values from ``begins[i]`` on. It goes to
            ``out``, from ``places[i]`` on. No two pieces share a place.

    Raises:
        IndexError: a piece does not lie in ``values`` or ``out``.
    """
    plain = values.flags.c_contiguous and out.flags.c_contiguous and out.flags.writeable
    if not plain or values.dtype != out.dtype or values.dtype.hasobject:
        copy_pieces_by_numpy(values, begins, counts, out, places)
        return
    begins, counts, places = (np.ascontiguousarray(each, np.int64) for each in (begins, counts, places))
    wrong = CORE.parquetry_pieces(
        address_of(begins),
        address_of(counts),
        address_of(places),
        len(begins),
        address_of(values),
        len(values),
        address_of(out),
        len(out),
        out.itemsize,
    )
    if wrong >= 0:
        raise _misplaced_piece(wrong, begins, counts, places, values, out)


def copy_pieces_by_numpy(values: _Array, begins: _Array, counts: _Array, out: _Array, places: _Array) -> None:
    """Does what `copy_pieces` does."""
    wrong = (counts < 0) | (begins < 0) | (begins > len(values) - counts) | (places < 0) | (places > len(out) - counts)
    if wrong.any():
        raise _misplaced_piece(int(np.argmax(wrong)), begins, counts, places, values, out)
    if int(counts.sum()) >= _LONG_PIECE * len(counts):
        for begin, count, place in zip(begins.tolist(), counts.tolist(), places.tolist(), strict=True):
            out[place : place + count] = values[begin : begin + count]
        return
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    out[np.repeat(places, counts) + inside] = values[np.repeat(begins, counts) + inside]


def _misplaced_piece(
    piece: int, begins: _Array, counts: _Array, places: _Array, values: _Array, out: _Array
) -> IndexError:
    return IndexError(
        f"copy_pieces: expected piece {piece} in {len(values)} values and {len(out)} places, got {counts[piece]} "
        f"values from {begins[piece]} on for place {places[piece]}."
    )


def pad_runs(ends: _Array, values: _Array, value: object, outs: Sequence[_Array]) -> None:
    """Copies runs of numbers to the rows of the given batches, and fills the rest of each row with ``value``.

    Args:
        ends: int64 ``[N + 1]``; run ``r`` is ``values[ends[r] : ends[r + 1]]``.
        values: numbers of any dtype, one axis.
        outs: the batches, ``N`` rows in all: ``[rows, length]`` each, contiguous, of the same dtype.

    Raises:
        IndexError: a run is longer than the rows of its batch, or does not lie in ``values``.
    """
    item_bytes = values.itemsize
    fits = all(out.dtype == values.dtype and out.flags.c_contiguous and out.flags.writeable for out in outs)
    if not fits or item_bytes not in (1, 2, 4, 8):
        pad_runs_by_numpy(ends, values, value, outs)
        return
    ends = _run_ends(ends, outs)
    values, filling = np.ascontiguousarray(values), np.full(1, value, values.dtype)
    bounds = np.cumsum([0, *map(len, outs)], dtype=np.int64)
    widths = np.array([out.shape[1] for out in outs], np.int64)
    targets = np.array([address_of(out) for out in outs], np.int64)
    wrong = CORE.parquetry_pad(
        address_of(ends),
        address_of(bounds),
        address_of(widths),
        len(widths),
        address_of(values),
        len(values),
        item_bytes,
        address_of(filling),
        address_of(targets),
    )
    if wrong >= 0:
        raise _misplaced(ends, wrong, len(values), int(widths[np.searchsorted(bounds, wrong, side="right") - 1]))


def pad_runs_by_numpy(ends: _Array, values: _Array, value: object, outs: Sequence[_Array]) -> None:
    """Does what `pad_runs` does."""
    ends = _run_ends(ends, outs)
    lengths = np.diff(ends)
    most = np.repeat([out.shape[1] for out in outs], [len(out) for out in outs])
    wrong = (lengths < 0) | (lengths > most) | (ends[:-1] < 0) | (ends[1:] > len(values))
    if wrong.any():
        run = int(np.argmax(wrong))
        raise _misplaced(ends, run, len(values), most[run])
    first = 0
    for out in outs:
        last = first + len(out)
        out[...] = value
        mask = np.arange(out.shape[1]) < lengths[first:last, None]
        out[mask] = values[ends[first] : ends[last]]  # a mask is filled in row order
        first = last


def _run_ends(ends: _Array, outs: Sequence[_Array]) -> _Array:
    if len(ends) != 1 + sum(map(len, outs)):
        raise IndexError(f"pad: expected a row for each of {len(ends) - 1} runs, got {sum(map(len, outs))}.")
    return np.ascontiguousarray(ends, np.int64)


def _misplaced(ends: _Array, run: int, items: int, most: int) -> IndexError:
    return IndexError(
        f"pad: expected run {run} in {items} items and at most {most} long, got {ends[run]} to {ends[run + 1]}."
    )


def _is_plain(source: _Array, target: _Array) -> bool:
    """Returns whether rows can be copied byte by byte: same dtype and shape, and each row is contiguous."""
    if source.dtype != target.dtype or source.dtype.hasobject or not target.flags.writeable:
        return False
    if source.ndim == target.ndim == 1:
        return True
    return source.shape[1:] == target.shape[1:] and _in_one_piece(source) and _in_one_piece(target)


def _in_one_piece(array: _Array) -> bool:
    return array.flags.c_contiguous or (len(array) > 0 and array[0].flags.c_contiguous)


def _described(source: _Array, target: _Array) -> tuple[int, int, int, int, int]:
    """Returns how to copy a column: a `Column` in gather.cc."""
    row_bytes = source.itemsize
    if source.ndim > 1:
        row_bytes *= math.prod(source.shape[1:])
    return address_of(source), address_of(target), row_bytes, source.strides[0], target.strides[0]


def gather_by_numpy(
    sources: Sequence[_Array],
    rows: _Array,
    targets: Sequence[_Array],
    places: _Array | None = None,
) -> None:
    """Does what `gather` does, for rows of any layout."""
    if not sources:
        return
    source_rows, target_rows = _length("columns", sources), _length("targets", targets)
    _check(rows, source_rows)
    if places is not None:
        _check(places, target_rows)
    for source, target in zip(sources, targets, strict=True):
        if places is not None:
            target[places] = source[rows]
        elif len(rows):
            source.take(rows, 0, target, "wrap")  # the fastest mode; the numbers have been checked


def _length(what: str, columns: Sequence[_Array]) -> int:
    lengths = {*map(len, columns)}
    if len(lengths) != 1:
        raise IndexError(f"gather: expected {what} of one length, got {sorted(lengths)}.")
    return lengths.pop()


def _check(numbers: _Array, limit: int) -> None:
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        outside = (numbers < 0) | (numbers >= limit)
        raise _outside(int(numbers[int(np.argmax(outside))]), limit)


def _outside(number: int, limit: int) -> IndexError:
    return IndexError(f"gather: expected row numbers from 0 up to {limit}, got {number}.")
