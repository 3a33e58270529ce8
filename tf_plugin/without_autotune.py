"""`WithoutAutotune`: a chain of tf.data in which nothing can be tuned, iterated without tf.data's autotuner.

The autotuner of an iterator is a thread that wakes up after 10 ms, then 20, 40, and so on up to a minute. Deleting the
iterator waits for that thread. TensorFlow wakes it before it is told to end (`Model::OptimizeLoop`,
`CancellationManager::StartCancel`), so it may go back to sleep, and the deletion then takes up to as long as the epoch
took. What tf.data would tune in these chains is one buffer, at the end, which has a fixed size here.

tf.data applies options to a whole chain, also to the ops that you add later. So the option is set for each iteration
from Python, and the datasets themselves do not carry it: ``map(f, num_parallel_calls=tf.data.AUTOTUNE)`` after them is
tuned as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .iterator import EagerIterator

_READ_AHEAD = 2  # elements; tf.data would add a buffer itself, and tune its size


class WithoutAutotune(tf.data.Dataset):
    """The same dataset, without the autotuner while Python iterates it.

    Your own `tf.data.Options` win: if they say anything about ``autotune``, it applies.

    Args:
        dataset: a dataset without ops that tf.data tunes or makes parallel.
        read_ahead: whether to add a small buffer at the end, for a chain that has none.
        watch: called with ``True`` before the first element of each iterator in Python, and with ``False`` after it.
    """

    def __init__(self, dataset: tf.data.Dataset, *, read_ahead: bool, watch: Callable[[bool], None]) -> None:
        self._chain = dataset
        self._read_ahead = read_ahead
        self._watch = watch
        self._iterated: tf.data.Dataset | None = None
        super().__init__(dataset._variant_tensor)

    def __iter__(self) -> Any:
        """Like `tf.data.Dataset.__iter__`. Eager iteration runs less Python, and errors have no TensorFlow prefix."""
        if not tf.executing_eagerly():
            return super().__iter__()
        if self._iterated is None:
            self._iterated = self._without_autotuner()
        return EagerIterator(self._iterated, self._watch)

    def _without_autotuner(self) -> tf.data.Dataset:
        chosen: Any = self._options_attr
        if chosen.autotune != tf.data.experimental.AutotuneOptions():
            return self._chain
        buffered = self._read_ahead and chosen.experimental_optimization.inject_prefetch is not False
        options = tf.data.Options()
        options.autotune.enabled = False
        return (self._chain.prefetch(_READ_AHEAD) if buffered else self._chain).with_options(options)

    def with_options(self, options: tf.data.Options, name: str | None = None) -> WithoutAutotune:
        """Like `tf.data.Dataset.with_options`."""
        return WithoutAutotune(super().with_options(options, name=name), read_ahead=self._read_ahead, watch=self._watch)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._chain]

    @property
    def element_spec(self) -> Any:
        """The nested specs of an element."""
        return self._chain.element_spec
