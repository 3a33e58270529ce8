"""Applies image steps to the images of a batch.

`gather_images` decodes stored images and puts them through their step straight into the batch. `apply_images` takes
images that are already in a column. Both return the same values.

An image that only one item needs is decoded into memory of the thread, never into an extra batch. Images that
overlapping windows share are decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...base.errors import DecodeError, ParquetryError
from ...base.memory.arena import SCRATCH, Arena
from ...stages.image_base import ImageStep
from ..columns.batch import Column, Dense, Ragged
from ..columns.coded_column import CodedColumn
from ..columns.fixed_column import FixedColumn
from ..columns.protocols import Describe
from ..columns.shared_rows import Places
from .images import DrawnNumbers, ImagePart, drawn_numbers, needed_part, process, size_after
from .jpeg_images import finish_jpegs
from .random_numbers import ItemKeys
from .source import Taken

Keys = Callable[[], ItemKeys]


class SizeCheck:
    """Checks that images of an item that are cropped together, such as an image and its mask, have the same size."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._sizes: dict[int, tuple[str, np.ndarray]] = {}

    def add(self, step: ImageStep, sizes: np.ndarray) -> None:
        """Adds the sizes (int64 ``[items, 2]``; 0 for nulls) of a step's images.

        Raises:
            DecodeError: the image of another field of the same call has a different size in some item.
        """
        for call in step.together:
            name, other = self._sizes.setdefault(call, (step.field.name, sizes))
            wrong = np.flatnonzero((sizes != other).any(axis=1) & sizes.any(axis=1) & other.any(axis=1))
            if len(wrong):
                item = int(wrong[0])
                raise DecodeError(
                    f"field '{step.field.name}', {self._describe(item)}: expected an image as large as that of field "
                    f"'{name}', {_size(other[item])}, because both are cropped together, got {_size(sizes[item])}. "
                    "Resize one of them first, or crop them in separate calls."
                )


def gather_images(step: ImageStep, taken: Taken, arena: Arena, keys: Keys, check: SizeCheck) -> Column | None:
    """Returns the finished images of a stored field, or ``None`` if they cannot come straight from storage.

    Args:
        taken: the field's rows.
        arena: allocates the result.
        keys: returns the keys of the items, for random numbers.
        check: checks images that are cropped together.
    """
    stored = [source.block.column(taken.leaf) for source in taken.sources]
    if step.output.ragged or not all(isinstance(column, FixedColumn | CodedColumn) for column in stored):
        return None
    lead, steps = taken.lead, list(taken.steps)
    output = step.output
    out = arena.allocate(output.dtype, (*lead, *(axis or 0 for axis in output.shape)))
    flat = out.reshape(lead[0] * len(steps), *out.shape[len(lead) :])
    valid = np.ones((lead[0], len(steps)), dtype=bool)
    sizes = np.zeros((lead[0], 2), dtype=np.int64)
    numbers = drawn_numbers(step, keys)
    for source, items, column in zip(taken.sources, taken.places, stored, strict=True):
        assert isinstance(column, FixedColumn | CodedColumn)
        rows = source.item_rows[:, steps].reshape(-1)
        images = (items[:, None] * len(steps) + np.arange(len(steps))).reshape(-1)
        present = column.valid(rows)
        if present is not None:
            valid.reshape(-1)[images[~present]] = False
            flat[images[~present]] = 0
            rows, images = rows[present], images[present]
        owners = images // len(steps)
        drawn = [numbers(item) for item in owners.tolist()]
        sizes[owners] = _finish(step, column, rows, drawn, flat, images, source.block.where.describe)
    check.add(step, sizes)
    return Dense(out, None if valid.all() else valid.reshape(lead))


def _finish(
    step: ImageStep,
    column: FixedColumn | CodedColumn,
    rows: np.ndarray,
    numbers: Sequence[DrawnNumbers],
    out: np.ndarray,
    places: np.ndarray,
    describe: Describe,
) -> np.ndarray:
    """Puts stored images through the step, into ``out[places]``. Returns their stored sizes (int64 ``[n, 2]``)."""
    if isinstance(column, CodedColumn) and column.reused and not step.draws_numbers:
        return _finish_shared(step, column, rows, numbers, out, places, describe)
    sizes = np.zeros((len(rows), 2), np.int64)
    done: np.ndarray | None = None
    if isinstance(column, CodedColumn) and column.jpegs is not None:
        shapes = [column.shape(row) for row in rows.tolist()]
        done = finish_jpegs(step, column, rows, shapes, numbers, out, places)
        sizes[done] = np.array(shapes, np.int64)[done, :2]
    for number in range(len(rows)) if done is None else np.flatnonzero(~done).tolist():
        place = out[int(places[number])]
        sizes[number] = _one(step, column, int(rows[number]), numbers[number], place, describe)
    return sizes


def _finish_shared(
    step: ImageStep,
    column: CodedColumn,
    rows: np.ndarray,
    numbers: Sequence[DrawnNumbers],
    out: np.ndarray,
    places: np.ndarray,
    describe: Describe,
) -> np.ndarray:
    """As `_finish`, for images that are the same in several windows: each is made once, and copied to its places."""
    sizes = np.zeros((len(rows), 2), np.int64)
    kept = column.finished(step)
    shared: dict[int, list[int]] = {}
    for number, row in enumerate(rows.tolist()):
        shared.setdefault(row, []).append(number)
    busy: list[partial[bool]] = []  # images that another thread is making
    for row, its in shared.items():
        shape = column.shape(row)
        sizes[its] = shape[:2]
        make = partial(_decode_and_process, step, column, row, shape, numbers[its[0]], describe=describe)
        put = partial(kept.copy_into, row, Places(out, places[its].tolist()), make)
        if not put(wait=False):
            busy.append(put)
    for put in busy:
        put()
    return sizes


