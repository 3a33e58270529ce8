"""`describe` and `plot` show a batch or a row as a table of fields, dtypes and shapes, or as plots; `class_names` says
what its class numbers mean.

They accept the output of every pipeline class: dicts (nested or flat), tuples, arrays and tensors. Batches are plain
dicts because pytrees (torch, JAX) treat any other class as a leaf. Since a plain dict prints its arrays in full, use
these functions for a summary.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import PipelineError, missing_package
from ...base.process.dataclass import dataclass
from ...base.text_table import TextTable
from ...schema.plain import integer
from ...schema.ragged import NestedArray, RaggedArray
from .images import CHANNELS, as_rgb, fitted, laid_out
from .text import short_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TILE = 96
_FIRST = 4
_SEARCHED = 64


def class_names(pipeline: object) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each integer field that holds class numbers: ``names[row["label"]]``.

        >>> class_names(Pipeline.from_image_folder("animals"))  # doctest: +SKIP
        {'label': ('cat', 'dog')}

    Args:
        pipeline: a pipeline, or a dataset, pipe or node that has one.

    `from_huggingface_parquet`, `from_image_folder`, and datasets that `convert` or `copy` made from them have class
    names. For others, the result is empty.
    """
    made: Any = getattr(pipeline, "pipeline", pipeline)
    return dict(made.dataset.labels) if made.source.single else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDescription:
    """One value of a batch or row: its path (``"label"``, ``"0.image"``), dtype, shape, and first values."""

    name: str
    dtype: str
    shape: str
    values: str


@dataclass(frozen=True, slots=True, repr=False)
class Description:
    """The result of `describe`. Prints as a text table, or as an HTML table in notebooks."""

    fields: tuple[FieldDescription, ...]

    def __repr__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> TextTable:
        lines = [(field.name, field.dtype, field.shape, field.values) for field in self.fields]
        return TextTable(("field", "dtype", "shape", "values"), lines)


def describe(batch: object) -> Description:
    """Summarizes a batch or a row: the dtype, shape and first values of each field.

        >>> describe({"id": np.arange(64), "image": np.zeros((64, 4, 5, 3), np.uint8)})
        field  dtype  shape          values
        id     int64  (64,)          0 1 2 3 ...
        image  uint8  (64, 4, 5, 3)  0 0 0 0 ...

    Accepts the output of `Pipeline`, `ParquetDataset`, `ParquetPipe` and the other classes: numpy arrays, tensors of
    TensorFlow and PyTorch, ragged values and strings, in dicts, nested dicts and tuples. An axis whose size differs
    between rows is shown as ``None``.
    """
    return Description(tuple(_described(name, value) for name, value in _leaves(batch)))


