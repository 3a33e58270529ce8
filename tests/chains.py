"""Random datasets and random chains of stages for property tests of every face.

A chain is a list of `oracle.Call` that a pipeline accepts, in any order. A dataset is small, with every layout that has
ever broken a loader: row groups of one row and of none, files without row groups, partitions, nulls.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from builders import ALL_FIELDS, FRAME_FIELDS, KINDS, TOKEN_FIELDS, Built, build, directory
from footer_edits import FOREIGN, edit
from hypothesis import assume
from hypothesis import strategies as st
from joins import JOINS, SEPARATOR
from oracle import Call, apply, call

from parquetry.common import Pipeline, UnischemaField, contains, hash_split, mix
from parquetry.common.base.errors import ParquetryError, PipelineError

KEPT = ("id", "drive", "ts")
LONG = 1_500
"""Members of a long list: more than are compared one by one."""
ZEROS: dict[str, Any] = {"speed": 0.0, "flag": False, "label": "", "when": 0, "codes": [], "pair": [0, 0], "packed": []}
FILLS: dict[str, Any] = {"speed": -1.5, "flag": True, "label": "none", "when": 7}
VERBS = (
    "where",
    "select",
    "ngram",
    "transform",
    "nulls",
    "pad",
    "shard",
    "shuffle",
    "take",
    "skip",
    "repeat",
    "batch",
    "cache",
    "rename",
    "cast",
    "as_tuple",
    "encode",
    "standardize",
    "clip",
    "bucketize",
    "weigh",
    "balance",
    "concat",
    "pack_rows",
    "bucket",
)
FIELDS = (*ALL_FIELDS, *TOKEN_FIELDS, *FRAME_FIELDS)
DECLARED: dict[str, list[UnischemaField]] = {
    "ts": [UnischemaField("ts", np.int32)],
    "speed": [UnischemaField("speed", np.float64)],
    "small": [UnischemaField("small", "int32"), UnischemaField("small", np.float32)],
    "half": [UnischemaField("half", np.float32)],
    "codes": [UnischemaField("codes", np.int64, (None,)), UnischemaField("codes", np.float32, (None,))],
    "pair": [UnischemaField("pair", np.float32, (2,)), UnischemaField("pair", np.int64, (None,))],
    "grid": [UnischemaField("grid", np.float32, (None, 2))],
    "marks": [UnischemaField("marks", np.int32, (None,))],
    "matrix": [UnischemaField("matrix", np.int32, (None, None))],
}
"""Other forms in which some fields can be read without a loss."""
WORKING = {"transform", "nulls", "pad", "rename", "cast", "as_tuple", "encode", "concat", "pack_rows", "bucket"}
WORKING |= {"standardize", "clip", "bucketize"}
CASTS: dict[str, list[Any]] = {
    "speed": [np.float64, "int32"],
    "flag": ["int8", np.float32],
    "small": ["int32", np.float32],
    "half": [np.float32, "int8"],
    "when": [np.float64],
    "vector": [np.int32, "float64", bool],
    "matrix": ["int64", np.float32],
    "points": ["float64", np.int16],
    "packed": ["uint8", np.float32],
    "level": ["float32", np.int32],
    "codes": [np.int64, "float32", "bool"],
    "pair": [np.int32, "float32"],
    "grid": ["int64", np.float16],
    "tokens": [np.int64, "float32"],
    "marks": ["int64", np.float32, bool],
    "segment_ids": [np.int64, "float32", "uint8"],
    "position_ids": [np.int16, "float64"],
}
"""Types that hold every value of a field; some truncate fractions."""
COMPUTED = ("speed", "half", "vector", "points", "level")
"""Fields of numbers that float32 still holds when they are standardized."""
VOCABULARIES: dict[str, list[Any]] = {
    "drive": ["d1", "d0"],
    "label": ["l1", "l4", "l2", *(f"l{n}" for n in range(900, 900 + 2 * LONG))],
    "raw": [bytes([1, 0, 255]), b""],
    "small": [65535, 65533],
    "tags": ["s1.0", "s2.1é"],
    "names": ["s3.1é", "s2.0"],
    "words": ["s0.0"],
    "codes": [2, 0, *range(900, 900 + 3 * LONG)],
    "marks": [3, 0, 5],
}
"""Some values of a field."""
LEARNED = ("drive", "label", "raw", "tags", "names", "words")
"""Fields whose vocabulary can be learned, as their own values are what a chain reads."""

LENGTHS: dict[str, tuple[int, Callable[[Any], int]]] = {
    "id": (400, int),
    "drive": (2, len),
    "label": (4, len),
    "raw": (3, len),
    "codes": (3, len),
    "tags": (2, len),
    "tokens": (9, len),
    "marks": (9, len),
}
"""Fields that give a row's length, with the longest length."""
PADDED = ("codes", "tags", "tokens", "marks")
"""List fields that ``bucket`` can pad."""

