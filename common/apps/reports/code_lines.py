"""`wrapped` breaks a long statement of Python as ``ruff format`` does: at its brackets, its commas, or its calls.

It knows the statements that `program` writes: assignments, calls and chains of calls, without comments on their lines.
"""

from __future__ import annotations

import re
from itertools import pairwise

WIDTH = 88
_INDENT = "    "
_CALL = re.compile(r"\.\w+\(")


def wrapped(statement: str) -> list[str]:
    """Returns the lines of a statement that is written as one line, with its indentation.

    >>> wrapped("names = [" + ", ".join(["'a name of some length'"] * 4) + "]")
    ['names = [', "    'a name of some length', ...
    """
    if len(statement) <= WIDTH or statement.lstrip().startswith("#"):
        return [statement]
    indent = statement[: len(statement) - len(statement.lstrip())]
    before, value = _value(statement)
    links = _links(value)
    if len(links) > 2 and len(indent + _INDENT + value) <= WIDTH:
        return [f"{before}(", indent + _INDENT + value, f"{indent})"]
    if len(links) > 2:
        lines = [line for link in links for line in wrapped(indent + _INDENT + link)]
        return [f"{before}(", *lines, f"{indent})"]
    start = _last_bracket(statement)
    if start is None:
        return [statement]
    end = _closing(statement, start)
    body, tail = statement[start + 1 : end], statement[end:]
    inner = indent + _INDENT
    parts = _parts(body, ",")
    is_call = statement[start] == "(" and re.search(r"[\w)\]]$", statement[:start]) is not None
    if len(inner + body) <= WIDTH and (is_call or len(parts) == 1):
        lines = [inner + body]
    elif len(parts) > 1 or " for " not in body:
        lines = [line for part in parts for line in wrapped(f"{inner}{part},")]
    else:
        item, _, loop = body.partition(" for ")
        lines = [*wrapped(inner + item), *wrapped(f"{inner}for {loop}")]
    return [statement[: start + 1], *lines, f"{indent}{tail}"]


def _value(statement: str) -> tuple[str, str]:
    """Splits a statement before the value that it assigns or returns."""
    match = re.match(r"\s*(?:return |[\w., \[\]]+ = )", statement)
    end = match.end() if match else len(statement) - len(statement.lstrip())
    return statement[:end], statement[end:]


def _links(value: str) -> list[str]:
    """Splits a chain before each of its calls. A name at its head stays with the first call."""
    depths = _depths(value)
    places = [match.start() for match in _CALL.finditer(value) if depths[match.start()] == 0]
    if not places or not value.endswith(")"):
        return [value]
    head = value[: places[0]]
    cuts = [0, *(places if head.endswith(")") else places[1:]), len(value)]
    links = [value[first:last] for first, last in pairwise(cuts)]
    return links if len(places) > 1 else [value]


def _parts(body: str, separator: str) -> list[str]:
    depths, cuts = _depths(body), [-1]
    cuts += [place for place, letter in enumerate(body) if letter == separator and depths[place] == 0]
    parts = [body[first + 1 : last].strip() for first, last in zip(cuts, [*cuts[1:], len(body)], strict=True)]
    return [part for part in parts if part]


def _last_bracket(statement: str) -> int | None:
    """Returns where the last bracket opens that nothing else is around."""
    depths = _depths(statement)
    places = [place for place, letter in enumerate(statement) if letter in "([{" and depths[place] == 1]
    return next((place for place in reversed(places) if _closing(statement, place) > place + 1), None)


def _closing(text: str, start: int) -> int:
    depths = _depths(text)
    return next(
        place for place in range(start + 1, len(text)) if depths[place] < depths[start] and text[place] in ")]}"
    )


def _depths(text: str) -> list[int]:
    """Returns how many brackets are around each letter, an opening one included. Those in strings do not count."""
    depths, depth, quote, place = [], 0, "", 0
    while place < len(text):
        letter = text[place]
        if quote:
            if letter == "\\":
                depths.append(depth + 1000)
                place += 1
            elif letter == quote:
                quote = ""
            depths.append(depth + 1000)
            place += 1
            continue
        if letter in "\"'":
            quote = letter
            depths.append(depth + 1000)
            place += 1
            continue
        depth += (letter in "([{") - (letter in ")]}")
        depths.append(depth)
        place += 1
    return depths


__all__ = ["WIDTH", "wrapped"]
