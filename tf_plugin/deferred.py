"""`Deferred`: the parts of a dataset that are unknown until the graph runs, such as a shard or a URL.

In: tensors, and the request of a pipeline with placeholders for them. Out: the request as a tensor, for the op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parquetry.common.errors import PipelineError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deferred:
    """Tensors that replace parts of a pipeline when the graph runs.

    Attributes:
        shard: ``(num_shards, index)``, for the pipeline's shard.
        urls: one URL or a vector of them, in place of the pipeline's.
    """

    shard: tuple[Any, Any] | None = None
    urls: tf.Tensor | None = None

    def __bool__(self) -> bool:
        return self.shard is not None or self.urls is not None

    def request(self, text: str) -> Any:
        """Returns the request with the members ``shard`` and ``urls`` (base64) of ``docs/protocol.md`` added."""
        parts: list[Any] = ["{"]
        if self.shard is not None:
            numbers = [tf.as_string(tf.ensure_shape(number, ())) for number in self.shard]
            parts += ['"shard": [', numbers[0], ", ", numbers[1], "], "]
        if self.urls is not None:
            encoded = tf.io.encode_base64(tf.reshape(self.urls, [-1]), pad=True)
            parts += ['"urls": ["', tf.strings.reduce_join(encoded, separator='", "'), '"], ']
        return tf.strings.join([*parts, text.removeprefix("{")]) if self else text

    def refuse(self, what: str) -> None:
        """Raises `PipelineError` if any part is unknown."""
        if self:
            which = "shard" if self.shard is not None else "URL"
            raise PipelineError(
                f"{what}: expected a pipeline that is known now, got one whose {which} only the running graph knows."
            )


NOTHING = Deferred()