NUMBERS = st.sampled_from([int, np.int16, np.uint16, np.array])

row_groups = st.sampled_from([4, 1, 3, 1, 5, 2, 7, 0, 11])
layouts = st.lists(st.lists(row_groups, min_size=1, max_size=5) | st.just([]), min_size=1, max_size=4)
fields = st.builds(
    lambda names, tokens, frames: [*sorted(names), *tokens, *frames],
    st.sets(st.sampled_from([name for name in ALL_FIELDS if name not in KEPT]), max_size=5),
    st.sampled_from([(), TOKEN_FIELDS]),
    st.sampled_from([(), FRAME_FIELDS]) if find_spec("av") else st.just(()),
)


@contextmanager
def dataset(
    files: Sequence[Sequence[int]],
    names: Sequence[str] = (),
    *,
    partition: str | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    foreign: str | None = None,
    **kinds: Collection[int],
) -> Iterator[Built]:
    """Builds a dataset in a new directory; hypothesis runs many examples in one test.

    Args:
        foreign: which of `footer_edits.FOREIGN` to do to the footers.
        kinds: as for `build`.
    """
    with directory() as root:
        ordered = [name for name in FIELDS if name in (*KEPT, *names)]
        built = build(root / "data", files, names=ordered, partition=partition, change=change, **kinds)
        for path in root.rglob("*.parquet") if foreign is not None else ():
            if not path.is_symlink():
                edit(path, FOREIGN[foreign])
        yield built


@contextmanager
def drawn_case(data: st.DataObject, cache: Path, verbs: Sequence[str] = VERBS) -> Iterator[tuple[Built, list[Call]]]:
    """Draws a dataset and a chain over it with more than one thing to compose."""
    files = data.draw(layouts, "files")
    names = data.draw(fields, "fields")
    partition = data.draw(st.sampled_from([None, None, "drive"]), "partition")
    if partition:
        files = [[10, 0] for _ in files]
    calls = data.draw(chains([*KEPT, *names], str(cache), verbs), "calls")
    # The contract suite covers each stage alone, and a few tests with hardly any rows are enough.
    assume(len(calls) >= 3 and (sum(map(sum, files)) > 5 or data.draw(st.integers(0, 3)) == 0))
    narrow = data.draw(st.sets(st.sampled_from(range(4)), max_size=3), "files of narrower types")
    foreign = data.draw(st.sampled_from([None, None, None, *FOREIGN]), "footers of another writer")
    kind = data.draw(st.sampled_from(["lacking", "shadowed", "linked"]), "what other programs did to some files")
    some = data.draw(st.sets(st.sampled_from(range(4)), max_size=2), "these files")
    with dataset(files, names, partition=partition, narrow=narrow, foreign=foreign, **{kind: some}) as built:
        yield built, calls


mixings = st.fixed_dictionaries(
    {
        "weights": st.sampled_from([[1, 1], [3, 0.5], [(0, [1, 0]), (4, [1, 2])], [(0, [1, 1]), (3, [0, 1])]]),
        "seed": st.integers(0, 3),
        "stop": st.sampled_from(["first", "all"]),
    }
)
"""Arguments of ``mix`` for two pipelines."""


def drawn_mix(data: st.DataObject, source: Pipeline, calls: Sequence[Call]) -> Pipeline | None:
    """Draws a mix of a source after the first few calls, followed by the other calls; usually ``None``."""
    if data.draw(st.integers(0, 3), "mixed if 3") < 3:
        return None
    options = data.draw(mixings, "mix")
    for cut in data.draw(st.permutations(range(len(calls) + 1)), "calls before the mix"):
        try:
            part = apply(source, calls[:cut])
            mixed: Pipeline = apply(mix([part, part.take(7)], **options), calls[cut:])
            _ = mixed.element
        except ParquetryError:  # batches before it, or a window or a shuffle after it
            continue
        return mixed
    return None


