"""Shows URLs without the credentials they may contain: `without_secrets` for texts, `url_without_secrets` for URLs,
`clean_cause` for exceptions. `without_signature` identifies a file whose URL is signed again.

They take texts and exceptions, ours or another library's, and return the same without the user, password and query of
each URL.
Every text that leaves the process (an error, a log, ``repr``) goes through here.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_SCHEME = r"[a-z][a-z0-9+.-]*://"
_BUCKETS = r"(?:s3a?|gs|gcs|abfss?)://"  # a bucket has no port, so a colon after its name begins a secret
_PORT = r"\d*(?:[/\s'\":,;.)\]?#]|$)"
_REST = r"(?:(?!://)[^@]){0,250}?"  # a secret that nobody has percent-encoded may hold any character
_USERS = re.compile(rf"({_SCHEME})(?:[^/\s:@'\"]+:(?!{_PORT}){_REST}|[^/\s'\"]*)@", re.IGNORECASE)
_KEYS = re.compile(rf"({_BUCKETS})[^/\s:@'\"]+:(?!\s){_REST}@", re.IGNORECASE)
_NAMED = re.compile(r"(?:gs|gcs|abfss?|hdfs|viewfs|hf)://[^/\s:@]*@", re.IGNORECASE)
_QUERIES = re.compile(rf"({_SCHEME}[^\s?'\"]*)\?(?:[^\s'\",)]*[^\s'\",):;.])?", re.IGNORECASE)
_QUOTED = re.compile(
    rf"(?<=')(?:[\w.+-]+::)*{_SCHEME}[^']*(?=')|(?<=\")(?:[\w.+-]+::)*{_SCHEME}[^\"]*(?=\")", re.IGNORECASE
)
_CHAIN = re.compile(rf"::(?={_SCHEME})", re.IGNORECASE)
_BUCKET = re.compile(_BUCKETS, re.IGNORECASE)
# A query parameter is left out only beside the parameters that mark a signature of its kind; any other may choose the
# content and stays. Sources: AWS, docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html; Google,
# cloud.google.com/storage/docs/authentication/signatures; Azure, learn.microsoft.com/rest/api/storageservices/
# create-service-sas; CloudFront, docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/
# private-content-signed-urls.
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_SIGNED = ("algorithm", "credential", "date", "expires", "signedheaders", "signature")
_AZURE = "sv ss srt sp se st spr sig sip sr si sdd ses skoid sktid skt ske sks skv saoid suoid scid"
_SIGNATURES = (  # the parameters that mark a signature of a kind, and those that are left out with it
    (
        {"x-amz-signature"},
        {*(f"x-amz-{part}" for part in _SIGNED), "x-amz-security-token", "x-amz-content-sha256"},
    ),
    ({"awsaccesskeyid", "signature"}, {"awsaccesskeyid", "signature", "expires", "x-amz-security-token"}),
    ({"x-goog-signature"}, {f"x-goog-{part}" for part in _SIGNED}),
    ({"googleaccessid", "signature"}, {"googleaccessid", "signature", "expires"}),
    ({"sv", "sig"}, set(_AZURE.split())),
    ({"key-pair-id", "signature"}, {"key-pair-id", "signature", "expires", "policy", "hash-algorithm"}),
    *(({name}, {name, "expires", "x-expires"}) for name in ("x-sig", "x-signature")),
    *(({name, until}, {name, until}) for name in ("sig", "signature") for until in ("expires", "x-expires")),
)


def without_secrets(text: str) -> str:
    """Removes user, password and query from the URLs in a text, because they may contain keys.

    Quote a URL that is not yet known to be well-formed: outside quotes, a query ends at a space.

    >>> without_secrets("s3://KEY:SECRET@bucket/train?token=abc")
    's3://bucket/train'
    """
    if "://" not in text:
        return text
    text = _QUOTED.sub(lambda found: url_without_secrets(found[0]), text)
    return _QUERIES.sub(r"\1", _USERS.sub(r"\1", _KEYS.sub(r"\1", text)))


def url_without_secrets(url: str) -> str:
    """`without_secrets` for a text that is one URL or path: its secrets may hold any character.

    >>> url_without_secrets("s3://KEY:A SECRET@bucket/train?token=a b c")
    's3://bucket/train'
    """
    if "://" not in url:
        return url
    return "::".join(map(_without_secrets, _CHAIN.split(url)))


def user_of(url: str) -> str:
    """The user and password of a URL, as they are written; empty if there are none."""
    scheme, slashes, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        return rest[: host.rindex("@")]
    port = host.rpartition(":")[2]
    has_secret = ":" in host and (_BUCKET.match(scheme + slashes) or not (port.isdecimal() or port.endswith("]")))
    return rest.rpartition("@")[0] if has_secret else ""


def _without_secrets(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url
    user = user_of(url)
    return scheme + slashes + (rest[len(user) + 1 :] if user else rest.removeprefix("@")).partition("?")[0]


def without_users(url: str) -> str:
    """Removes user and password from a URL. A user without a password stays if it is not a secret in this scheme.

    >>> without_users("https://TOKEN@host/a?b=1"), without_users("abfs://container@account/a")
    ('https://host/a?b=1', 'abfs://container@account/a')
    """
    shown = _KEYS.sub(r"\1", url)
    return shown if _NAMED.match(shown) else _USERS.sub(r"\1", shown)


def clean_cause(error: BaseException) -> BaseException:
    """Returns the error, or a stand-in if its text shows a secret. Replaces the errors behind it likewise, in place.

    Use it after ``raise ... from``: a traceback prints the text of every cause.
    """
    notes = [without_secrets(str(note)) for note in getattr(error, "__notes__", ())]
    text = without_secrets(str(error))
    if text == str(error) and notes == list(getattr(error, "__notes__", ())):
        clean_behind(error)
        return error
    stand_in = OSError("\n".join([f"{type(error).__name__}: {text}", *notes])).with_traceback(error.__traceback__)
    stand_in.errno = getattr(error, "errno", None)
    stand_in.__cause__ = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    clean_behind(stand_in)
    return stand_in


def clean_behind(error: BaseException) -> None:
    """Replaces the errors that a traceback prints before this one, if they show a secret."""
    if error.__cause__ is not None:
        cleaned = clean_cause(error.__cause__)
        if cleaned is not error.__cause__:
            error.__cause__ = cleaned
    elif error.__context__ is not None and not error.__suppress_context__:
        error.__context__ = clean_cause(error.__context__)


def without_signature(url: str) -> str:
    """Removes signature parameters from an HTTP URL, so that a URL that was signed again names the same file.

    Any other text is returned unchanged.

    >>> without_signature("https://host/a.parquet?versionId=7&X-Amz-Signature=abc&X-Amz-Expires=60")
    'https://host/a.parquet?versionId=7'
    """
    base, mark, query = url.partition("?")
    if not mark or not _HTTP.match(base):
        return url
    parameters = [(unquote(part.partition("=")[0]).lower(), part) for part in query.split("&")]
    names = {name for name, _ in parameters}
    signing = set[str]().union(*(parts for marks, parts in _SIGNATURES if marks <= names))
    if not signing:
        return url
    kept = "&".join(part for name, part in parameters if name not in signing)
    return f"{base}?{kept}" if kept else base
