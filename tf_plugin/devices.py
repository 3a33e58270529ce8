"""Moves batches to a device ahead of the step, with tf.data's ``prefetch_to_device`` and extra checks.

If a device is missing, TensorFlow silently uses the CPU, and it cannot put text on any other device. Both are errors
here. The functions are pure, except that they ask TensorFlow which devices exist.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from parquetry.common.base.errors import PipelineError


def prefetched_to(dataset: tf.data.Dataset, device: Any, buffer_size: int) -> tf.data.Dataset:
    """Returns the dataset's elements on a device, where ``buffer_size`` of them wait.

    On the first CPU, which makes the elements, this is ``prefetch``; on others, a copy by a thread of tf.data.

    Args:
        device: a name such as ``"/gpu:0"``, or a ``tf.config.LogicalDevice``.
        buffer_size: at least 1, or ``tf.data.AUTOTUNE``.

    Raises:
        PipelineError: no such device here, text for a device other than a CPU, or another ``buffer_size``.
    """
    size = operator.index(buffer_size)
    if size < 1 and size != tf.data.AUTOTUNE:
        raise PipelineError(f"prefetch_to_device: expected a buffer_size of at least 1, or AUTOTUNE, got {size}.")
    name = getattr(device, "name", device)
    spec = checked_device(name, tf.config.list_logical_devices())
    is_local = spec.job in (None, "localhost")
    if is_local and spec.device_type == "CPU" and not spec.device_index:
        return dataset.prefetch(size)
    text = text_in(dataset.element_spec) if spec.device_type != "CPU" else []
    if text:
        raise PipelineError(
            f"prefetch_to_device: expected fields that {name} can hold, got text in {', '.join(text)}: TensorFlow "
            "keeps text on the host. select() the other fields, or encode() it as numbers."
        )
    return dataset.apply(tf.data.experimental.prefetch_to_device(spec.to_string(), size))


def checked_device(name: str, devices: Sequence[Any]) -> tf.DeviceSpec:
    """Returns a device's parsed name. A device of another job is not looked for.

    Args:
        devices: the ``tf.config.LogicalDevice`` of this process.

    Raises:
        PipelineError: not a name, or there is no such device.
    """
    try:
        spec = tf.DeviceSpec.from_string(name)
    except (ValueError, TypeError, AttributeError) as error:
        raise PipelineError(f"prefetch_to_device: expected a device such as '/gpu:0', got {name!r}: {error}") from error
    names = [device.name for device in devices]
    full_name = f"/device:{spec.device_type}:{spec.device_index or 0}"
    if spec.device_type is None or (spec.job in (None, "localhost") and full_name not in names):
        raise PipelineError(
            f"prefetch_to_device: expected one of the devices {', '.join(names)}, got {name!r}. TensorFlow would use "
            "the CPU without saying so."
        )
    return spec


def text_in(element_spec: object, name: str = "") -> list[str]:
    """Returns the names of an element's text fields; positions and offsets count as names."""
    if isinstance(element_spec, dict):
        parts = [(str(key), value) for key, value in element_spec.items()]
    elif isinstance(element_spec, tuple | list):
        parts = [(str(number), value) for number, value in enumerate(element_spec)]
    else:
        return [name or "the element"] if getattr(element_spec, "dtype", None) == tf.string else []
    return [text for key, value in parts for text in text_in(value, f"{name}.{key}" if name else key)]
