"""What the site adds to the pages: README and changelog as pages of it, and links to files outside ``docs/``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
CELL_CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the two pages that stand at the root of the repository."""
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave ``docs/`` lead to the repository. Code in tables loses backslashes that only GitHub needs."""
    at_root = page.file.src_uri in PAGES
    folder = ROOT if at_root else (ROOT / "docs" / page.file.src_uri).parent

    def linked(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        target = (folder / path).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[1].removeprefix("docs/") if at_root else match[1]
        if not target.exists():
            return match[1]  # which mkdocs then reports
        return f"{config.repo_url}/blob/main/{target.relative_to(ROOT)}{mark}{anchor}"

    lines = (
        CELL_CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in LINK.sub(linked, markdown).split("\n")
    )
    return "\n".join(lines).replace("<details>", "<details markdown>")
