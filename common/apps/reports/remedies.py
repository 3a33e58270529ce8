"""Writes the commands in remedies so that they can be run: with the URL, or as a call for what only Python can open.

A check names a command and its options, such as ``parquetry rewrite --files 3``, at the end of its remedy.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

_COMMAND = re.compile(r"parquetry (rewrite|index|migrate)( --.+)?\.$")
_RUNNABLE = re.compile(r"parquetry (rewrite|index|migrate) .*[^.]$")
_OPENED = {
    "delta": "Pipeline.from_delta(url)",
    "iceberg": "Pipeline.from_iceberg(table)",
    "huggingface": "Pipeline.from_huggingface_parquet(path)",
    "image_folder": "Pipeline.from_image_folder(path)",
    "lerobot": "Pipeline.from_lerobot(path)",
}


def runnable(remedy: str, urls: Sequence[str], kind: str | None) -> str:
    """Completes the command that a remedy ends with, if it ends with one.

    >>> runnable("Join them: parquetry rewrite --files 3.", ["data/train"], None)
    'Join them: parquetry rewrite data/train data/train-rewritten --files 3'

    Args:
        urls: the URLs of the dataset.
        kind: the kind of table; ``None`` for plain files, which the commands take.
    """
    command = _COMMAND.search(remedy)
    if command is None:
        return remedy
    verb, options = command[1], command[2] or ""
    if verb == "rewrite" and (kind is not None or len(urls) > 1):
        maintenance = ", or the table's own maintenance" if kind in ("delta", "iceberg") else ""
        arguments = ", ".join([_OPENED.get(str(kind), "pipeline"), "target", *_keywords(options)])
        written = f"rewrite({arguments}) in Python{maintenance}."
    else:  # without a period, so that it can be copied
        places = [[url, _beside(url)] if verb == "rewrite" else [url] for url in urls]
        written = " && ".join(f"parquetry {verb} {shlex.join(each)}{options}" for each in places)
    return remedy[: command.start()] + written


def split_command(remedy: str) -> tuple[str, str]:
    """Splits off the commands that a remedy ends with; empty if it ends with none.

    >>> split_command("Join them: parquetry rewrite data/train data/train-rewritten --files 3")
    ('Join them:', 'parquetry rewrite data/train data/train-rewritten --files 3')
    """
    text, found, command = remedy.partition("parquetry ")
    if not found or not _RUNNABLE.match(found + command):
        return remedy, ""
    return text.rstrip(), found + command


def _keywords(options: str) -> list[str]:
    """Writes options as keyword arguments."""
    words = shlex.split(options)
    values: dict[str, list[int | str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        values.setdefault(name, []).append(int(value) if name in ("row_group_rows", "files") else value)
    return [f"{name}={(each[0] if len(each) == 1 else each)!r}" for name, each in values.items()]


def _beside(url: str) -> str:
    """A place for a new dataset beside another one. A file or a partition may lie in a dataset, which would then have
    its rows twice: the place is beside its directory. HTTP servers and hubs take none: it is in the working directory.
    """
    fixed = re.split(r"[*?\[]", url)[0]
    if fixed != url:
        fixed = posixpath.dirname(fixed)
    place = fixed.rstrip("/")
    if place and posixpath.normpath(place) in (".", ".."):
        return posixpath.normpath(posixpath.join(place, "../rewritten"))
    name = place.removesuffix(".parquet")
    if name.startswith(("http://", "https://", "hf://")):
        return f"{posixpath.basename(name)}-rewritten"
    is_inside = name != place
    while is_inside or "=" in posixpath.basename(name):
        above, last = posixpath.split(name)
        is_directory = above.strip("/") and ("://" not in above or above.count("/") > 2)  # and no bucket
        last = last.replace("=", "-")
        name = f"{above}-{last}" if is_directory else posixpath.join(above, last)
        is_inside = False
    return f"{name}-rewritten" if name else "rewritten"
