"""`source_dataset`: the source dataset over the C++ op. `new_dataset_key`: the key that counts its iterators.

`request_without_secrets`: the request with a token in place of the credentials, which stay in this process and out of
its graphs. The op's client puts them back when it sends the request to a sidecar.

`Deferred`: the parts of the op's request that are unknown until the graph runs, such as a shard or a URL.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tensorflow as tf

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.base.process.forks import ForkLock
from parquetry.common.plan.options import Options
from parquetry.common.schema.element import Element
from parquetry.common.transport.processes import RESTARTS_FLAG, SHARED, STALL_TIMEOUT_FLAG, python_command
from parquetry.common.transport.sidecar.request import may_share_process
from parquetry.common.transport.sidecar.request_secrets import digest_of, for_graph, with_token

from .build import library_path, load_ops
from .elements import in_one_tensor, leaves_of, structured

SIDECAR_MODULE = "parquetry.common.sidecar"

_ordinals: dict[str, int] = {}
_ordinals_lock = ForkLock()
_secrets_of: dict[str, list[str]] = {}  # by the digest of the request without them
_secrets_lock = ForkLock()


def sidecar_command(request: str, options: Options) -> list[str]:
    """Returns the command that starts the sidecar for a request, with this Python unless another is set.

    It also holds the options that the op needs before the sidecar has answered.
    """
    arguments = [SHARED] if may_share_process(request) else []
    if options.restarts is not None:
        arguments += [RESTARTS_FLAG, str(options.restarts)]
    if options.stall_timeout is not None:
        arguments += [STALL_TIMEOUT_FLAG, str(round(1000 * options.stall_timeout))]
    return python_command(SIDECAR_MODULE, *arguments)


def new_dataset_key(request: str) -> str:
    """Returns a key for a new dataset object: the same in every process that creates its datasets in the same order.

    This lets the tf.data service recognize a dataset that several trainers register.
    """
    digest = hashlib.sha256(request.encode()).hexdigest()[:32]
    with _ordinals_lock:
        ordinal = _ordinals.get(digest, 0)
        _ordinals[digest] = ordinal + 1
    return f"{digest}-{ordinal}"


def source_dataset(
    element: Element,
    request: object,
    *,
    dataset_key: str,
    state: str = "",
    command: Sequence[str],
) -> tf.data.Dataset:
    """Returns a dataset of an element's nested dicts, read from a sidecar.

    Args:
        request: the body of OPEN (see ``docs/protocol.md``), as text or a string tensor.
        dataset_key: datasets with the same key share a count of iterators. Without a key, each run of the op creates a
            dataset with its own count.
        state: where the first iterator begins; empty for the start.
        command: the sidecar's command line.
    """
    leaves = leaves_of(element)
    whole = [one for leaf in leaves if (one := in_one_tensor(leaf)) is not None]
    if len(whole) == len(leaves):
        components = list(tf.nest.flatten(element.nest(component for component, _ in whole)))
    else:
        components = [component for leaf in leaves for component in leaf.components]
    ops = load_ops()
    with tf.init_scope():
        if not dataset_key and tf.executing_eagerly():  # a function will make the dataset, perhaps elsewhere
            ops.parquetry_parquet_home()
    variant = ops.parquetry_parquet_dataset(
        request=request,
        dataset_key=dataset_key,
        command=list(command),
        state=state,
        components=[component.kind for component in components],
        field_names=[output.name for output in element.leaves],
        batched=element.batched,
        from_python=True,
        output_types=[component.spec.dtype for component in components],
        output_shapes=[component.spec.shape for component in components],
    )
    if len(whole) == len(leaves):
        return _Source(variant, element.nest(spec for _, spec in whole))
    return structured(element, leaves, _Source(variant, tuple(component.spec for component in components)))


class _Source(tf.data.Dataset):
    """A tf.data dataset without inputs."""

    def __init__(self, variant: tf.Tensor, element_spec: object) -> None:
        self._spec = element_spec
        super().__init__(variant)

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> Any:
        """The nested specs of an element."""
        return self._spec


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
                f"{what}: expected a pipeline without tensors, got one whose {which} is known only when the graph runs."
            )


NOTHING = Deferred()


def request_without_secrets(request: str) -> str:
    """Returns the request for a graph.

    The token does not depend on the credentials, so that all trainers of a tf.data service register equal datasets.
    """
    public, secrets = for_graph(request)
    if not secrets:
        return request
    digest, text = digest_of(public), json.dumps(secrets)
    with _secrets_lock:
        kept = _secrets_of.setdefault(digest, [])
        if text not in kept:
            kept.append(text)
        token = f"{digest}-{kept.index(text)}"
    _library().parquetry_keep_secrets(token.encode(), text.encode())
    return with_token(public, token)


@lru_cache(maxsize=1)
def _library() -> ctypes.PyDLL:
    """The library of the op, which TensorFlow has loaded."""
    load_ops()
    library = ctypes.PyDLL(str(library_path()))
    library.parquetry_keep_secrets.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.parquetry_keep_secrets.restype = None
    return library
