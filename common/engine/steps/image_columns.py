"""Images of a batch: stored ones straight through their step into the batch (`gather_images`), and ones that are in
columns already (`apply_images`). Both give the same values.

Always holds: an image that only one item needs is decoded into memory of its thread, never into a batch of its own;
images that overlapping windows share are decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...errors import DecodeError, ParquetryError
from ...stages.image_base import ImageStep
from ..columns.arena import SCRATCH, Arena
from ..columns.batch import Column, Dense, Ragged
from ..columns.columns import CodedColumn, FixedColumn
from .chance import ItemKeys
from .images import Numbers, drawn_numbers, process, reduction, size_after
from .source import Source

Describe = Callable[[int], str]
Keys = Callable[[], ItemKeys]


class SizeCheck:
    """Holds the images of one item that are cut alike (an image and its mask) to one size."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._found: dict[int, tuple[str, np.ndarray]] = {}

    def add(self, step: ImageStep, sizes: np.ndarray) -> None:
        """Takes the sizes (int64 ``[items, 2]``; 0 where null) of a step's images.

        Raises:
            DecodeError: another field of the same call has another size in some item.
        """
        for call in step.together:
            name, other = self._found.setdefault(call, (step.field.name, sizes))
            wrong = np.flatnonzero((sizes != other).any(axis=1) & sizes.any(axis=1) & other.any(axis=1))
            if len(wrong):
                item = int(wrong[0])
                raise DecodeError(
                    f"field '{step.field.name}', {self._describe(item)}: expected an image as large as that of field "
                    f"'{name}', {_size(other[item])}, because both are cut alike, got {_size(sizes[item])}. Resize one "
                    "of them first, or give them calls of their own."
                )


def fits(step: ImageStep, sources: Sequence[Source], leaf: int) -> bool:
    """Whether images can go straight from storage through the step."""
    if step.output.ragged:
        return False
    return all(isinstance(source.block.column(leaf), FixedColumn | CodedColumn) for source in sources)


def gather_images(
    step: ImageStep,
    leaf: int,
    sources: Sequence[Source],
    steps: Sequence[int],
    places: Sequence[np.ndarray],
    lead: tuple[int, ...],
    arena: Arena,
    keys: Keys,
    check: SizeCheck,
) -> Column:
    """The finished images of a stored field.

    Args:
        leaf: the field's number.
        steps: which steps of each item (all of a stacked window, or one).
        places: for each source the items that its rows are.
        lead: ``(items,)``, or ``(items, steps)`` for stacked windows.
    """
    output = step.output
    out = arena.allocate(output.dtype, (*lead, *(axis or 0 for axis in output.shape)))
    cells = out.reshape(lead[0], len(steps), *out.shape[len(lead) :])
    valid = np.ones((lead[0], len(steps)), dtype=bool)
    sizes = np.zeros((lead[0], 2), dtype=np.int64)
    numbers = drawn_numbers(step, keys)
    for source, items in zip(sources, places, strict=True):
        column = source.block.column(leaf)
        assert isinstance(column, FixedColumn | CodedColumn)
        for number, item in enumerate(items.tolist()):
            rows = source.cells[number, list(steps)]
            present = column.valid(rows)
            drawn = numbers(item)
            for place, row in enumerate(rows.tolist()):
                if present is not None and not present[place]:
                    valid[item, place] = False
                    cells[item, place] = 0
                    continue
                sizes[item] = _one(step, column, row, drawn, cells[item, place], source.block.describe)
    check.add(step, sizes)
    return Dense(out, None if valid.all() else valid.reshape(lead))


def _one(
    step: ImageStep,
    column: FixedColumn | CodedColumn,
    row: int,
    numbers: Numbers,
    out: np.ndarray,
    describe: Describe,
) -> tuple[int, int]:
    """One stored image through the step; gives its stored size."""
    if isinstance(column, FixedColumn):
        image = column.view(row)
        _process(step, image, numbers, out, lambda: describe(row))
        return image.shape[0], image.shape[1]
    shape = column.shape(row)
    if column.reused and not step.random:  # the same in every window that has this row
        kept = column.finished(step)
        kept.copy_into(row, out, lambda place: _decoded(step, column, row, shape, numbers, place, describe))
    else:
        _decoded(step, column, row, shape, numbers, out, describe)
    return shape[0], shape[1]


