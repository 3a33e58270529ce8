"""N-gram windows: finds the runs of consecutive rows that form an item.

Takes the selected rows, their sequence boundaries, timestamps, and a `WindowRule`, and returns the positions of the
rows that identify the windows. A window is ``span`` consecutive selected rows of one run. A sequence ends where the
file, the ``group_by`` value or (on request) the row group changes, and a run ends there and at wide gaps. Windows may
also repeat the row at an edge of their run.

`Stamps` are timestamps that are compared and subtracted without rounding: a column of integers, times, decimals of any
scale, or floats. Integers and decimals are stored as 64-bit words, so neither 38 digits nor the extremes of int64
overflow.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.memory.arrow_views import as_numpy
from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...schema.ragged import ends_of

_TOP = np.uint64(1 << 63)
_WORD = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)  # no slots, because comparisons are cached
class Stamps:
    """The timestamps of consecutive rows.

    Attributes:
        words: uint64 ``[words, rows]``, most significant word first, in the same order as the values; or floats
            ``[1, rows]``.
        lowest: the value for which all words are 0.
        scale: the number of digits after the decimal point.
    """

    words: np.ndarray
    lowest: int = 0
    scale: int = 0

    def __len__(self) -> int:
        return int(self.words.shape[1])

    @cached_property
    def ascends(self) -> np.ndarray:
        """Whether each row is equal to or later than the row before it, bool ``[rows - 1]``; false if one is NaN."""
        return _at_most(self.words[:, :-1], self.words[:, 1:])

    @cached_property
    def descends(self) -> np.ndarray:
        """Whether each row is equal to or earlier than the row before it, bool ``[rows - 1]``; false if one is NaN."""
        return _at_most(self.words[:, 1:], self.words[:, :-1])

    @cached_property
    def ranks(self) -> np.ndarray:
        """A number per row that increases wherever the timestamp does, int64 ``[rows]``."""
        return ends_of(~self.descends)

    def gap_too_wide(self, max_gap: float | decimal.Decimal) -> np.ndarray:
        """Returns whether each row is more than ``max_gap`` later than the previous row, bool ``[rows - 1]``.

        For decimals, a float ``max_gap`` means its decimal notation: 0.1 is exactly one tenth.
        """
        earlier, later = self.words[:, :-1], self.words[:, 1:]
        if self.words.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):  # equal infinities have no gap
                return np.asarray(later[0] - earlier[0] > float(max_gap))
        if math.isinf(max_gap) and max_gap > 0:
            return np.zeros(earlier.shape[1], dtype=bool)
        from fractions import Fraction  # only here, because it takes a while to load

        limit = math.floor(Fraction(str(max_gap)) * 10**self.scale)
        if limit < 0:
            return self.ascends
        limit = min(limit, (1 << 64 * len(self.words)) - 1)
        places = reversed(range(len(self.words)))
        most = np.array([[limit >> 64 * place & _WORD] for place in places], dtype=np.uint64)
        return np.asarray(~self.descends & ~_at_most(_minus(later, earlier), most))

    def text(self, row: int) -> str:
        """Formats one timestamp for messages. Times are shown as counts of their unit."""
        if self.words.dtype.kind == "f":
            return str(self.words[0, row])
        value = self.lowest
        for place, word in enumerate(reversed(self.words[:, row].tolist())):
            value += word << 64 * place
        return format(decimal.Decimal(f"{value}e-{self.scale}"), "f")


def stamps_of(column: pa.ChunkedArray, name: str) -> Stamps:
    """Returns the timestamps of a column without nulls.

    Raises:
        PipelineError: the column holds neither numbers nor times.
    """
    kind = column.type
    if pa.types.is_decimal(kind):
        return _decimals(column)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)):
        raise PipelineError(f"ngram: expected timestamp='{name}' to be a number or a time, got {kind}.")
    parts = [_numbers(chunk) for chunk in column.chunks]
    numbers = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if numbers.dtype.kind == "f":
        return Stamps(words=numbers[None])
    if numbers.dtype.kind == "u":
        return Stamps(words=numbers.astype(np.uint64)[None])
    return Stamps(words=(numbers.astype(np.int64).view(np.uint64) ^ _TOP)[None], lowest=-(1 << 63))


def _numbers(chunk: pa.Array) -> np.ndarray:
    if pa.types.is_temporal(chunk.type):
        chunk = chunk.view(pa.int32() if chunk.type.bit_width == 32 else pa.int64())
    result: np.ndarray = as_numpy(chunk)
    return result


def _decimals(column: pa.ChunkedArray) -> Stamps:
    kind = column.type
    wide = kind if kind.bit_width >= 128 else pa.decimal128(38, kind.scale)
    count = wide.bit_width // 64
    parts = [np.zeros((0, count), dtype=np.uint64)]
    for chunk in column.cast(wide).chunks:
        stored = np.frombuffer(chunk.buffers()[1] or b"", "<u8")  # two's complement, least significant word first
        parts.append(stored[count * chunk.offset :][: count * len(chunk)].reshape(-1, count))
    words = np.ascontiguousarray(np.concatenate(parts).T[::-1])
    words[0] ^= _TOP
    return Stamps(words=words, lowest=-(1 << wide.bit_width - 1), scale=kind.scale)


def _at_most(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns ``first <= second`` for multi-word numbers."""
    result: np.ndarray = first[-1] <= second[-1]
    for one, other in zip(first[-2::-1], second[-2::-1], strict=True):
        result = (one < other) | ((one == other) & result)
    return result


