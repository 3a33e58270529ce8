"""The oracle for the engine: a second implementation of every stage, with lists of dicts.

It shares only the names of the verbs with the code under test. A pipeline is a list of `Call`; `items` evaluates its
``where``, ``ngram``, ``select`` and ``transform`` in storage order, and `check` walks the views (``shard``,
``shuffle``, ``take``, ``skip``, ``repeat``, ``batch``) and checks the resulting rows of each. `joins` models
``concat``, ``pack_rows`` and ``bucket``.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from builders import Built, StoredRow
from hypothesis import settings
from joins import JOINS, Joined

from parquetry.common import Pipeline
from parquetry.common.base.errors import EmptySelectionError

Row = dict[Any, Any]
VIEWS = ("shard", "shuffle", "take", "skip", "repeat", "batch")
WEIGHTS = ("weigh", "balance")


@dataclass(frozen=True)
class Call:
    """One verb with its arguments; ``model`` is the plain Python version of an expression or function among them, and
    ``number`` the type in which the real verb gets the integers among them.
    """

    verb: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    model: Callable[[Row], Any] | None = None
    number: Callable[[int], Any] = int

    @property
    def endless(self) -> bool:
        """Whether it repeats without end, so that only a ``take`` may follow."""
        return self.verb == "repeat" and self.count is None

    def on(self, pipeline: Any) -> Any:
        """Calls the real verb; works on every face that has the verbs."""
        options = {name: self._given(v) for name, v in self.options.items() if not name.startswith("model_")}
        return getattr(pipeline, self.verb)(*map(self._given, self.args), **options)

    def _given(self, value: Any) -> Any:
        return self.number(value) if type(value) is int and value >= 0 else value

    def __str__(self) -> str:
        shown = [*map(str, self.args), *(f"{name}={value}" for name, value in self.options.items())]
        return f"{self.verb}({', '.join(shown)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        shown = str(self)  # hypothesis would print every member of a long list
        printer.text(shown if len(shown) < 300 else f"{shown[:200]} ... {shown[-60:]}")

    @property
    def count(self) -> Any:
        """Returns the first argument."""
        return self.args[0] if self.args else None


def examples(count: int) -> settings:
    """Decorates a property test: ``count`` examples, ``PARQUETRY_EXAMPLES`` times as many (a number such as 20 or 0.5)."""
    return settings(max_examples=max(1, round(count * float(os.environ.get("PARQUETRY_EXAMPLES", "1")))))


def call(verb: str, *args: Any, model: Callable[[Row], Any] | None = None, **options: Any) -> Call:
    """Returns a `Call`."""
    return Call(verb, args, options, model)


def apply(pipeline: Any, calls: Sequence[Call]) -> Any:
    """Applies all calls to the pipeline."""
    for each in calls:
        pipeline = each.on(pipeline)
    return pipeline


# --- the items, in storage order ---


@dataclass(frozen=True)
class _Pair:
    """A stored row, and its current form."""

    stored: StoredRow
    value: Row


def items(built: Built, calls: Sequence[Call]) -> list[Row]:
    """Returns the items of ``calls`` (no views except natural ``take`` and ``skip``) in storage order."""
    return [pair.value for pair in _pairs(built, calls)]


def _pairs(built: Built, calls: Sequence[Call]) -> list[_Pair]:
    rows = [_Pair(row, dict(row.values)) for row in built.rows]
    windows: list[_Pair] | None = None
    names = list(built.schema.fields)
    stored: dict[str, str] = {}  # stored names of renamed fields
    for each in calls:
        if each.verb == "where":
            assert each.model is not None
            rows = [pair for pair in rows if each.model(pair.stored.values)]
        elif each.verb == "ngram":
            windows = [
                _Pair(window.stored, _window_value(window, each, names))
                for window in _windows(rows, _in_storage(each, stored))
            ]
        elif each.verb in ("take", "skip"):
            part = slice(each.count) if each.verb == "take" else slice(each.count, None)
            rows, windows = (rows[part], None) if windows is None else (rows, windows[part])
        elif each.verb == "nulls" and each.args[0] == "drop":
            rows = [
                pair
                for pair in rows
                if all(pair.stored.values[stored.get(name, name)] is not None for name in each.args[1:])
            ]
        else:
            if "model_learned" in each.options:  # from the rows so far
                each = replace(each, model=each.options["model_learned"](_learned(rows, each.args[0])))
            if each.verb == "rename":
                stored = {**stored, **{new: stored.get(old, old) for old, new in each.args[0].items()}}
            change = _change(each)
            if windows is None:
                rows = [_Pair(pair.stored, change(pair.value)) for pair in rows]
            else:
                windows = [_Pair(pair.stored, change(pair.value)) for pair in windows]
    return rows if windows is None else windows


def _learned(rows: Sequence[_Pair], name: str) -> list[Any]:
    """Returns the sorted values of a field, and of its lists, without nulls."""

    def parts(value: Any) -> list[Any]:
        return [part for item in value for part in parts(item)] if isinstance(value, list) else [value]

    return sorted({part for pair in rows for part in parts(pair.stored.values[name]) if part is not None})


def _change(each: Call) -> Callable[[Row], Row]:
    """Returns a stage's change to the fields of a row."""
    if each.verb in ("cache", *WEIGHTS):
        return lambda row: row
    changes = {"select": _selected, "nulls": _without_nulls, "rename": _renamed}
    change = changes.get(each.verb, lambda call: call.model)(each)
    assert change is not None, each
    return change


