"""A model of ``on_error="skip"`` with ``bucket``: each bucket of a block is a queue of rows.

`without` returns the batches of a loader worker. Its input is the batches that the plan has without failing rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np

from parquetry.common import Pipeline
from parquetry.common.plan.bucket_items import BucketItems
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.plan.plan import Plan

Batch = list[int]
Place = tuple[tuple[int, ...], Batch]
"""The name of a batch's queue, which ends with the number of rows in a full batch, and the rows of the batch."""


def without(
    pipeline: Pipeline, bad: set[int], iteration: int = 0, worker: int = 0, workers: int = 1
) -> list[Batch] | None:
    """Returns the rows (counted over the dataset) in the batches of a loader worker, if the ``bad`` ones fail.

    Returns ``None`` if every rank must return as many batches, and every row of every rank fails.
    """
    plan = pipeline.plan()
    assert isinstance(plan, Plan)
    shard = plan.order.shard
    own, parts = Cursor(worker=worker, workers=workers).part(shard)
    if not plan.keeps_step:
        return _refilled(_places(plan, iteration, worker, workers), bad)
    lanes = [_places(plan, iteration, part % workers, workers, part // workers) for part in range(parts)]
    lanes = [*lanes[own:], *lanes[:own]]
    if lanes[0] and all(set(rows) <= bad for places in lanes for _, rows in places):
        return None
    found: list[Batch] = []
    for places in itertools.chain(lanes[:1], itertools.cycle(lanes)):  # its own again, before those of other parts
        if len(found) >= len(lanes[0]):
            break
        found += _refilled(places, bad)
    return found[: len(lanes[0])]


def left_out(pipeline: Pipeline, bad: set[int], iteration: int, worker: int, workers: int) -> int:
    """Returns how many rows of a loader worker fail, over all passes."""
    plan = pipeline.plan()
    assert isinstance(plan, Plan)
    return sum(row in bad for _, rows in _places(plan, iteration, worker, workers) for row in rows)


def _places(plan: Plan, iteration: int, worker: int, workers: int, rank: int | None = None) -> list[Place]:
    lane, items = plan.lane(Cursor(worker=worker, workers=workers), rank), plan.items
    assert isinstance(items, BucketItems)
    passes, index = lane.resolve(np.arange(lane.length or 0))
    found = []
    for number, at in zip(passes.tolist(), index.tolist(), strict=True):
        order = plan.epoch_order(plan.epoch_of(iteration, number))
        stream, wraparounds, block, bucket, _, _ = items.places(order, np.array([at]))[0].tolist()
        (read,) = plan.reads(iteration, np.array([number]), np.array([at]))
        name = (number, stream, wraparounds, block, bucket, int(items.sizes[bucket]))
        found.append((name, _rows(plan, read)))
    return found


def _rows(plan: Plan, read: Any) -> Batch:
    block = plan.block_rows(read.key)
    before = np.concatenate([[0], np.cumsum(plan.dataset.row_groups.rows)])
    parts = [np.asarray(rows) + int(before[group]) for group, rows in zip(block.row_groups, block.rows, strict=True)]
    found: Batch = np.concatenate(parts)[block.rows_of_items(read.items)[:, 0]].tolist()
    return found


def _refilled(places: list[Place], bad: set[int]) -> list[Batch]:
    """Fills the places in turn from their queues, which the first bad row of each breaks up."""
    queues: dict[tuple[int, ...], Batch] = {}
    for name, rows in places:
        queues.setdefault(name, []).extend(rows)
    left, broken, result = Counter(name for name, _ in places), set(), []
    for name, rows in places:
        queue, left[name] = queues[name], left[name] - 1
        taken: Batch = []
        if name not in broken and not bad & set(rows):
            taken = [queue.pop(0) for _ in rows]
        else:
            broken.add(name)
            while queue and (len(taken) < name[-1] or not left[name]):
                row = queue.pop(0)
                taken += [] if row in bad else [row]
        result += [taken] if taken else []
    return result
