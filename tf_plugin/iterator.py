"""`EagerIterator`: tf.data's own iterator, with less Python per element and cleaner error messages.

tf.data walks the element's spec for every element that Python asks for, which takes longer than making a small batch.
This iterator walks the spec once. It also removes the op names that the runtime puts before and after error messages.
Graphs (Keras, ``tf.function``) and tf.data's own ops after this dataset use tf.data's iterator. Everything else, such
as checkpoints, is tf.data's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # the public tf.data.Iterator has no implementation

from parquetry.common.base.tracebacks import full_tracebacks

_Pack = Callable[[Sequence[tf.Tensor]], Any]
_AROUND = re.compile(r"^\{\{function_node [^}]*\}\} ?| \[Op:\w+\](?: name: .*)?\Z")


class EagerIterator(OwnedIterator):
    """Iterates a dataset from Python.

    Args:
        dataset: any dataset; its elements may be nested dicts, tuples and lists.
        watch: called with ``True`` before the first element, and with ``False`` after it.
    """

    def __init__(self, dataset: tf.data.Dataset, watch: Callable[[bool], None] | None = None) -> None:
        super().__init__(dataset)
        self._watch = watch
        self._pack = _packer(self.element_spec, count())
        self._wanted = {
            "iterator": self._iterator_resource,
            "output_types": self._flat_output_types,
            "output_shapes": self._flat_output_shapes,
        }

    def __next__(self) -> Any:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch(True)
        try:
            element = super().__next__()
        except tf.errors.OpError as error:
            raise _plain(error) from None
        if watch is not None:
            watch(False)
        return element

    def get_next(self) -> Any:
        """Returns the next element. Raises `tf.errors.OutOfRangeError` at the end."""
        try:
            return super().get_next()
        except tf.errors.OpError as error:
            raise _plain(error) from None

    def _next_internal(self) -> Any:
        if tf.executing_eagerly() and tf.config.experimental.get_synchronous_execution():
            return self._pack(tf.raw_ops.IteratorGetNext(**self._wanted))
        return super()._next_internal()


def _packer(spec: Any, numbers: Iterator[int]) -> _Pack:
    """Returns a function that builds an element from its flat tensors, numbered in the order of `tf.nest`."""
    if isinstance(spec, dict):
        by_key = {key: _packer(spec[key], numbers) for key in sorted(spec)}
        parts = [(key, by_key[key]) for key in spec]
        return lambda tensors: {key: pack(tensors) for key, pack in parts}
    if isinstance(spec, tuple | list):
        packs, kind = [_packer(part, numbers) for part in spec], type(spec)
        return lambda tensors: kind(pack(tensors) for pack in packs)
    number = next(numbers)
    if isinstance(spec, tf.TensorSpec):
        return itemgetter(number)
    return lambda tensors: spec._from_compatible_tensor_list([tensors[number]])  # a ragged tensor is one variant


def _plain(error: Any) -> Any:
    """Returns the same error with only the text between ``{{function_node ...}}`` and ``[Op:...]``."""
    text = _AROUND.sub("", error.message)
    if full_tracebacks() or text == error.message:
        return error
    return type(error)(error.node_def, error.op, text)
