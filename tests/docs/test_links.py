"""Links on the pages, and pages named in code, lead to files of this repository and to headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

from cases import every_case

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SOURCES = [
    path for folder in ("common", "parquetry", "tf_plugin", "torch_plugin") for path in (ROOT / folder).rglob("*.*")
]
NAMED = re.compile(r"(?<![\w/.])(docs/[\w/.-]+\.md)(?:#([\w-]+))?")
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The names of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?)(?: +#+)?$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_case("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for path, heading in LINK.findall(text):
        target = page if not path else (page.parent / path).resolve()
        if not target.exists():
            missing.append(path)
        elif heading and target.suffix == ".md" and heading not in anchors(target):
            missing.append(f"{path}#{heading}")
    assert missing == []


def test_messages_and_docstrings_name_pages_that_there_are() -> None:
    named = {
        (source.name, *match)
        for source in SOURCES
        if source.suffix in {".py", ".cc", ".h"}
        for match in NAMED.findall(source.read_text(encoding="utf-8"))
    }
    assert named
    missing = [
        (source, path, heading)
        for source, path, heading in named
        if not (ROOT / path).exists() or (heading and heading not in anchors(ROOT / path))
    ]
    assert missing == []


def test_the_promises_name_tests_that_there_are() -> None:
    page = ROOT / "docs/guarantees.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if "`test_" in line]
    assert rows
    for row in rows:
        files = [
            (page.parent / path).read_text(encoding="utf-8") for path, _ in LINK.findall(row) if path.endswith(".py")
        ]
        for name in re.findall(r"`(test_\w+)`", row):
            assert any(f"def {name}(" in text for text in files), name
