"""Property tests for every face: failing elements, and files that change between epochs."""

from __future__ import annotations

import itertools
import math
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from chains import KEPT, chains, dataset, layouts
from faces import THREADS, Face, plain_element
from hypothesis import assume
from hypothesis import strategies as st
from ids import epoch_of, flat
from joins import JOINS
from oracle import apply, check
from refills import without

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import EmptySelectionError
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.stages.shard import Shard

ALL_VIEWS = ("shuffle", "shard", "batch", "where", "take", "skip", "repeat")


class FileChangedError(Exception):
    """A face reported that a file differs from the planned one."""


def run_failing(data: st.DataObject, faces: Sequence[Face]) -> None:
    """Draws a face and a chain over rows, some of which fail: the others must come out in their places."""
    with dataset(data.draw(layouts, "files")) as built:
        views = data.draw(chains(KEPT, "x", ALL_VIEWS), "calls")
        bad = data.draw(st.sets(st.integers(0, max(len(built.rows) - 1, 0)), max_size=4), "rows that fail")
        face = data.draw(st.sampled_from(faces), "face")

        def fail(row: dict[str, Any]) -> dict[str, Any]:
            if int(row["id"]) in bad:
                raise KeyError("a bad row")
            return {**row, "seen": row["id"]}

        whole = apply(built.pipeline("id"), views)
        try:
            expected = given(whole, iter(whole))
        except EmptySelectionError:
            assume(False)
        failing = apply(built.pipeline("id").transform(fail, [UnischemaField("seen", np.int64)]), views)
        found = given(failing, face.passes(failing)())
        assert found == [None if bad.intersection(element or ()) else element for element in expected], face.name


