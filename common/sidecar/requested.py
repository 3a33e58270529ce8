"""The pipeline that a client asks a sidecar for."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ..pipeline.pipeline import Pipeline


def requested_pipeline(request: Mapping[str, Any]) -> Pipeline:
    """The pipeline of a request, with the shard and the URLs that were known only when it was sent.

    Raises:
        ParquetryError: a pipeline that makes no sense.
    """
    described = dict(request["pipeline"])
    if "urls" in request:
        described["urls"] = [base64.urlsafe_b64decode(url).decode() for url in request["urls"]]
    if "shard" in request:
        numbers = dict(zip(("num_shards", "index"), request["shard"], strict=True))
        described["stages"] = [
            {**stage, **numbers} if stage["verb"] in ("shard", "shard_row_groups") else stage
            for stage in described["stages"]
        ]
    return Pipeline.from_json(described)
