"""Converts a pipeline's element to tf.data's: the flat components of the source op, and the structure built from them.

It takes an `Element` (what a pipeline yields), and returns the op's attributes, and a `tf.data.Dataset` whose elements
are nested dicts (or tuples) of tensors. Fields of variable shape become a `tf.RaggedTensor` if there is a leading axis
(a batch, or the steps of a window), and otherwise a dense tensor with the row's own shape. Nested lists are ragged at
every level, even in single rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from parquetry.common.base.errors import SchemaError
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.schema.element import Element, OutputField


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One flat tensor of the source op: its ``kind`` as in ``kernels/element_builder.h``, and its spec."""

    kind: str
    spec: tf.TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One field of the element: its flat components, and how to combine them into one value.

    Attributes:
        components: the flat tensors of the value; a single one is the value itself.
        shape: the shape of one value, for a ragged leaf.
        window: the number of steps on the window axis, for a ragged leaf.
        rows: the static number of rows, or ``None``, for a ragged leaf.
        arrays: the static number of arrays (rows, or rows x steps), or ``None``, for a ragged leaf.
        batched: whether rows are the first axis.
        levels: for nested lists, the number of levels. Their components are the values, the row splits if there is a
            leading axis, and the list lengths at each level but the first.
    """

    components: tuple[Component, ...]
    shape: tuple[int | None, ...] = ()
    window: int | None = None
    rows: int | None = None
    arrays: int | None = None
    batched: bool = False
    levels: int = 0

    @property
    def ragged(self) -> bool:
        """Whether the value consists of several tensors, as a `tf.RaggedTensor`."""
        return len(self.components) > 1


def in_one_tensor(leaf: Leaf) -> tuple[Component, tf.TypeSpec] | None:
    """Returns the only component of a leaf, and the spec of its value; ``None`` if only `assemble` can build it.

    The source op gives a ragged tensor as tf.data passes it on, if only the first axis of its values varies. Without
    that, tf.data would run several ops for each element, which takes longer than making a small batch.
    """
    if not leaf.ragged:
        return leaf.components[0], leaf.components[0].spec
    if leaf.levels or leaf.window is not None or not leaf.batched or None in leaf.shape[1:]:
        return None
    (number, _), spec = leaf.components[0].kind.split(":"), leaf.components[0].spec
    axes = ",".join(str(axis) for axis in leaf.shape[1:])
    kind = f"{number}:ragged:{spec.dtype.as_datatype_enum}:{axes}"
    ragged = tf.RaggedTensorSpec(
        (leaf.rows, None, *leaf.shape[1:]), spec.dtype, ragged_rank=1, row_splits_dtype=tf.int64
    )
    return Component(kind=kind, spec=tf.TensorSpec((), tf.variant)), ragged


def nested_leaf(number: int, output: OutputField, *, batched: bool, rows: int | None) -> Leaf:
    """Returns the leaf for nested lists whose first field is ``number``; see `leaf_of`."""
    *lengths, values = [
        leaf_of(number + place, part, batched=batched, rows=rows) for place, part in enumerate(output.leaves)
    ]
    outermost = (*lengths, values)[0]
    components = (values.components[0], *outermost.components[1:], *(each.components[0] for each in lengths))
    return replace(values, components=components, levels=output.levels)


def leaf_of(number: int, output: OutputField, *, batched: bool, rows: int | None) -> Leaf:
    """Returns the leaf for field ``number``. ``rows`` is the batch size if it never varies."""
    dtype = tf.string if output.kind != "dense" else tf.dtypes.as_dtype(output.dtype)
    lead: tuple[int | None, ...] = (rows,) if batched else ()
    if output.window is not None:
        lead = (*lead, output.window)
    if not output.ragged or not lead:
        kind = "array" if output.ragged else "string" if output.kind != "dense" else "dense"
        spec = tf.TensorSpec((*lead, *output.shape), dtype)
        return Leaf(components=(Component(kind=f"{number}:{kind}", spec=spec),))
    last = _last_variable_axis(output.shape)
    values = tf.TensorSpec((None, *output.shape[last + 1 :]), dtype)
    components = [Component(kind=f"{number}:values", spec=values)]
    rows = rows if batched else 1
    arrays = None if rows is None else rows * (output.window or 1)
    for axis in range(last + 1):
        if not output.shape[axis]:
            length = arrays + 1 if axis == 0 and arrays is not None else None
            components.append(Component(kind=f"{number}:splits:{axis}", spec=tf.TensorSpec((length,), tf.int64)))
    return Leaf(
        components=tuple(components),
        shape=output.shape,
        window=output.window,
        rows=rows,
        arrays=arrays,
        batched=batched,
    )


def leaves_of(element: Element) -> tuple[Leaf, ...]:
    """Returns the leaves of an element, in the order of the protocol's field numbers.

    Raises:
        SchemaError: there are fields next to the offsets of windows, which TensorFlow cannot represent.
    """
    _refuse_mixed_keys(element)
    rows = element.batch_size if element.static_batch else None
    leaves, number = [], 0
    for output in element.outputs:
        make = nested_leaf if output.levels else leaf_of
        leaves.append(make(number, output, batched=element.batched, rows=rows))
        number += len(output.leaves)
    return tuple(leaves)


def _refuse_mixed_keys(element: Element) -> None:
    keys = {} if element.form is not None else {output.path[0]: output for output in element.outputs}
    if any(isinstance(key, int) for key in keys):
        for key, output in keys.items():
            if isinstance(key, str):
                raise SchemaError(
                    f"field '{output.name}': expected no field beside the offsets {[k for k in keys if k != key]} of "
                    "windows, because TensorFlow sorts the keys of a dict, which must then be of one kind. Use "
                    "ngram(length=...), or compute the field in map()."
                )


def assemble(leaf: Leaf, tensors: Sequence[tf.Tensor]) -> Any:
    """Builds one value from its flat tensors, with graph ops and without copying."""
    if not leaf.ragged:
        return tensors[0]
    if leaf.levels:
        return _nested(leaf, tensors)
    value, splits = tensors[0], list(tensors[1:])
    for axis in reversed(range(_last_variable_axis(leaf.shape) + 1)):
        size = leaf.shape[axis]
        if size:
            arrays = leaf.arrays if axis == 0 else None
            value = tf.RaggedTensor.from_uniform_row_length(value, size, nrows=arrays, validate=False)
        else:
            value = tf.RaggedTensor.from_row_splits(value, splits.pop(), validate=False)
    return _stacked(leaf, value)


def _nested(leaf: Leaf, tensors: Sequence[tf.Tensor]) -> Any:
    """Builds nested lists from the inside out: the lengths of each level split the level below."""
    value, *others = tensors
    lengths = others[len(others) - leaf.levels + 1 :]
    for each in reversed(lengths):
        value = tf.RaggedTensor.from_row_lengths(value, each, validate=False)
    if len(others) == len(lengths):  # a row
        return value
    value = tf.RaggedTensor.from_row_splits(value, others[0], validate=False)
    return _stacked(leaf, value)


def _stacked(leaf: Leaf, value: object) -> Any:
    """Adds the axis of a window's steps."""
    if leaf.window is None or not leaf.batched:
        return value
    return tf.RaggedTensor.from_uniform_row_length(value, leaf.window, nrows=leaf.rows, validate=False)


def structured(element: Element, leaves: Sequence[Leaf], source: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of elements, made from the source's flat tuples by a native ``map``."""

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and converted code goes through a temporary file
    def to_element(*tensors: tf.Tensor) -> Any:
        values, at = [], 0
        for leaf in leaves:
            values.append(assemble(leaf, tensors[at : at + len(leaf.components)]))
            at += len(leaf.components)
        return element.nest(values)

    return source.map(to_element)


def _last_variable_axis(shape: tuple[int | None, ...]) -> int:
    return max(axis for axis, size in enumerate(shape) if size is None)
