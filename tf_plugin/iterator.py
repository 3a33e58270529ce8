"""Iterates tf.data from Python and in graphs: less work per element, cleaner errors, no autotuner if nothing is tuned.

tf.data walks the element's spec for every element that Python asks for, which takes longer than making a small batch.
`EagerIterator` walks the spec once. It also removes the op names that the runtime puts before and after error messages.
A graph (Keras, ``tf.function``) that it is passed to sees it as an `InlineIterator`. Everything else, such as
checkpoints, and tf.data's own ops after this dataset, is tf.data's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator  # the public tf.data.Iterator has no implementation
from tensorflow.python.data.util import structure
from tensorflow.python.framework import ops

from parquetry.common.base.tracebacks import full_tracebacks

_Pack = Callable[[Sequence[tf.Tensor]], Any]
_READ_AHEAD = 2  # elements; tf.data would add a buffer itself, and tune its size
_UNROLLED_CALLS = 32  # in one trace; tf.data refuses more if they look like an endless loop
_AROUND = re.compile(r"^\{\{function_node [^}]*\}\} ?| \[Op:\w+\](?: name: .*)?\Z")


class EagerIterator(OwnedIterator):
    """Iterates a dataset from Python.

    Args:
        dataset: any dataset; its elements may be nested dicts, tuples and lists.
        watch: called with ``True`` before the first element, and with ``False`` after it.
        inline: whether graphs take elements on the threads of their step; see `InlineIterator`.
    """

    def __init__(
        self, dataset: tf.data.Dataset, watch: Callable[[bool], None] | None = None, *, inline: bool = False
    ) -> None:
        super().__init__(dataset)
        self._watch = watch
        self._inline = inline
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

    @property
    def _type_spec(self) -> tf.data.IteratorSpec:
        return _InlineSpec(self.element_spec) if self._inline else super()._type_spec


class InlineIterator(OwnedIterator):
    """The same iterator in a graph: whichever thread runs the step takes the element itself.

    tf.data hands each call to a thread of its own and waits, because making an element may need the step's threads.
    For small batches, that takes longer than everything else. A chain that runs no function of tf.data needs none of
    them: it waits for its sidecar alone.
    """

    def _next_internal(self) -> Any:
        if self._get_next_call_count >= _UNROLLED_CALLS:
            return super()._next_internal()
        self._get_next_call_count += 1
        with ops.colocate_with(self._iterator_resource):
            tensors = tf.raw_ops.IteratorGetNextSync(
                iterator=self._iterator_resource,
                output_types=self._flat_output_types,
                output_shapes=self._flat_output_shapes,
            )
        return structure.from_compatible_tensor_list(self.element_spec, tensors)  # these have their shapes, too


class _InlineSpec(tf.data.IteratorSpec):
    """The spec of an `InlineIterator`. It fits wherever a function's signature asks for a `tf.data.IteratorSpec`."""

    @property
    def value_type(self) -> type[InlineIterator]:
        return InlineIterator

    def _from_components(self, components: Sequence[tf.Tensor]) -> InlineIterator:
        return InlineIterator(components=components, element_spec=self._element_spec)

    def is_subtype_of(self, other: object) -> bool:
        plain = tf.data.IteratorSpec(self._element_spec)
        return bool(super().is_subtype_of(other) or plain.is_subtype_of(other))


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


class WithoutAutotune(tf.data.Dataset):
    """The same dataset, without the autotuner while Python iterates it.

    The autotuner of an iterator is a thread that wakes up after 10 ms, then 20, 40, and so on up to a minute. Deleting
    the iterator waits for that thread. TensorFlow wakes it before it is told to end (`Model::OptimizeLoop`,
    `CancellationManager::StartCancel`), so it may go back to sleep, and the deletion then takes up to as long as the
    epoch took. What tf.data would tune in these chains is one buffer, at the end, which has a fixed size here.

    tf.data applies options to a whole chain, also to the ops that you add later. So the option is set for each
    iteration from Python, and the datasets themselves do not carry it: ``map(f, num_parallel_calls=AUTOTUNE)`` after
    them is tuned as ever. Your own `tf.data.Options` win: if they say anything about ``autotune``, it applies.

    Args:
        dataset: a dataset without ops that tf.data tunes or makes parallel.
        read_ahead: whether to add a small buffer at the end.
        inline: whether graphs take elements on the threads of their step; see `InlineIterator`.
        watch: called with ``True`` before the first element of each iterator in Python, and with ``False`` after it.
    """

    def __init__(
        self, dataset: tf.data.Dataset, *, read_ahead: bool, inline: bool, watch: Callable[[bool], None]
    ) -> None:
        self._chain = dataset
        self._read_ahead = read_ahead
        self._inline = inline
        self._watch = watch
        self._iterated: tf.data.Dataset | None = None
        super().__init__(dataset._variant_tensor)

    def __iter__(self) -> Any:
        """Like `tf.data.Dataset.__iter__`. Eager iteration runs less Python, and errors have no TensorFlow prefix."""
        if not tf.executing_eagerly():
            return super().__iter__()
        if self._iterated is None:
            self._iterated = self._without_autotuner()
        return EagerIterator(self._iterated, self._watch, inline=self._inline)

    def _without_autotuner(self) -> tf.data.Dataset:
        chosen: Any = self._options_attr
        if chosen.autotune != tf.data.experimental.AutotuneOptions():
            return self._chain
        options = tf.data.Options()
        options.autotune.enabled = False
        chain, optimization = self._chain, chosen.experimental_optimization
        if self._read_ahead and optimization.inject_prefetch is not False:
            chain = chain.prefetch(0 if self._inline else _READ_AHEAD)
            if optimization.noop_elimination is None:  # it would take an empty buffer out of checkpoints
                options.experimental_optimization.noop_elimination = False
        return chain.with_options(options)

    def with_options(self, options: tf.data.Options, name: str | None = None) -> WithoutAutotune:
        """Like `tf.data.Dataset.with_options`."""
        chain = super().with_options(options, name=name)
        return WithoutAutotune(chain, read_ahead=self._read_ahead, inline=self._inline, watch=self._watch)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._chain]

    @property
    def element_spec(self) -> Any:
        """The nested specs of an element."""
        return self._chain.element_spec