def _double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": np.asarray(row["id"]) * 2}


def _double_with(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Like `_double`, with a generator."""
    return {**_double(row), "double": np.asarray(row["id"]) * 2 + int(rng.random())}


def _double_tokens(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "double": np.asarray(row[name], np.int64) * 2}


def _double_tokens_plain(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "double": [2 * int(token) for token in row[name]]}


def _double_again() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Like `_double`, but returns the same memory over and over."""
    own: dict[tuple[int, ...], np.ndarray] = {}

    def double(row: dict[str, Any]) -> dict[str, Any]:
        value = np.asarray(row["id"]) * 2
        result = own.setdefault(value.shape, np.empty_like(value))
        result[...] = value
        return {**row, "double": result}

    return double


def _double_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("double", pc.multiply(batch.column("id"), 2))


def _double_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": [2 * v for v in row["id"]] if isinstance(row["id"], list) else 2 * row["id"]}


def _double_or_null(row: dict[str, Any]) -> dict[str, Any]:
    """Like `_double`, with nulls as in a row, or as in a batch: a mask over numbers that must not show through."""
    import pandas as pd  # not where tests are collected: it takes longer than all modules of the rooms

    ids = np.asarray(row["id"])
    if ids.ndim == 0:
        return {**row, "double": [2 * ids, None, pd.NA][int(ids) % 3]}
    return {**row, "double": np.ma.masked_array(np.where(ids % 3, -7, 2 * ids), mask=ids % 3 != 0)}


def _double_or_null_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    ids = batch.column("id").to_numpy()
    return batch.append_column("double", pa.array(2 * ids, mask=ids % 3 != 0))


def _double_or_null_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": None if row["id"] % 3 else 2 * row["id"]}


def _span(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": np.asarray(row[-1]["id"]) * 2}


def _span_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": 2 * row[-1]["id"]}


def _padded(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def padded(row: dict[str, Any]) -> dict[str, Any]:
        value = row[name]
        return {**row, name: value + [[0.0] * 3] * (4 - len(value)), f"{name}__length": len(value)}

    return padded


def _keeping(names: Collection[str]) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    def keep(row: dict[Any, Any]) -> dict[Any, Any]:
        parts = {key: keep(value) if isinstance(value, dict) else value for key, value in row.items()}
        return {key: part for key, part in parts.items() if (part if isinstance(part, dict) else key in names)}

    return keep


def _encoded(name: str, vocabulary: list[Any], null: Any = None) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    codes = {value: code for code, value in enumerate(dict.fromkeys([*vocabulary, null]))}

    def code_of(value: Any) -> Any:
        if isinstance(value, list):
            return [code_of(part) for part in value]
        value = null if value is None else value
        return None if value is None else codes.get(value, 9_999)

    def encode(row: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: encode(value) if isinstance(value, dict) else code_of(value) if key == name else value
            for key, value in row.items()
        }

    return encode


def _cast(name: str, dtype: Any) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    return _computed(name, {"f": float, "b": bool}.get(np.dtype(dtype).kind, int))


def _computed(name: str, function: Callable[[Any], Any]) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    """Applies a function to every number of a field that is not null."""

    def value_of(value: Any) -> Any:
        if isinstance(value, list):
            return [value_of(part) for part in value]
        return None if value is None else function(value)

    def compute(row: dict[Any, Any]) -> dict[Any, Any]:
        return {
            key: compute(value) if isinstance(value, dict) else value_of(value) if key == name else value
            for key, value in row.items()
        }

    return compute


class Chain:
    """Builds a chain: draws calls that make sense for the remaining fields."""

    def __init__(self, draw: st.DrawFn, built_names: Sequence[str], cache: str) -> None:
        self.draw = draw
        self.names = [name for name in FIELDS if name in built_names]
        self.stored = list(self.names)
        self.called: dict[str, str] = {}
        self.cast_fields: set[str] = set()
        self.encoded: set[str] = set()
        self.declared: set[str] = set()
        self.worked = False
        self.padded = False
        self.without_nulls: set[str] = set()
        self.formed = False
        self.batched = False
        self.key = "id"
        self.block: int | None = None
        self.window: int | str | None = None
        self.cache_directory = cache
        self.drawn_anew: bool | None = None

    def now(self, stored: str) -> str:
        """Returns the current name of a stored field."""
        return self.called.get(stored, stored)

    def was(self, name: str) -> str:
        """Returns the stored name of a field."""
        return next((stored for stored, called in self.called.items() if called == name), name)

    def where(self) -> Call:
        drive, ts, speed = map(self.now, ("drive", "ts", "speed"))
        number = self.draw(st.sampled_from([3, 7, 12, 0, 24]))
        options = [
            call("where", pc.field("id") > number, model=lambda row: row["id"] > number),
            call("where", pc.field(drive) != "d1", model=lambda row: row["drive"] != "d1"),
            call("where", [("id", "not in", [number, number + 1]), (drive, "in", ["d0", "d2"])], model=lambda row: row["id"] not in (number, number + 1) and row["drive"] in ("d0", "d2")),
            call("where", (pc.bit_wise_and(pc.field("id"), 3) == 0) | (pc.field(ts) < number), model=lambda row: row["id"] & 3 == 0 or row["ts"] < number),
            call("where", lambda row: row["id"] % 3 != 1, fields=["id"], model=lambda row: row["id"] % 3 != 1),
            call("where", lambda batch: batch["id"] % 2 == 0, fields=["id"], batched=True, model=lambda row: row["id"] % 2 == 0),
            call("where", hash_split("id", [0.5, 0.5], 1, seed=0), model=_in_second_half),
            call("where", pc.negate(pc.field("id")) <= -number, model=lambda row: row["id"] >= number),
            call("where", [("id", "in", [*range(number), *range(900, 900 + LONG)])], model=lambda row: row["id"] < number),
            call("where", ~pc.field(drive).isin(["d1", *map(str, range(LONG))]), model=lambda row: row["drive"] != "d1"),
        ]  # fmt: skip
        if "price" in self.stored:
            eighths = decimal.Decimal(number) / 8
            options.append(
                call("where", pc.field(self.now("price")) >= pa.scalar(eighths), model=lambda row: row["id"] >= number)
            )
        if "speed" in self.stored:
            model = _slow
            options.append(call("where", pc.field(speed) < 8, model=model))
            options.append(call("where", lambda b: b[speed] < 8, fields=[speed], batched=True, model=model))
        if "odd" in self.stored:
            options.append(
                call(
                    "where",
                    ~(pc.field(self.now("odd")) > 3),
                    model=lambda row: not (row["odd"] != "nan" and row["odd"] > 3),
                )
            )
        if "half" in self.stored:
            options.append(call("where", [(self.now("half"), ">", number / 4)], model=lambda row: row["id"] > number))
        if "when" in self.stored:
            later = pc.field(self.now("when")) > KINDS["when"].value(number)
            options.append(call("where", later, model=lambda row: row["when"] is not None and row["id"] > number))
        if "label" in self.stored:
            options.append(call("where", pc.field(self.now("label")).is_null(), model=lambda row: row["label"] is None))
        if "codes" in self.stored:
            sought = [1, *(range(900, 900 + LONG) if number == 3 else [])]
            options.append(
                call("where", contains(self.now("codes"), *sought), model=lambda row: 1 in (row["codes"] or []))
            )
        return self.draw(st.sampled_from(options))

    def select(self) -> Call:
        kept = self.draw(st.lists(st.sampled_from(self.names), max_size=4))
        keep = [name for name in self.names if name in (self.key, *kept)]
        self.names = keep
        given = self.draw(st.permutations(keep))
        return call("select", *(self._declared(name) for name in given))

    def _declared(self, name: str) -> str | UnischemaField:
        """Returns a name, or, where it is still stored as it was written, maybe the field in another form."""
        if self.worked or name not in DECLARED or name in self.declared or not self.draw(st.booleans()):
            return name
        self.declared = {*self.declared, name}
        return self.draw(st.sampled_from(DECLARED[name]))

    def ngram(self) -> Call:
        options: dict[str, Any] = {
            "timestamp": self.draw(st.sampled_from([None, "ts", *(["price"] if "price" in self.stored else [])])),
            "group_by": self.draw(st.sampled_from([None, self.now("drive"), [self.now("drive")]])),
            "stride": self.draw(st.integers(1, 3)),
            "overlap": self.draw(st.booleans()),
            "span_row_groups": self.draw(st.booleans()),
        }
        if options["timestamp"] == "ts":
            options["max_gap"] = self.draw(st.sampled_from([100, None, 600, 700, 600, 99]))
        elif options["timestamp"] == "price":
            options["max_gap"] = self.draw(st.sampled_from([0.125, None, 0.1, 0.25]))
        options["timestamp"] = options["timestamp"] and self.now(options["timestamp"])
        form = self.draw(st.sampled_from(["length", "offsets", "fields"]))
        if form != "offsets":
            options["edges"] = self.draw(st.sampled_from(["drop", "clamp"]))
            return self._stacked(options) if form == "length" else self._by_field(options)
        self.window = "offsets"
        more = {o: [self.draw(st.sampled_from(self.names))] for o in self.draw(st.sets(st.integers(0, 3), max_size=3))}
        first = ["id", *self.draw(st.lists(st.sampled_from(self.names), max_size=2))]
        chosen = {name for patterns in ({-1: first} | more).values() for name in patterns}
        self.names = [name for name in self.names if name in chosen]
        return call("ngram", {-1: first, **more}, **options)

    def _stacked(self, options: dict[str, Any]) -> Call:
        self.window = length = self.draw(st.integers(1, 4))
        others = [name for name in self.names if name != "id"]
        last = self.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others else []
        self._flag([name for name in self.names if name not in last], options)
        return call("ngram", length=length, last=last, **options)

    def _by_field(self, options: dict[str, Any]) -> Call:
        offset = st.integers(-3, 3)
        ids = self.draw(st.just(0) | st.lists(offset, max_size=2).map(lambda others: [0, *others]))
        chosen = self.draw(st.lists(st.sampled_from(self.names), max_size=3, unique=True))
        offsets: dict[str, Any] = {
            name: self.draw(offset | st.lists(offset, min_size=1, max_size=4)) for name in chosen
        }
        offsets["id"] = ids  # tells windows apart, whatever the edges
        self.window = len(ids) if isinstance(ids, list) else 0
        self.names = [name for name in self.names if name in offsets]
        self._flag([name for name in self.names if isinstance(offsets[name], list)], options)
        return call("ngram", offsets=offsets, **options)

    def _flag(self, stacked: Sequence[str], options: dict[str, Any]) -> None:
        if options["edges"] == "clamp":
            self.names = [*self.names, *(f"{name}__is_pad" for name in stacked)]

    def transform(self) -> Call:
        assume("double" not in self.names)
        self.names = [*self.names, "double"]
        if self.block is not None:
            name, double = self.key, UnischemaField("double", np.int64, (self.block,))
            batched = self.draw(st.booleans())
            return call("transform", _double_tokens(name), [double], batched=batched, model=_double_tokens_plain(name))
        if self.window == "offsets":
            return call("transform", _span, [UnischemaField("double", np.int64)], model=_span_plain)
        shape = (self.window,) if self.window else ()
        batched = self.draw(st.sampled_from([False, True, *(["arrow"] if self.window is None else [])]))
        output = [UnischemaField("double", np.int64, shape)]  # type: ignore[arg-type]  # shape of a number
        if self.window is None and self.draw(st.integers(0, 3)) == 0:
            output = [replace(output[0], nullable=True)]
            function = _double_or_null_arrow if batched == "arrow" else _double_or_null
            return call("transform", function, output, batched=batched, model=_double_or_null_plain)
        if not batched and not self.batched and self.draw(st.booleans()):
            return call(
                "transform", _double_with, output, rng=True, seed=self.draw(st.integers(0, 3)), model=_double_plain
            )
        function = _double_arrow if batched == "arrow" else self.draw(st.sampled_from([_double, _double_again()]))
        return call("transform", function, output, batched=batched, model=_double_plain)

    def remade(self) -> list[Call]:
        """Draws a function that makes token lists anew, whose lengths are counted; or none."""
        names = [self.now(name) for name in TOKEN_FIELDS if self.now(name) in self.names]
        if not names or self.draw(st.booleans()):
            return []
        batched = self.draw(st.booleans())
        return [call("transform", _keeping(names), adds=names, lengths=True, batched=batched, model=lambda row: row)]

    def nulls(self) -> Call:
        assume(self.window is None)
        nullable = [name for name in self.names if self.was(name) in ZEROS]
        assume(nullable)
        name = self.draw(st.sampled_from(nullable))
        stored = self.was(name)
        fillable = stored in FILLS and stored not in self.cast_fields | self.encoded
        policy = self.draw(st.sampled_from(["drop", "mask", *(["fill"] if fillable else [])]))
        if policy == "drop":
            self.without_nulls = {*self.without_nulls, stored}
        assume(policy != "mask" or f"{name}__valid" not in self.names)
        if policy == "mask":
            self.names = [*self.names, f"{name}__valid"]
        zero = 0 if stored in self.encoded and stored == "label" else ZEROS[stored]
        options = {"fill": {"value": FILLS.get(stored)}, "mask": {"model_zero": zero}, "drop": {}}[policy]
        return call("nulls", policy, name, **options)

    def pad(self) -> Call:
        points = self.now("points")
        assume(self.window is None and points in self.names and not self.padded)
        self.padded = True
        self.names = [*self.names, f"{points}__length"]
        return call("pad", points, shape=(4, 3), model=_padded(points))

    def rename(self) -> Call:
        others = [name for name in self.names if name != "id"]  # a block's tokens may change theirs
        chosen = self.draw(st.lists(st.sampled_from(others), unique=True, min_size=1, max_size=3)) if others else []
        assume(chosen)
        if len(chosen) > 1 and self.draw(st.booleans()):
            new = dict(zip(chosen, [*chosen[1:], chosen[0]], strict=True))  # each takes another's name
        else:
            new = {n: n.removesuffix("_new") if n.endswith("_new") else f"{n}_new" for n in chosen}
        assume(not set(new.values()) & (set(self.names) - set(chosen)))
        before = {self.was(name): name for name in self.names}
        self.called = {**self.called, **{stored: new.get(name, name) for stored, name in before.items()}}
        self.names = [new.get(name, name) for name in self.names]
        self.key = new.get(self.key, self.key)
        return call("rename", new)

    def cast(self) -> Call:
        numbers = [name for name in self.names if self.was(name) in CASTS and self.was(name) not in self.encoded]
        assume(numbers)
        name = self.draw(st.sampled_from(numbers))
        dtype = self.draw(st.sampled_from(CASTS[self.was(name)]))
        self.cast_fields = {*self.cast_fields, self.was(name)}
        return call("cast", dtype, name, model=_cast(name, dtype))

    def encode(self) -> Call:
        known = self.encoded | self.cast_fields
        values = [
            name
            for name in self.names
            if self.was(name) in VOCABULARIES and self.was(name) not in known and name != self.key
        ]
        assume(values)
        name = self.draw(st.sampled_from(values))
        self.encoded = {*self.encoded, self.was(name)}
        if not self.worked and self.was(name) in LEARNED and self.draw(st.booleans()):
            return call("encode", name, model_learned=partial(_encoded, name))
        vocabulary = VOCABULARIES[self.was(name)]
        null = self.draw(st.sampled_from([None, "l4", "none"])) if self.was(name) == "label" else None
        return call("encode", name, vocabulary, unknown=9_999, null=null, model=_encoded(name, vocabulary, null))

    def standardize(self) -> Call:
        name = self._computed_field()
        return call("standardize", name, mean=3, std=2, model=_computed(name, lambda value: (value - 3) / 2))

    def clip(self) -> Call:
        name = self._computed_field()
        return call("clip", name, low=2, high=5.5, model=_computed(name, _clipped))

    def bucketize(self) -> Call:
        name, boundaries = self._computed_field(), self.draw(st.sampled_from([[3], [0, 2.5, 9]]))
        model = _computed(name, lambda value: sum(boundary <= value for boundary in boundaries))
        return call("bucketize", name, boundaries=boundaries, model=model)

    def _computed_field(self) -> str:
        """Draws a field of small numbers, which no other stage casts or computes afterwards."""
        known = self.encoded | self.cast_fields
        numbers = [name for name in self.names if self.was(name) in COMPUTED and self.was(name) not in known]
        assume(numbers)
        name = self.draw(st.sampled_from(numbers))
        self.encoded = {*self.encoded, self.was(name)}
        return name

    def as_tuple(self) -> Call:
        others = self.draw(st.lists(st.sampled_from(self.names), max_size=3))
        self.formed, key = True, self.key
        self.names = [name for name in self.names if name in (key, *others)]
        forms: list[Any] = [[*others, key], [key, tuple(others) or key], [{"x": key, "y": others or key}, key]]
        return call("as_tuple", *self.draw(st.sampled_from(forms)), model=_keeping(self.names))

    def weigh(self) -> Call:
        options: list[tuple[Any, Callable[[dict[str, Any]], Any]]] = [
            (pc.add(pc.field("id"), 1), lambda row: row["id"] + 1),
            (pc.if_else(pc.field(self.now("drive")) == "d1", 3.5, 1.0), lambda row: 3.5 if row["drive"] == "d1" else 1),
            ({"id": {number: number % 3 + 1 for number in range(400)}}, lambda row: row["id"] % 3 + 1),
        ]
        assume(self.drawn_anew is not False)
        self.drawn_anew = True  # a constant shuffle would repeat the draws: tested separately
        weights, model = self.draw(st.sampled_from(options))
        count = self.draw(st.sampled_from([None, 1, 6, 17]))
        return call("weigh", weights, count, seed=self.draw(st.integers(0, 3)), model=model)

    def balance(self) -> Call:
        assume(self.drawn_anew is not False)
        self.drawn_anew = True
        stored = self.draw(st.sampled_from(["drive", "id"]))
        count = self.draw(st.sampled_from([None, 1, 6, 17]))
        seed = self.draw(st.integers(0, 3))
        return call("balance", self.now(stored), count, seed=seed, model=lambda row: row[stored])

    def concat(self) -> Call:
        between = self.draw(st.sampled_from([None, SEPARATOR]))
        options = {
            "separator": None if between is None else self._for_tokens(between, 7),
            "remainder": self.draw(st.sampled_from(["drop", "pad"])),
            "positions": self.draw(st.booleans()),
        }
        return self._blocks("concat", options)

    def pack_rows(self) -> Call:
        options = {
            "strategy": self.draw(st.sampled_from(["best_fit", "first_fit"])),
            "overlong": self.draw(st.sampled_from(["cut", "drop"])),
        }
        return self._blocks("pack_rows", options)

    def takes_blocks(self, calls: Sequence[Call]) -> bool:
        """Whether the tokens are available and no stage has changed values, except to make them with counted lengths."""
        values = {"transform", "nulls", "pad", "cast", "encode", "as_tuple", "standardize", "clip", "bucketize"}
        changes = [each for each in calls if not each.options.get("lengths")]
        worked = any(each.verb in values and each.args[0] != "drop" for each in changes)
        return self.now("tokens") in self.names and not worked

    def _for_tokens(self, number: int, other: int) -> Any:
        """Draws one number for all joined fields, or one per field."""
        both = {self.now("tokens"): number, self.now("marks"): other}
        return self.draw(st.sampled_from([number, both])) if set(both) <= set(self.names) else number

    def _blocks(self, verb: str, options: dict[str, Any]) -> Call:
        options["pad_value"] = self._for_tokens(self.draw(st.sampled_from([0, 3])), 2)
        each = any(isinstance(value, dict) for value in options.values())
        fields = [self.now(name) for name in TOKEN_FIELDS if self.now(name) in self.names]
        fields = fields if each else fields[: self.draw(st.integers(1, 2))]
        made = [] if options.get("positions") is False else ["segment_ids", "position_ids"]
        self.key, self.names = fields[0], [*fields, *made]
        self.block = self.draw(st.integers(1, 12))
        return call(verb, self.block, *fields, **options)

    def bucket(self) -> Call:
        known = [name for name in self.stored if not KINDS[name].field.nullable or name in self.without_nulls]
        stored = self.draw(st.sampled_from([name for name in known if name in LENGTHS]))
        longest, length = LENGTHS[stored]
        options: dict[str, Any] = {}
        boundaries = self.draw(st.sets(st.sampled_from([1, 2, 3, 4, 5, 7, 12, 30]), max_size=4).map(sorted))
        count = len(boundaries) + 1
        if not boundaries:
            options["buckets"] = count = self.draw(st.integers(1, 4))
        else:
            options["pad_to"] = self.draw(st.sampled_from(["bucket", "longest"]))
        size = self.draw(st.sampled_from(["batch_size", "batch_sizes", "max_tokens"]))
        if size == "batch_size":
            options[size] = self.draw(st.integers(1, 7))
        elif size == "batch_sizes":
            options[size] = self.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
        else:
            options[size] = max([longest, *boundaries]) * self.draw(st.integers(1, 3))
        padded = [self.now(name) for name in known if name in PADDED and self.now(name) in self.names]
        if padded and self.draw(st.booleans()):
            options["fields"] = self.draw(st.lists(st.sampled_from(padded), min_size=1, unique=True))
        chosen = options.get("fields", [self.now(stored)])
        lists = [name for name in chosen if name in padded]
        assume(not (lists and self.formed))
        assume(all(f"{name}__length" not in self.names for name in lists))
        texts = [name for name in lists if self.was(name) == "tags" and "tags" not in self.encoded]
        if lists and len(texts) in (0, len(lists)) and self.draw(st.booleans()):
            options["pad_value"] = "none" if texts else 4
        given = options.get("pad_value")
        options["model_pad"] = {name: ("" if name in texts else 0) if given is None else given for name in lists}
        self.names = [*self.names, *(f"{name}__length" for name in lists)]
        arguments = [boundaries] if boundaries else []
        return call("bucket", self.now(stored), *arguments, **options, model=lambda row: length(row[stored]))

    def shard(self) -> Call:
        ranks = self.draw(st.integers(1, 4))
        canonical = self.draw(st.sampled_from([None, None, 1, 2, 6]))
        even = self.draw(st.sampled_from(["pad", "drop", "none"]))
        return call("shard", ranks, self.draw(st.integers(0, ranks - 1)), even=even, canonical_shards=canonical)

    def shuffle(self) -> Call:
        reshuffle = self.drawn_anew or self.draw(st.booleans())
        self.drawn_anew = reshuffle
        return call(
            "shuffle", self.draw(st.integers(1, 12)), self.draw(st.integers(0, 3)), reshuffle_each_iteration=reshuffle
        )

    def take(self) -> Call:
        return call("take", self.draw(st.sampled_from([9, 1, 2, 4, 14, 20, 30, 12, 0])))

    def skip(self) -> Call:
        return call("skip", self.draw(st.sampled_from([1, 2, 3, 5, 8, 1, 2, 0])))

    def repeat(self) -> Call:
        return call("repeat", self.draw(st.sampled_from([2, None, 3, 1, None, 2, None, 0])))

    def batch(self) -> Call:
        return call("batch", self.draw(st.integers(1, 7)), drop_remainder=self.draw(st.booleans()))

    def cache(self) -> Call:
        return call("cache", self.cache_directory)


def _clipped(value: float) -> float:
    """Clips to 2 and 5.5, which of integers is 5."""
    return min(max(value, 2), 5 if isinstance(value, int) else 5.5)


def _in_second_half(row: dict[str, Any]) -> bool:
    """Returns the SplitMix64 of the number, with seed 0."""
    word = (1 << 64) - 1
    mixed = (row["id"] + 0x9E3779B97F4A7C15) & word
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
    return (mixed ^ (mixed >> 31)) >> 63 == 1


def _slow(row: dict[str, Any]) -> bool:
    return row["speed"] is not None and row["speed"] < 8


@st.composite
def chains(
    draw: st.DrawFn, built_names: Sequence[str], cache: str, verbs: Sequence[str] = VERBS, *, on_a_mix: bool = False
) -> list[Call]:
    """Draws calls that a pipeline accepts, in any order."""
    chain = Chain(draw, built_names, cache)
    chain.worked = on_a_mix
    calls: list[Call] = []
    pipeline = Pipeline("nowhere")
    for verb in draw(st.lists(st.sampled_from(verbs), min_size=draw(st.sampled_from([0, 2, 4, 6, 8])), max_size=10)):
        cuts = sum(each.verb in ("take", "skip", "cache") for each in calls)
        if verb in ("concat", "pack_rows") and not chain.takes_blocks(calls):
            continue
        if not pipeline.accepts("filter" if verb == "where" else verb) or (
            verb in ("take", "skip", "cache") and cuts >= 2
        ):
            continue
        if verb in ("repeat", "shuffle", *JOINS) and any(each.endless for each in calls):
            continue  # the oracle counts the passes behind them
        before = {name: value for name, value in vars(chain).items() if name != "draw"}
        made = chain.remade() if verb in JOINS and not chain.formed else []
        made.append(getattr(chain, verb)())
        if made[-1].endless:
            if on_a_mix or any(each.verb == "repeat" for each in calls):
                continue
            made.append(chain.take())
        made = [replace(each, number=draw(NUMBERS)) for each in made]
        try:
            pipeline = apply(pipeline, made)
        except PipelineError:  # a second window, or a filter on a changed field
            vars(chain).update(before)
            continue
        calls += made
        chain.worked = chain.worked or verb in WORKING
        chain.batched = chain.batched or verb in ("batch", "bucket")
    return calls