def _without_nulls(each: Call) -> Callable[[Row], Row]:
    policy, *names = each.args

    def change(row: Row) -> Row:
        row = dict(row)
        for name in names:
            if policy == "mask":
                row[f"{name}__valid"] = row[name] is not None
            if row[name] is None:
                row[name] = each.options["value"] if policy == "fill" else each.options["model_zero"]
        return row

    return change


def _renamed(each: Call) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        return {
            each.args[0].get(name, name): change(value) if isinstance(value, dict) else value
            for name, value in row.items()
        }

    return change


def _in_storage(each: Call, stored: dict[str, str]) -> Call:
    """Returns a call of ``ngram`` with the stored names of the fields it uses."""
    options = dict(each.options)
    keys = options.get("group_by") or []
    options["group_by"] = [stored.get(name, name) for name in ([keys] if isinstance(keys, str) else keys)]
    options["timestamp"] = stored.get(options.get("timestamp"), options.get("timestamp"))  # type: ignore[arg-type]
    return replace(each, options=options)


def _selected(each: Call) -> Callable[[Row], Row]:
    patterns = [getattr(given, "name", given) for given in each.args]  # fields are read in other forms of equal value

    def keeps(name: Any) -> bool:
        return any(re.fullmatch(pattern, str(name)) for pattern in patterns)

    def change(row: Row) -> Row:
        left = {}
        for name, value in row.items():
            if isinstance(value, dict):  # a window with fields per offset
                part = {inner: v for inner, v in value.items() if keeps(inner)}
                left.update({name: part} if part else {})
            elif keeps(name):
                left[name] = value
        return left

    return change


@dataclass(frozen=True)
class _Window:
    """A window by offset: a row may be repeated, and then its step is padding."""

    rows: dict[int, _Pair]
    padding: set[int]

    def __getitem__(self, offset: int) -> _Pair:
        return self.rows[offset]

    @property
    def stored(self) -> StoredRow:
        """The first row."""
        return next(iter(self.rows.values())).stored


def _offsets(each: Call) -> list[int]:
    if "offsets" in each.options:
        listed = (value if isinstance(value, list) else [value] for value in each.options["offsets"].values())
        return sorted({offset for offsets in listed for offset in offsets})
    return sorted(each.args[0]) if each.args else list(range(each.options["length"]))


