"""`BadRows`: the rows of a pipeline that are known to fail, kept for later epochs, other processes, and the next run.

They are stored under a key of everything that decides whether a row fails: the version of the dataset, the selection,
the fields, and the stages that change the fields. User functions may change between runs, so the rows for which they
failed are known only to this process. The order does not depend on known rows: each keeps its place, and is skipped
without being read.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from functools import lru_cache
from itertools import dropwhile
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import DecodeError
from ...base.process.forks import ForkLock
from ...plan.block_reads import BlockKey, BlockRead, BlockRows
from ...plan.order.cursor import START, Cursor
from ...plan.plan import BasePlan
from ...plan.program import ElementProgram, MixedProgram
from ...plan.selection.store import kept_key
from ...schema.image_files import pixel_limit
from ...schema.images import CompressedImageCodec
from ...stages.base import Decision
from ...storage.file_cache import user_cache

_SAVED_EVERY_S = 2.0
_MOST_BLOCKS = 64
_MOST_TEXT = 300
_FIELD_DECISIONS = (Decision.FIELDS, Decision.FORM)
_ROW_BITS = 32
_VERSION = 1


class Row(NamedTuple):
    """A stored row, which is the first one of its item. ``source`` is the number of the dataset in a mix."""

    source: int
    row_group: int
    row: int


class Failure(NamedTuple):
    """Why a row fails: the name of the error's class and the beginning of its message."""

    cause: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Returns the description of an error."""
        text = str(error).partition("\n")[0]
        return cls(type(error).__name__, text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}...")


class SkippedItem(NamedTuple):
    """A row that is left out (the first row of an item), and the reason."""

    row: Row
    failure: Failure

    @property
    def described(self) -> str:
        """The cause and the message, without a full stop."""
        return f"{self.failure.cause}: {self.failure.message.removesuffix('.')}"


class FailedItem(NamedTuple):
    """An item of a block that failed. ``token`` is the first token that it takes from its first row, if rows are
    joined to items of tokens.
    """

    key: BlockKey
    item: int
    token: int | None
    error: BaseException


class BadRows:
    """The rows of a plan that are known to fail. Thread-safe.

    Saving also loads the rows that other processes have saved in the meantime. Items of joined tokens differ between
    epochs, and only functions fail for them, so they are known only to this process.

    Args:
        program: says whether nulls are errors, which changes the rows that fail.
    """

    def __init__(self, plan: BasePlan, program: ElementProgram | MixedProgram) -> None:
        self.known: dict[Row, Failure] = {}
        self._plan = plan
        self._key = _key(plan, program.strict_nulls)
        self._causes = _kept_causes(plan)
        self._covered: dict[str, list[int]] = {}
        self._rows_of_source: dict[int, list[Row]] = {}  # of each source, in the order in which they became known
        self._in_row_group: dict[tuple[int, int], list[int]] = {}  # the same by source and row group
        self._items: OrderedDict[BlockKey, tuple[int, np.ndarray]] = OrderedDict()
        self._joined: dict[BlockKey, dict[int, Failure]] = {}
        self._lock = ForkLock()
        self._block_rows = lru_cache(maxsize=4)(plan.block_rows)
        self._saved_at = 0.0
        self._unsaved = False
        self.refresh()

    @property
    def complete(self) -> bool:
        """Whether every row has been read, so that no other row can be bad."""
        return any(len(parts) == int(name.split("/")[-1]) for name, parts in self._covered.items())

    @property
    def some(self) -> bool:
        """Whether any row or item is known to fail."""
        return bool(self.known or self._joined)

    def add(self, failing: FailedItem) -> None:
        key, item, token, error = failing
        if token is not None:
            with self._lock:
                self._joined.setdefault(key, {})[item << _ROW_BITS | token] = Failure.of(error)
            return
        (row,) = self.rows_of(key, np.array([item]))
        with self._lock:
            self._learn({row: Failure.of(error)})
            self._unsaved = True
        if time.monotonic() - self._saved_at > _SAVED_EVERY_S:
            self.save()

    def fails(self, reads: list[BlockRead], count: int) -> np.ndarray | None:
        """Returns a bool mask of the items known to fail among ``count`` drawn ones, or ``None`` if there are none."""
        if not self.some:
            return None
        result: np.ndarray | None = None
        for read in reads:
            hit = self.hits(read)
            if hit is not None:
                result = np.zeros(count, dtype=bool) if result is None else result
                result[np.flatnonzero(hit) if read.places is None else read.places[hit]] = True
        return result

    def hits(self, read: BlockRead) -> np.ndarray | None:
        """Returns which of a read's items are known to fail (of joined items: which first pieces), or ``None``."""
        if read.spans is not None:
            joined = self._joined.get(read.key)
            codes = read.items << _ROW_BITS | read.spans[:, 0]
            hit = np.isin(codes, list(joined)) if joined else None  # each piece is in one item
        else:
            bad = self._bad_items(read.key)
            hit = _in_sorted(read.items, bad) if len(bad) else None
        return hit if hit is not None and hit.any() else None

    def skips(self, read: BlockRead) -> list[tuple[int, SkippedItem]]:
        """Returns the items of a read that are known to fail, each with its place in the element."""
        hit = self.hits(read)
        if hit is None:
            return []
        rows = self.rows_of(read.key, read.items[hit])
        if read.spans is None:
            failures = [self.known[row] for row in rows]
        else:
            joined = self._joined[read.key]
            failures = [joined[code] for code in (read.items << _ROW_BITS | read.spans[:, 0])[hit].tolist()]
        places = np.flatnonzero(hit) if read.places is None else read.places[hit]
        return list(zip(places.tolist(), map(SkippedItem, rows, failures), strict=True))

    def rows_of(self, key: BlockKey, items: np.ndarray) -> list[Row]:
        """Returns the first stored row of each of the given items of a block."""
        return [Row(key.source, *place) for place in self._block_rows(key).first_rows(items)]

    def covers(self, cursor: Cursor) -> None:
        """Notes that the part of an iteration that begins at a cursor was read to its end."""
        plan = self._plan
        shard = plan.order.shard
        partly = any(stage.decides in (Decision.CUT, Decision.WEIGHTS) for stage in _deciding(plan))
        partly = partly or (shard is not None and shard.even == "drop")
        if partly or cursor.origin != START or cursor.start or cursor.skipped:
            return
        part, parts = cursor.part(shard)
        done = self._covered.setdefault(f"{cursor.iteration}/{plan.seed}/{parts}", [])
        if part not in done:
            done.append(part)
            self._unsaved = True

    def save(self) -> None:
        """Saves new rows, together with those that other processes have saved in the meantime.

        If another process blocks this for too long, a later call saves them.
        """
        self._saved_at = time.monotonic()
        if self._key is None or not self._unsaved:
            return
        with user_cache("bad_rows").alone() as is_alone:
            if not is_alone:
                return
            self.refresh()
            with self._lock:
                self._unsaved = False
                rows = [
                    [*row, *failure]
                    for row, failure in self.known.items()
                    if self._causes is None or failure.cause in self._causes
                ]
                text = json.dumps({"rows": rows, "covered": self._covered if self._causes is None else {}})
            user_cache("bad_rows").save(self._key, text.encode())

    def refresh(self) -> None:
        """Loads the rows that other processes have saved."""
        kept = None if self._key is None else user_cache("bad_rows").load(self._key, read_bad_rows)
        if kept is None:
            return
        rows, covered = kept
        with self._lock:
            self._learn(rows)
            for name, parts in covered.items():
                known_parts = self._covered.setdefault(name, [])
                known_parts += [part for part in parts if part not in known_parts]

    def _learn(self, rows: dict[Row, Failure]) -> None:
        """Notes rows that may be known. Call it with the lock held."""
        for row, failure in rows.items():
            if row not in self.known:
                self.known[row] = failure
                self._rows_of_source.setdefault(row.source, []).append(row)
                self._in_row_group.setdefault((row.source, row.row_group), []).append(row.row)

    def _bad_items(self, key: BlockKey) -> np.ndarray:
        """Returns the numbers of a block's items that are known to fail, ascending."""
        rows = self._block_rows(key)
        with self._lock:  # so that the result covers all rows that are known now
            source_rows = self._rows_of_source.get(key.source, [])
            seen, items = self._items.pop(key, (0, np.zeros(0, np.int64)))
            if seen < len(source_rows):
                items = np.union1d(items, rows.items_from(self._in_row_groups(rows, key.source, source_rows[seen:])))
            self._items[key] = len(source_rows), items
            if len(self._items) > _MOST_BLOCKS:
                self._items.popitem(last=False)
        return items

    def _in_row_groups(self, rows: BlockRows, source: int, known_rows: list[Row]) -> dict[int, list[int]]:
        """Returns the numbers of bad rows by row group: at least those of the given rows."""
        by_row_group: dict[int, list[int]] = {}
        if len(known_rows) > len(rows.row_groups):
            return {each: self._in_row_group.get((source, each), []) for each in rows.row_groups}
        for row in known_rows:
            by_row_group.setdefault(row.row_group, []).append(row.row)
        return by_row_group


