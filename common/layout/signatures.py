"""`without_signature`: a URL without what only grants access, so that a renewed signature leaves a file what it was.

A query parameter is left out only beside the parameters that mark a signature of its kind; every other one may choose
the content and stays. Sources: `AWS <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html>`_,
`Google <https://cloud.google.com/storage/docs/authentication/signatures>`_,
`Azure <https://learn.microsoft.com/rest/api/storageservices/create-service-sas>`_,
`CloudFront <https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/private-content-signed-urls.html>`_.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_HTTP = re.compile(r"https?://", re.IGNORECASE)
_PARTS = ("algorithm", "credential", "date", "expires", "signedheaders", "signature")
_AZURE = "sv ss srt sp se st spr sig sip sr si sdd ses skoid sktid skt ske sks skv saoid suoid scid"
_KINDS = (  # the parameters that mark a signature of a kind, and those that are left out with it
    ({"x-amz-signature"}, {*(f"x-amz-{part}" for part in _PARTS), "x-amz-security-token", "x-amz-content-sha256"}),
    ({"awsaccesskeyid", "signature"}, {"awsaccesskeyid", "signature", "expires", "x-amz-security-token"}),
    ({"x-goog-signature"}, {f"x-goog-{part}" for part in _PARTS}),
    ({"googleaccessid", "signature"}, {"googleaccessid", "signature", "expires"}),
    ({"sv", "sig"}, set(_AZURE.split())),
    ({"key-pair-id", "signature"}, {"key-pair-id", "signature", "expires", "policy", "hash-algorithm"}),
    *(({name}, {name, "expires", "x-expires"}) for name in ("x-sig", "x-signature")),
    *(({name, until}, {name, until}) for name in ("sig", "signature") for until in ("expires", "x-expires")),
)


def without_signature(url: str) -> str:
    """Leaves out the signature in the query of an HTTP URL. Any other text is returned unchanged.

    >>> without_signature("https://host/a.parquet?versionId=7&X-Amz-Signature=abc&X-Amz-Expires=60")
    'https://host/a.parquet?versionId=7'
    """
    base, mark, query = url.partition("?")
    if not mark or not _HTTP.match(base):
        return url
    given = [(unquote(part.partition("=")[0]).lower(), part) for part in query.split("&")]
    names = {name for name, _ in given}
    signing = set[str]().union(*(parts for marks, parts in _KINDS if marks <= names))
    if not signing:
        return url
    kept = "&".join(part for name, part in given if name not in signing)
    return f"{base}?{kept}" if kept else base