def _windows(rows: Sequence[_Pair], each: Call) -> list[_Window]:
    options = each.options
    offsets = _offsets(each)
    stamp, gap = options.get("timestamp"), options.get("max_gap")
    clamp = options.get("edges") == "clamp"
    found = []
    for sequence in _sequences(rows, options):
        stamps = [Fraction(pair.stored.values[stamp]) for pair in sequence] if stamp else list(range(len(sequence)))
        wide = [gap is not None and b - a > Fraction(str(gap)) for a, b in itertools.pairwise(stamps)]
        end = last = None
        for own in range(0, len(sequence), options.get("stride", 1)):
            anchor = own if clamp else own - offsets[0]
            first = max([place + 1 for place in range(own) if wide[place]], default=0)
            stop = min([place + 1 for place in range(own, len(wide)) if wide[place]], default=len(sequence))
            places = {offset: anchor + offset for offset in offsets}
            inside = {offset: min(max(place, first), stop - 1) for offset, place in places.items()}
            begin = min(inside.values())
            if not clamp and inside != places:
                continue
            if not options.get("overlap", True) and end is not None and (begin <= end or stamps[begin] <= last):
                continue
            end = max(inside.values())
            last = stamps[end]
            pairs = {offset: sequence[place] for offset, place in inside.items()}
            padding = {offset for offset in offsets if inside[offset] != places[offset]}
            found.append(_Window(pairs, padding))
    return found


def _sequences(rows: Sequence[_Pair], options: dict[str, Any]) -> list[list[_Pair]]:
    keys = options.get("group_by") or ()
    keys = (keys,) if isinstance(keys, str) else keys
    sequences: list[list[_Pair]] = []
    before: Any = None
    for pair in rows:
        key: Any = tuple(pair.stored.values[name] for name in keys) if keys else pair.stored.file
        if not options.get("span_row_groups", True):
            key = (key, pair.stored.row_group)
        if not sequences or key != before:
            sequences.append([])
        sequences[-1].append(pair)
        before = key
    return sequences


def _window_value(window: _Window, each: Call, schema: list[str]) -> Row:
    options = each.options
    names = list(next(iter(window.rows.values())).value)
    if each.args:
        return {
            offset: {
                name: window[offset].value[name]
                for name in sorted(names, key=lambda name: (name not in schema, name))
                if any(re.fullmatch(pattern, name) for pattern in patterns)
            }
            for offset, patterns in sorted(each.args[0].items())
        }
    if "offsets" in options:
        of_name = {
            name: next(offsets for pattern, offsets in options["offsets"].items() if re.fullmatch(pattern, name))
            for name in names
            if any(re.fullmatch(pattern, name) for pattern in options["offsets"])
        }
    else:
        steps = list(range(options["length"]))
        of_name = {name: steps[-1] if name in options.get("last", ()) else steps for name in names}
    stacked = [name for name in names if isinstance(of_name.get(name), list)]
    flags = stacked if options.get("edges") == "clamp" else []
    return {
        name: [window[offset].value[name] for offset in offsets]
        if isinstance(offsets, list)
        else window[offsets].value[name]
        for name, offsets in of_name.items()
    } | {f"{name}__is_pad": [offset in window.padding for offset in of_name[name]] for name in flags}


def key_of(row: Row) -> Any:
    """Returns the key of an item: the ``id`` of its first row."""
    offsets = [key for key in row if isinstance(key, int)]
    first = row[min(offsets)] if offsets else row
    value = first["id"]
    return value[0] if isinstance(value, list) else value


# --- their order, repetition and grouping ---