def bad_rows_of(plan: BasePlan, program: ElementProgram | MixedProgram) -> BadRows:
    """Returns the bad rows of a plan. Each plan has one object, so that later epochs of this process know them all."""
    with _LOCK:
        by_strictness: dict[bool, BadRows] = plan.__dict__.setdefault("bad_rows", {})
        strict = program.strict_nulls
        return by_strictness.get(strict) or by_strictness.setdefault(strict, BadRows(plan, program))


_LOCK = ForkLock()


def length_without_bad_rows(plan: BasePlan, program: ElementProgram | MixedProgram) -> int | None:
    """Returns the number of elements of one iteration, or ``None`` if it is endless.

    Raises:
        TypeError: some rows have not been read yet, or the iteration has only a part of the rows.
    """
    if plan.length is None or not plan.loses_elements:
        return plan.length
    bad = bad_rows_of(plan, program)
    bad.refresh()
    deciding = {stage.decides for stage in _deciding(plan)}
    known = bad.complete and (not plan.joined or (plan.order.makes_batches and not bad.known))
    if not known or deciding & {Decision.CUT, Decision.PART, Decision.WEIGHTS} or len(plan.parts) > 1:
        raise TypeError(
            "len(): unknown, because on_error='skip' may leave rows out. It is known after an epoch over all rows of "
            "one dataset without functions, or if shard(even='pad') replaces the rows that are left out. Batches of "
            "bucket() are known only if no row fails."
        )
    if plan.order.makes_batches:
        return plan.length
    rows = (plan.row_view.length or 0) - len(bad.known) * (plan.row_view.passes or 1)
    batch = plan.order.batch
    if batch is None:
        return rows
    return rows // batch.batch_size if batch.drop_remainder else -(-rows // batch.batch_size)


