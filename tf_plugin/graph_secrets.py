"""`request_without_secrets`: keeps the credentials of a request in this process, out of its graphs.

It takes the OPEN request, and returns the same with a token in place of the credentials. The op's client puts them back
when it sends the request to a sidecar. It is thread-safe.
"""

from __future__ import annotations

import ctypes
import json
from functools import lru_cache

from parquetry.common.base.process.forks import ForkLock
from parquetry.common.transport.sidecar.request_secrets import digest_of, for_graph, with_token

from .build import library_path, load_ops

_known: dict[str, list[str]] = {}
_lock = ForkLock()


def request_without_secrets(request: str) -> str:
    """Returns the request for a graph.

    The token does not depend on the credentials, so that all trainers of a tf.data service register equal datasets.
    """
    public, secrets = for_graph(request)
    if not secrets:
        return request
    digest, text = digest_of(public), json.dumps(secrets)
    with _lock:
        kept = _known.setdefault(digest, [])
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