@dataclass
class Checked:
    """State of `check`: the dataset, the face's way to run a pipeline, and the items by key."""

    built: Built
    run: Callable[[Pipeline, int], list[Any]]
    pipeline: Pipeline
    fixed: list[Call]
    by_key: dict[Any, Row]
    empty: bool
    joined: Joined | None = None

    def keys(self, views: Sequence[Call], iteration: int, *, calls: Sequence[Call] | None = None) -> list[Any]:
        """Returns the engine's keys, batches as tuples; compares every row with the item it claims to be."""
        pipeline = apply(self.pipeline, self._calls(views) if calls is None else calls)
        try:
            found = self.run(pipeline, iteration)
        except EmptySelectionError:
            drops = any(view.verb == "shard" and view.options.get("even") == "drop" for view in views)
            assert drops or self.empty, f"nothing came out of {pipeline}"
            return []
        batched = self.joined is None or self.joined.verb != "bucket"
        return [
            tuple(map(self._key, element)) if batched and isinstance(element, list) else self._key(element)
            for element in found
        ]

    def _calls(self, views: Sequence[Call]) -> list[Call]:
        """Returns all calls, views last; joins take rows in shuffled order, so a shuffle goes before them."""
        join = next((number for number, each in enumerate(self.fixed) if each.verb in JOINS), len(self.fixed))
        order = next((number for number, view in enumerate(views, 1) if view.verb == "shuffle"), 0)
        return [*self.fixed[:join], *views[:order], *self.fixed[join:], *views[order:]]

    def _key(self, row: Any) -> Any:
        if self.joined is not None:
            key = self.joined.key_of(row)
            expected = self.joined.item_of(key)
            for mine, other in zip(row, expected, strict=True) if isinstance(row, list) else [(row, expected)]:
                assert_row(mine, other)
            return key
        key = key_of(row)
        assert key in self.by_key, f"row {row} is none of the items {sorted(self.by_key)}"
        assert_row(row, self.by_key[key])
        return key


def assert_row(found: Row, expected: Row) -> None:
    """Asserts that both rows are equal; reports the field that differs."""
    assert found.keys() == expected.keys(), f"expected the fields {list(expected)}, got {list(found)}"
    for name, value in expected.items():
        assert collapsed(found[name]) == collapsed(value), f"{name!r}: expected {value}, got {found[name]}"


