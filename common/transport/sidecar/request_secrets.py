"""Takes credentials out of a request that a graph will hold, and puts them back in the sidecar.

It takes the OPEN request (`request.open_request`). It returns the request for the graph, with a token in place of the
secret parts, and those parts. A graph may be saved, logged, or sent to other machines; the parts stay in their process.
Options and queries are secret unless they are known not to be.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...base.errors import DatasetError
from ...base.urls import without_users
from ...stages.functions import UserFunction
from ...storage.store_answers import told
from ...storage.stores import is_plain_filesystem, without_secret_options

OPT_IN = "PARQUETRY_SECRETS_IN_GRAPHS"
"""If this environment variable is 1, graphs hold the secrets, for workers that cannot get them in another way."""
_FILESYSTEM, _QUERY = "filesystem=", "the query of a URL"  # which no environment can supply
_PLAIN_QUERIES = frozenset(
    {"allow_bucket_creation", "allow_bucket_deletion", "blob_storage_authority", "dfs_storage_authority", "enable_tls"}
    | {"endpoint_override", "generation", "region", "retry_limit_seconds", "scheme", "version", "versionId"}
)
Secret = list[Any]
"""``[path, value]``: the keys and indexes that lead to a place in the pipeline's JSON, and what belongs there."""


def for_graph(request: str) -> tuple[str, list[Secret]]:
    """Returns the request without its secrets, but with their names, and the secrets."""
    if os.environ.get(OPT_IN) == "1":
        return request, []
    whole = json.loads(request)
    names: list[str] = []
    secrets: list[Secret] = []
    public = _public(whole["pipeline"], [], names, secrets)
    if not secrets:
        return request, []
    return json.dumps({"withheld": sorted(set(names)), **whole, "pipeline": public}), secrets


def with_token(request: str, token: str) -> str:
    """Adds the token of the secrets to a request that lacks them. It comes first, where the C++ client looks for it."""
    return f'{{"secrets": {json.dumps(token)}, {request.removeprefix("{")}'


def digest_of(request: str) -> str:
    """A digest of a request without secrets, to begin a token with."""
    return hashlib.sha256(request.encode()).hexdigest()[:32]


def whole_pipeline(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON of the request's pipeline, with the secrets that came with the request.

    Raises:
        DatasetError: the request has only a token, and no environment can supply what it stands for.
    """
    pipeline: dict[str, Any] = json.loads(json.dumps(request["pipeline"])) if "secrets" in request else {}
    if not pipeline:
        return dict(request["pipeline"])
    secrets = request["secrets"]
    if isinstance(secrets, str):
        if not {_FILESYSTEM, _QUERY}.isdisjoint(request["withheld"]):
            raise DatasetError(f"dataset: {_missing(request)}")
        return pipeline
    for path, value in secrets:
        place: Any = pipeline
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
    return pipeline


@contextmanager
def naming_withheld(request: Mapping[str, Any]) -> Iterator[None]:
    """Adds to an error of the store that this process lacks the credentials with which the pipeline was made."""
    try:
        yield
    except DatasetError as error:
        if isinstance(request.get("secrets"), str) and OPT_IN not in str(error):
            raise DatasetError(f"{told(error)}. {_missing(request)}") from error
        raise


def _missing(request: Mapping[str, Any]) -> str:
    return (
        f"Expected the credentials of the pipeline ({', '.join(request['withheld'])}), got none, because this process "
        "did not make the dataset, and a graph does not hold them. Set them in the environment of this process, as the "
        f"store's client reads them (AWS_ACCESS_KEY_ID, FSSPEC_S3_KEY, ...), or set {OPT_IN}=1 where the dataset is "
        "made."
    )


def _public(
    pipeline: Mapping[str, Any], path: Sequence[Any], names: list[str], secrets: list[Secret]
) -> dict[str, Any]:
    """Returns a pipeline's JSON without secrets, and adds what is missing to the lists."""
    public = dict(pipeline)
    options = public["storage_options"] = dict(pipeline["storage_options"])
    for name, value in pipeline["storage_options"].items():
        kept = without_secret_options(name, value)
        if kept != value:
            names.append(f"storage_options[{name!r}]")
            secrets.append([[*path, "storage_options", name], value])
            options.pop(name) if kept is None else options.update({name: kept})
    public["urls"] = list(pipeline["urls"])
    for number, url in enumerate(pipeline["urls"]):
        shown, name = _public_url(url)
        if name:
            names.append(name)
            secrets.append([[*path, "urls", number], url])
            public["urls"][number] = shown
    filesystem = pipeline["filesystem"]
    if filesystem is not None and not is_plain_filesystem(UserFunction.from_json(filesystem)()):
        names.append(_FILESYSTEM)
        secrets.append([[*path, "filesystem"], filesystem])
        public["filesystem"] = None
    if pipeline["mixture"] is not None:
        sources = [
            _public(source, [*path, "mixture", "sources", number], names, secrets)
            for number, source in enumerate(pipeline["mixture"]["sources"])
        ]
        public["mixture"] = {**pipeline["mixture"], "sources": sources}
    return public


def _public_url(url: str) -> tuple[str, str]:
    """Returns a URL without its secrets, and the secrets; an empty string if it has none."""
    if "://" not in url:
        return url, ""
    shown = without_users(url)
    name = "" if shown == url else "the password in a URL"
    place, mark, query = shown.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    plain = [pair for pair in pairs if pair[0] in _PLAIN_QUERIES and without_users(pair[1]) == pair[1]]
    if mark and (not pairs or plain != pairs):
        return place + (f"?{urlencode(plain)}" if plain else ""), _QUERY
    return shown, name
