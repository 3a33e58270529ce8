"""`OutputField` and `Element`: what a pipeline delivers, known as soon as the schema is read.

An element has outputs, which users see, and leaves, which are the columns that are transported. An output is one leaf,
or several for nested lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..base.process.dataclass import dataclass
from ..base.process.forks import cached_property
from ..base.text_table import TextTable
from .dtypes import delivered_dtype, is_bytes, is_text
from .field import Shape, UnischemaField

Kind = Literal["dense", "text", "bytes"]
Path = tuple[str | int, ...]
Form = Any
"""A leaf (the index of an output, or a field name), or ``("tuple", *forms)``, or ``("dict", (key, form), ...)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputField:
    """One value of the element.

    Attributes:
        path: the position in the element's dict: ``(name,)``, or ``(offset, name)`` in windows with fields per offset.
        kind: numbers, text, or bytes.
        dtype: the dtype of the delivered array (``object`` for text and bytes).
        shape: the shape of one value, without batch and window axes; ``None`` marks a variable axis.
        window: the number of steps T of the window axis, or ``None``.
        nullable: whether a value may be missing.
        dims: the names of the axes of ``shape``, if the field has them.
        time: the time type, if the numbers are times: ``"datetime64[us]"``, ``"timedelta64[ns]"``.
        as_time: whether numpy users get values of that time type. Frameworks without time types get the numbers.
        padded: whether ``None`` axes are padded to the largest value of each batch, which makes a batch one array.
        levels: for nested lists, how many of the first axes are lists of varying length; 0 for arrays.
    """

    path: Path
    kind: Kind
    dtype: np.dtype[Any]
    shape: Shape
    window: int | None = None
    nullable: bool = False
    dims: tuple[str, ...] | None = None
    padded: bool = False
    time: str | None = None
    as_time: bool = False
    levels: int = 0

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype that numpy users get."""
        return np.dtype(self.time) if self.as_time else self.dtype

    @property
    def ragged(self) -> bool:
        """Whether values differ in shape, which makes a batch ragged."""
        return None in self.shape and not self.padded

    @property
    def name(self) -> str:
        """The path as text, for messages."""
        return ".".join(str(part) for part in self.path)

    @property
    def leaves(self) -> tuple[OutputField, ...]:
        """The columns that hold the output: the output itself, unless it is a nested list. A nested list has an int64
        column of concatenated list lengths for every level but the first, and then a column of values.
        """
        if not self.levels:
            return (self,)
        lengths = [
            OutputField(
                path=(*self.path[:-1], f"{self.path[-1]}__lengths{level}"),
                kind="dense",
                dtype=np.dtype(np.int64),
                shape=(None,),
                window=self.window,
                nullable=self.nullable,
            )
            for level in range(2, self.levels + 1)
        ]
        return (*lengths, replace(self, shape=(None, *self.shape[self.levels :]), dims=None, levels=0))

    @property
    def about(self) -> tuple[str, str, str, str]:
        """The dtype, the shape in an unbatched element, what else there is to say (unit of times, names of axes, levels
        of lists), and ``"null"`` if a value may be missing.
        """
        dims = "" if self.dims is None else " x ".join(self.dims)
        levels = f"nested lists of {self.levels} levels" if self.levels else ""
        return (
            str(self.numpy_dtype) if self.kind == "dense" else self.kind,
            str(self.element_shape) if self.element_shape else "",
            ", ".join(filter(None, (None if self.as_time else self.time, dims, levels))),
            "null" if self.nullable else "",
        )

    @property
    def element_shape(self) -> Shape:
        """The shape in an unbatched element: the window axis followed by the value's axes."""
        return self.shape if self.window is None else (self.window, *self.shape)