def _deciding(plan: BasePlan) -> list[Any]:
    join = [] if plan.order.join is None else [plan.order.join]
    return [*plan.order.views, *plan.order.part, *join]


def _in_sorted(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """As ``np.isin`` for some sorted members; ten times as fast for the rows of a batch."""
    at = np.minimum(np.searchsorted(members, values), len(members) - 1)
    is_member: np.ndarray = members[at] == values
    return is_member


def _kept_causes(plan: BasePlan) -> tuple[str, ...] | None:
    """Returns the causes to save (``None`` = all).

    Steps after a user function depend on its results, so their failures are not saved.
    """
    if not plan.program.has_user_code:
        return None
    programs = [plan.program, *(part.program for part in plan.parts)]
    orders = [[*getattr(each, "row_steps", ()), *each.item_steps] for each in programs]
    behind = [step for steps in orders for step in dropwhile(lambda step: not step.runs_user_code, steps)]
    return (DecodeError.__name__,) if len(plan.parts) == 1 and all(step.runs_user_code for step in behind) else ()


def _key(plan: BasePlan, strict: bool) -> str | None:
    """Returns the key under which the rows are stored, or ``None`` if they must not be stored."""
    keys = []
    for part in plan.parts:
        stages = [stage for stage in part.order.fields if stage.decides in _FIELD_DECISIONS]
        stages += [stage for stage in (part.order.join,) if stage is not None and stage.decides is Decision.JOINS]
        about = [stage.identity for stage in stages if not (stage.makes_values and part.program.has_user_code)]
        fields = [field.name for field in part.program.fields]
        limits = [str(part.dataset.max_value_bytes)]
        if not all(field.storage.in_column for field in part.program.fields):
            return None  # a video may change while the dataset stays as it is
        if any(isinstance(field.storage, CompressedImageCodec) for field in part.program.fields):
            limits.append(f"{pixel_limit()} pixels")
        of_values = [str(_VERSION), *limits, *fields, *about]
        keys.append(kept_key(part.dataset, part.order.selection, "bad rows", *of_values))
    if any(key is None for key in keys):
        return None
    mixed = [stage.identity for stage in plan.stages] if len(plan.parts) > 1 else []
    about_all = [keys, strict, mixed, _kept_causes(plan)]
    return hashlib.blake2b(json.dumps(about_all).encode(), digest_size=16).hexdigest()


def read_bad_rows(content: bytes) -> tuple[dict[Row, Failure], dict[str, list[int]]]:
    """Reads the rows and the covered parts from a stored file. Other bytes raise one of `file_cache.UNREADABLE`."""
    kept = json.loads(content)
    rows = {Row(*map(_count, row)): Failure(str(cause), str(text)) for *row, cause, text in kept["rows"]}
    covered = {name: sorted({_count(part) for part in parts}) for name, parts in kept["covered"].items()}
    if any(parts[-1] >= _count(int(name.split("/")[-1])) for name, parts in covered.items() if parts):
        raise ValueError("expected parts below their number")
    return rows, covered


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << _ROW_BITS - 1:  # rows are numbered by int32
        raise ValueError(f"expected a number from 0, got {value!r}")
    return value
