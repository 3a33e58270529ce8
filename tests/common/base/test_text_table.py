"""Tables of text."""

from __future__ import annotations

from parquetry.common.base.text_table import TextTable


def test_wide_cells_are_broken_into_lines_and_no_line_is_longer_than_80() -> None:
    shown = str(TextTable(("field", "values"), [("id", "0 ... 9, " * 20), ("a" * 100, "")])).splitlines()
    assert max(map(len, shown)) <= 80
    assert shown[1].startswith("id ")
    assert shown[2].startswith("   ")
    assert "".join(line[:40].rstrip() for line in shown if line.startswith("a")) == "a" * 100


def test_columns_keep_their_width_where_there_is_room_and_numbers_stand_to_the_right() -> None:
    table = TextTable(("field", "nulls"), [("id", "0"), ("speed", "1,200")], right=("nulls",))
    assert repr(table) == "field  nulls\nid         0\nspeed  1,200"


def test_html_is_escaped_and_scrolls_where_it_is_wide() -> None:
    table = TextTable(("<b>",), [("a & b",)])
    assert table._repr_html_() == (
        '<div style="overflow-x:auto"><table><thead><tr><th>&lt;b&gt;</th></tr></thead>'
        "<tbody><tr><td>a &amp; b</td></tr></tbody></table></div>"
    )