def run_skipping(data: st.DataObject, faces: Sequence[Face]) -> None:
    """Draws a face and a chain over rows, some of which fail: with ``on_error="skip"``, the others must come in full
    batches, in every epoch and from every state.
    """
    with dataset(data.draw(layouts, "files")) as built:
        drawn = data.draw(chains(KEPT, "x", ALL_VIEWS), "calls")
        at = next((number for number, each in enumerate(drawn) if each.verb == "batch"), len(drawn))
        views, batch = drawn[:at], next(iter(drawn[at : at + 1]), None)
        bad = data.draw(st.sets(st.integers(0, max(len(built.rows) - 1, 0)), max_size=6), "rows that fail")
        face = data.draw(st.sampled_from(faces), "face")
        batched = data.draw(st.booleans(), "a function of batches")
        drops = not batched and data.draw(st.booleans(), "a function that drops rows")
        modulus = data.draw(st.integers(1, 4), "one of so many rows is dropped") if drops else 0

        def fail(rows: dict[str, Any]) -> Any:
            if bad.intersection(np.atleast_1d(rows["id"]).tolist()):
                raise KeyError("a bad row")
            return None if drops and rows["id"] % modulus == 0 else {**rows, "seen": rows["id"]}

        seen, batches = [UnischemaField("seen", np.int64)], [] if batch is None else [batch]
        plain, source = apply(built.pipeline("id"), views), built.pipeline("id").with_options(on_error="skip")
        if drops:
            pipeline = apply(apply(source, views).transform(fail, seen, drops=True), batches)
        else:
            pipeline = apply(source.transform(fail, seen, batched=batched), [*views, *batches])
        most = None if batch is None or drops else data.draw(st.none() | st.integers(0, 8), "batches to take")
        pipeline = pipeline if most is None else pipeline.take(most)
        size, whole = (1, False) if batch is None else (batch.count, batch.options.get("drop_remainder", False))
        fills = pipeline.plan().keeps_step and not drops
        workers = getattr(face, "workers", None) or 1
        expected = []
        for epoch in range(2):
            try:
                ranks = [_rows_of(each, epoch) for each in _ranks_from(plain)]
            except EmptySelectionError:
                assume(False)
            parts = [lane for rows in ranks for lane in _lanes(rows, 1 if drops else size, workers)]
            gone = bad | {row for row in ranks[0] if drops and row % modulus == 0}
            lanes = [
                _without([*parts[own:], *parts[:own]], gone, size, whole=whole, fills=fills) for own in range(workers)
            ]
            assume(None not in lanes)
            ends = [None if most is None else max(0, -(-(most - lane) // workers)) for lane in range(workers)]
            turns = itertools.zip_longest(*((lane or [])[:end] for lane, end in zip(lanes, ends, strict=True)))
            expected.append([element for turn in turns for element in turn if element is not None])
        begin = face.passes(pipeline)
        for epoch in expected:
            assert given(pipeline, begin()) == epoch, face.name
        if workers == 1:
            steps = data.draw(st.integers(0, len(expected[0])), "steps")
            assert given(pipeline, face.resumed(pipeline, steps)) == expected[0][steps:], face.name


def run_limited(data: st.DataObject, faces: Sequence[Face]) -> None:
    """Draws a face, a chain, rows that fail, and ``max_errors``: in every epoch, all elements before the first row too
    many must come, and then the error.
    """
    groups = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6), "row groups")
    count = sum(groups)
    places = st.integers(0, count - 1)
    bad = data.draw(st.sets(places, max_size=20), "rows that fail")
    bad |= set(range(data.draw(places, "first of a run"), data.draw(places, "end of the run")))
    most = data.draw(st.one_of(st.integers(0, len(bad) + 1), st.floats(0, 0.5)), "max_errors")
    size = data.draw(st.one_of(st.none(), st.integers(1, 5)), "rows of a batch")
    face = data.draw(st.sampled_from([face for face in faces if not getattr(face, "workers", None)]), "face")

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if int(row["id"]) in bad:
            raise KeyError("a bad row")
        return row

    with tempfile.TemporaryDirectory() as directory:
        url = str(Path(directory, "rows.parquet"))
        _write_texts(url, groups, [[1]] * count, set())
        plain, pipeline = Pipeline(url, ["id"]), Pipeline(url, ["id"], on_error="skip", max_errors=most)
        pipeline = pipeline.transform(fail)
        if data.draw(st.booleans(), "shuffled"):
            buffer = data.draw(st.integers(1, 2 * count), "buffer")
            plain, pipeline = (each.shuffle(buffer, seed=1) for each in (plain, pipeline))
        if data.draw(st.booleans(), "sharded"):
            even = data.draw(st.sampled_from(["pad", "drop", "none"]), "even")
            plain, pipeline = (each.shard(2, 1, even=even) for each in (plain, pipeline))
        times = data.draw(st.integers(1, 4), "passes")
        plain, pipeline = (each.repeat(times) if times > 1 else each for each in (plain, pipeline))
        pipeline = pipeline if size is None else pipeline.batch(size)
        taken = None if size is None else data.draw(st.none() | st.integers(1, 12), "batches to take")
        pipeline = pipeline if taken is None else pipeline.take(taken)
        lane = plain.plan().lane(Cursor())
        assume(lane.length)
        passes = (lane.resolve(np.arange(lane.length))[0] + 1).tolist()
        wanted = lane.length if taken is None or size is None else min(lane.length, taken * size)
        allowed = math.floor(most * wanted / times) if isinstance(most, float) else most
        begin = face.passes(pipeline)
        for epoch in range(2):
            ranks = [_rows_of(each, epoch) for each in _ranks_from(plain)]
            found, is_over = _limited(ranks, passes, bad, size or 1, allowed, fills=pipeline.plan().keeps_step)
            expected = found[:taken], is_over and (taken is None or len(found) < taken)
            assert _until_limit(pipeline, begin()) == expected, face.name


def _until_limit(pipeline: Pipeline, iterator: Iterator[Any]) -> tuple[list[list[int]], bool]:
    """Returns the ids of the elements, and whether an error says that more rows fail than ``max_errors`` allows."""
    found = []
    try:
        for element in iterator:
            rows = plain_element(pipeline.element, element)
            found.append([row["id"] for row in (rows if isinstance(rows, list) else [rows])])
    except Exception as error:
        if not re.search(r"max_errors=.* expected at most|all of \d+ consecutive (rows|batches) failed", str(error)):
            raise
        return found, True
    return found, False


def _ranks_from(pipeline: Pipeline) -> list[Pipeline]:
    """Returns the pipeline of each rank that has rows in its order, from its own rank on."""
    order = pipeline.plan().order
    shard = next((stage for stage in order.row_views if isinstance(stage, Shard)), None)
    if shard is None:
        return [pipeline]
    ranks = [(shard.index + number) % shard.num_shards for number in range(shard.num_shards)]
    return [
        pipeline.with_stages(
            [replace(stage, index=rank) if isinstance(stage, Shard) else stage for stage in pipeline.stages]
        )
        for rank in ranks
    ]


def _rows_of(pipeline: Pipeline, epoch: int) -> list[int]:
    return flat([np.atleast_1d(number).tolist() for number in epoch_of(pipeline, epoch)])


def _limited(
    ranks: list[list[int]], passes: list[int], bad: set[int], size: int, allowed: int, *, fills: bool
) -> tuple[list[list[int]], bool]:
    """Takes one row after the other; ``fills`` begins again at the end, and goes on with the other ranks' rows."""
    good: list[int] = []
    rows = ranks[0]
    left_out, is_over = 0, fills and bad.issuperset(row for each in ranks for row in each)
    endless = itertools.chain(rows, itertools.cycle(itertools.chain(*ranks)))
    for position, row in enumerate(endless):
        if (len(good) if fills else position) == len(rows):
            break
        begun = passes[min(position, len(rows) - 1)]
        if row not in bad:
            good.append(row)
            continue
        left_out += 1
        if left_out > allowed * begun or (is_over and left_out >= len(rows)):
            is_over = True
            break
    batches = [good[first : first + size] for first in range(0, len(good), size)]
    return [batch for batch in batches if len(batch) == size or not is_over], is_over


def run_refilling(data: st.DataObject, faces: Sequence[Face]) -> None:
    """Draws a face and a chain with ``bucket``, and rows that fail: with ``on_error="skip"``, batches must come as
    `refills` says, in every epoch and from every state.
    """
    with dataset(data.draw(layouts, "files")) as built:
        bad = data.draw(st.sets(st.integers(0, max(len(built.rows) - 1, 0)), max_size=12), "rows that fail")
        face, batched = data.draw(st.sampled_from(faces), "face"), data.draw(st.booleans(), "a function of batches")

        def fail(rows: dict[str, Any]) -> dict[str, Any]:
            if bad.intersection(np.atleast_1d(rows["id"]).tolist()):
                raise KeyError("a bad row")
            return {**rows, "seen": rows["id"]}

        base = built.pipeline("id").with_options(on_error="skip")
        if data.draw(st.booleans(), "shuffled"):
            base = base.shuffle(data.draw(st.integers(1, 20), "buffer"), seed=1)
        base = base.bucket("id", [8, 30], batch_sizes=[3, 4, 2])
        if data.draw(st.booleans(), "sharded"):
            base = base.shard(2, 1, even=data.draw(st.sampled_from(["pad", "drop", "none"]), "even"))
        pipeline = base.transform(fail, [UnischemaField("seen", np.int64)], batched=batched)
        number_of = [row.values["id"] for row in built.rows]
        assume(built.rows and base.plan().length)
        workers = getattr(face, "workers", None) or 1
        failing = {place for place, number in enumerate(number_of) if number in bad}
        begin, epochs = face.passes(pipeline), []
        for iteration in range(2):
            lanes = [without(base, failing, iteration, worker, workers) for worker in range(workers)]
            assume(None not in lanes)
            turns = itertools.zip_longest(*(lane or [] for lane in lanes))
            epochs.append([[number_of[row] for row in batch] for turn in turns for batch in turn if batch is not None])
            assert given(pipeline, begin()) == epochs[-1], face.name
        if workers == 1:
            steps = data.draw(st.integers(0, len(epochs[0])), "steps")
            assert given(pipeline, face.resumed(pipeline, steps)) == epochs[0][steps:], face.name


def run_unmeasured(data: st.DataObject, faces: Sequence[Face]) -> None:
    """Draws a face, a verb that joins rows, and rows without a length: with ``on_error="skip"``, the elements must
    equal those of files without these rows.
    """
    groups = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6), "row groups")
    lengths = data.draw(st.lists(st.integers(0, 11), min_size=sum(groups), max_size=sum(groups)), "lengths")
    bad = data.draw(st.sets(st.integers(0, max(sum(groups) - 1, 0)), max_size=5), "rows that fail")
    face, verb = data.draw(st.sampled_from(faces), "face"), data.draw(st.sampled_from(JOINS), "verb")
    inside = verb != "bucket"  # which decodes lists only with their rows
    texts: list[Any] = [list(range(16 * row + 1, 16 * row + length + 1)) for row, length in enumerate(lengths)]
    for row in bad & set(range(len(texts))):
        texts[row] = [row, None] if inside and row % 2 else None
    shuffled, sharded = data.draw(st.booleans(), "shuffled"), data.draw(st.booleans(), "sharded")
    separator, batch = data.draw(st.sampled_from([None, -1]), "separator"), data.draw(st.booleans(), "in batches")

    def joined(url: str, **options: Any) -> Pipeline:
        rows = Pipeline(url, ["id", "tokens"], workers=2, **options)
        rows = rows.shuffle(7, seed=3) if shuffled else rows
        if verb == "bucket":
            rows = rows.bucket("tokens", [3, 6], batch_size=3)
        elif verb == "concat":
            rows = rows.concat(8, "tokens", separator=separator, positions=True, remainder="pad")
        else:
            rows = rows.pack_rows(8, "tokens")
        rows = rows.shard(2, 1) if sharded else rows
        return rows.batch(2) if batch and verb != "bucket" else rows

    with tempfile.TemporaryDirectory() as directory:
        with_bad, without_bad = (str(Path(directory, name)) for name in ("bad.parquet", "good.parquet"))
        _write_texts(with_bad, groups, texts, set())
        _write_texts(without_bad, groups, texts, bad)
        pipeline, plain = joined(with_bad, on_error="skip"), joined(without_bad)
        try:
            plain.plan().check_not_empty()
        except EmptySelectionError:
            assume(False)
        expected = [face.elements(plain, iteration) for iteration in range(2)]
        for iteration in range(2):
            assert face.elements(pipeline, iteration) == expected[iteration], face.name
        if not getattr(face, "workers", None):
            steps = data.draw(st.integers(0, len(expected[0])), "steps")
            left = [plain_element(pipeline.element, each) for each in face.resumed(pipeline, steps)]
            assert left == expected[0][steps:], face.name