def plot(batch: object, fields: str | Sequence[str] | None = None, rows: int = 8) -> Figure:
    """Plots the first rows of a batch with matplotlib (extra ``plot``), one panel per field. Returns the figure.

        >>> plot(next(iter(pipeline.batch(64))), ["image", "label"]).savefig("batch.png")  # doctest: +SKIP

    Images are shown as thumbnails, and windows of images as strips with one line per row. Numbers get one bar per row,
    and lists and windows of numbers one line per row. Nulls stay blank. Strings, and arrays with more axes that are not
    images, are skipped unless you name them in ``fields``, which is an error.

    Args:
        batch: a batch as `Pipeline.batch` makes it, from any class. The first axis of every field is the batch axis.
        fields: the fields to plot; ``None`` = all that can be plotted.
        rows: the number of rows to plot.

    Raises:
        PipelineError: a named field does not exist or cannot be plotted, no field can be plotted, ``rows`` is below 1,
            or ``batch`` is not a batch.
        ImportError: matplotlib is not installed.
    """
    count = integer(rows, least=1)
    if count is None:
        raise PipelineError(f"plot: expected an integer rows >= 1, got {rows!r}.")
    if not isinstance(fields, Iterable | None):
        raise PipelineError(f"plot: expected the names of fields, or None, got {fields!r}.")
    names = [fields] if isinstance(fields, str) else None if fields is None else list(fields)
    columns = dict(_leaves(batch))
    missing = [name for name in names or () if not isinstance(name, str) or name not in columns]
    if missing:
        raise PipelineError(f"plot: expected fields among {', '.join(columns)}, got {missing[0]!r}.")
    drawings = {name: _drawing(columns[name], count) for name in names or columns}
    drawn = {name: drawing for name, drawing in drawings.items() if drawing is not None}
    if not drawn or (names is not None and len(drawn) < len(drawings)):
        refused = ", ".join(name for name in drawings if name not in drawn) or "none"
        raise PipelineError(
            f"plot: expected a batch of images, numbers, or lists of numbers, got fields that cannot be drawn: "
            f"{refused}. Pass a batch as batch(n) returns it. describe(batch) shows what it holds."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plot {missing_package(error, 'matplotlib', 'plot')}") from error

    class Drawn(Figure):
        """A figure that notebooks display with any matplotlib backend."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png")
            return stream.getvalue()

    heights = [drawing.height for drawing in drawn.values()]
    figure = Drawn(figsize=(8, sum(heights) + 0.6 * len(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (name, drawing) in zip(panels, drawn.items(), strict=True):
        panel.set_title(name, fontsize=9, loc="left")
        drawing.draw(panel)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """The content of a panel: pixels, one bar per row, or one line per row."""

    pixels: np.ndarray | None = None
    bars: np.ndarray | None = None
    lines: tuple[np.ndarray, ...] = ()

    @property
    def height(self) -> float:
        """The height of the panel in inches. Images keep their aspect ratio."""
        return 1.5 if self.pixels is None else min(8.0, 8 * self.pixels.shape[0] / self.pixels.shape[1])

    def draw(self, panel: Any) -> None:
        if self.pixels is not None:
            panel.imshow(self.pixels)
            panel.set_axis_off()
            return
        if self.bars is not None:
            panel.bar(np.arange(len(self.bars)), self.bars)
        for line in self.lines:
            panel.plot(line, linewidth=1, marker="." if len(line) == 1 else None)
        panel.tick_params(labelsize=8)


def _drawing(value: object, rows: int) -> _Drawing | None:
    """Returns what to draw for the first rows of a field, or ``None`` if they cannot be drawn."""
    first = _first(value, rows)
    values = [None if _is_null(each) else _array_with_nan(each) for each in first]
    known = [each for each in values if each is not None and each.dtype.kind in "biufmM"]
    if not known or len(known) + sum(map(_is_null, first)) < len(values) or len({each.ndim for each in known}) > 1:
        return None
    axes = known[0].ndim
    is_image = all(_is_image(each) for each in known)
    is_strip = axes == 4 and all(len(each) and _is_image(each[0]) for each in known)
    if is_image or is_strip:
        blank = np.zeros((1, 1, 1, 3) if is_strip else (1, 1, 3), np.uint8)
        shown = [blank if each is None else each for each in values]
        lines = [list(each) for each in shown] if is_strip else [shown[at : at + 8] for at in range(0, len(shown), 8)]
        return _Drawing(pixels=laid_out([[fitted(as_rgb(image), _TILE) for image in line] for line in lines], _TILE))
    if axes == 0:
        return _Drawing(bars=np.array([np.nan if each is None else _as_float(each) for each in values]))
    return _Drawing(lines=tuple(np.zeros(0) if each is None else each for each in values)) if axes == 1 else None


def _is_null(value: object) -> bool:
    whole = isinstance(value, np.ma.MaskedArray) and value.size > 0 and np.ma.getmaskarray(value).all()
    return value is None or bool(whole)


def _array_with_nan(value: Any) -> np.ndarray | None:
    """Converts a value to one array, with NaN for nulls; ``None`` for strings and lists that do not form an array."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        return np.ma.filled(value.astype(np.float64), np.nan)
    numbers = isinstance(value, list) and all(each is None or isinstance(each, int | float) for each in value)
    return np.array(value, np.float64) if numbers and None in value else _as_array(value)


def _as_float(value: np.ndarray) -> float:
    return float(value.astype(np.int64) if value.dtype.kind in "mM" else value)


def _is_image(value: np.ndarray) -> bool:
    if value.ndim == 2:
        return value.dtype == np.uint8
    return value.ndim == 3 and value.size > 0 and (value.shape[2] in CHANNELS or value.shape[0] in CHANNELS)


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and value of each leaf in nested dicts and tuples."""
    if isinstance(value, Mapping):
        pairs: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, tuple):
        pairs = iter(enumerate(value))
    else:
        yield name or "value", value
        return
    for key, each in pairs:
        yield from _leaves(each, f"{name}.{key}" if name else str(key))


def _described(name: str, value: Any) -> FieldDescription:
    shape = _shape(value)
    dtype = getattr(value, "dtype", None)
    kind = str(getattr(dtype, "name", dtype)).removeprefix("torch.") if dtype is not None else _kind(value)
    if isinstance(dtype, np.dtype):
        kind = str(dtype) if dtype.kind != "O" or not len(value) else _kind(list(_single(value, _SEARCHED)))
    return FieldDescription(
        name=name,
        dtype=kind,
        shape="" if shape is None else str(shape),
        values=_values(value),
    )


def _kind(value: object) -> str:
    """Names the type of a value without a dtype: text, bytes, or a list of those or of arrays."""
    pending = [value]
    first = None
    while pending and first is None:
        each = pending.pop(0)
        if isinstance(each, list):
            pending[:0] = each[:_SEARCHED]
        else:
            first = each
    dtype = getattr(first, "dtype", None)
    if dtype is not None:
        return str(dtype).removeprefix("torch.")
    return {str: "text", bytes: "bytes", type(None): "null"}.get(type(first), type(first).__name__)


def _shape(value: Any) -> tuple[int | None, ...] | None:
    """The shape, with ``None`` for axes that differ between rows; or ``None`` for a scalar without a shape."""
    if isinstance(value, RaggedArray):
        axes = [value.shapes[:, axis] for axis in range(value.shapes.shape[1])]
        return (*value.lead, *(int(axis[0]) if len(axis) and (axis == axis[0]).all() else None for axis in axes))
    if isinstance(value, NestedArray) or type(value).__name__ == "NestedTensors":
        return (len(value), *(None for _ in value.offsets))
    if isinstance(value, list):
        return (len(value),) if not value or _shape(value[0]) in (None, ()) else (len(value), None)
    if getattr(value, "is_nested", False):
        sizes = (
            [value.size(axis) for axis in range(value.dim())] if str(value.layout) == "torch.jagged" else [len(value)]
        )
        return tuple(size if type(size) is int else None for size in sizes)
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(None if size is None else int(size) for size in shape)


def _values(value: object) -> str:
    """The first few scalars in a value, as text."""
    if isinstance(value, str | bytes) or value is None:
        return short_text(value)
    flat = list(_single(value, _FIRST + 1))
    shown = " ".join(short_text(each, 12) for each in flat[:_FIRST])
    return f"{shown} ..." if len(flat) > _FIRST else shown


def _single(value: object, count: int) -> Iterator[Any]:
    """Yields the first ``count`` scalars in a value."""
    pending = [value]
    while pending and count:
        each = pending.pop(0)
        if each is not None and not isinstance(each, str | bytes) and _rank(each):
            pending[:0] = _first(each, count)
            continue
        array = _as_array(each)
        single = each if array is None else array[()]
        yield single.decode(errors="replace") if isinstance(single, np.bytes_) else single
        count -= 1


def _rank(value: object) -> int:
    if isinstance(value, RaggedArray | NestedArray | list) or getattr(value, "is_nested", False):
        return 1
    shape = getattr(value, "shape", None)
    return 1 if shape is None and hasattr(value, "__getitem__") else len(shape or ())


def _first(value: Any, count: int) -> list[Any]:
    """The first entries along the first axis; empty for a scalar."""
    if getattr(value, "is_nested", False):
        return list(value.unbind()[:count])
    if _rank(value) == 0 or isinstance(value, str | bytes):
        return []
    size = value.shape[0] if hasattr(value, "shape") and not hasattr(value, "__len__") else len(value)
    return [value[number] for number in range(min(count, int(size)))]


def _as_array(value: Any) -> np.ndarray | None:
    """Converts a value to one numpy array. Returns ``None`` for nulls, strings, and lists that do not form one."""
    if value is None or value is np.ma.masked or isinstance(value, str | bytes):
        return None
    if isinstance(value, RaggedArray | NestedArray | list):
        entries = [_as_array(each) for each in _first(value, len(value))]
        known = [each for each in entries if each is not None]
        return np.stack(known) if len(known) == len(entries) and len({each.shape for each in known}) == 1 else None
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # numpy has no bfloat16
    numpy = getattr(value, "numpy", None)
    array = np.asarray(numpy() if callable(numpy) else value)
    return array if array.dtype != object else None