@dataclass(frozen=True, kw_only=True, repr=False)
class Element:
    """What one step of the pipeline delivers. Prints as a table of the fields of a row.

    Attributes:
        outputs: the values that users see.
        batch_size: the number of rows in a full batch; ``None`` for unbatched rows.
        static_batch: whether every batch is full.
        varying_batch: whether elements are batches whose sizes vary.
        form: how outputs, referred to by index, are arranged; ``None`` arranges them in dicts by path.
    """

    outputs: tuple[OutputField, ...]
    batch_size: int | None = None
    static_batch: bool = False
    varying_batch: bool = False
    form: Form = None

    @property
    def batched(self) -> bool:
        """Whether an element is a batch."""
        return self.varying_batch or self.batch_size is not None

    def __repr__(self) -> str:
        size = "" if self.batch_size is None else f"{self.batch_size:,} "
        each = f"a batch of {size}rows, each with" if self.batched else "a row with"
        return f"{each}\n{self._table()}"

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> TextTable:
        lines = [(output.name, *output.about) for output in self.outputs]
        return TextTable(("field", "dtype", "shape", "about", "may be"), lines)

    @cached_property
    def leaves(self) -> tuple[OutputField, ...]:
        """The columns that hold the element, in the order of the protocol's field numbers."""
        return tuple(leaf for output in self.outputs for leaf in output.leaves)

    @cached_property
    def _keys(self) -> list[str | int] | None:
        """The keys of an element that is a flat dict, otherwise ``None``."""
        flat = self.form is None and all(len(output.path) == 1 for output in self.outputs)
        return [output.path[0] for output in self.outputs] if flat else None

    def nest(self, values: Iterable[Any]) -> Any:
        """Builds an element from one value per output."""
        if self._keys is not None:
            return dict(zip(self._keys, values, strict=True))
        return nest(self.outputs, list(values)) if self.form is None else _put_together(self.form, list(values))

    def each(self, columns: Sequence[Iterable[Any]]) -> Iterator[Any]:
        """Builds elements from columns of equal length, one column per output."""
        return map(self.nest, zip(*columns, strict=True))


def about_row_bytes(outputs: Iterable[OutputField]) -> int:
    """Returns about how many bytes a decoded row takes. Variable sizes are guessed."""
    total = 64
    for output in outputs:
        size = math.prod(axis or 64 for axis in output.element_shape)
        total += size * (output.dtype.itemsize if output.kind == "dense" else 32)
    return total


def output_of(field: UnischemaField) -> OutputField:
    """Returns the output that a field becomes."""
    kind: Kind = "text" if is_text(field.dtype) else "bytes" if is_bytes(field.dtype) else "dense"
    return OutputField(
        path=(field.name,),
        kind=kind,
        dtype=delivered_dtype(field.dtype),
        shape=field.shape,
        nullable=field.nullable,
        dims=field.dims,
        time=str(field.dtype) if isinstance(field.dtype, np.dtype) and field.dtype.kind in "mM" else None,
    )


def nest(outputs: Sequence[OutputField], values: Sequence[Any]) -> dict[Any, Any]:
    """Arranges one value per output in the element's dict."""
    result: dict[Any, Any] = {}
    for output, value in zip(outputs, values, strict=True):
        place = result
        for part in output.path[:-1]:
            place = place.setdefault(part, {})
        place[output.path[-1]] = value
    return result


def flatten(outputs: Sequence[OutputField], element: Mapping[Any, Any]) -> list[Any]:
    """The inverse of `nest`."""
    values = []
    for output in outputs:
        value: Any = element
        for part in output.path:
            value = value[part]
        values.append(value)
    return values


def leaves_of(form: Form) -> list[Any]:
    """Returns the leaves of a form, in order."""
    if not isinstance(form, tuple):
        return [form]
    kind, *parts = form
    return [leaf for part in parts for leaf in leaves_of(part if kind == "tuple" else part[1])]


def _put_together(form: Form, values: Sequence[Any]) -> Any:
    if not isinstance(form, tuple):
        return values[form]
    kind, *parts = form
    if kind == "tuple":
        return tuple(_put_together(part, values) for part in parts)
    return {key: _put_together(part, values) for key, part in parts}
