"""Converts arguments of tf.data's verbs for the plan: numbers, flags and paths that are known now, and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from parquetry.common.base.errors import PipelineError
from parquetry.common.schema.plain import integer, plain


def static(value: object, verb: str, name: str) -> int | None:
    """Returns an integer argument of a verb, or ``None`` if it is unknown until the graph runs.

    Raises:
        PipelineError: the value is known and not an integer. A bool is not one: ``shuffle(True)`` is a slip.
    """
    known = _known(value)
    number = integer(known)
    if known is not None and number is None:
        raise PipelineError(f"{verb}: expected {name} to be an integer, got {value!r}.")
    return number


def static_drop_remainder(value: object) -> bool | None:
    """Returns ``drop_remainder`` of ``batch``, or ``None`` if it is unknown until the graph runs.

    Raises:
        PipelineError: the value is known and neither true nor false.
    """
    known = plain(_known(value))
    if known not in (True, False, None):
        raise PipelineError(f"batch: expected drop_remainder to be True or False, got {value!r}.")
    return None if known is None else bool(known)


def static_text(value: object) -> Any:
    """Returns a path, or ``None`` if it is unknown until the graph runs."""
    if not tf.is_tensor(value):
        return value
    value = tf.get_static_value(value)
    return None if value is None else tf.compat.as_str(value.item() if isinstance(value, np.ndarray) else value)


def known_urls(value: object, like: object) -> Any:
    """Returns URLs as text, or as one tensor if they are unknown until the graph runs.

    Raises:
        PipelineError: the URLs are unknown, and ``like`` does not say what the elements look like.
    """
    if isinstance(value, list | tuple) and any(tf.is_tensor(item) for item in value):
        value = tf.stack([tf.reshape(item, ()) for item in value])
    if not tf.is_tensor(value):
        return value
    known = tf.get_static_value(value)
    if known is not None:
        urls = [tf.compat.as_str(url) for url in np.ravel(known)]
        return urls[0] if np.ndim(known) == 0 else urls
    if like is None:
        raise PipelineError(
            "ParquetDataset: expected a URL that is known now, got a tensor that only the running graph knows, so that "
            "fields, dtypes and shapes are unknown. Say what the files look like: "
            "interleave(lambda url: ParquetDataset(url, like=first_url)), where like is a URL, a Pipeline or a "
            "ParquetDataset of equal fields."
        )
    return value


def graph_seed() -> int | None:
    """Returns a seed from the sequence of `tf.random.set_seed`, or ``None`` if no seed was set."""
    graph_seed, op_seed = tf.compat.v1.random.get_seed(None)
    if graph_seed is None or op_seed is None:
        return None
    return (int(graph_seed) * 0x9E3779B1 + int(op_seed)) % (1 << 63)


def _known(value: object) -> object:
    return tf.get_static_value(value) if tf.is_tensor(value) else value