def _minus(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns ``first - second`` for multi-word numbers, where ``first`` is the larger."""
    result = np.empty_like(first)
    borrow = np.zeros(first.shape[1], dtype=bool)
    for place in reversed(range(len(first))):
        one, other = first[place], second[place]
        result[place] = one - other - borrow
        borrow = (one < other) | ((one == other) & borrow)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRule:
    """The rule for forming windows.

    Attributes:
        span: the number of rows from the first to the last offset, inclusive.
        first: the first offset, counted from the row that identifies the window.
        clamp: whether each row has a window, which repeats the row at an edge; otherwise its first row identifies it.
        max_gap: the largest allowed difference between adjacent timestamps (inclusive), in the timestamp's own unit.
        stride: the distance between candidate starts, counted in rows from the start of the sequence.
        overlap: whether windows may share rows.
    """

    span: int
    first: int = 0
    clamp: bool = False
    max_gap: float | decimal.Decimal | None = None
    stride: int = 1
    overlap: bool = True


def run_edges(sequence: np.ndarray, stamps: Stamps | None, rule: WindowRule) -> np.ndarray:
    """Returns the positions where runs of rows begin, ascending, and the number of rows; int64 ``[runs + 1]``.

    A run is a sequence, or a part of one between gaps that are too wide for a window.

    Args:
        sequence: int64 ``[rows]``, ascending: the sequence that each selected row belongs to.
        stamps: the timestamps of the rows, or ``None``. They must not decrease in a sequence (see `decreasing_stamp`).
    """
    breaks = sequence[1:] != sequence[:-1]
    if stamps is not None and rule.max_gap is not None:
        breaks |= stamps.gap_too_wide(rule.max_gap)
    first = [0] if len(sequence) else []
    return np.concatenate([first, np.flatnonzero(breaks) + 1, [len(sequence)]]).astype(np.int64)


def window_starts(sequence: np.ndarray, stamps: Stamps | None, rule: WindowRule) -> np.ndarray:
    """Returns the positions of the rows that identify the windows, ascending. ``sequence`` and ``stamps`` are as for
    `run_edges`.
    """
    edges = run_edges(sequence, stamps, rule)
    run = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    rows = len(sequence)
    if rule.clamp:
        starts = np.arange(rows)
    else:
        last = max(rows - rule.span + 1, 0)
        starts = np.flatnonzero(run[:last] == run[rows - last :])
    if rule.stride > 1:
        begin = np.searchsorted(sequence, sequence[starts], side="left")
        starts = starts[(starts - begin) % rule.stride == 0]
    if rule.overlap:
        return starts
    first, last = (min(max(offset, -rows), rows) for offset in (rule.first, rule.first + rule.span - 1))
    begins, ends = starts + first, starts + last
    if rule.clamp:
        lowest, highest = edges[run[starts]], edges[run[starts] + 1] - 1
        begins, ends = np.clip(begins, lowest, highest), np.clip(ends, lowest, highest)
    kept: np.ndarray = starts[_without_overlap(begins, ends, sequence, stamps)]
    return kept


def decreasing_stamp(sequence: np.ndarray, stamps: Stamps) -> int | None:
    """Returns the first position whose timestamp is NaN or earlier than that of the previous row in its sequence."""
    wrong = (sequence[1:] == sequence[:-1]) & ~stamps.ascends
    places = np.flatnonzero(wrong)
    return int(places[0]) + 1 if len(places) else None


def _without_overlap(begins: np.ndarray, ends: np.ndarray, sequence: np.ndarray, stamps: Stamps | None) -> np.ndarray:
    """Drops overlapping windows greedily: skips each that begins at or before the end of the last one kept. Returns the
    numbers of those kept. ``begins`` and ``ends`` are the first and last rows of the windows, ascending.
    """
    kept: list[int] = []
    ranks = None if stamps is None else stamps.ranks
    number = 0
    while number < len(begins):
        kept.append(number)
        end = int(ends[number])
        if ranks is not None:  # rows with the last row's timestamp also belong to the kept window
            stop = int(np.searchsorted(sequence, sequence[end], side="right"))
            end = end + int(np.searchsorted(ranks[end:stop], ranks[end], side="right")) - 1
        number = int(np.searchsorted(begins, end, side="right"))
    return np.asarray(kept, dtype=np.int64)