def _write_texts(path: str, groups: Sequence[int], texts: Sequence[Any], without: set[int]) -> None:
    schema, first = pa.schema({"id": pa.int64(), "tokens": pa.list_(pa.int32())}), 0
    with pq.ParquetWriter(path, schema) as writer:
        for count in groups:
            rows = [row for row in range(first, first + count) if row not in without]
            columns = {"id": rows, "tokens": [texts[row] for row in rows]}
            writer.write_table(pa.table(columns, schema), row_group_size=max(len(rows), 1))
            first += count


def _lanes(rows: list[int], size: int, workers: int) -> list[list[int]]:
    """Splits the rows among loader workers, batch by batch in turn."""
    batches = [rows[first : first + size] for first in range(0, len(rows), size)]
    return [[row for batch in batches[worker::workers] for row in batch] for worker in range(workers)]


def _without(parts: list[list[int]], bad: set[int], size: int, *, whole: bool, fills: bool) -> list[list[int]] | None:
    """Batches the good rows of the first part; ``fills`` repeats them, and then takes those of all parts in turn."""
    rows = parts[0]
    good, others = ([row for row in each if row not in bad] for each in (rows, itertools.chain(*parts)))
    if fills and rows:
        if not others:
            return None
        wanted = len(rows) // size * size if whole else len(rows)
        good = list(itertools.islice(itertools.chain(good, itertools.cycle(others)), wanted))
    batches = [good[first : first + size] for first in range(0, len(good), size)]
    return [batch for batch in batches if len(batch) == size or not whole]