def _decoded(
    step: ImageStep,
    column: CodedColumn,
    row: int,
    shape: tuple[int, ...],
    numbers: Numbers,
    out: np.ndarray,
    describe: Describe,
) -> None:
    """One encoded image through the step, decoded no larger than it is needed."""
    whole = column.reused and step.random  # every window cuts another part of it
    small = None if whole else reduction(step, shape[0], shape[1], numbers)
    if small is not None:
        reduced = (-(-shape[0] // small.factor), -(-shape[1] // small.factor), *shape[2:])
        image = SCRATCH.array("decoded", reduced, step.field.dtype)
        if column.decode_reduced(row, small.factor, image):
            process(step, image, numbers, out, reduced=small)
            return
    image = SCRATCH.array("decoded", shape, step.field.dtype)
    column.decode(row, image, keep=whole)
    _process(step, image, numbers, out, lambda: describe(row))


def apply_images(
    step: ImageStep, columns: Sequence[Column], describe: Describe, keys: Keys, check: SizeCheck
) -> list[Column]:
    """The columns after a step, for images that are in a column.

    Raises:
        DecodeError: an image that is smaller than the part wanted, or other than the one it is cut with.
    """
    column = columns[step.number]
    numbers = drawn_numbers(step, keys)
    result = list(columns)
    window = step.field.window or 1
    images, valid = _cells(column, step, window)
    items = len(images) // window
    sizes = np.zeros((items, 2), dtype=np.int64)
    shapes = np.zeros((len(images), len(step.output.shape)), dtype=np.int64)
    for cell, image in enumerate(images):
        if valid is None or valid[cell]:
            item = cell // window
            sizes[item] = image.shape[:2]
            shapes[cell] = _shape_after(step, image.shape, lambda item=item: describe(item))  # type: ignore[misc]
        elif not step.output.ragged:
            shapes[cell] = [axis or 0 for axis in step.output.shape]
    places = shapes.prod(axis=1)
    ends = np.cumsum(places)
    flat = np.zeros(int(ends[-1]) if len(ends) else 0, step.output.dtype)
    for cell, image in enumerate(images):
        if valid is None or valid[cell]:
            item = cell // window
            out = flat[ends[cell] - places[cell] : ends[cell]].reshape(shapes[cell])
            _process(step, image, numbers(item), out, lambda item=item: describe(item))  # type: ignore[misc]
    check.add(step, sizes)
    lead = (items,) if step.field.window is None else (items, window)
    if step.output.ragged:
        result[step.number] = Ragged(shapes, flat, lead, column.valid)
    else:
        result[step.number] = Dense(flat.reshape(*lead, *step.output.shape), column.valid)
    return result


def _cells(column: Column, step: ImageStep, window: int) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Every image of a column, and which are not null."""
    valid = None if column.valid is None else column.valid.reshape(-1)
    if isinstance(column, Dense):
        values = column.values
        return list(values.reshape(-1, *values.shape[values.ndim - len(step.field.shape) :])), valid
    assert isinstance(column, Ragged)
    assert isinstance(column.values, np.ndarray)
    ends = np.cumsum(column.shapes.prod(axis=1))
    parts = np.split(column.values, ends[:-1]) if len(ends) else []
    return [part.reshape(shape) for part, shape in zip(parts, column.shapes.tolist(), strict=True)], valid


def _shape_after(step: ImageStep, shape: tuple[int, ...], where: Callable[[], str]) -> tuple[int, ...]:
    try:
        full = (*size_after(step, shape[0], shape[1]), *shape[2:])
    except ValueError as error:
        raise _failed(step, where(), error) from error
    return full if step.axes is None else tuple(full[axis] for axis in step.axes)


def _process(step: ImageStep, image: np.ndarray, numbers: Numbers, out: np.ndarray, where: Callable[[], str]) -> None:
    if min(image.shape[:2]) == 0:
        raise _failed(step, where(), ValueError(f"expected pixels, got an image of shape {image.shape}"))
    try:
        process(step, image, numbers, out)
    except ParquetryError:  # nothing is wrong with this image
        raise
    except ValueError as error:
        raise _failed(step, where(), error) from error


def _failed(step: ImageStep, where: str, error: Exception) -> DecodeError:
    return DecodeError(
        f"field '{step.field.name}', {where}: {error}. Call resize() first, or leave the row out with where()."
    )


def _size(pair: np.ndarray) -> str:
    return f"{int(pair[0])} x {int(pair[1])}"
