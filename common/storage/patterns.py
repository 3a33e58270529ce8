"""Patterns in paths: ``data/year=202?/*.parquet`` names the files that match, as in Python's `glob`.

They take the path that a user wrote, and return the directory to list and which of the files below it match.
"""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase

from ..base.process.dataclass import dataclass

WILDCARDS = frozenset("*?[")
_ANY_DEPTH = "**"


@dataclass(frozen=True, slots=True)
class Pattern:
    """The files below ``root`` that match ``parts``, one part for each directory level.

    ``*``, ``?`` and ``[0-9]`` match inside one name and are case-sensitive. ``**`` matches any number of directories,
    including none. A directory that matches stands for all files below it. A pattern that ends in a slash
    matches directories only.
    """

    root: str
    parts: tuple[str, ...]

    def matches(self, relative: str) -> bool:
        """Whether the file at this path below `root` matches.

        >>> pattern = Pattern("data", ("year=*", "**", "*.parquet"))
        >>> pattern.matches("year=2024/a.parquet"), pattern.matches("year=2024/eu/a.parquet")
        (True, True)
        >>> pattern.matches("a.parquet")
        False
        """
        return _match(relative.split("/"), self.parts)

    def may_match_below(self, relative: str) -> bool:
        """Whether a file in this directory below `root`, or deeper, may match."""
        for name, part in zip(relative.split("/"), self.parts, strict=False):
            if part == _ANY_DEPTH:
                return True
            if not fnmatchcase(name, part):
                return False
        return True


def pattern_of(path: str) -> Pattern | None:
    """The pattern that a path contains; ``None`` if it has no wildcard.

    >>> pattern_of("/data/year=*/a.parquet")
    Pattern(root='/data', parts=('year=*', 'a.parquet'))
    """
    names = posixpath.normpath(path).split("/")
    first = next((place for place, name in enumerate(names) if not WILDCARDS.isdisjoint(name)), None)
    if first is None:
        return None
    parts = (*names[first:], _ANY_DEPTH) if path.endswith("/") else tuple(names[first:])
    return Pattern("/".join(names[:first]) or "/"[: path.startswith("/")], parts)


def _match(names: list[str], parts: tuple[str, ...]) -> bool:
    if not parts:
        return True
    if parts[0] == _ANY_DEPTH:
        return bool(names) and any(_match(names[start:], parts[1:]) for start in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _match(names[1:], parts[1:])