def collapsed(value: Any) -> Any:
    """Turns a list of only nulls into one null: a masked array does not tell them apart."""
    if isinstance(value, dict):
        return {name: collapsed(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    parts = [collapsed(part) for part in value]
    return None if parts and all(part is None for part in parts) else parts


def check(
    built: Built,
    calls: Sequence[Call],
    run: Callable[[Pipeline, int], list[Any]],
    *,
    iteration: int = 0,
    **options: Any,
) -> list[Any]:
    """Checks a pipeline against the oracle; returns the keys of its elements, batches as tuples.

    Args:
        calls: verbs in any order that the pipeline accepts.
        run: returns the plain elements of a pipeline's ``iteration``-th iterator; a batch is a list of rows.
        options: options of the pipeline.
    """
    fixed, views = split(calls)
    if any(each.verb in JOINS for each in fixed):
        return _check_joined(built, calls, run, iteration, built.pipeline(**options))
    natural = items(built, fixed)
    uncut = items(built, [each for each in fixed if each.verb not in ("take", "skip")])
    by_key = {key_of(row): row for row in natural}
    assert len(by_key) == len(natural), "the oracle needs rows with different ids"
    keys = list(by_key)
    this = Checked(built, run, built.pipeline(**options), fixed, by_key, empty=not uncut)
    if not uncut:
        assert this.keys(views, iteration) == []
        return []
    expected = _expected(this, keys, views, iteration)
    found = this.keys(views, iteration, calls=calls)
    assert found == expected, f"expected {expected}, got {found}"
    if found:
        assert len(apply(this.pipeline, calls)) == len(found)
    return found


def split(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Splits calls into those that define the items, and views; filters commute with the views allowed before them."""
    fixed: list[Call] = []
    views: list[Call] = []
    for each in calls:
        items_are_rows = not any(done.verb in (*WEIGHTS, *JOINS) for done in fixed)
        natural = each.verb in ("take", "skip") and not views and items_are_rows
        (fixed if natural or each.verb not in VIEWS else views).append(each)
    return fixed, views


def _expected(this: Checked, natural: list[Any], views: Sequence[Call], iteration: int) -> list[Any]:
    """Returns the expected keys. Where a stage may choose the order, uses the engine's order and checks it."""
    if not views:
        weights = weights_among(this.fixed)
        return natural if weights is None else _drawn(this, natural, weights, iteration)
    *before, last = views
    if last.verb == "repeat":
        passes = last.count
        if passes is None:
            raise AssertionError("an endless pipeline needs take() behind repeat()")
        return [key for k in range(passes) for key in _expected(this, natural, before, iteration * passes + k)]
    if last.verb == "take" and before and before[-1].endless:
        one_pass = _expected(this, natural, before[:-1], 0)
        passes = math.ceil(last.count / len(one_pass)) if one_pass else 0
        in_one_order = weights_among(this.fixed) is None and not any(view.verb == "shuffle" for view in before)
        if iteration == 0 or in_one_order:
            return _expected(this, natural, [*before[:-1], call("repeat", passes)], 0)[: last.count]
        found = this.keys(views, iteration)  # passes that no other iterator has
        assert len(found) == (last.count if one_pass else 0)
        if weights_among(this.fixed) is None and {view.verb for view in before[:-1]} == {"shuffle"}:
            assert all(Counter(each) == Counter(one_pass) for each in _whole(found, len(one_pass)))
        return found
    inner = _expected(this, natural, before, iteration)
    if last.verb == "take":
        return inner[: last.count]
    if last.verb == "skip":
        return inner[last.count :]
    if last.verb == "batch":
        size = last.count
        batches = [tuple(inner[at : at + size]) for at in range(0, len(inner), size)]
        drop = last.options.get("drop_remainder", False)
        return [batch for batch in batches if len(batch) == size or not drop]
    found = this.keys(views, iteration)
    if last.verb == "shuffle":
        _check_shuffle(this, natural, before, last, inner, found, iteration)
    else:
        _check_shard(this, before, last, inner, iteration)
    return found


def weights_among(calls: Sequence[Call]) -> Call | None:
    """Returns the call of ``weigh`` or ``balance``, if any."""
    return next((each for each in calls if each.verb in WEIGHTS), None)


def _drawn(this: Checked, natural: list[Any], weigh: Call, iteration: int) -> list[Any]:
    """Returns the rows of an epoch in storage order, each as often as its share, rounded down or up."""
    assert weigh.model is not None
    found = this.keys([], iteration)
    stored = {row.values["id"]: row.values for row in this.built.rows}
    if weigh.verb == "balance":
        of_class = Counter(weigh.model(stored[key]) for key in natural)
        weights = {key: Fraction(1, of_class[weigh.model(stored[key])]) for key in natural}
        drawn = Counter(weigh.model(stored[key]) for key in found)
        share = Fraction(len(found), max(len(of_class), 1))
        assert {math.floor(share), math.ceil(share)} >= {drawn[each] for each in of_class}
    else:
        weights = {key: Fraction(weigh.model(stored[key])) for key in natural}
    count = (weigh.args[1] or len(natural)) if natural else 0
    assert len(found) == count
    assert found == sorted(found, key=natural.index)
    times = Counter(found)
    for key, weight in weights.items():
        share = weight * count / sum(weights.values())
        assert times[key] in (math.floor(share), math.ceil(share))
    return found


def _check_joined(
    built: Built, calls: Sequence[Call], run: Callable[[Pipeline, int], list[Any]], iteration: int, pipeline: Pipeline
) -> list[Any]:
    """Like `check`, for items made of several rows, which depend on the order of the rows.

    Takes the engine's items of an epoch over all ranks and checks them; models their views with lists.
    """
    fixed, views = split(calls)
    at = next(number for number, each in enumerate(fixed) if each.verb in JOINS)
    join, later = fixed[at], fixed[at + 1 :]
    length = join.model or (lambda row: 0)
    name = "id" if join.verb == "bucket" else join.args[1]
    for each in later:
        name = each.args[0].get(name, name) if each.verb == "rename" else name

    def change(row: Row) -> Row:
        for each in later:
            row = _change(each)(row)
        return row

    joined = Joined(
        verb=join.verb,
        args=join.args,
        options=join.options,
        rows=[(pair.value, length(pair.stored.values)) for pair in _pairs(built, fixed[:at])],
        change=change,
        key_name=name,
        shuffled=any(view.verb == "shuffle" for view in views),
    )
    this = Checked(built, run, pipeline, fixed, {}, empty=True, joined=joined)
    expected = _viewed(this, views, views, iteration)
    found = this.keys(views, iteration, calls=calls)
    assert found == expected, f"expected {expected}, got {found}"
    if found:
        assert len(apply(pipeline, calls)) == len(found)
    return found


def _whole(items: Sequence[Any], length: int) -> list[Sequence[Any]]:
    """Returns the parts of this length, without a shorter one at the end."""
    return [items[at : at + length] for at in range(0, len(items) - length + 1, length)] if length else []


def _viewed(this: Checked, views: Sequence[Call], every: Sequence[Call], iteration: int) -> list[Any]:
    """Returns the keys after ``views``, the first of ``every``."""
    shard = next((view for view in every if view.verb == "shard"), call("shard", 1, 0, even="none"))
    before_it = {view.verb for view in itertools.takewhile(lambda view: view is not shard, every)}
    cut = before_it & {"take", "skip"}  # must not depend on the number of ranks
    streams = shard.options.get("canonical_shards") or (1 if cut else shard.count)
    even = "none" if before_it & {"take", "skip", "repeat"} else shard.options.get("even", "pad")
    if not views:
        alone = call("shard", 1, 0, even="none", canonical_shards=streams)
        order = [alone if view is shard else view for view in every if view is shard or view.verb == "shuffle"]
        epoch = this.keys(order, iteration)
        assert this.joined is not None
        this.joined.check_epoch(epoch, streams)
        return evened(epoch, streams, even, epoch[:streams])
    *before, last = views
    if last.verb == "repeat":
        return [key for k in range(last.count) for key in _viewed(this, before, every, iteration * last.count + k)]
    if last.verb == "take" and before and before[-1].endless:
        one_pass = _viewed(this, before[:-1], every, 0)
        passes = math.ceil(last.count / len(one_pass)) if one_pass else 0
        if iteration == 0:
            return _viewed(this, [*before[:-1], call("repeat", passes)], every, 0)[: last.count]
        found = this.keys(views, iteration)  # passes that no other iterator has
        assert len(found) == (last.count if one_pass else 0)
        return found
    inner = _viewed(this, before, every, iteration)
    if last.verb == "shard":
        return evened(inner, last.count, last.options.get("even", "pad"), inner)[last.args[1] :: last.count]
    if last.verb == "batch":
        size = last.count
        batches = [tuple(inner[at : at + size]) for at in range(0, len(inner), size)]
        return [batch for batch in batches if len(batch) == size or not last.options.get("drop_remainder")]
    cuts = {"take": slice(last.count), "skip": slice(last.count, None), "shuffle": slice(None)}
    return inner[cuts[last.verb]]


def check_mixed(
    run: Callable[[int], list[Any]],
    sources: Sequence[Callable[[int], list[Row]]],
    source_of: Callable[[Row], int],
    stop: str,
    calls: Sequence[Call],
    iteration: int,
) -> list[Any]:
    """Returns the expected elements of ``calls`` on a mix; takes the engine's rows and checks them against the sources.

    Args:
        run: returns the rows of the mix alone in an iteration.
        sources: return the rows of each source in an iteration.
        source_of: returns the number of a row's source.
        stop: the mix's ``stop``.
    """
    if not calls:
        rows, whole = run(iteration), [source(iteration) for source in sources]
        parts = [[row for row in rows if source_of(row) == number] for number in range(len(sources))]
        assert all(part == source[: len(part)] for part, source in zip(parts, whole, strict=True))
        complete = [len(part) == len(source) for part, source in zip(parts, whole, strict=True)]
        assert all(complete) if stop == "all" else any(complete)
        return rows
    *before, last = calls
    passes = last.count if last.verb == "repeat" else 1
    inner = [
        element
        for k in range(passes)
        for element in check_mixed(run, sources, source_of, stop, before, iteration * passes + k)
    ]
    if last.verb == "shard":
        return evened(inner, last.count, last.options["even"], inner)[last.args[1] :: last.count]
    if last.verb == "batch":
        batches = [inner[at : at + last.count] for at in range(0, len(inner), last.count)]
        return [each for each in batches if len(each) == last.count or not last.options["drop_remainder"]]
    if last.verb in ("take", "skip"):
        return inner[: last.count] if last.verb == "take" else inner[last.count :]
    if last.verb == "repeat":
        return inner
    change = _change(last)
    return [[change(row) for row in each] if isinstance(each, list) else change(each) for each in inner]


def evened(items: Sequence[Any], parts: int, even: str, again: Sequence[Any]) -> list[Any]:
    """Returns as many items as ``parts`` can share evenly: fills up from ``again``, or drops the rest."""
    count = len(items)
    if even == "drop":
        return list(items[: count // parts * parts])
    missing = -count % parts if even == "pad" and items else 0
    return [*items, *(again[number % len(again)] for number in range(count, count + missing))]


def _check_shuffle(
    this: Checked,
    natural: list[Any],
    before: list[Call],
    last: Call,
    inner: list[Any],
    found: list[Any],
    iteration: int,
) -> None:
    assert len(found) == len(inner)
    verbs = [each.verb for each in before]
    shard = before[verbs.index("shard")] if "shard" in verbs else None
    passes = math.prod(each.count for each in before if each.verb == "repeat")
    dealt = shard is not None and (
        (shard.options.get("canonical_shards") or 0) % shard.count or "repeat" in verbs[: verbs.index("shard")]
    )
    if shard is not None and dealt:
        # Ranks have no streams of their own here: they deal the shuffled rows among themselves.
        for even in ("none", shard.options.get("even", "pad")):
            parts = [
                this.keys([*(_on_rank(view, rank, even) for view in before), last], 0) for rank in range(shard.count)
            ]
            together = Counter(key for part in parts for key in part)
            assert set(together) <= set(natural)
            if even == "none" and not {"take", "skip"} & set(verbs):
                assert together == Counter(key for k in range(passes) for key in _expected(this, natural, [], k))
        return
    size = len(inner) // passes if passes else 0
    for k in range(passes):  # a shuffle after repeat() shuffles within each pass
        one, other = found[k * size : (k + 1) * size], inner[k * size : (k + 1) * size]
        even = next((each.options.get("even", "pad") for each in before if each.verb == "shard"), "none")
        if even == "pad":  # the epoch chooses the rows that are repeated to fill up
            assert set(one) == set(other)
        elif even == "drop":  # and the rows that are dropped
            whole = [
                call("shard", *each.args, **{**each.options, "even": "none"}) if each.verb == "shard" else each
                for each in before
            ]
            assert len(set(one)) == len(one) or weights_among(this.fixed) is not None
            assert set(one) <= set(_expected(this, natural, whole, iteration))
        else:
            assert Counter(one) == Counter(other)
    assert found == this.keys([*before, last], 0) or last.options.get("reshuffle_each_iteration", True)


def _on_rank(view: Call, rank: int, even: str) -> Call:
    return call("shard", view.count, rank, **{**view.options, "even": even}) if view.verb == "shard" else view


def _check_shard(this: Checked, before: list[Call], last: Call, inner: list[Any], iteration: int) -> None:
    ranks, even = last.args[0], last.options.get("even", "pad")
    parts = [this.keys([*before, call("shard", ranks, r, **last.options)], iteration) for r in range(ranks)]
    streams = max(ranks, last.options.get("canonical_shards") or 1)
    lengths = {len(part) for part in parts}
    together = Counter(key for part in parts for key in part)
    cut = any(each.verb in ("take", "skip") for each in before) and last.options.get("canonical_shards")
    if cut:  # the canonical order differs, and so do the dropped rows
        assert together.keys() <= this.by_key.keys()
    elif even == "pad":
        assert together.keys() == set(inner)
        assert Counter(inner) <= together
    elif even == "drop":
        assert together <= Counter(inner)
    else:
        assert together == Counter(inner)
    count = sum(together.values())
    if even == "none":
        assert max(lengths) - min(lengths) <= 1
        assert count == len(inner)
    else:
        assert len(lengths) == 1, f"ranks take different numbers of steps: {lengths}"
        assert abs(count - len(inner)) < ranks + streams
        assert (count >= len(inner)) if even == "pad" else (count <= len(inner))