def run_changed(data: st.DataObject, faces: Sequence[Face]) -> None:
    """Draws a face whose files change between epochs: it reports them or yields the plan; a new face reads them."""
    change = data.draw(st.sampled_from(["added", "replaced", "written over", "identical"]), "change")
    face = data.draw(st.sampled_from(faces), "face")
    with dataset(data.draw(layouts, "files")) as built, dataset([[4, 2]], change=_later) as later:
        views = data.draw(chains(KEPT, "x", ("where", "shuffle", "batch")), "calls")
        pipeline = apply(built.pipeline(workers=1), views)
        try:
            before = [given(pipeline, iter(pipeline)) for _ in range(2)]
        except EmptySelectionError:
            assume(False)
        kept = face.passes(apply(built.pipeline(workers=1), views))
        assert given(pipeline, kept()) == before[0]

        paths = sorted(Path(built.url).iterdir())
        path = (
            paths[-1].with_name("part-900.parquet") if change == "added" else data.draw(st.sampled_from(paths), "file")
        )
        rows, gone = list(built.rows), []
        if change != "identical":
            gone = [row for row in rows if row.file == str(path)]
            at = sum(row.file < str(path) for row in rows)
            rows[at : at + len(gone)] = later.rows
        _put(path if change == "identical" else Path(later.rows[0].file), path, over=change == "written over")

        found: Any = None
        with suppress(FileChangedError):  # either the planned rows or this, nothing in between
            found = given(pipeline, kept())
        assert found in (None, before[1])
        read = {number for element in before[1] for number in element or ()}
        ahead = face.name in ("sidecar", "tensorflow", "tensorflow-numpy")  # reads the next epoch ahead of time
        assert found is None or ahead or not read & {row.values["id"] for row in gone}
        check(replace(built, rows=tuple(rows)), views, THREADS.elements)
        anew = apply(built.pipeline(workers=1), views)
        with suppress(EmptySelectionError):  # already seen by `check`
            expected = given(anew, iter(anew))
            assert given(anew, face.passes(apply(built.pipeline(workers=1), views))()) == expected


def given(pipeline: Pipeline, iterator: Iterator[Any]) -> list[list[int] | None]:
    """Yields the ids of each element; ``None`` for a failed element.

    Raises:
        FileChangedError: a file differs from the planned one.
    """
    found: list[list[int] | None] = []
    while True:
        try:
            element = plain_element(pipeline.element, next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            if re.search("changed since the pipeline was planned", str(error)):
                raise FileChangedError from error
            if "a bad row" not in str(error):
                raise
            found.append(None)
        else:
            found.append([row["id"] for row in (element if isinstance(element, list) else [element])])


def _later(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "id": row["id"] + 500}


def _put(source: Path, path: Path, *, over: bool) -> None:
    """Replaces a file's content with another's, in place or as a new file with the same name."""
    place = path if over else path.with_name("_new")
    place.write_bytes(source.read_bytes())
    os.replace(place, path)