def _one(
    step: ImageStep,
    column: FixedColumn | CodedColumn,
    row: int,
    numbers: DrawnNumbers,
    out: np.ndarray,
    describe: Describe,
) -> tuple[int, int]:
    """Puts one stored image through the step. Returns its stored size."""
    if isinstance(column, FixedColumn):
        image = column.view(row)
        _process(step, image, numbers, out, lambda: describe(row))
        return image.shape[0], image.shape[1]
    shape = column.shape(row)
    _decode_and_process(step, column, row, shape, numbers, out, describe)
    return shape[0], shape[1]


def _decode_and_process(
    step: ImageStep,
    column: CodedColumn,
    row: int,
    shape: tuple[int, ...],
    numbers: DrawnNumbers,
    out: np.ndarray,
    describe: Describe,
) -> None:
    """Puts one encoded image through the step. Decodes it no larger than needed."""
    keep = column.reused and step.draws_numbers  # every window crops a different part of it
    part = None if keep else needed_part(step, shape[0], shape[1], numbers)
    image = None if part is None else _decode_part(column, row, shape, part, step.field.dtype)
    if image is None:
        part = None
        image = SCRATCH.array("decoded", shape, step.field.dtype)
        column.decode(row, image, keep=keep)
    _process(step, image, numbers, out, lambda: describe(row), part)


def _decode_part(
    column: CodedColumn, row: int, shape: tuple[int, ...], part: ImagePart, dtype: np.dtype
) -> np.ndarray | None:
    """Decodes a part of an image, and as little else as the codec can. ``None`` if it only decodes whole images."""
    top, left, height, width = part.box
    reduced = (-(-shape[0] // part.factor), -(-shape[1] // part.factor))
    if (height, width) != reduced:
        image = SCRATCH.array("decoded", (height, width, *shape[2:]), dtype)
        if column.decode_part(row, (shape[0], shape[1]), part.factor, part.box, image):
            return image
    if part.factor == 1:
        return None
    image = SCRATCH.array("decoded", (*reduced, *shape[2:]), dtype)
    if not column.decode_reduced(row, part.factor, image):
        return None
    return image[top : top + height, left : left + width]


def apply_images(
    step: ImageStep, columns: Sequence[Column], describe: Describe, keys: Keys, check: SizeCheck
) -> list[Column]:
    """Returns the columns after a step whose images are already in a column.

    Raises:
        DecodeError: an image is smaller than its crop, or differs in size from an image that is cropped together with
            it.
    """
    column = columns[step.number]
    numbers = drawn_numbers(step, keys)
    result = list(columns)
    window = step.field.window or 1
    images, valid = _images(column, step)
    items = len(images) // window
    sizes = np.zeros((items, 2), dtype=np.int64)
    shapes = np.tile(np.array([axis or 0 for axis in step.output.shape], np.int64), (len(images), 1))  # those of nulls
    for place, image in enumerate(images):
        if valid is None or valid[place]:
            item = place // window
            sizes[item] = image.shape[:2]
            shapes[place] = _shape_after(step, image.shape, lambda item=item: describe(item))  # type: ignore[misc]
    places = shapes.prod(axis=1)
    ends = np.cumsum(places)
    flat = np.zeros(int(ends[-1]) if len(ends) else 0, step.output.dtype)
    for place, image in enumerate(images):
        if valid is None or valid[place]:
            item = place // window
            out = flat[ends[place] - places[place] : ends[place]].reshape(shapes[place])
            _process(step, image, numbers(item), out, lambda item=item: describe(item))  # type: ignore[misc]
    check.add(step, sizes)
    lead = (items,) if step.field.window is None else (items, window)
    if step.output.ragged:
        result[step.number] = Ragged(shapes, flat, lead, column.valid)
    else:
        result[step.number] = Dense(flat.reshape(*lead, *step.output.shape), column.valid)
    return result


def _images(column: Column, step: ImageStep) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Returns every image of a column, and a mask of those that are not null (``None`` = all)."""
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


def _process(
    step: ImageStep,
    image: np.ndarray,
    numbers: DrawnNumbers,
    out: np.ndarray,
    where: Callable[[], str],
    part: ImagePart | None = None,
) -> None:
    if min(image.shape[:2]) == 0:
        raise DecodeError(
            f"field '{step.field.name}', {where()}: expected pixels, got an image of shape {image.shape}. If it is a "
            "null that nulls('mask') replaced, call nulls() after this verb. Otherwise leave the row out with where()."
        )
    try:
        process(step, image, numbers, out, part=part)
    except ParquetryError:  # the error is not about this image
        raise
    except ValueError as error:
        raise _failed(step, where(), error) from error


def _failed(step: ImageStep, where: str, error: Exception) -> DecodeError:
    return DecodeError(
        f"field '{step.field.name}', {where}: {error}. Call resize() first, or leave the row out with where()."
    )


def _size(pair: np.ndarray) -> str:
    return f"{int(pair[0])} x {int(pair[1])}"
