"""Text for people: `TextTable`, rows of text as a table, in 80 columns of text or as HTML; `counted`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from itertools import zip_longest

from .process.dataclass import dataclass

WIDTH = 80
_LEAST = 8  # a column is not made narrower than this


def counted(count: int, singular: str) -> str:
    """Returns a number and the noun that it counts.

    >>> counted(1, "row"), counted(2_000, "batch")
    ('1 row', '2,000 batches')
    """
    ending = "es" if singular.endswith("ch") else "s"
    return f"{count:,} {singular}{'' if count == 1 else ending}"


@dataclass(frozen=True, slots=True, repr=False)
class TextTable:
    """Rows of text under the names of their columns; those in ``right`` are aligned to the right.

    >>> print(TextTable(("field", "dtype"), [("id", "int64"), ("image", "uint8")]))
    field  dtype
    id     int64
    image  uint8
    """

    names: Sequence[str]
    lines: Sequence[Sequence[str]]
    right: Sequence[str] = ()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """Returns the table as text. Cells of the widest columns are broken into lines where it would be wider."""
        rows = [tuple(self.names), *map(tuple, self.lines)]
        widths = [max(len(row[number]) for row in rows) for number in range(len(self.names))]
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _LEAST:
            widths[widths.index(max(widths))] -= 1
        return "\n".join(line for row in rows for line in self._broken(row, widths))

    def _broken(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        cells = [
            textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(row, widths, strict=True)
        ]
        lines = []
        for parts in zip_longest(*cells, fillvalue=""):
            aligned = (
                part.rjust(width) if name in self.right else part.ljust(width)
                for name, part, width in zip(self.names, parts, widths, strict=True)
            )
            lines.append("  ".join(aligned).rstrip())
        return lines

    def _repr_html_(self) -> str:
        return html_table(self.names, self.lines)


def html_table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns an HTML table of text."""
    return table_of_html(names, [list(map(escape, line)) for line in lines])


def table_of_html(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns an HTML table whose cells are HTML. Where it is wider than the page, it scrolls, not the page."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    table = f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
    return f'<div style="overflow-x:auto">{table}</div>'
